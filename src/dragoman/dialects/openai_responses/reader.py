"""Reading a stream: server-sent events that build up items, and a last one that repeats the whole response.

Bytes come in, cut anywhere; events go out. An item is put together as it stood on the wire, and read as a whole one
when it is done. The last event repeats everything, and its word counts, because an item may come with another
encryption there: what it says otherwise about a text that grew is passed on as its residue, and about an item that was
passed on whole it is kept with the reply (``revised``). The end is handed out when nothing can follow it any more, so
that it can name what followed.

The one rule: what was cut, damaged or out of order ends with a fault, and what came before is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import (
    BETWEEN,
    NAME,
    is_input,
    part_text,
    read_call,
    read_item,
    read_part,
    read_reasoning,
    read_said,
    texts_of_parts,
)
from dragoman.dialects.openai_responses.error import read_error
from dragoman.dialects.openai_responses.items import (
    EMPTY_PARTS,
    Item,
    Numbers,
    ViolationError,
    as_far_as_it_came,
    decoded,
    is_same_json,
    names_of,
    place_of,
    replacing,
)
from dragoman.dialects.openai_responses.reply import natural_reply, reply_from
from dragoman.dialects.parts.body import an_object, unkept
from dragoman.dialects.parts.conversation import Conversation
from dragoman.dialects.parts.faults import HEAD_BYTES, early_end, stream_error
from dragoman.dialects.parts.framing import FramingError, splitter
from dragoman.dialects.parts.late import Late
from dragoman.dialects.parts.reading import EventReader
from dragoman.dialects.parts.residue import difference, noted
from dragoman.dialects.parts.scalars import text_or_none
from dragoman.errors import FormatError
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
from dragoman.exchange import Reply, StopReason
from dragoman.message import ProviderRaw, Role, TextBlock, ThinkingBlock

_KEPT_BYTES: Final = 4096


class StreamReader(EventReader):
    """Bytes in, events out."""

    _dialect = NAME

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._head: bytes | None = b""  # what came before the first event
        self._conversation = Conversation()
        self._numbers = Numbers()
        self._items: list[Item] = []  # in the order of their places
        self._open: dict[int, Item] = {}  # those that are not done, by their place
        self._blocks = 0  # how many there are so far
        self._begun = False
        self._end: MessageComplete | None = None
        self._late = Late(NAME)  # what came after it
        self._is_over = False

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        if self._is_over:
            return
        if self._head is not None and len(self._head) < HEAD_BYTES:
            self._head += data[:HEAD_BYTES]
        try:
            for frame in self._splitter.feed(data):
                self._take(frame.data, events)
        except FramingError as error:
            self._fail(stream_error(NAME, "bad_event", str(error)), events)

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        if not self._is_over:
            for frame in self._splitter.close():
                self._take(frame.data, events)
        if self._end is not None:
            self._complete(self._end, events)
        elif not self._is_over:
            self._fail(early_end(NAME, self._head, self._splitter.tail), events)

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        self._head = None
        if self._is_over:
            return
        if data.strip() == b"[DONE]":
            if self._end is not None:
                self._complete(self._end, events)
            else:
                self._fail(early_end(NAME, None, b""), events)
            return
        wire = decoded(data)
        try:
            if isinstance(wire, dict) and self._numbers.are_repeated(wire.get("sequence_number"), data):
                return
            if self._end is not None:
                self._late.add(data[:_KEPT_BYTES].decode("utf-8", "backslashreplace"))
            elif isinstance(wire, dict):
                self._take_event(wire, events)
            else:
                kept = data[:_KEPT_BYTES].decode("utf-8", "backslashreplace")
                self._fail(stream_error(NAME, "bad_event", "an event that is not a JSON object", tail=kept), events)
        except (ViolationError, FormatError) as problem:
            self._fail(stream_error(NAME, "protocol_violation", str(problem)), events)
        except (ValueError, RecursionError) as error:
            self._fail(stream_error(NAME, "bad_event", unkept(error)[1]), events)

    def _take_event(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        kind = wire.get("type")
        if kind is None and wire.get("error"):
            kind = "error"
        handler = _HANDLERS.get(str(kind))
        if handler is not None:
            handler(self, wire, events)

    def _complete(self, end: MessageComplete, events: list[StreamEvent]) -> None:
        """The end, when nothing can follow it any more."""
        events.append(end.replace(provider_raw=self._late.noted(end.provider_raw)))
        self._end, self._is_over = None, True

    def _fail(self, error: StreamError, events: list[StreamEvent]) -> None:
        if self._end is None:  # after the end nothing can fail
            events.append(error)
            self._is_over = True

    # The response

    def _created(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._begun:
            raise ViolationError("response.created came a second time")
        response = an_object(wire.get("response"), "response.created")
        self._begun = True
        model = text_or_none(response.get("model"))
        natural = {**natural_reply(Reply(stop_reason=StopReason.UNKNOWN, model=model)), "status": "in_progress"}
        rest = {key: value for key, value in response.items() if key != "output"}
        events.append(MessageStart(model, noted(NAME, natural, rest) or {"dialect": NAME}))

    def _terminal(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        response = an_object(wire.get("response"), str(wire.get("type")))
        if not self._begun:
            raise ViolationError("the response ends before it began")
        output = response.get("output")
        revised = self._settle(output if isinstance(output, list) else [], events)
        for item in list(self._open.values()):
            if response.get("status") == "completed":
                raise ViolationError(f"the response ends while item {item.place} is open")
            if item.kind != "function_call":
                self._finish(item, as_far_as_it_came(item), events)
        whole = reply_from(response, [item.wire for item in self._items], revised)
        if whole.usage is not None:
            events.append(UsageUpdate(whole.usage))
        if whole.fault is not None:
            self._fail(StreamError(whole.fault, whole.provider_raw), events)
        else:
            self._end = MessageComplete(whole.stop_reason, None, whole.provider_raw)

    def _error(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        self._fail(StreamError(read_error(None, {}, wire)), events)

    # Items

    def _begin_item(self, place: int, wire: dict[str, Any], events: list[StreamEvent]) -> Item:
        item = self._open[place] = Item(place, wire, self._blocks)
        self._items.append(item)
        self._blocks += 1
        if item.kind == "function_call":
            self._begin_call(item, events)
        for part, said in enumerate(item.parts):
            item.numbers[part] = part
            self._fill(item, part, part_text(said), events)
        return item

    @property
    def _last_place(self) -> int:
        return self._items[-1].place if self._items else -1

    def _index(self, item: Item, part: int) -> int:
        """The index of a block. Blocks stand in the order in which they begin, so a part belongs to the last item."""
        if part == len(item.indexes) and item is self._items[-1]:
            item.indexes.append(self._blocks)
            self._blocks += 1
        if not 0 <= part < len(item.indexes):
            raise ViolationError(f"part {part} of item {item.place} cannot begin here")
        return item.indexes[part]

    def _item_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        place = wire.get("output_index")
        if type(place) is not int:
            place = self._last_place + 1
        if not self._begun or place <= self._last_place:
            raise ViolationError(f"item {place} cannot begin here")
        self._begin_item(place, an_object(wire.get("item"), "response.output_item.added"), events)

    def _item_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        self._finish(item, an_object(wire.get("item"), "response.output_item.done"), events)

    def _open_item(self, wire: dict[str, Any]) -> Item:
        """The item that an event is about. Some servers leave out its place, and then its id has to do."""
        place = wire.get("output_index")
        if type(place) is int:
            found = self._open.get(place)
        else:
            item_id = wire.get("item_id")
            if item_id is None and isinstance(wire.get("item"), dict):
                item_id = wire["item"].get("id") or wire["item"].get("call_id")
            named = [item for item in self._open.values() if str(item_id) in names_of(item.wire)]
            found = next(reversed(named or list(self._open.values())), None)
        if found is None:
            raise ViolationError(f"{wire.get('type')} for item {place}, which is not open")
        return found

    def _finish(self, item: Item, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """The item is complete: pass on what is missing of it, and its residue."""
        if str(wire.get("type", "message")) != item.kind:
            raise ViolationError(f"item {item.place} began as {item.kind} and ended as {wire.get('type')}")
        item.wire = wire
        if item.kind == "message" and len(item.parts) < len(item.pieces):
            item.wire = as_far_as_it_came(item)
        for part, said in enumerate(item.parts):
            self._index(item, part)
            self._fill(item, part, part_text(said), events)
        if item.kind == "reasoning" and item.source is not None:
            texts = texts_of_parts(wire.get(item.source)) or []
            self._fill(item, 0, BETWEEN.join(texts), events)
        elif item.kind == "function_call":
            self._end_call(item, events)
        self._pass_on_residue(item, events)
        self._pass_on_whole(item, events)
        item.is_done = True
        del self._open[item.place]

    def _settle(self, output: list[Any], events: list[StreamEvent]) -> dict[str, Any]:
        """Make up for what is missing of what the last event repeats; what it says otherwise of items passed on."""
        unmatched = list(self._items)
        revised: dict[str, Any] = {}
        for place, wire in enumerate(output):
            an_object(wire, f"output[{place}]")
            known = [item for item in unmatched if names_of(item.wire) & names_of(wire)]
            alike = [item for item in unmatched if item.kind == str(wire.get("type", "message"))]
            item = next(iter(known or alike), None)
            if item is None:
                item = self._begin_item(self._last_place + 1, wire, events)
            else:
                unmatched.remove(item)
            if not item.is_done:
                self._finish(item, wire, events)
            elif item.wire != wire:
                self._revise(item, wire, revised, events)
        return revised

    def _revise(self, item: Item, wire: dict[str, Any], revised: dict[str, Any], events: list[StreamEvent]) -> None:
        if item.raws:  # it grew
            before, item.wire = item.wire, wire
            if len(item.parts) < len(item.pieces) and item.kind == "message":
                item.wire = before  # it repeats less than it said
            self._pass_on_residue(item, events)
            return
        if item.kind == "function_call" and not is_same_json(wire.get("arguments"), item.wire["arguments"]):
            raise ViolationError(f"the response repeats other arguments for item {item.place}")
        name = item.wire.get("id")
        if isinstance(name, str):
            revised[name] = difference(item.wire, wire)

    def _pass_on_residue(self, item: Item, events: list[StreamEvent]) -> None:
        """What a block that grew has besides its text, as far as that is news."""
        if item.kind == "message" and item.wire.get("content"):
            said = read_said(item.wire, f"output[{item.place}]", joins=True)
            for part, block in enumerate(said):
                raw = item.raws.get(part)
                news = getattr(block, "provider_raw", None)
                if not isinstance(block, TextBlock) and part not in item.pieces:
                    continue
                if part not in item.raws or news != raw:
                    events.append(TextDelta(self._index(item, part), "", replacing(raw, news)))
                    item.pieces.setdefault(part, [])
                    item.raws[part] = news
        elif item.kind == "reasoning" and item.pieces:
            thought = read_reasoning(item.wire, item.source)
            if isinstance(thought, ThinkingBlock) and (0 not in item.raws or thought.provider_raw != item.raws[0]):
                raw = replacing(item.raws.get(0), thought.provider_raw)
                events.append(ThinkingDelta(item.indexes[0], "", thought.signature, raw))
                item.raws[0] = thought.provider_raw
            elif isinstance(thought, ThinkingBlock) and thought.signature is not None:
                events.append(ThinkingDelta(item.indexes[0], "", thought.signature))

    def _pass_on_whole(self, item: Item, events: list[StreamEvent]) -> None:
        """The blocks that did not grow."""
        if item.kind == "function_call":
            return
        for part, block in enumerate(read_item(item.wire, f"output[{item.place}]", Conversation(), [])):
            if part not in item.pieces:
                events.append(BlockComplete(self._index(item, part), block))
                item.pieces[part] = []

    # Texts

    def _fill(self, item: Item, part: int, whole: str | None, events: list[StreamEvent]) -> None:
        """Pass on what is missing of a text that is known as a whole now."""
        if whole is None:
            return
        said = item.said(part)
        if not whole.startswith(said):
            raise ViolationError(f"the pieces of item {item.place} do not add up to its text")
        item.halves.pop(part, None)
        self._pass_on(item, part, whole[len(said) :], events)

    def _pass_on(self, item: Item, part: int, text: str, events: list[StreamEvent]) -> None:
        index = self._index(item, part)
        pieces = item.pieces.setdefault(part, [])
        text = item.whole(part, text) if not text.isascii() or item.halves else text
        if not text:
            return
        pieces.append(text)
        if item.kind == "message":
            events.append(TextDelta(index, text, None if part in item.raws else self._opening(item, part)))
        elif item.kind == "reasoning":
            item.cuts[-1] += len(text)
            events.append(ThinkingDelta(index, text, None, None if part in item.raws else self._opening(item, part)))
        else:
            events.append(ToolUseInputDelta(index, text))

    def _opening(self, item: Item, part: int) -> ProviderRaw | None:
        """What is known of a block when it begins, in the form of its residue: a hint for writers."""
        if item.kind == "reasoning":
            wire = {**item.wire, str(item.source): []}
            raw = getattr(read_reasoning(wire, item.source), "provider_raw", None)
        else:
            begun = item.begun.get(part) or EMPTY_PARTS["response.output_text.delta"]
            wire = {**item.wire, "content": [begun]}
            block = read_said(wire, "", joins=True)[0] if part == 0 else read_part(begun, Role.ASSISTANT)
            raw = block.provider_raw if isinstance(block, TextBlock) else None
        item.raws[part] = raw
        return raw

    def _part_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind != "message":
            return
        part, begun = item.part(wire), wire.get("part")
        if part in item.pieces:
            raise ViolationError(f"part {part} of item {item.place} begins a second time")
        text = part_text(begun)
        if isinstance(begun, dict) and text is not None:
            item.begun[part] = {**begun, "refusal" if begun.get("type") == "refusal" else "text": ""}
            self._pass_on(item, part, text, events)

    def _part_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind == "message":
            part = item.part(wire)
            self._fill(item, part, part_text(wire.get("part")), events)
            item.closed.add(part)

    def _text_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        part = item.part(wire)
        if item.kind != "message" or part in item.closed or not isinstance(text, str):
            raise ViolationError(f"{wire.get('type')} for item {item.place}, which takes none there")
        if part not in item.pieces:
            item.begun.setdefault(part, EMPTY_PARTS[str(wire.get("type"))])
        self._pass_on(item, part, text, events)

    def _text_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("text", wire.get("refusal"))
        if item.kind == "message" and isinstance(text, str):
            self._fill(item, item.part(wire), text, events)

    def _thought_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """More of a summary or of the reasoning itself, whichever came first; the parts of it are one text."""
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "reasoning" or not isinstance(text, str):
            raise ViolationError(f"{wire.get('type')} for item {item.place}, which takes none")
        if self._opens_thought(item, wire, events):
            self._pass_on(item, 0, text, events)

    def _thought_added(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), part_text(wire.get("part"))
        if item.kind == "reasoning" and self._opens_thought(item, wire, events) and text:
            self._pass_on(item, 0, text, events)

    def _opens_thought(self, item: Item, wire: dict[str, Any], events: list[StreamEvent]) -> bool:
        """Whether an event is about what is shown of reasoning; a part of it that is new is parted from the others."""
        source = "summary" if "summary" in str(wire.get("type")) else "content"
        part = place_of(wire, f"{source}_index")
        if item.source is None:
            item.source = source
        if item.source != source:
            return False
        last = len(item.closed) - 1
        if part < last:
            raise ViolationError(f"part {part} of item {item.place} goes on after the next one began")
        if part - last > _PARTS:
            raise ViolationError(f"part {part} of item {item.place} cannot begin here")
        for begun in range(last + 1, part + 1):
            if begun > 0:
                self._part_thoughts(item, events)
            item.closed.add(begun)
        return True

    def _part_thoughts(self, item: Item, events: list[StreamEvent]) -> None:
        raw: ProviderRaw = self._opening(item, 0) or {"dialect": NAME} if 0 not in item.raws else {"dialect": NAME}
        raw = {**raw, "cuts": [*item.cuts, 0]}
        item.raws[0] = {**(item.raws.get(0) or {}), **raw}
        item.pieces.setdefault(0, []).append(BETWEEN)
        item.cuts.append(0)
        events.append(ThinkingDelta(item.indexes[0], BETWEEN, None, raw))

    # Calls

    def _begin_call(self, item: Item, events: list[StreamEvent]) -> None:
        """A call begins when its name is known, which for some servers is at its end."""
        provider_id, name = item.wire.get("call_id"), item.wire.get("name")
        if item.call_id is not None or not isinstance(provider_id, str) or not isinstance(name, str):
            return
        item.call_id = self._conversation.call_id(provider_id)
        natural = {"type": "function_call", "call_id": provider_id, "name": name}
        begun = {key: value for key, value in item.wire.items() if key != "arguments"}
        note = provider_id if provider_id != item.call_id else None
        events.append(ToolUseStart(item.indexes[0], item.call_id, name, noted(NAME, natural, begun, id=note)))
        for early in ("".join(item.pieces.pop(0, ())), text_or_none(item.wire.get("arguments"))):
            if early:
                self._pass_on(item, 0, early, events)
                break

    def _input_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "function_call" or 0 in item.closed or not isinstance(text, str):
            raise ViolationError(f"{wire.get('type')} for item {item.place}, which takes none")
        if item.call_id is None:
            item.pieces.setdefault(0, []).append(text)
        else:
            self._pass_on(item, 0, text, events)

    def _input_done(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("arguments")
        if item.kind != "function_call":
            return
        if isinstance(text, str) and item.call_id is not None:
            self._fill_input(item, text, events)
        item.closed.add(0)

    def _fill_input(self, item: Item, whole: str, events: list[StreamEvent]) -> None:
        said = item.said(0)
        if whole.startswith(said):
            item.halves.pop(0, None)
            self._pass_on(item, 0, whole[len(said) :], events)
        elif not is_same_json(whole, said):
            raise ViolationError(f"the pieces of item {item.place} do not add up to its arguments")

    def _end_call(self, item: Item, events: list[StreamEvent]) -> None:
        self._begin_call(item, events)
        if item.call_id is None or not all(isinstance(item.wire.get(key), str) for key in _OF_A_CALL):
            raise ViolationError(f"the call of item {item.place} has no name, no id or no arguments")
        self._fill_input(item, item.wire["arguments"], events)
        if item.wire.get("status") == "incomplete" and is_input(item.said(0)):
            return  # it was cut off, although what came of it can be read: without an end it counts as cut off
        events.append(ToolUseEnd(item.indexes[0], read_call(item.wire, item.call_id).provider_raw))


_OF_A_CALL: Final = ("call_id", "name", "arguments")
_PARTS: Final = 100  # more parts of reasoning do not begin at once


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


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)
