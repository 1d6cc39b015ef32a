"""Streams of the Responses API: bytes in, events out.

Events build up items, and the last event repeats the whole response. An item is assembled as it is on the wire and read
when it is done. The last event is authoritative, because its items may have another encryption: a change of a text
block is emitted as its residue, a change of an item that was emitted whole is stored with the reply (``revised``).

Invariant: a stream that was cut, damaged or out of order ends with a fault, and the events before it stand.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from dragoman.dialects.openai_responses.blocks import (
    NAME,
    SUMMARY_SEPARATOR,
    is_input,
    part_text,
    part_texts,
    read_call,
    read_content,
    read_item,
    read_part,
    read_reasoning,
)
from dragoman.dialects.openai_responses.error import read_error
from dragoman.dialects.openai_responses.items import (
    EMPTY_PARTS,
    Item,
    SequenceNumbers,
    decode_event,
    index_or_zero,
    is_same_json,
    item_names,
    partial_item,
    replace_notes,
)
from dragoman.dialects.openai_responses.reply import default_reply, make_reply
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
from dragoman.jsontext import expect_object, text_or_none
from dragoman.message import Citation, ContentBlock, ProviderRaw, Role, TextBlock, ThinkingBlock, TokenLogprob
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import diff, make_notes
from dragoman.wire.stream_reader import SKIP, BaseStreamReader, EventOrderError


class StreamReader(BaseStreamReader):
    """Bytes in, events out."""

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "sse", quirks)
        self._builder = MessageBuilder()
        self._numbers = SequenceNumbers()
        self._items: list[Item] = []  # in output order
        self._open: dict[int, Item] = {}  # open items, by output index
        self._blocks = 0  # number of blocks so far
        self._is_started = False

    def decode_event(self, data: bytes) -> Any:
        """Return the event; ``SKIP`` if its sequence number shows that it is a repetition."""
        wire = decode_event(data)
        if isinstance(wire, dict) and self._numbers.is_repeat(wire.get("sequence_number"), data):
            return SKIP
        return wire

    def read_event(self, wire: dict[str, Any], _name: str | None, events: list[StreamEvent]) -> None:
        """Append the events of one event; unknown types are ignored."""
        kind = wire.get("type")
        if kind is None and wire.get("error"):
            kind = "error"
        handler = _HANDLERS.get(str(kind))
        if handler is not None:
            handler(self, wire, events)

    # The response

    def _start_if_missing(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """Start a response whose ``response.created`` was not sent: a background response, or another server."""
        if not self._is_started:
            self._start_response(wire, events)

    def _start_response(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._is_started:
            raise EventOrderError("response.created arrived twice")
        response = expect_object(wire.get("response"), "response.created")
        self._is_started = True
        model = text_or_none(response.get("model"))
        default = {**default_reply(Reply(stop_reason=StopReason.UNKNOWN, model=model)), "status": "in_progress"}
        rest = {key: value for key, value in response.items() if key != "output"}
        events.append(MessageStart(model, make_notes(NAME, default, rest) or {"dialect": NAME}))

    def _end_response(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        response = expect_object(wire.get("response"), str(wire.get("type")))
        if not self._is_started:
            raise EventOrderError("the response ends before its start")
        output = response.get("output")
        revisions = self._compare_output(output if isinstance(output, list) else [], events)
        for item in list(self._open.values()):
            if response.get("status") == "completed":
                raise EventOrderError(f"the response ends while item {item.place} is open")
            if item.kind != "function_call":
                self._finish_item(item, partial_item(item), events)
        reply = make_reply(response, [item.wire for item in self._items], revisions)
        if reply.usage is not None:
            events.append(UsageUpdate(reply.usage))
        if reply.fault is not None:
            events.append(StreamError(reply.fault, reply.provider_raw))
        else:
            events.append(MessageComplete(reply.stop_reason, None, reply.provider_raw))

    def _read_error(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        events.append(StreamError(read_error(None, {}, wire)))

    # Items

    def _start_item(self, place: int, wire: dict[str, Any], events: list[StreamEvent]) -> Item:
        item = self._open[place] = Item(place, wire, self._blocks)
        self._items.append(item)
        self._blocks += 1
        if item.kind == "function_call":
            self._start_call(item, events)
        for part, content in enumerate(item.parts):
            item.numbers[part] = part
            self._emit_rest(item, part, part_text(content), events)
        return item

    @property
    def _last_place(self) -> int:
        return self._items[-1].place if self._items else -1

    def _block_index(self, item: Item, part: int) -> int:
        """Return the index of a block.

        Blocks are in the order of their start, so a new part belongs to the last item.
        """
        if part == len(item.indexes) and item is self._items[-1]:
            item.indexes.append(self._blocks)
            self._blocks += 1
        if not 0 <= part < len(item.indexes):
            raise EventOrderError(f"part {part} of item {item.place} cannot start here")
        return item.indexes[part]

    def _add_item(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        place = wire.get("output_index")
        if type(place) is not int:
            place = self._last_place + 1
        if not self._is_started or place <= self._last_place:
            raise EventOrderError(f"item {place} cannot start here")
        self._start_item(place, expect_object(wire.get("item"), "response.output_item.added"), events)

    def _end_item(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        place = wire.get("output_index")
        if type(place) is int and place > self._last_place:
            self._add_item(wire, events)  # some servers send items only when they are done
        item = self._open_item(wire)
        self._finish_item(item, expect_object(wire.get("item"), "response.output_item.done"), events)

    def _open_item(self, wire: dict[str, Any]) -> Item:
        """Return the item of an event; by its id if the server sends no index."""
        place = wire.get("output_index")
        if type(place) is int:
            match = self._open.get(place)
        else:
            item_id = wire.get("item_id")
            if item_id is None and isinstance(wire.get("item"), dict):
                item_id = wire["item"].get("id") or wire["item"].get("call_id")
            matches = [item for item in self._open.values() if str(item_id) in item_names(item.wire)]
            match = next(reversed(matches or list(self._open.values())), None)
        if match is None:
            raise EventOrderError(f"{wire.get('type')} for item {place}, which is not open")
        return match

    def _finish_item(self, item: Item, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """Finish an item: emit what is missing of it, and its residue."""
        if str(wire.get("type", "message")) != item.kind:
            raise EventOrderError(f"item {item.place} began as {item.kind} and ended as {wire.get('type')}")
        item.wire = wire
        if item.kind == "message" and len(item.parts) < len(item.pieces):
            item.wire = partial_item(item)
        for part, content in enumerate(item.parts):
            self._block_index(item, part)
            self._emit_rest(item, part, part_text(content), events)
        if item.kind == "reasoning" and item.source is not None:
            texts = part_texts(wire.get(item.source)) or []
            self._emit_rest(item, 0, SUMMARY_SEPARATOR.join(texts), events)
        elif item.kind == "function_call":
            self._end_call(item, events)
        self._emit_notes(item, events)
        self._emit_blocks(item, events)
        item.is_done = True
        del self._open[item.place]

    def _compare_output(self, output: list[Any], events: list[StreamEvent]) -> dict[str, Any]:
        """Emit the content that only the last event has, and return its changes of emitted items."""
        candidates = list(self._items)
        revisions: dict[str, Any] = {}
        for place, wire in enumerate(output):
            expect_object(wire, f"output[{place}]")
            same_name = [item for item in candidates if item_names(item.wire) & item_names(wire)]
            same_kind = [item for item in candidates if item.kind == str(wire.get("type", "message"))]
            item = next(iter(same_name or same_kind), None)
            if item is None:
                item = self._start_item(self._last_place + 1, wire, events)
            else:
                candidates.remove(item)
            if not item.is_done:
                self._finish_item(item, wire, events)
            elif item.wire != wire:
                self._revise_item(item, wire, revisions, events)
        return revisions

    def _revise_item(
        self, item: Item, wire: dict[str, Any], revisions: dict[str, Any], events: list[StreamEvent]
    ) -> None:
        if item.raws:  # deltas were emitted
            previous, item.wire = item.wire, wire
            if len(item.parts) < len(item.pieces) and item.kind == "message":
                item.wire = previous  # the end event has less than the deltas
            self._emit_notes(item, events)
            return
        if item.kind == "function_call" and not is_same_json(wire.get("arguments"), item.wire["arguments"]):
            raise EventOrderError(f"the response repeats other arguments for item {item.place}")
        name = item.wire.get("id")
        if isinstance(name, str):
            revisions[name] = diff(item.wire, wire)

    def _emit_notes(self, item: Item, events: list[StreamEvent]) -> None:
        """Emit the notes of text blocks, if they changed."""
        if item.kind == "message" and item.wire.get("content"):
            blocks = read_content(item.wire, f"output[{item.place}]", is_continued=True)
            for part, block in enumerate(blocks):
                raw = item.raws.get(part)
                notes = getattr(block, "provider_raw", None)
                if not isinstance(block, TextBlock) and part not in item.pieces:
                    continue
                details = _text_details(block) if part not in item.detailed_parts else ((), ())
                if part not in item.raws or notes != raw or any(details):
                    index = self._block_index(item, part)
                    events.append(TextDelta(index, "", replace_notes(raw, notes), *details))
                    item.pieces.setdefault(part, [])
                    item.raws[part] = notes
                    item.detailed_parts.add(part)
        elif item.kind == "reasoning" and item.pieces:
            thinking = read_reasoning(item.wire, item.source)
            if isinstance(thinking, ThinkingBlock) and (0 not in item.raws or thinking.provider_raw != item.raws[0]):
                raw = replace_notes(item.raws.get(0), thinking.provider_raw)
                delta = ThinkingDelta(item.indexes[0], "", thinking.signature, raw, thinking.is_summary)
                events.append(delta)
                item.raws[0] = thinking.provider_raw
            elif isinstance(thinking, ThinkingBlock) and thinking.signature is not None:
                events.append(ThinkingDelta(item.indexes[0], "", thinking.signature))

    def _emit_blocks(self, item: Item, events: list[StreamEvent]) -> None:
        """Emit the blocks without deltas."""
        if item.kind == "function_call":
            return
        for part, block in enumerate(read_item(item.wire, f"output[{item.place}]", MessageBuilder(), [])):
            if part not in item.pieces:
                events.append(BlockComplete(self._block_index(item, part), block))
                item.pieces[part] = []

    # Texts

    def _emit_rest(self, item: Item, part: int, text: str | None, events: list[StreamEvent]) -> None:
        """Emit what is missing of a text that is known as a whole."""
        if text is None:
            return
        emitted = item.get_text(part)
        if not text.startswith(emitted):
            raise EventOrderError(f"the pieces of item {item.place} do not add up to its text")
        item.pending_surrogates.pop(part, None)
        self._emit_text(item, part, text[len(emitted) :], events)

    def _emit_text(self, item: Item, part: int, text: str, events: list[StreamEvent]) -> None:
        index = self._block_index(item, part)
        pieces = item.pieces.setdefault(part, [])
        text = item.join_text(part, text) if not text.isascii() or item.pending_surrogates else text
        if not text:
            return
        pieces.append(text)
        if item.kind == "message":
            events.append(TextDelta(index, text, None if part in item.raws else self._start_notes(item, part)))
        elif item.kind == "reasoning":
            item.cuts[-1] += len(text)
            raw = None if part in item.raws else self._start_notes(item, part)
            events.append(ThinkingDelta(index, text, None, raw, raw is not None and item.source == "summary"))
        else:
            events.append(ToolUseInputDelta(index, text))

    def _start_notes(self, item: Item, part: int) -> ProviderRaw | None:
        """Return the notes of a block at its start, as a hint for writers."""
        if item.kind == "reasoning":
            wire = {**item.wire, str(item.source): []}
            raw = getattr(read_reasoning(wire, item.source), "provider_raw", None)
        else:
            start = item.started_parts.get(part) or EMPTY_PARTS["response.output_text.delta"]
            wire = {**item.wire, "content": [start]}
            block = read_content(wire, "", is_continued=True)[0] if part == 0 else read_part(start, Role.ASSISTANT)
            raw = block.provider_raw if isinstance(block, TextBlock) else None
        item.raws[part] = raw
        return raw

    def _add_part(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind != "message":
            return
        part, start = item.part_number(wire), wire.get("part")
        if part in item.pieces:
            raise EventOrderError(f"part {part} of item {item.place} begins a second time")
        text = part_text(start)
        if isinstance(start, dict) and text is not None:
            item.started_parts[part] = {**start, "refusal" if start.get("type") == "refusal" else "text": ""}
            self._emit_text(item, part, text, events)

    def _end_part(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item = self._open_item(wire)
        if item.kind == "message":
            part = item.part_number(wire)
            self._emit_rest(item, part, part_text(wire.get("part")), events)
            item.closed_parts.add(part)

    def _add_text(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        part = item.part_number(wire)
        if item.kind != "message" or part in item.closed_parts or not isinstance(text, str):
            raise EventOrderError(f"{wire.get('type')} for item {item.place}, which takes none there")
        if part not in item.pieces:
            item.started_parts.setdefault(part, EMPTY_PARTS[str(wire.get("type"))])
        self._emit_text(item, part, text, events)

    def _end_text(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("text", wire.get("refusal"))
        if item.kind == "message" and isinstance(text, str):
            self._emit_rest(item, item.part_number(wire), text, events)

    def _add_thinking(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        """Add to the summary or to the reasoning text, whichever arrived first; its parts are one text."""
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "reasoning" or not isinstance(text, str):
            raise EventOrderError(f"{wire.get('type')} for item {item.place}, which takes none")
        if self._select_thinking_part(item, wire, events):
            self._emit_text(item, 0, text, events)

    def _add_thinking_part(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), part_text(wire.get("part"))
        if item.kind == "reasoning" and self._select_thinking_part(item, wire, events) and text:
            self._emit_text(item, 0, text, events)

    def _select_thinking_part(self, item: Item, wire: dict[str, Any], events: list[StreamEvent]) -> bool:
        """Whether an event belongs to the shown kind of reasoning; a new part is separated from the one before."""
        source = "summary" if "summary" in str(wire.get("type")) else "content"
        part = index_or_zero(wire, f"{source}_index")
        if item.source is None:
            item.source = source
        if item.source != source:
            return False
        last = len(item.closed_parts) - 1
        if part < last:
            raise EventOrderError(f"part {part} of item {item.place} continues after the next part started")
        if part - last > _MAX_NEW_PARTS:
            raise EventOrderError(f"part {part} of item {item.place} cannot start here")
        for number in range(last + 1, part + 1):
            if number > 0:
                self._separate_thinking(item, events)
            item.closed_parts.add(number)
        return True

    def _separate_thinking(self, item: Item, events: list[StreamEvent]) -> None:
        raw: ProviderRaw = self._start_notes(item, 0) or {"dialect": NAME} if 0 not in item.raws else {"dialect": NAME}
        raw = {**raw, "cuts": [*item.cuts, 0]}
        item.raws[0] = {**(item.raws.get(0) or {}), **raw}
        item.pieces.setdefault(0, []).append(SUMMARY_SEPARATOR)
        item.cuts.append(0)
        events.append(ThinkingDelta(item.indexes[0], SUMMARY_SEPARATOR, None, raw))

    # Calls

    def _start_call(self, item: Item, events: list[StreamEvent]) -> None:
        """Emit the start of a call once its name is known; some servers send it at the end."""
        provider_id, name = item.wire.get("call_id"), item.wire.get("name")
        if item.call_id is not None or not isinstance(provider_id, str) or not isinstance(name, str):
            return
        item.call_id = self._builder.call_id(provider_id)
        default = {"type": "function_call", "call_id": provider_id, "name": name}
        start = {key: value for key, value in item.wire.items() if key != "arguments"}
        note = provider_id if provider_id != item.call_id else None
        events.append(ToolUseStart(item.indexes[0], item.call_id, name, make_notes(NAME, default, start, id=note)))
        received, started = "".join(item.pieces.pop(0, ())), text_or_none(item.wire.get("arguments"))
        if received:
            self._emit_text(item, 0, received, events)
        elif started and not is_input(started):  # whole arguments are emitted at the end: deltas may repeat them
            self._emit_text(item, 0, started, events)

    def _add_input(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("delta")
        if item.kind != "function_call" or 0 in item.closed_parts or not isinstance(text, str):
            raise EventOrderError(f"{wire.get('type')} for item {item.place}, which takes none")
        if item.call_id is None:
            item.pieces.setdefault(0, []).append(text)
        else:
            self._emit_text(item, 0, text, events)

    def _end_input(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        item, text = self._open_item(wire), wire.get("arguments")
        if item.kind != "function_call":
            return
        if isinstance(text, str) and item.call_id is not None:
            self._emit_rest_of_input(item, text, events)
        item.closed_parts.add(0)

    def _emit_rest_of_input(self, item: Item, text: str, events: list[StreamEvent]) -> None:
        emitted = item.get_text(0)
        if text.startswith(emitted):
            item.pending_surrogates.pop(0, None)
            self._emit_text(item, 0, text[len(emitted) :], events)
        elif not is_same_json(text, emitted):
            raise EventOrderError(f"the pieces of item {item.place} do not add up to its arguments")

    def _end_call(self, item: Item, events: list[StreamEvent]) -> None:
        self._start_call(item, events)
        if item.call_id is None or not all(isinstance(item.wire.get(key), str) for key in _CALL_KEYS):
            raise EventOrderError(f"the call of item {item.place} has no name, no id or no arguments")
        self._emit_rest_of_input(item, item.wire["arguments"], events)
        if item.wire.get("status") == "incomplete" and is_input(item.get_text(0)):
            return  # a call without an end event is cut off, even if its input is valid JSON
        events.append(ToolUseEnd(item.indexes[0], read_call(item.wire, item.call_id).provider_raw))


def _text_details(block: ContentBlock) -> tuple[tuple[Citation, ...], tuple[TokenLogprob, ...]]:
    return (block.citations, block.token_logprobs) if isinstance(block, TextBlock) else ((), ())


_CALL_KEYS: Final = ("call_id", "name", "arguments")
_MAX_NEW_PARTS: Final = 100  # that one event may start


_HANDLERS: Final = {
    "response.created": StreamReader._start_response,
    "response.in_progress": StreamReader._start_if_missing,
    "response.output_item.added": StreamReader._add_item,
    "response.output_item.done": StreamReader._end_item,
    "response.content_part.added": StreamReader._add_part,
    "response.content_part.done": StreamReader._end_part,
    "response.output_text.delta": StreamReader._add_text,
    "response.output_text.done": StreamReader._end_text,
    "response.refusal.delta": StreamReader._add_text,
    "response.refusal.done": StreamReader._end_text,
    "response.reasoning_summary_part.added": StreamReader._add_thinking_part,
    "response.reasoning_summary_text.delta": StreamReader._add_thinking,
    "response.reasoning_part.added": StreamReader._add_thinking_part,
    "response.reasoning_text.delta": StreamReader._add_thinking,
    "response.function_call_arguments.delta": StreamReader._add_input,
    "response.function_call_arguments.done": StreamReader._end_input,
    "response.completed": StreamReader._end_response,
    "response.incomplete": StreamReader._end_response,
    "response.failed": StreamReader._end_response,
    "response.cancelled": StreamReader._end_response,
    "response.error": StreamReader._read_error,
    "error": StreamReader._read_error,
}


stream_reader = StreamReader
