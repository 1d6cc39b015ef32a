"""Streams of Ollama chat, both ways."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from dragoman.dialects.ollama.blocks import NAME, OF_OURS, arguments_text, read_blocks, read_call, text_at
from dragoman.dialects.ollama.error import read_error, write_error
from dragoman.dialects.ollama.reply import read_reply, unfinished, write_reply
from dragoman.dialects.parts.conversation import Conversation, a_list, an_object
from dragoman.dialects.parts.framing import FramingError, json_line, splitter, sse_frame
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
    fold,
)
from dragoman.exchange import Reply
from dragoman.jsontext import OWN, read_json


class StreamReader:
    """Bytes in, events out. The lines are put together to the answer that would have come whole."""

    def __init__(self, framing: str | None = None) -> None:
        self._splitter = splitter(framing or "ndjson")
        self._message: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}
        self._seed: str | None = None  # what the ids of nameless calls are made of: when the answer began
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
            self._fail("stream_incomplete", "the stream ended before the answer was done", events, tail or None)
        return events

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        if self._ended or self._failed:
            return
        if data.strip() == b"[DONE]":
            self._fail("stream_incomplete", "the stream ended before the answer was done", events)
            return
        try:
            # Only the input of a call needs the careful reader: two equal keys there must not go unnoticed.
            wire = read_json(data, OWN) if b'"tool_calls"' in data else msgspec.json.decode(data)
        except (JsonError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._fail("bad_event", f"a line that is not JSON: {error}", events)
            return
        try:
            self._take_line(an_object(wire, "line"), events)
        except FormatError as error:
            self._fail("protocol_violation", str(error), events)

    def _take_line(self, wire: dict[str, Any], events: list[StreamEvent]) -> None:
        if wire.get("error") is not None:
            events.append(StreamError(read_error(None, {}, wire)))
            self._failed = True
            return
        if self._seed is None:
            self._seed = f"{wire.get('created_at')}#"
            events.append(MessageStart(text_or_none(wire.get("model"))))
        if wire.get("message") is not None:
            self._take_message(an_object(wire["message"], "message"), events)
        if wire.get("done") is True:
            texts = {key: "".join(pieces) for key, pieces in self._pieces.items()}
            whole = read_reply({**wire, "message": {**self._message, **texts}})
            if whole.usage is not None:
                events.append(UsageUpdate(whole.usage))
            events.append(MessageComplete(whole.stop_reason, whole.stop_sequence, whole.provider_raw))
            self._ended = True

    def _take_message(self, message: dict[str, Any], events: list[StreamEvent]) -> None:
        for key, value in message.items():
            match key:
                case "thinking" | "content":
                    text = text_at(message, key, "message")
                    self._message.setdefault(key, None)
                    if value is not None:
                        self._pieces.setdefault(key, []).append(text)
                    if text and key == "thinking":
                        events.append(ThinkingDelta(self._index(key), text, None, dict(OF_OURS)))
                    elif text:
                        events.append(TextDelta(self._index(key), text))
                case "tool_calls" if value is not None:
                    self._take_calls(a_list(value, "message.tool_calls"), events)
                case "images" if value:
                    blocks = read_blocks({"images": value}, "message", self._conversation, "")
                    self._message["images"] = [*(self._message.get("images") or []), *value]
                    events.extend(BlockComplete(self._index(f"picture {len(self._indexes)}"), b) for b in blocks)
                case "tool_calls" | "images":
                    self._message.setdefault(key, value)
                case _:
                    self._message[key] = value

    def _take_calls(self, calls: list[Any], events: list[StreamEvent]) -> None:
        """Calls come whole."""
        known = self._message["tool_calls"] = self._message.get("tool_calls") or []
        for call in calls:
            where = f"message.tool_calls[{len(known)}]"
            block = read_call(an_object(call, where), where, self._conversation, f"{self._seed}{len(known)}")
            index = self._index(where)
            events.append(ToolUseStart(index, block.id, block.name))
            events.append(ToolUseInputDelta(index, arguments_text(call["function"].get("arguments"))))
            events.append(ToolUseEnd(index, block.provider_raw))
            known.append(call)

    def _index(self, what: str) -> int:
        return self._indexes.setdefault(what, len(self._indexes))

    def _fail(self, code: str, message: str, events: list[StreamEvent], tail: str | None = None) -> None:
        raw = {"dialect": NAME, "tail": tail} if tail else None
        events.append(StreamError(unfinished(code, message), raw))
        self._failed = True


def stream_reader(framing: str | None = None, quirks: Collection[str] = ()) -> StreamReader:  # noqa: ARG001  it has none
    """A reader of this dialect's streams."""
    return StreamReader(framing)


class StreamWriter:
    """Events in, bytes out: one object a line, never an empty line, and a message in each of them."""

    def __init__(self, framing: str | None = None) -> None:
        if framing not in (None, "ndjson", "sse"):
            raise LookupError(f"{NAME} streams are lines of JSON, not {framing!r}")
        self._frame = sse_frame if framing == "sse" else _line
        self._events: list[StreamEvent] = []

    def feed(self, event: StreamEvent) -> bytes:
        """The bytes for one event. Nothing is written before the answer has ended."""
        self._events.append(event)
        return b""

    def close(self) -> bytes:
        """The rest of the stream."""
        return b"".join(self._frame(wire) for wire in _written_lines(fold(self._events)))


def _line(wire: Any) -> bytes:
    return json_line(wire) + b"\n"


def _written_lines(reply: Reply) -> Iterator[dict[str, Any]]:
    """The reasoning, the text and the calls on lines of their own; everything else on the last one."""
    wire = write_reply(reply).wire
    message: dict[str, Any] = wire["message"]
    texts = {key: "" for key in ("content", "thinking") if isinstance(message.get(key), str)}
    rest = {key: value for key, value in message.items() if key != "tool_calls" or not value}
    head = {key: wire[key] for key in ("model", "created_at") if key in wire}
    for key in ("thinking", "content", "tool_calls"):
        if message.get(key):
            begun = {name: message[name] for name in ("role",) if name in message}
            empty = {"content": ""} if "content" in texts else {}
            yield {**head, "message": {**begun, **empty, key: message[key]}, "done": False}
    if reply.fault is not None:
        yield write_error(reply.fault).wire
    else:
        kept = {key: value for key, value in rest.items() if key != "thinking" or not value}
        yield {**wire, "message": {**kept, **({"content": ""} if "content" in texts else {})}}


def stream_writer(framing: str | None = None) -> StreamWriter:
    """A writer of this dialect's streams."""
    return StreamWriter(framing)
