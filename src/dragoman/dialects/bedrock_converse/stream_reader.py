"""Read streams: AWS event-stream frames to events.

Each block is read like a block of a whole reply, so both have the same residue; its text is not stored. The message
ends with messageStop; metadata follows with the usage.

Invariant: a damaged, truncated or out-of-order stream ends with a fault.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dragoman.dialects.bedrock_converse.blocks import (
    default_block,
    id_note,
    read_block,
    to_compact_json,
    try_parse_object,
)
from dragoman.dialects.bedrock_converse.error import read_error
from dragoman.dialects.bedrock_converse.mappings import NAME
from dragoman.dialects.bedrock_converse.reply import read_end, read_usage
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
from dragoman.message import ContentBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock, UnknownBlock
from dragoman.wire.faults import early_end, stream_error
from dragoman.wire.frames import Frame, FramingError, select_framing
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import make_notes
from dragoman.wire.stream_reader import BaseStreamReader, EventOrderError

FRAMINGS: Final = ("aws-eventstream", "aws-eventstream-decoded", "ndjson")
_PADDING: Final = "p"  # random padding of the provider
_KINDS_WITH_START: Final = (
    "toolUse",
    "toolResult",
    "image",
)  # blocks with a contentBlockStart; others start with a delta
_KNOWN_KINDS: Final = (*_KINDS_WITH_START, "text", "reasoning", "redacted")
_EMPTY_DELTAS: Final[tuple[Any, ...]] = ({}, {"reasoningContent": {}})  # sent between the deltas of a block
_NATIVE: Final = {"dialect": NAME, "own": True}
_Handler = Callable[["StreamReader", dict[str, Any], list[StreamEvent]], None]


class _OpenBlock:
    """A block that is still incomplete. Text and reasoning are emitted immediately; only their length is stored."""

    def __init__(self, kind: str | None, start: dict[str, Any]) -> None:
        self.kind = kind  # None while unknown
        self.start = start
        self.length: int | None = None  # of its text; None without a text delta
        self.parts: list[str] = []  # fragments of its input or data
        self.items: list[Any] = []  # citations or content items
        self.signature: str | None = None
        self.call_notes: ProviderRaw | None = None  # notes of a call
        self.is_call = False
        self.is_open = True
        self.unread: dict[str, list[Any]] = {}  # deltas of a newer version, by type

    def add_unread(self, raw: ProviderRaw | None) -> ProviderRaw | None:
        """Return the notes of the block with the deltas that have no place in it: no request repeats them."""
        return {"dialect": NAME, **(raw or {}), "unread": {"set": self.unread}} if self.unread else raw

    def to_wire(self) -> dict[str, Any]:
        """Return the block as in a whole reply, with a placeholder for its text."""
        placeholder = "…" if self.length else ""
        match self.kind:
            case None:
                return self.start or {"text": ""}
            case "text" if self.items:
                content = {"content": [{"text": placeholder}]} if self.length is not None else {}
                return {"citationsContent": {**content, "citations": self.items}}
            case "text":
                return {"text": placeholder}
            case "reasoning":
                signature_field = {"signature": self.signature} if self.signature is not None else {}
                return {"reasoningContent": {"reasoningText": {"text": placeholder, **signature_field}}}
            case "redacted":
                return {"reasoningContent": {"redactedContent": _join_base64(self.parts)}}
            case "toolUse":
                text = "".join(self.parts)
                return {"toolUse": {**self.start, "input": try_parse_object(text) if text.strip() else {}}}
            case "toolResult":
                return {"toolResult": {**self.start, "content": self.items}}
            case "image":
                return {"image": {**self.start, **{key: part for item in self.items for key, part in item.items()}}}
            case kind:  # a type of a newer version
                parts = [self.start[kind], *self.items] if kind in self.start else self.items
                if all(isinstance(part, dict) for part in parts):
                    return {kind: {key: value for part in parts for key, value in part.items()}}
                return {kind: parts[0] if len(parts) == 1 else parts}


def _join_base64(parts: list[str]) -> str:
    """Join several base64 values into one."""
    if len(parts) == 1:
        return parts[0]
    try:
        return base64.b64encode(b"".join(base64.b64decode(part, validate=True) for part in parts)).decode()
    except (binascii.Error, ValueError):
        return "".join(parts)


class StreamReader(BaseStreamReader):
    """Convert the bytes of a stream to events."""

    ends_at_once = True  # with metadata, the last event

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        framing = select_framing(NAME, framing, FRAMINGS)
        super().__init__(NAME, "aws-ndjson" if framing == "ndjson" else framing, quirks)
        self._has_text_lines = framing in FRAMINGS[1:]
        self._message: dict[str, Any] | None = None  # fields of messageStart
        self._blocks: dict[int, _OpenBlock] = {}
        self._last_index = -1  # index of the latest block
        self._message_stop: dict[str, Any] | None = None  # fields of messageStop
        self._metadata: dict[str, Any] | None = None
        self._builder = MessageBuilder()

    def read_event(self, wire: dict[str, Any], name: str | None, events: list[StreamEvent]) -> None:
        """Read one event; events after messageStop other than metadata are trailing data."""
        if self._message_stop is not None and name != "metadata":
            self._trailing.add(to_compact_json({name: wire}) + "\n")
        else:
            _HANDLERS[name or ""](self, wire, events)

    def decode_event(self, data: bytes) -> Any:
        """Return the value in an event without the random padding."""
        wire = msgspec.json.decode(data)
        if isinstance(wire, dict):
            wire.pop(_PADDING, None)
        return wire

    def end_stream(self, events: list[StreamEvent], *, is_done: bool) -> None:  # noqa: ARG002  there is no marker
        """Append the end of a message without metadata, or a fault."""
        if self._message_stop is not None:
            self._emit_end(events)
            return
        is_cut = self._has_text_lines and (self._head or b"")[:1] == b"{"  # a truncated frame
        events.append(early_end(NAME, None if is_cut else self._head, self._splitter.tail))

    def handle_framing_error(self, error: FramingError, events: list[StreamEvent]) -> None:
        """Append the fault for a damaged frame; a page or an object instead of a stream is collected first."""
        if self._head is not None and self._head.lstrip()[:1] in (b"<", b"{"):
            self._is_foreign = True
        else:
            super().handle_framing_error(error, events)

    def _read_frame(self, frame: Frame, events: list[StreamEvent]) -> None:
        self._head = None
        if frame.is_failure:
            self._fail(self._read_failure(frame), events)
        elif frame.event in _HANDLERS and (self._end is None or frame.event != "metadata"):  # others: a newer version
            super()._read_frame(frame, events)

    def _handle_invalid_event(self, data: bytes, events: list[StreamEvent]) -> None:  # noqa: ARG002  it is not kept
        self._fail(stream_error(NAME, "bad_event", "an event is not a JSON object"), events)

    def _read_failure(self, frame: Frame) -> StreamError:
        """Return the provider's failure; the notes keep fields other than the message."""
        wire, name = self._decode(frame.data), frame.event or ""
        fault = read_error(None, {"x-amzn-errortype": name[:1].upper() + name[1:]}, wire)
        has_fields = wire is not None and set(wire) - {"message", "Message"}
        return StreamError(fault, {"dialect": NAME, "error": wire} if has_fields else None)

    def _read_message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is not None:
            raise EventOrderError("duplicate messageStart")
        self._message = wire
        default = {"output": {"message": {"role": "assistant"}}}
        events.append(MessageStart(provider_raw=make_notes(NAME, default, {"output": {"message": wire}})))

    def _read_block_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index, start = _get_index(wire), wire.get("start")
        if not isinstance(start, dict) or not self._may_open(index):
            raise EventOrderError(f"contentBlockStart for block {index}, which cannot start here")
        kind = next((kind for kind in _KINDS_WITH_START if isinstance(start.get(kind), dict)), None)
        block = self._open_block(index, kind, start[kind] if kind else start)
        if kind == "toolUse" and block.start.get("type") != "server_tool_use":
            self._start_call(index, block, events)

    def _start_call(self, index: int, block: _OpenBlock, events: list[StreamEvent]) -> None:
        provider_id, name = block.start.get("toolUseId"), block.start.get("name")
        if not isinstance(provider_id, str) or not isinstance(name, str):
            raise EventOrderError(f"block {index} is a call without an id or a name")
        call_id = self._builder.call_id(provider_id)
        notes = id_note(provider_id, call_id)
        default = default_block(ToolUseBlock(call_id, name, {}), notes)
        block.is_call = True
        block.call_notes = make_notes(NAME, default, {"toolUse": {**block.start, "input": {}}}, **notes)
        events.append(ToolUseStart(index, call_id, name, block.call_notes))

    def _may_open(self, index: int) -> bool:
        return self._message is not None and index > self._last_index

    def _open_block(self, index: int, kind: str | None, start: dict[str, Any]) -> _OpenBlock:
        self._last_index = index
        block = self._blocks[index] = _OpenBlock(kind, start)
        return block

    def _read_block_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index, delta = _get_index(wire), wire.get("delta")
        block = self._blocks.get(index)
        if delta in _EMPTY_DELTAS and (block is None or block.is_open):
            return
        if block is None and self._may_open(index):
            block = self._open_block(index, None, {})  # text and reasoning start with their first delta
        if block is None or not block.is_open or not isinstance(delta, dict):
            raise EventOrderError(f"contentBlockDelta for block {index}, which is not open")
        kind = _delta_kind(delta)
        if block.kind is None and kind not in _KINDS_WITH_START:
            block.kind = kind
        if kind is not None and kind not in _KNOWN_KINDS and block.kind in _KNOWN_KINDS:
            block.unread.setdefault(kind, []).append(delta[kind])
            return
        if kind is None or block.kind != kind:
            raise EventOrderError(f"contentBlockDelta of kind {kind} for block {index}, which has another type")
        self._add_delta(index, block, delta, events)

    def _add_delta(self, index: int, block: _OpenBlock, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        match delta:
            case {"text": str(text)}:
                block.length = (block.length or 0) + len(text)
                events.append(TextDelta(index, text))
            case {"citation": citation}:
                block.items.append(citation)
            case {"toolUse": {"input": str(text)}} if block.is_call:
                events.append(ToolUseInputDelta(index, text))
            case {"toolUse": {"input": str(text)}} | {"reasoningContent": {"redactedContent": str(text)}}:
                block.parts.append(text)
            case {"reasoningContent": dict(reasoning)}:
                self._add_reasoning(index, block, reasoning, events)
            case {"toolResult": [*items]}:
                block.items.extend(items)
            case {"image": dict(part)}:
                block.items.append(part)
            case _:
                block.items.append(delta.get(block.kind or ""))

    def _add_reasoning(
        self, index: int, block: _OpenBlock, reasoning: dict[str, Any], events: list[StreamEvent]
    ) -> None:
        """Emit reasoning. The first delta marks it as native."""
        text = reasoning.get("text", "")
        if "signature" in reasoning:
            block.signature = (block.signature or "") + reasoning["signature"]
        if text or block.length is None:
            events.append(ThinkingDelta(index, text, None, _NATIVE if block.length is None else None))
        block.length = (block.length or 0) + len(text)

    def _read_block_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _get_index(wire)
        block = self._blocks.get(index)
        if block is None or not block.is_open:
            raise EventOrderError(f"contentBlockStop for block {index}, which is not open")
        block.is_open = False
        if block.is_call:
            events.append(ToolUseEnd(index, block.add_unread(block.call_notes)))
            return
        block_wire = block.to_wire()
        if block.kind == "toolUse" and block_wire["toolUse"]["input"] is None:
            raise EventOrderError(f"the input of block {index} is not a JSON object")
        self._end_block(index, read_block(block_wire, MessageBuilder(), "reply"), block, events)
        block.items, block.parts = [], []

    def _end_block(self, index: int, whole: ContentBlock, block: _OpenBlock, events: list[StreamEvent]) -> None:
        raw = block.add_unread(getattr(whole, "provider_raw", None))
        match whole:
            case TextBlock(citations=citations):
                if raw is not None or citations:
                    events.append(TextDelta(index, "", raw, citations))
            case ThinkingBlock(signature=signature):
                if signature is not None or raw != _NATIVE:
                    events.append(ThinkingDelta(index, "", signature, raw))
            case UnknownBlock():
                events.append(BlockComplete(index, whole))
            case _:
                events.append(BlockComplete(index, whole.replace(provider_raw=raw) if block.unread else whole))

    def _read_message_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is None:
            raise EventOrderError("messageStop before messageStart")
        if any(block.is_open for block in self._blocks.values()):
            raise EventOrderError("messageStop while a block is open")
        if not isinstance(wire.get("stopReason"), str):
            events.append(stream_error(NAME, "stream_incomplete", "the message ended without a stop reason"))
            return
        self._message_stop = wire
        if self._metadata is not None:
            self._emit_end(events)

    def _read_metadata(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is None:
            raise EventOrderError("metadata before messageStart")
        self._metadata = wire
        usage = read_usage(wire)
        if usage is not None:
            events.append(UsageUpdate(usage))
        if self._message_stop is not None:
            self._emit_end(events)

    def _emit_end(self, events: list[StreamEvent]) -> None:
        """Emit the end of the message with the fields of a whole reply."""
        body = {**(self._message_stop or {}), **(self._metadata or {}), "output": {"message": self._message}}
        blocks = self._blocks.values()
        has_call = any(block.kind == "toolUse" and block.start.get("type") != "server_tool_use" for block in blocks)
        end = read_end(body, has_call=has_call)
        if end.fault is not None:
            events.append(StreamError(end.fault, self._trailing.add_to(end.provider_raw)))
        else:
            events.append(MessageComplete(end.stop_reason, end.stop_sequence, end.provider_raw))


_HANDLERS: Final[dict[str, _Handler]] = {
    "messageStart": StreamReader._read_message_start,
    "contentBlockStart": StreamReader._read_block_start,
    "contentBlockDelta": StreamReader._read_block_delta,
    "contentBlockStop": StreamReader._read_block_stop,
    "messageStop": StreamReader._read_message_stop,
    "metadata": StreamReader._read_metadata,
}


def _get_index(wire: dict[str, Any]) -> int:
    index = wire.get("contentBlockIndex")
    return index if type(index) is int else -1


def _delta_kind(delta: dict[str, Any]) -> str | None:
    """Return the block type of a delta; ``None`` if it is malformed."""
    match delta:
        case {"text": str()} | {"citation": dict()}:
            return "text"
        case {"reasoningContent": {"redactedContent": str()}}:
            return "redacted"
        case {"reasoningContent": {"text": str()} | {"signature": str()}}:
            return "reasoning"
        case {"toolUse": {"input": str()}} | {"toolResult": list()} | {"image": dict()}:
            return next(kind for kind in _KINDS_WITH_START if kind in delta)
        case _:  # a type of a newer version
            return next(
                (key for key in delta if key not in (*_KINDS_WITH_START, "text", "citation", "reasoningContent")), None
            )


stream_reader = StreamReader
