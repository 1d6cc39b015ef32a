"""Streams of Cohere Chat, both ways."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from dragoman.dialects.cohere.blocks import NAME, read_call, read_part
from dragoman.dialects.cohere.error import read_error
from dragoman.dialects.cohere.reply import read_reply, write_reply
from dragoman.dialects.parts.conversation import Conversation, a_list, an_object
from dragoman.dialects.parts.framing import FramingError, splitter, sse_frame
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
    """Bytes in, events out. The events are put together to the answer that would have come whole.

    Content and calls are counted apart on this wire; here a block's index is its place among all of them, as they came.
    """

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "sse")
        self._reply: dict[str, Any] = {}
        self._message: dict[str, Any] | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._pieces: dict[str, list[str]] = {}
        self._open: set[str] = set()
        self._indexes: dict[str, int] = {}
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
                self._take(frame.data, frame.event, events)
        except FramingError as error:
            self._fail("bad_event", str(error), events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._failed:
            for frame in self._splitter.close():
                self._take(frame.data, frame.event, events)
        if not self._failed and not self._ended:
            tail = self._splitter.tail[:4096].decode("utf-8", "replace")
            self._fail("stream_incomplete", "the stream ended before the message did", events, tail or None)
        return events

    def _take(self, data: bytes, event: str | None, events: list[StreamEvent]) -> None:
        if self._ended or self._failed:
            return
        if data.strip() in (b"[DONE]", b'"[DONE]"'):
            self._fail("stream_incomplete", "the stream ended before the message did", events)
            return
        try:
            wire = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("bad_event", "an event that is not JSON", events)
            return
        try:
            self._take_event(an_object(wire, "event"), event, events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)

    def _take_event(self, wire: dict[str, Any], event: str | None, events: list[StreamEvent]) -> None:
        kind = wire.get("type") or event
        if kind == "error" or (kind is None and isinstance(wire.get("message"), str)):
            events.append(StreamError(read_error(None, {}, wire)))
            self._failed = True
            return
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            return  # of a newer version
        if self._message is None and kind != "message-start":
            raise FormatError(f"{kind} before message-start", where="event")
        handler(self, wire, events)

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        error_class = ErrorClass.NETWORK if code == "stream_incomplete" else ErrorClass.SERVER_ERROR
        fault = Fault(code=code, message=message, error_class=error_class, retryable=True, provider=NAME)
        events.append(StreamError(fault, {"dialect": NAME, "tail": tail} if tail else None))
        self._failed = True

    def _message_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._message is not None:
            raise FormatError("message-start came a second time", where="event")
        self._reply = {"id": wire["id"]} if "id" in wire else {}
        self._message = dict(an_object(_delta(wire).get("message"), "message-start"))
        if self._message.get("content") or self._message.get("tool_calls") or self._message.get("tool_plan"):
            raise FormatError("a message begins empty", where="message-start")
        a_list(self._message.get("citations") or [], "message-start")
        events.append(MessageStart(None))

    def _content_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._parts)
        self._parts[index] = dict(an_object(_delta_part(wire, "content"), "content-start"))
        self._open.add(f"content {index}")
        place = self._index(f"content {index}")
        self._say(place, self._parts[index], events)

    def _content_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("content", wire)
        delta = an_object(_delta_part(wire, "content"), "content-delta")
        for key in ("text", "thinking"):
            if isinstance(delta.get(key), str):
                self._pieces.setdefault(f"content {index} {key}", []).append(delta[key])
        self._say(self._index(f"content {index}"), {**delta, "type": self._parts[index].get("type")}, events)

    def _say(self, place: int, part: dict[str, Any], events: list[StreamEvent]) -> None:
        match part:
            case {"type": "text", "text": str(text)} if text:
                events.append(TextDelta(place, text))
            case {"type": "thinking", "thinking": str(text)} if text:
                events.append(ThinkingDelta(place, text, None, {"dialect": NAME, "form": "thinking"}))

    def _content_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("content", wire)
        self._open.remove(f"content {index}")
        part = self._parts[index]
        for key in ("text", "thinking"):
            self._join(part, key, f"content {index} {key}")
        place, block = self._index(f"content {index}"), read_part(part)
        match block:
            case TextBlock(provider_raw=raw) if part.get("type") == "text":
                events.append(TextDelta(place, "", raw))
            case ThinkingBlock(provider_raw=raw):
                events.append(ThinkingDelta(place, "", None, raw))
            case _:
                events.append(BlockComplete(place, block))

    def _plan_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        text = _delta_part(wire, "tool_plan")
        if isinstance(text, str) and text:
            self._pieces.setdefault("plan", []).append(text)
            events.append(TextDelta(self._index("plan"), text, {"dialect": NAME, "form": "tool_plan"}))

    def _call_start(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = _next_index(wire, self._calls)
        call = dict(an_object(_delta_part(wire, "tool_calls"), "tool-call-start"))
        function = call["function"] = dict(an_object(call.get("function"), "tool-call-start"))
        self._calls[index] = call
        self._open.add(f"call {index}")
        place, block = self._index(f"call {index}"), read_call(call, "tool-call-start", self._conversation)
        events.append(ToolUseStart(place, block.id, block.name))
        if function.get("arguments"):
            events.append(ToolUseInputDelta(place, function["arguments"]))

    def _call_delta(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("call", wire)
        delta = an_object(_delta_part(wire, "tool_calls"), "tool-call-delta")
        text = an_object(delta.get("function"), "tool-call-delta").get("arguments")
        if isinstance(text, str) and text:
            self._pieces.setdefault(f"call {index}", []).append(text)
            events.append(ToolUseInputDelta(self._index(f"call {index}"), text))

    def _call_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        index = self._open_index("call", wire)
        self._open.remove(f"call {index}")
        self._join(self._calls[index]["function"], "arguments", f"call {index}")
        block = read_call(self._calls[index], "tool-call-end", Conversation())
        events.append(ToolUseEnd(self._index(f"call {index}"), block.provider_raw))

    def _citation(self, wire: dict[str, Any], _events: list[StreamEvent]) -> None:
        if self._message is not None:
            self._message["citations"] = [*(self._message.get("citations") or []), _delta_part(wire, "citations")]

    def _message_end(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = _delta(wire)
        still_open = sorted(what for what in self._open if what.startswith("content"))
        if still_open:
            raise FormatError(f"message-end while {still_open[0]} is open", where="event")
        if delta.get("finish_reason") is None:
            self._fail("stream_incomplete", "the message ended without a reason", events)
            return
        message = dict(self._message or {})
        self._join(message, "tool_plan", "plan")
        if self._parts:
            message["content"] = list(self._parts.values())
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        whole = read_reply({**self._reply, "message": message, **delta})
        if whole.usage is not None:
            events.append(UsageUpdate(whole.usage))
        if whole.fault is not None:
            events.append(StreamError(whole.fault, whole.provider_raw))
        else:
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
        self._ended = True

    def _join(self, whole: dict[str, Any], key: str, what: str) -> None:
        """Put the pieces of a text behind what it began with."""
        if what in self._pieces:
            begun = whole.get(key)
            whole[key] = "".join([begun if isinstance(begun, str) else "", *self._pieces.pop(what)])

    def _index(self, what: str) -> int:
        return self._indexes.setdefault(what, len(self._indexes))

    def _open_index(self, what: str, wire: dict[str, Any]) -> int:
        index = wire.get("index")
        if type(index) is not int or f"{what} {index}" not in self._open:
            raise FormatError(f"{wire.get('type')} for {what} {index}, which is not open", where="event")
        return index


_HANDLERS: Final = {
    "message-start": StreamReader._message_start,
    "content-start": StreamReader._content_start,
    "content-delta": StreamReader._content_delta,
    "content-end": StreamReader._content_end,
    "tool-plan-delta": StreamReader._plan_delta,
    "tool-call-start": StreamReader._call_start,
    "tool-call-delta": StreamReader._call_delta,
    "tool-call-end": StreamReader._call_end,
    "citation-start": StreamReader._citation,
    "message-end": StreamReader._message_end,
}


def _delta(wire: dict[str, Any]) -> dict[str, Any]:
    return an_object(wire.get("delta"), str(wire.get("type")))


def _delta_part(wire: dict[str, Any], key: str) -> Any:
    return an_object(_delta(wire).get("message"), str(wire.get("type"))).get(key)


def _next_index(wire: dict[str, Any], begun: Mapping[int, Any]) -> int:
    index = wire.get("index")
    if type(index) is not int or index < 0 or (begun and index <= max(begun)):
        raise FormatError(f"{wire.get('type')} for {index}, which cannot begin here", where="event")
    return index


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out, in the order in which this API sends them."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "sse"):
            raise LookupError(f"{NAME} streams are server-sent events, not {framing!r}")
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the message has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        written = _written_events(fold(self._events))
        return b"".join(sse_frame(wire, wire["type"]) for wire in written) + b"data: [DONE]\n\n"


def _written_events(reply: Reply) -> Iterator[dict[str, Any]]:
    wire = write_reply(reply).wire
    message: dict[str, Any] = wire["message"]
    if isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    begun = {**message, **{key: type(message[key])() for key in _GROWING if message.get(key)}}
    start = {"id": wire["id"]} if "id" in wire else {}
    yield {**start, "type": "message-start", "delta": {"message": begun}}
    for index, part in enumerate(message.get("content") or []):
        yield from _written_part_events(index, part)
    if message.get("tool_plan"):
        yield {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": message["tool_plan"]}}}
    for index, call in enumerate(message.get("tool_calls") or []):
        yield from _written_call_events(index, call)
    for index, citation in enumerate(message.get("citations") or []):
        yield {"type": "citation-start", "index": index, "delta": {"message": {"citations": citation}}}
        yield {"type": "citation-end", "index": index}
    end = {key: value for key, value in wire.items() if key not in ("id", "message")}
    yield {"type": "message-end", "delta": end}


_GROWING: Final = ("content", "tool_plan", "tool_calls", "citations")


def _written_part_events(index: int, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    key = part["type"] if part.get("type") in ("text", "thinking") else None
    begun = {**part, key: ""} if key is not None else part
    yield {"type": "content-start", "index": index, "delta": {"message": {"content": begun}}}
    if key is not None:
        yield {"type": "content-delta", "index": index, "delta": {"message": {"content": {key: part[key]}}}}
    yield {"type": "content-end", "index": index}


def _written_call_events(index: int, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function = call["function"]
    begun = {**call, "function": {**function, "arguments": ""}} if function.get("arguments") else call
    yield {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": begun}}}
    if function.get("arguments"):
        delta = {"function": {"arguments": function["arguments"]}}
        yield {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": delta}}}
    yield {"type": "tool-call-end", "index": index}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
