"""Streams of the Messages API: bytes into events, and events into bytes.

The one rule: what was cut, damaged or out of order never looks complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from dragoman.dialects.anthropic.blocks import NAME, read_block
from dragoman.dialects.anthropic.error import read_error, write_error
from dragoman.dialects.anthropic.reply import read_usage, reply_from, write_reply
from dragoman.dialects.parts.conversation import Conversation, an_object
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
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
    fold,
)
from dragoman.exchange import ErrorClass, Fault, Reply
from dragoman.message import TextBlock, ThinkingBlock


class StreamReader:
    """Bytes in, events out. Each block is put together as it stood on the wire, and read as a whole one at its end."""

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._closed: set[int] = set()
        self._conversation = Conversation()
        self._ended = False
        self._failed = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if self._failed:
            return events
        try:
            for frame in self._splitter.feed(data):
                if not self._take(frame.data, events):
                    break
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
            if self._message.get("stop_reason") is not None:  # message_delta came, message_stop did not
                self._complete(events)
            else:
                tail = self._splitter.tail[:4096].decode("utf-8", "replace")
                self._fail("stream_incomplete", "the stream ended before the message did", events, tail=tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Take one event; whether the next one is to be trusted."""
        if self._ended:
            return True
        try:
            wire = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("bad_event", "an event that is not JSON", events)
            return False
        kind = wire.get("type") if isinstance(wire, dict) else None
        handler = _HANDLERS.get(str(kind))
        if handler is not None:
            try:
                problem = handler(self, wire, events)
            except FormatError as error:
                problem = str(error)
            if problem is not None:
                self._fail("protocol_violation", problem, events)
        return not self._failed

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        retryable = code in ("stream_incomplete", "protocol_violation", "bad_event")
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=retryable, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if self._message:
            return "message_start came a second time"
        self._message = dict(an_object(wire.get("message"), "message_start"))
        events.append(MessageStart(text_or_none(self._message.get("model"))))
        self._usage(events)
        return None

    def _block_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index = _index(wire)
        if not self._message or index < 0 or index in self._blocks:
            return f"content_block_start for block {index}, which cannot begin here"
        block = self._blocks[index] = dict(an_object(wire.get("content_block"), "content_block_start"))
        match block.get("type"):
            case "tool_use":
                self._inputs[index] = []
                call_id = self._conversation.call_id(str(block.get("id")))
                events.append(ToolUseStart(index, call_id, str(block.get("name"))))
            case "text" if block.get("text"):
                events.append(TextDelta(index, block["text"]))
            case "thinking" if block.get("thinking"):
                events.append(ThinkingDelta(index, block["thinking"]))
        return None

    def _block_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index, delta = _index(wire), wire.get("delta")
        block = self._blocks.get(index)
        if block is None or index in self._closed or not isinstance(delta, dict):
            return f"content_block_delta for block {index}, which is not open"
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                block["text"] = block.get("text", "") + text
                events.append(TextDelta(index, text))
            case {"type": "input_json_delta", "partial_json": str(text)}:
                self._inputs.setdefault(index, []).append(text)
                if block.get("type") == "tool_use":
                    events.append(ToolUseInputDelta(index, text))
            case {"type": "thinking_delta", "thinking": str(text)}:
                block["thinking"] = block.get("thinking", "") + text
                events.append(ThinkingDelta(index, text))
            case {"type": "signature_delta", "signature": str(signature)}:
                block["signature"] = signature
            case {"type": "citations_delta", "citation": citation}:
                block["citations"] = [*(block.get("citations") or []), citation]
            case {"type": "compaction_delta", "content": content}:
                block["content"] = content if block.get("content") is None else block["content"] + content
        return None

    def _block_stop(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        index = _index(wire)
        block = self._blocks.get(index)
        if block is None or index in self._closed:
            return f"content_block_stop for block {index}, which is not open"
        self._closed.add(index)
        text = "".join(self._inputs.get(index, ()))
        if block.get("type") == "tool_use":
            if not text and block.get("input"):  # it came whole with the beginning
                events.append(ToolUseInputDelta(index, msgspec.json.encode(block["input"]).decode()))
            events.append(ToolUseEnd(index, self._call_residue(block, text)))
            return None
        if text:
            try:
                block["input"] = msgspec.json.decode(text)
            except msgspec.DecodeError:
                return f"the input of block {index} is not JSON"
        whole = read_block(block, Conversation())
        raw = getattr(whole, "provider_raw", None)
        match whole:
            case TextBlock(text):
                events.append(TextDelta(index, "", raw))
            case ThinkingBlock(text, signature):
                events.append(ThinkingDelta(index, "", signature, raw))
            case _:
                events.append(BlockComplete(index, whole))
        return None

    def _call_residue(self, block: dict[str, Any], text: str) -> dict[str, Any] | None:
        try:
            value = msgspec.json.decode(text) if text.strip() else block.get("input") or {}
        except msgspec.DecodeError:
            value = {}
        read = read_block({**block, "input": value}, Conversation())
        raw: dict[str, Any] | None = getattr(read, "provider_raw", None)
        return raw

    def _message_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        delta = wire.get("delta")
        self._message.update(delta if isinstance(delta, dict) else {})
        usage = wire.get("usage")
        if isinstance(usage, dict):
            known = self._message.get("usage")
            self._message["usage"] = {**(known if isinstance(known, dict) else {}), **_without_nulls(usage)}
            self._usage(events)
        if wire.get("context_management") is not None:
            self._message["context_management"] = wire["context_management"]
        return None

    def _usage(self, events: list[StreamEvent]) -> None:
        usage = self._message.get("usage")
        if isinstance(usage, dict):
            events.append(UsageUpdate(read_usage(usage)))

    def _message_stop(self, _wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        if not self._message:
            return "message_stop before message_start"
        if self._closed != set(self._blocks):
            return "message_stop while a block is open"
        if self._message.get("stop_reason") is None:
            self._fail("stream_incomplete", "the message ended without a reason", events)
            return None
        self._complete(events)
        return None

    def _complete(self, events: list[StreamEvent]) -> None:
        whole = reply_from(self._message, (TextBlock("…"),))
        events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
        self._ended = True

    def _error(self, wire: dict[str, Any], events: list[StreamEvent]) -> str | None:
        fault = read_error(None, {}, wire)
        events.append(StreamError(fault))
        self._failed = True
        return None


_HANDLERS: Final = {
    "message_start": StreamReader._message_start,
    "content_block_start": StreamReader._block_start,
    "content_block_delta": StreamReader._block_delta,
    "content_block_stop": StreamReader._block_stop,
    "message_delta": StreamReader._message_delta,
    "message_stop": StreamReader._message_stop,
    "error": StreamReader._error,
}


def _index(wire: dict[str, Any]) -> int:
    index = wire.get("index")
    return index if type(index) is int else -1


def _without_nulls(usage: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in usage.items() if value is not None}


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order that the official SDKs expect: one block after the other."""

    def __init__(self, framing: str | None = None) -> None:
        self._events: list[StreamEvent] = []
        self._done = framing not in (None, "sse")
        if self._done:
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")

    def feed(self, event: StreamEvent) -> bytes:
        """Take one event. Nothing is written before ``close``."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        return _written_stream(fold(self._events))


def _written_stream(reply: Reply) -> bytes:
    wire = write_reply(reply).wire
    start = {**wire, "content": [], "stop_reason": None, "stop_sequence": None}
    out = [sse_frame({"type": "message_start", "message": start}, "message_start")]
    for index, block in enumerate(wire["content"]):
        out.extend(_written_stream_block(index, block))
    if reply.fault is not None:
        out.append(sse_frame(write_error(reply.fault).wire, "error"))
        return b"".join(out)
    delta = {key: wire[key] for key in ("stop_reason", "stop_sequence") if key in wire}
    out.append(sse_frame({"type": "message_delta", "delta": delta, "usage": wire["usage"]}, "message_delta"))
    out.append(sse_frame({"type": "message_stop"}, "message_stop"))
    return b"".join(out)


def _written_stream_block(index: int, block: dict[str, Any]) -> Iterable[bytes]:
    begin, deltas = dict(block), []
    if block["type"] == "text":
        begin["text"] = ""
        deltas = [{"type": "text_delta", "text": block["text"]}]
        citations = block.get("citations") or []
        if citations:
            begin["citations"] = []
        deltas.extend({"type": "citations_delta", "citation": citation} for citation in citations)
    elif block["type"] == "thinking":
        begin["thinking"] = begin["signature"] = ""
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif block["type"] in ("tool_use", "server_tool_use", "mcp_tool_use"):
        begin["input"] = {}
        deltas = [{"type": "input_json_delta", "partial_json": msgspec.json.encode(block["input"]).decode()}]
    yield sse_frame({"type": "content_block_start", "index": index, "content_block": begin}, "content_block_start")
    for delta in deltas:
        yield sse_frame({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
    yield sse_frame({"type": "content_block_stop", "index": index}, "content_block_stop")


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
