"""Reading a stream: server-sent events that build up items, and a last one that repeats the whole response.

Bytes come in, cut anywhere; events go out. The one rule: what was cut, damaged or out of order ends with a fault.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.openai_responses.blocks import (
    BETWEEN,
    NAME,
    part_text,
    read_call,
    read_item,
    read_reasoning,
    read_said,
    texts_of_parts,
)
from dragoman.dialects.openai_responses.error import read_error
from dragoman.dialects.openai_responses.reply import read_reply
from dragoman.dialects.parts.conversation import Conversation, an_object
from dragoman.dialects.parts.framing import FramingError, splitter
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.errors import FormatError, JsonError
from dragoman.event import (
    BlockComplete,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from dragoman.exchange import (
    ErrorClass,
    Fault,
)
from dragoman.jsontext import OWN, read_json
from dragoman.message import (
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
)


class _Item:
    """An output item in the making: as it stands on the wire, and what of it has been passed on."""

    def __init__(self, place: int, wire: dict[str, Any], index: int) -> None:
        self.place = place
        self.wire = wire
        self.indexes = [index]  # of its blocks, by part
        self.numbers: dict[int, int] = {}  # what the wire calls each part of a message
        self.passed: dict[int, str] = {}  # the texts that were passed on, by part
        self.closed: set[int] = set()  # the parts that have ended
        self.call_id: str | None = None  # our id, for a call that has begun
        self.source: str | None = None  # what is shown of reasoning: "summary" or "content"
        self.raws: dict[int, ProviderRaw | None] = {}  # the residue that was passed on, by part
        self.is_done = False

    @property
    def kind(self) -> str:
        return str(self.wire.get("type", "message"))

    @property
    def parts(self) -> list[Any]:
        """The parts of a message."""
        content = self.wire.get("content") if self.kind == "message" else None
        return content if isinstance(content, list) else []

    def part(self, wire: dict[str, Any]) -> int:
        """The part that an event is about. Some servers count on from the item before, so the order counts."""
        return self.numbers.setdefault(_place_of(wire, "content_index"), len(self.numbers))


class _ViolationError(Exception):
    """An event that cannot come here."""


class StreamReader:
    """Bytes in, events out. Each item is put together as it stood on the wire, and read as a whole one at its end.

    The last event repeats the whole response, and its word counts: an item may come with another encryption there.
    So what arrives whole (an opaque block, encrypted reasoning) is passed on at the end only.
    """

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._conversation = Conversation()
        self._items: dict[int, _Item] = {}  # by their place
        self._blocks = 0  # how many there are so far
        self._begun = False
        self._ended = False
        self._failed = False
        self._number = -1  # the highest sequence number so far
        self._numbered: dict[int, int] = {}  # what came under each number

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if self._failed:
            return events
        try:
            for frame in self._splitter.feed(data):
                self._take(frame.data, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._failed:
            for frame in self._splitter.close():
                self._take(frame.data, events)
        if not self._failed and not self._ended:
            tail = self._splitter.tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the response did", events, tail=tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._ended or self._failed:
            return
        if data.strip() == b"[DONE]":
            self._fail("stream_incomplete", "the stream ended before the response did", events)
            return
        wire = _decoded(data)
        if not isinstance(wire, dict):
            self._fail("bad_event", "an event that is not a JSON object", events)
            return
        kind = wire.get("type")
        if kind is None and wire.get("error"):
            kind = "error"
        handler = _HANDLERS.get(str(kind))
        try:
            if not self._is_repeated(wire, data) and handler is not None:
                handler(self, wire, events)
        except (_ViolationError, FormatError) as problem:
            self._fail("protocol_violation", str(problem), events)

    def _is_repeated(self, wire: dict[str, Any], data: bytes) -> bool:
        """Whether this very event came before. Some servers number nothing, or everything alike."""
        number = wire.get("sequence_number")
        if type(number) is not int:
            return False
        if number > self._number:
            self._number = number
            self._numbered[number] = hash(data)
            return False
        if self._numbered.get(number) == hash(data):
            return True
        if self._number > 0:
            raise _ViolationError(f"event {number} came after event {self._number}")
        return False

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        self._save_whole_ones(events)
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True

    # The response

    def _created(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._begun:
            raise _ViolationError("response.created came a second time")
        response = an_object(wire.get("response"), "response.created")
        self._begun = True
        events.append(MessageStart(text_or_none(response.get("model"))))

    def _terminal(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        response = an_object(wire.get("response"), str(wire.get("type")))
        if not self._begun:
            raise _ViolationError("the response ends before it began")
        output = response.get("output")
        self._settle(output if isinstance(output, list) else [], events)
        for item in self._items.values():
            if not item.is_done and response.get("status") == "completed":
                raise _ViolationError(f"the response ends while item {item.place} is open")
            if not item.is_done and item.kind != "function_call":
                self._finish(item, _as_far_as_it_came(item), events)
        whole = read_reply({**response, "output": [item.wire for item in self._items.values()]})
        self._pass_on_whole_ones(events)
        if whole.usage is not None:
            events.append(UsageUpdate(whole.usage))
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
            self._failed = True
            return
        events.append(MessageComplete(whole.stop_reason, None, whole.provider_raw))
        self._ended = True

    def _error(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        self._save_whole_ones(events)
        events.append(StreamError(read_error(None, {}, wire)))
        self._failed = True

    # Items

    def _begin_item(self, place: int, wire: dict[str, Any], events: list[StreamEvent]) -> _Item:
        item = self._items[place] = _Item(place, wire, self._blocks)
        self._blocks += 1
        if item.kind == "function_call":
            self._begin_call(item, events)
        for part, said in enumerate(item.parts):
            item.numbers[part] = part
            self._fill(item, part, part_text(said), events)
        return item

    def _index(self, item: _Item, part: int) -> int:
        """The index of a block. Blocks stand in the order in which they begin, so a part belongs to the last item."""
        if part == len(item.indexes) and item.place == max(self._items):
            item.indexes.append(self._blocks)
            self._blocks += 1
        if not 0 <= part < len(item.indexes):
            raise _ViolationError(f"part {part} of item {item.place} cannot begin here")
        return item.indexes[part]

    def _item_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        place, last = wire.get("output_index"), max(self._items, default=-1)
        if type(place) is not int:
            place = last + 1
        if not self._begun or place <= last:
            raise _ViolationError(f"item {place} cannot begin here")
        self._begin_item(place, an_object(wire.get("item"), "response.output_item.added"), events)

    def _item_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        self._finish(item, an_object(wire.get("item"), "response.output_item.done"), events)

    def _open_item(self, wire: dict[str, Any]) -> _Item:
        """The item that an event is about. Some servers leave out its place, and then its id has to do."""
        place, item_id = wire.get("output_index"), wire.get("item_id")
        if item_id is None and isinstance(wire.get("item"), dict):
            item_id = wire["item"].get("id") or wire["item"].get("call_id")
        if type(place) is int:
            found = self._items.get(place)
        else:
            unfinished = [item for item in self._items.values() if not item.is_done]
            named = [item for item in unfinished if str(item_id) in _names(item.wire)]
            found = next(reversed(named or unfinished), None)
        if found is None or found.is_done:
            raise _ViolationError(f"{wire.get('type')} for item {place}, which is not open")
        return found

    def _finish(self, item: _Item, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """The item is complete: pass on what is missing of it, and its residue."""
        if str(wire.get("type", "message")) != item.kind:
            raise _ViolationError(f"item {item.place} began as {item.kind} and ended as {wire.get('type')}")
        item.wire = wire
        if item.kind == "message" and len(item.parts) < len(item.passed):
            item.wire = _as_far_as_it_came(item)
        for part, said in enumerate(item.parts):
            self._index(item, part)
            self._fill(item, part, part_text(said), events)
        if item.kind == "reasoning" and item.source is not None:
            texts = texts_of_parts(wire.get(item.source)) or []
            self._fill(item, 0, BETWEEN.join(texts), events)
        elif item.kind == "function_call":
            self._end_call(item, events)
        self._pass_on_residue(item, events)
        item.is_done = True

    def _settle(self, output: list[Any], events: list[StreamEvent]) -> None:
        """Compare what came in pieces with what the last event repeats, and make up for what is missing or other."""
        unmatched = list(self._items.values())
        for place, wire in enumerate(output):
            an_object(wire, f"output[{place}]")
            known = [item for item in unmatched if _names(item.wire) & _names(wire)]
            alike = [item for item in unmatched if item.kind == str(wire.get("type", "message"))]
            item = next(iter(known or alike), None)
            if item is None:
                item = self._begin_item(max(self._items, default=-1) + 1, wire, events)
            else:
                unmatched.remove(item)
            if not item.is_done:
                self._finish(item, wire, events)
            elif item.kind != "function_call" and item.wire != wire:
                self._revise(item, wire, events)

    def _revise(self, item: _Item, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        before, item.wire = item.wire, wire
        if len(item.parts) < len(item.passed) and item.kind == "message":
            item.wire = before  # it repeats less than it said
        self._pass_on_residue(item, events)

    def _pass_on_residue(self, item: _Item, events: list[StreamEvent]) -> None:
        """What a block that grew has besides its text, as far as that is news."""
        if item.kind == "message" and item.wire.get("content"):
            said = read_said(item.wire, f"output[{item.place}]", joins=True)
            for part, block in enumerate(said):
                raw = item.raws.get(part)
                news = getattr(block, "provider_raw", None)
                if not isinstance(block, TextBlock) and part not in item.passed:
                    continue
                if part not in item.raws or news != raw:
                    events.append(TextDelta(self._index(item, part), "", _replacing(raw, news)))
                    item.passed.setdefault(part, "")
                    item.raws[part] = news
        elif item.kind == "reasoning" and item.passed:
            thought = read_reasoning(item.wire, item.source)
            if isinstance(thought, ThinkingBlock) and (0 not in item.raws or thought.provider_raw != item.raws[0]):
                raw = _replacing(item.raws.get(0), thought.provider_raw)
                events.append(ThinkingDelta(item.indexes[0], "", thought.signature, raw))
                item.raws[0] = thought.provider_raw
            elif isinstance(thought, ThinkingBlock) and thought.signature is not None:
                events.append(ThinkingDelta(item.indexes[0], "", thought.signature))

    def _pass_on_whole_ones(self, events: list[StreamEvent]) -> None:
        """The blocks that did not grow: they were kept back until nothing about them can change."""
        for item in self._items.values():
            if not item.is_done or item.kind == "function_call":
                continue
            blocks = read_item(item.wire, f"output[{item.place}]", Conversation(), [])
            for part, block in enumerate(blocks):
                if part not in item.passed:
                    events.append(BlockComplete(self._index(item, part), block))
                    item.passed[part] = ""

    def _save_whole_ones(self, events: list[StreamEvent]) -> None:
        """The same in a stream that has failed, where the last of them may be what made it fail."""
        with contextlib.suppress(_ViolationError, FormatError):
            self._pass_on_whole_ones(events)

    # Texts

    def _fill(self, item: _Item, part: int, whole: str | None, events: list[StreamEvent]) -> None:
        """Pass on what is missing of a text that is known as a whole now."""
        if whole is None:
            return
        passed = item.passed.get(part, "")
        if not whole.startswith(passed):
            raise _ViolationError(f"the pieces of item {item.place} do not add up to its text")
        self._pass_on(item, part, whole[len(passed) :], events)

    def _pass_on(self, item: _Item, part: int, text: str, events: list[StreamEvent]) -> None:
        index = self._index(item, part)
        passed = item.passed.get(part, "")
        item.passed[part] = _whole(passed + text) if passed and "\ud800" <= passed[-1] <= "\udbff" else passed + text
        if not text:
            return
        if item.kind == "message":
            events.append(TextDelta(index, text))
        elif item.kind == "reasoning":
            events.append(ThinkingDelta(index, text))
        else:
            events.append(ToolUseInputDelta(index, text))

    def _part_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind != "message":
            return
        part = item.part(wire)
        if part in item.passed:
            raise _ViolationError(f"part {part} of item {item.place} begins a second time")
        text = part_text(wire.get("part"))
        if text is not None:
            self._pass_on(item, part, text, events)

    def _part_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind == "message":
            part = item.part(wire)
            self._fill(item, part, part_text(wire.get("part")), events)
            item.closed.add(part)

    def _text_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "message" or item.part(wire) in item.closed or not isinstance(text, str):
            raise _ViolationError(f"{wire.get('type')} for item {item.place}, which takes none there")
        self._pass_on(item, item.part(wire), text, events)

    def _text_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("text", wire.get("refusal"))
        if item.kind == "message" and isinstance(text, str):
            self._fill(item, item.part(wire), text, events)

    def _thought_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """More of a summary or of the reasoning itself, whichever came first; the parts of it are one text."""
        item, text = self._open_item(wire), wire.get("delta")
        source = "summary" if "summary" in str(wire.get("type")) else "content"
        if item.kind != "reasoning" or not isinstance(text, str):
            raise _ViolationError(f"{wire.get('type')} for item {item.place}, which takes none")
        if self._opens_thought(item, source, _place_of(wire, f"{source}_index"), events):
            self._pass_on(item, 0, text, events)

    def _thought_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        source = "summary" if "summary" in str(wire.get("type")) else "content"
        part = wire.get("part")
        text = part_text(part) if isinstance(part, dict) else None
        is_shown = item.kind == "reasoning" and self._opens_thought(
            item, source, _place_of(wire, f"{source}_index"), events
        )
        if is_shown and text:
            self._pass_on(item, 0, text, events)

    def _opens_thought(self, item: _Item, source: str, part: int, events: list[StreamEvent]) -> bool:
        if item.source is None:
            item.source = source
        if item.source != source:
            return False
        if item.closed and part < max(item.closed):
            raise _ViolationError(f"part {part} of item {item.place} goes on after the next one began")
        for begun in range(max(item.closed, default=-1) + 1, part + 1):
            if begun > 0:
                self._pass_on(item, 0, BETWEEN, events)
            item.closed.add(begun)
        return True

    # Calls

    def _begin_call(self, item: _Item, events: list[StreamEvent]) -> None:
        """A call begins when its name is known, which for some servers is at its end."""
        provider_id, name = item.wire.get("call_id"), item.wire.get("name")
        if item.call_id is not None or not isinstance(provider_id, str) or not isinstance(name, str):
            return
        item.call_id = self._conversation.call_id(provider_id)
        events.append(ToolUseStart(item.indexes[0], item.call_id, name))
        for early in (item.passed.pop(0, ""), text_or_none(item.wire.get("arguments")) if not item.is_done else None):
            if early:
                self._pass_on(item, 0, early, events)
                break

    def _input_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "function_call" or 0 in item.closed or not isinstance(text, str):
            raise _ViolationError(f"{wire.get('type')} for item {item.place}, which takes none")
        if item.call_id is None:
            item.passed[0] = item.passed.get(0, "") + text
        else:
            self._pass_on(item, 0, text, events)

    def _input_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("arguments")
        if item.kind != "function_call":
            return
        if isinstance(text, str) and item.call_id is not None:
            self._fill_input(item, text, events)
        item.closed.add(0)

    def _fill_input(self, item: _Item, whole: str, events: list[StreamEvent]) -> None:
        passed = item.passed.get(0, "")
        if whole.startswith(passed):
            self._pass_on(item, 0, whole[len(passed) :], events)
        elif not _is_same_json(whole, passed):
            raise _ViolationError(f"the pieces of item {item.place} do not add up to its arguments")

    def _end_call(self, item: _Item, events: list[StreamEvent]) -> None:
        self._begin_call(item, events)
        if item.call_id is None or not isinstance(item.wire.get("arguments"), str):
            raise _ViolationError(f"the call of item {item.place} has no name, no id or no arguments")
        self._fill_input(item, item.wire["arguments"], events)
        events.append(ToolUseEnd(item.indexes[0], read_call(item.wire, item.call_id).provider_raw))


_HANDLERS: Final = {
    "response.created": StreamReader._created,
    "response.output_item.added": StreamReader._item_added,
    "response.output_item.done": StreamReader._item_done,
    "response.content_part.added": StreamReader._part_added,
    "response.content_part.done": StreamReader._part_done,
    "response.output_text.delta": StreamReader._text_delta,
    "response.output_text.done": StreamReader._text_done,
    "response.refusal.delta": StreamReader._text_delta,
    "response.refusal.done": StreamReader._text_done,
    "response.reasoning_summary_part.added": StreamReader._thought_added,
    "response.reasoning_summary_text.delta": StreamReader._thought_delta,
    "response.reasoning_part.added": StreamReader._thought_added,
    "response.reasoning_text.delta": StreamReader._thought_delta,
    "response.function_call_arguments.delta": StreamReader._input_delta,
    "response.function_call_arguments.done": StreamReader._input_done,
    "response.completed": StreamReader._terminal,
    "response.incomplete": StreamReader._terminal,
    "response.failed": StreamReader._terminal,
    "response.cancelled": StreamReader._terminal,
    "response.error": StreamReader._error,
    "error": StreamReader._error,
}


def _place_of(wire: dict[str, Any], key: str) -> int:
    place = wire.get(key, 0)
    return place if type(place) is int else -1


def _names(wire: dict[str, Any]) -> set[str]:
    return {name for key in ("id", "call_id") if isinstance(name := wire.get(key), str)}


def _decoded(data: bytes) -> Any:
    """The JSON of an event. A character may be cut in two between two of them, which only the slow reader takes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if b"\\ud" not in data.lower():
            return None
    try:
        return json.loads(data, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        return None


def _whole(text: str) -> str:
    """A text whose halves of characters are put together again."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _as_far_as_it_came(item: _Item) -> dict[str, Any]:
    """An item that was cut off, as a whole one would stand on the wire."""
    if item.kind == "message" and item.passed:
        parts = [{"type": "output_text", "text": item.passed.get(part, "")} for part in range(len(item.indexes))]
        return {**item.wire, "content": parts}
    if item.kind == "reasoning" and item.source is not None:
        kind = "summary_text" if item.source == "summary" else "reasoning_text"
        return {**item.wire, item.source: [{"type": kind, "text": item.passed.get(0, "")}]}
    return item.wire


def _is_same_json(text: str, other: str) -> bool:
    try:
        return bool(read_json(text, OWN) == read_json(other, OWN))
    except JsonError:
        return False


def _replacing(old: ProviderRaw | None, new: ProviderRaw | None) -> ProviderRaw | None:
    """The new notes, so that nothing remains of the old ones when both are laid over each other."""
    return {**dict.fromkeys(old), **(new or {})} if old else new


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)
