"""Convert streams. A message starts, its parts and calls start, grow and end, and the message ends.

Content and calls have separate indexes on the wire; an event index counts all blocks in order of arrival. Invariant:
only a message-end with a finish reason ends a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import msgspec

from dragoman.dialects.cohere.blocks import (
    NAME,
    TOOL_PLAN_NOTES,
    Call,
    call_from,
    content_form,
    default_message,
    read_call,
    read_part,
    unsupported_reason,
    write_call,
    write_part,
)
from dragoman.dialects.cohere.error import read_error
from dragoman.dialects.cohere.reply import PLACEHOLDER_ID, default_reply, reply_from
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
from dragoman.jsontext import expect_list, expect_object, list_or_empty
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.faults import stream_error
from dragoman.wire.frames import json_text, sse_frame
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.stream_reader import BaseStreamReader
from dragoman.wire.stream_writer import BaseStreamWriter

_STREAMED_FIELDS: Final = ("content", "tool_plan", "tool_calls", "citations")
_TEXT_TYPES: Final = ("text", "thinking")  # types of parts that grow; the type is also the key of the text
_NATIVE: Final[ProviderRaw] = {"dialect": NAME, "form": "thinking"}


# --- reading ---------------------------------------------------------------------------------------------------------


class _OpenCall:
    """A call whose input is incomplete."""

    def __init__(self, place: int, call_id: str) -> None:
        self.index = place
        self.call_id = call_id
        self.pieces: list[str] = []


class _TextContent(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    thinking: str = ""


class _TextMessage(msgspec.Struct, forbid_unknown_fields=True):
    content: _TextContent


class _TextMessageDelta(msgspec.Struct, forbid_unknown_fields=True):
    message: _TextMessage


class _TextDeltaEvent(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["content-delta"]
    index: int
    delta: _TextMessageDelta


class StreamReader(BaseStreamReader):
    """Convert the bytes of a stream to events, and collect the whole reply without its text for the residue."""

    delta_type = _TextDeltaEvent

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(NAME, framing or "sse")
        self._reply: dict[str, Any] = {}
        self._message: dict[str, Any] | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._citations: list[Any] = []
        self._open_parts: dict[int, int] = {}  # wire index to block index
        self._open_calls: dict[int, _OpenCall] = {}
        self._started_blocks: set[int] = set()  # blocks with an emitted event
        self._plan_index: int | None = None
        self._block_count = 0
        self._builder = MessageBuilder()

    def read_event(self, wire: dict[str, Any], name: str | None, events: list[StreamEvent]) -> None:
        """Read one event."""
        kind = wire.get("type") or name
        if kind == "error" or (kind is None and isinstance(wire.get("message"), str)):
            events.append(StreamError(read_error(None, {}, wire)))
            return
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            return  # an event of a newer version
        if self._message is None and kind != "message-start":
            raise FormatError(f"{kind} before message-start", where="event")
        handler(self, wire, events)
        self.expects_delta = bool(self._open_parts)

    def read_delta(self, delta: _TextDeltaEvent) -> StreamEvent | None:
        """Return the event for more text of a part that already has some."""
        place, part = self._open_parts.get(delta.index), self._parts.get(delta.index, {})
        text, thought = delta.delta.message.content.text, delta.delta.message.content.thinking
        if place is None:
            return None
        if text and not thought and part.get("type") == "text" and part["text"]:
            return TextDelta(place, text)
        if thought and not text and part.get("type") == "thinking" and part["thinking"]:
            return ThinkingDelta(place, thought, None, dict(_NATIVE))
        return None

    def _read_message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is not None:
            raise FormatError("duplicate message-start", where="event")
        self._reply = {"id": wire["id"]} if "id" in wire else {}
        self._message = dict(expect_object(_get_delta(wire).get("message"), "message-start"))
        if self._message.get("content") or self._message.get("tool_calls") or self._message.get("tool_plan"):
            raise FormatError("message-start must not contain content", where="message-start")
        self._citations = list(expect_list(self._message.get("citations") or [], "message-start"))
        form = content_form(self._message)
        start_fields = {**self._reply, "message": self._message}
        events.append(MessageStart(None, make_notes(NAME, _default_start(form), start_fields, form=form)))

    def _read_content_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._parts)
        part = self._parts[index] = dict(expect_object(_get_delta_field(wire, "content"), "content-start"))
        if part.get("type") in _TEXT_TYPES and part.get(part["type"]) is None:
            part[part["type"]] = ""
        place = self._open_parts[index] = self._next_block_index()
        match read_part(part):
            case TextBlock(text, raw) if part["type"] == "text" and (text or raw is not None):
                self._emit(TextDelta(place, text, raw), events)
            case ThinkingBlock(text, _, raw) if text or raw != _NATIVE:
                self._emit(ThinkingDelta(place, text, None, raw), events)

    def _read_content_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _open_index(wire, self._open_parts)
        delta = expect_object(_get_delta_field(wire, "content"), "content-delta")
        if isinstance(wire.get("logprobs"), dict):
            self._reply.setdefault("logprobs", []).append(wire["logprobs"])
        part = self._parts[index]
        kind = str(part.get("type"))
        text = delta.get(kind) if kind in _TEXT_TYPES else None
        if not isinstance(text, str) or not text:
            return
        part[kind] = part[kind] or text  # the first text stands for all of it, which is never noted
        place = self._open_parts[index]
        text_delta = TextDelta(place, text) if kind == "text" else ThinkingDelta(place, text, None, dict(_NATIVE))
        self._emit(text_delta, events)

    def _read_content_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _open_index(wire, self._open_parts)
        place = self._open_parts.pop(index)
        if place in self._started_blocks:
            return
        part = self._parts[index]
        match read_part(part):
            case TextBlock(text, raw) if part["type"] == "text":
                self._emit(TextDelta(place, text, raw), events)
            case ThinkingBlock(text, _, raw):
                self._emit(ThinkingDelta(place, text, None, raw), events)
            case block:
                events.append(BlockComplete(place, block))

    def _read_plan_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        text = _get_delta_field(wire, "tool_plan")
        if not isinstance(text, str) or not text or self._message is None:
            return
        if self._plan_index is None:
            self._plan_index = self._next_block_index()
            self._message["tool_plan"] = text
        events.append(TextDelta(self._plan_index, text, dict(TOOL_PLAN_NOTES)))

    def _read_call_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._calls)
        call = dict(expect_object(_get_delta_field(wire, "tool_calls"), "tool-call-start"))
        function = call["function"] = dict(expect_object(call.get("function"), "tool-call-start"))
        text = function.get("arguments")
        if isinstance(text, str):
            function["arguments"] = ""
        block = read_call(call, "tool-call-start", self._builder)
        open_call = _OpenCall(self._next_block_index(), block.id)
        self._calls[index], self._open_calls[index] = call, open_call
        events.append(ToolUseStart(open_call.index, block.id, block.name, block.provider_raw))
        if text:
            open_call.pieces.append(text)
            events.append(ToolUseInputDelta(open_call.index, text))

    def _read_call_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        call = self._open_calls[_open_index(wire, self._open_calls)]
        delta = expect_object(_get_delta_field(wire, "tool_calls"), "tool-call-delta")
        text = expect_object(delta.get("function"), "tool-call-delta").get("arguments")
        if isinstance(text, str) and text:
            call.pieces.append(text)
            events.append(ToolUseInputDelta(call.index, text))

    def _read_call_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _open_index(wire, self._open_calls)
        open_call = self._open_calls.pop(index)
        block = call_from(self._join_call(index, open_call), "tool-call-end", open_call.call_id)
        events.append(ToolUseEnd(open_call.index, block.provider_raw))

    def _join_call(self, index: int, open_call: _OpenCall) -> dict[str, Any]:
        call = self._calls[index]
        if open_call.pieces:
            call["function"]["arguments"] = "".join(open_call.pieces)
        return call

    def _read_citation(self, wire: dict[str, Any], _events: list[StreamEvent]) -> None:
        self._citations.append(_get_delta_field(wire, "citations"))

    def _read_message_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = _get_delta(wire)
        if self._open_parts:
            raise FormatError(f"message-end while content {min(self._open_parts)} is open", where="event")
        if delta.get("finish_reason") is None:
            events.append(stream_error(NAME, "stream_incomplete", "the message ended without a finish reason"))
            return
        reply = reply_from({**self._reply, "message": self._join_message(), **delta})
        if reply.usage is not None:
            events.append(UsageUpdate(reply.usage))
        if reply.fault is not None:
            events.append(StreamError(reply.fault, reply.provider_raw))
        else:
            events.append(MessageComplete(reply.stop_reason, reply.stop_sequence, reply.provider_raw))

    def _join_message(self) -> dict[str, Any]:
        message = dict(self._message or {})
        for index, open_call in self._open_calls.items():
            self._join_call(index, open_call)
        if self._parts:
            message["content"] = list(self._parts.values())
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        if self._citations:
            message["citations"] = self._citations
        return message

    def _emit(self, delta: TextDelta | ThinkingDelta, events: list[StreamEvent]) -> None:
        self._started_blocks.add(delta.index)
        events.append(delta)

    def _next_block_index(self) -> int:
        self._block_count += 1
        return self._block_count - 1


_HANDLERS: Final[dict[str, Callable[[StreamReader, dict[str, Any], list[StreamEvent]], None]]] = {
    "message-start": StreamReader._read_message_start,
    "content-start": StreamReader._read_content_start,
    "content-delta": StreamReader._read_content_delta,
    "content-end": StreamReader._read_content_end,
    "tool-plan-delta": StreamReader._read_plan_delta,
    "tool-call-start": StreamReader._read_call_start,
    "tool-call-delta": StreamReader._read_call_delta,
    "tool-call-end": StreamReader._read_call_end,
    "citation-start": StreamReader._read_citation,
    "message-end": StreamReader._read_message_end,
}


def _default_start(form: str | None) -> dict[str, Any]:
    return {"id": PLACEHOLDER_ID, "message": default_message("assistant", (), form)}


def _get_delta(wire: dict[str, Any]) -> dict[str, Any]:
    return expect_object(wire.get("delta"), str(wire.get("type")))


def _get_delta_field(wire: dict[str, Any], key: str) -> Any:
    return expect_object(_get_delta(wire).get("message"), str(wire.get("type"))).get(key)


def _next_index(wire: dict[str, Any], existing: dict[int, Any]) -> int:
    """Return the index of a new item; indexes increase."""
    index = wire.get("index")
    if type(index) is not int or index <= next(reversed(existing), -1):
        raise FormatError(f"{wire.get('type')} for {index}, which cannot start here", where="event")
    return index


def _open_index(wire: dict[str, Any], open_items: dict[int, Any]) -> int:
    index = wire.get("index")
    if type(index) is not int or index not in open_items:
        raise FormatError(f"{wire.get('type')} for {index}, which is not open", where="event")
    return index


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  no quirks
    """Return a reader for streams of this dialect."""
    return StreamReader(framing)


# --- writing ---------------------------------------------------------------------------------------------------------


class StreamWriter(BaseStreamWriter):
    """Convert events to the bytes of a stream. A part is open until another block starts; citations come last."""

    open_call_stop_reasons = (StopReason.MAX_TOKENS,)

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        super().__init__(NAME)
        self._parts: dict[int, int] = {}  # block index to wire index
        self._part_count = 0
        self._open_part: int | None = None  # its block index
        self._calls: dict[int, int] = {}
        self._plan_index: int | None = None

    def write_start(self, start: MessageStart) -> bytes:
        """Write the empty message."""
        notes = get_notes(start.provider_raw, NAME)
        fields = apply_diff(_default_start(notes.get("form")), notes.get("residue"))
        message = (
            fields["message"] if notes else {**fields["message"], "tool_plan": "", "tool_calls": [], "citations": []}
        )
        empty = {key: type(message[key])() for key in _STREAMED_FIELDS if message.get(key)}
        if isinstance(message.get("content"), str):
            empty["content"] = []
        id_field = {"id": fields["id"]} if "id" in fields else {}
        return _write_event({**id_field, "type": "message-start", "delta": {"message": {**message, **empty}}})

    def write_text(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write text of the plan or of a part."""
        is_plan = get_notes(raw, NAME).get("form") == "tool_plan" and index not in self._parts
        if index == self._plan_index or (is_plan and self._plan_index is None):
            self._plan_index = index
            return _write_event({"type": "tool-plan-delta", "delta": {"message": {"tool_plan": text}}}) if text else b""
        return self._write_part_text("text", index, text, TextBlock("", raw))

    def write_thinking(self, index: int, text: str, raw: ProviderRaw | None) -> bytes:
        """Write native reasoning."""
        is_native = bool(get_notes(raw, NAME)) or index in self._parts
        return self._write_part_text("thinking", index, text, ThinkingBlock("", None, raw)) if is_native else b""

    def write_call_start(self, start: ToolUseStart) -> bytes:
        """Write a call without its input."""
        call = write_call(ToolUseBlock(start.id, start.name, {}, start.provider_raw))
        if isinstance(call["function"].get("arguments"), str):
            call["function"] = {**call["function"], "arguments": ""}
        position = self._calls[start.index] = len(self._calls)
        return self._end_part() + _write_delta("tool-call-start", position, "tool_calls", call)

    def write_call_input(self, index: int, text: str) -> bytes:
        """Write a fragment of the input."""
        piece = {"function": {"arguments": text}}
        return _write_delta("tool-call-delta", self._calls[index], "tool_calls", piece) if text else b""

    def write_call_end(self, end: ToolUseEnd) -> bytes:
        """Write the end of a call."""
        return _write_event({"type": "tool-call-end", "index": self._calls[end.index]})

    def write_block(self, index: int, block: ContentBlock) -> bytes:
        """Write a complete block, if the API supports it."""
        match block:
            case TextBlock(text, raw):
                return self.write_text(index, text, raw)
            case ThinkingBlock(text, _, raw):
                return self.write_thinking(index, text, raw)
            case ToolUseBlock() | InvalidToolUseBlock():
                return self._write_whole_call(index, block)
            case _ if unsupported_reason(block) is None:
                return self._start_part(index, write_part(block)) + self._end_part()
            case _:
                return b""

    def write_end(self, end: MessageComplete, usage: TokenUsage | None) -> bytes:
        """Write the end with all fields that were added since the start."""
        return self._write_message_end(Reply(stop_reason=end.stop_reason, usage=usage), end.provider_raw)

    def write_failure(self, error: StreamError) -> bytes:
        """Write the end of a failed message, with an error in place of the finish reason."""
        reply = Reply(stop_reason=StopReason.ERROR, usage=self.usage, fault=error.fault)
        return self._write_message_end(reply, error.provider_raw)

    def _write_message_end(self, reply: Reply, raw: ProviderRaw | None) -> bytes:
        notes = get_notes(raw, NAME)
        wire = apply_diff(default_reply(reply, (), notes.get("form")), notes.get("residue"))
        frames = [self._end_part()]
        for index, citation in enumerate(list_or_empty(wire["message"].get("citations"))):
            frames.append(_write_delta("citation-start", index, "citations", citation))
            frames.append(_write_event({"type": "citation-end", "index": index}))
        delta = {key: value for key, value in wire.items() if key not in ("id", "message")}
        frames.append(_write_event({"type": "message-end", "delta": delta}))
        return b"".join(frames) + b"data: [DONE]\n\n"

    def _write_part_text(self, key: str, index: int, text: str, empty_block: TextBlock | ThinkingBlock) -> bytes:
        """Continue a part. A part that has ended continues as a new part."""
        started = b""
        if self._open_part != index:
            if not text and index in self._parts:
                return b""
            started = self._start_part(index, {**write_part(empty_block), "type": key, key: ""})
        before, after = template = self._text_template(key, index)
        self.set_text_template(TextDelta if key == "text" else ThinkingDelta, index, empty_block.provider_raw, template)
        return started + (before + json_text(text) + after if text else b"")

    def _text_template(self, key: str, index: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the text of an event."""
        before, _, after = _write_delta("content-delta", self._parts[index], "content", {key: ""}).rpartition(b'""')
        return before, after

    def _start_part(self, index: int, part: dict[str, Any]) -> bytes:
        closed = self._end_part()
        self._open_part = index
        self._parts[index] = self._part_count
        self._part_count += 1
        return closed + _write_delta("content-start", self._parts[index], "content", part)

    def _end_part(self) -> bytes:
        index, self._open_part = self._open_part, None
        return b"" if index is None else _write_event({"type": "content-end", "index": self._parts[index]})

    def _write_whole_call(self, index: int, block: Call) -> bytes:
        text = msgspec.json.encode(block.input).decode() if isinstance(block, ToolUseBlock) else block.input_text
        start = ToolUseStart(index, block.id, block.name, block.provider_raw)
        return (
            self.write_call_start(start) + self.write_call_input(index, text) + self.write_call_end(ToolUseEnd(index))
        )


def _write_delta(kind: str, index: int, key: str, value: Any) -> bytes:
    return _write_event({"type": kind, "index": index, "delta": {"message": {key: value}}})


def _write_event(wire: dict[str, Any]) -> bytes:
    return sse_frame(wire, wire["type"])


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
