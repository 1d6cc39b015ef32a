"""Read streams. A message starts, its parts and calls start, grow and end, and the message ends.

Content and calls have separate indexes on the wire; an event index counts all blocks in order of arrival.

Invariant: only a message-end with a finish reason ends a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import msgspec

from dragoman.dialects.cohere.blocks import (
    NAME,
    TOOL_PLAN_NOTES,
    call_from,
    content_form,
    is_plan,
    read_call,
    read_part,
)
from dragoman.dialects.cohere.error import read_error
from dragoman.dialects.cohere.reply import default_start, reply_from
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
from dragoman.jsontext import expect_list, expect_object
from dragoman.message import ProviderRaw, TextBlock, ThinkingBlock
from dragoman.wire.faults import stream_error
from dragoman.wire.message_builder import MessageBuilder
from dragoman.wire.residue import make_notes
from dragoman.wire.stream_reader import BaseStreamReader

_TEXT_TYPES: Final = ("text", "thinking")  # types of parts that grow; the type is also the key of the text
_NATIVE: Final[ProviderRaw] = {"dialect": NAME, "form": "thinking"}


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

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(NAME, framing or "sse", quirks)
        self._reply: dict[str, Any] = {}
        self._message: dict[str, Any] | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._citations: list[Any] = []
        self._places: list[int] = []  # block indexes of the parts
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
        events.append(MessageStart(None, make_notes(NAME, default_start(form), start_fields, form=form)))

    def _read_content_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._parts)
        part = self._parts[index] = dict(expect_object(_get_delta_field(wire, "content"), "content-start"))
        if part.get("type") in _TEXT_TYPES and part.get(part["type"]) is None:
            part[part["type"]] = ""
        place = self._open_parts[index] = self._next_block_index()
        self._places.append(place)
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
        part[kind] = part[kind] or text  # the first text is a placeholder: texts are not stored
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
        for at, block in enumerate(reply.content):  # its parts are first
            if isinstance(block, TextBlock) and block.citations:
                place = self._plan_index if is_plan(block) else self._places[at]
                if place is not None:
                    events.append(TextDelta(place, "", None, block.citations))
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


stream_reader = StreamReader
