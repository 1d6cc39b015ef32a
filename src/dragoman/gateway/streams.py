"""Streams in the caller's own dialect: the provider's frames pass as they are, and a broken stream ends as an error.

    stream = NativeStream("anthropic", None, quirks)
    stream.feed(chunk) / stream.close() / stream.fail(fault)     the bytes for the caller

``StreamTranslator`` has the same methods. A frame is forwarded when it is complete and the reader of the dialect has
accepted it, so that the frame of an error can follow at any place. ``ping`` is a keep-alive that clients ignore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dragoman import dialects
from dragoman.event import (
    Accumulator,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    UsageUpdate,
)
from dragoman.exchange import Fault, Loss
from dragoman.gateway.translation import failure_frames
from dragoman.jsontext import DECODE_ERRORS

_SSE_END: Final = re.compile(rb"\r?\n\r?\n|\r\r")
# Faults that the reader found. Any other fault is an error event of the provider, which passes as it is.
LOCAL_FAULTS: Final = frozenset(
    (
        "bad_content_type",
        "bad_event",
        "empty_response",
        "protocol_violation",
        "stream_broken",
        "stream_incomplete",
        "timeout",
        "too_large",
    )
)
_FINAL_EVENTS: Final = (b"response.completed", b"response.incomplete")
_FRAMINGS: Final = {"ollama": "ndjson", "ollama_generate": "ndjson", "bedrock_converse": "aws-eventstream"}
MEDIA_TYPES: Final = {
    "sse": "text/event-stream",
    "ndjson": "application/x-ndjson",
    "json-array": "application/json",
    "aws-eventstream": "application/vnd.amazon.eventstream",
}
_PINGS: Final = {
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
    "openai_chat": b": ping\n\n",
    "openai_responses": b": ping\n\n",
    "cohere": b": ping\n\n",
}


def stream_framing(dialect: str, framing: str | None) -> str:
    """Return the framing of a stream in a dialect."""
    return framing or _FRAMINGS.get(dialect, "sse")


def ping(dialect: str) -> bytes:
    """Return a keep-alive; empty if the clients of a dialect accept none."""
    return _PINGS.get(dialect, b"")


class FrameGate:
    """Splits a stream into complete frames. Their bytes stay as they are; the last one gets an end if it has none."""

    def __init__(self, framing: str) -> None:
        self._framing = framing
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that these bytes complete."""
        if self._framing == "json-array":
            return [data]
        buffer = self._buffer + data if self._buffer else data
        frames: list[bytes] = []
        at = 0
        while (end := self._frame_end(buffer, at)) is not None:
            frames.append(buffer[at:end])
            at = end
        self._buffer = buffer[at:]
        return frames

    def close(self) -> bytes:
        """Return the last frame, which has no end. Clients of server-sent events ignore an event without one."""
        rest, self._buffer = self._buffer, b""
        is_event = self._framing == "sse" and any(line.startswith(b"data:") for line in rest.splitlines())
        return rest + b"\n\n" if is_event else rest

    def _frame_end(self, buffer: bytes, at: int) -> int | None:
        match self._framing:
            case "ndjson":
                end = buffer.find(b"\n", at) + 1
                return end or None
            case "aws-eventstream":
                length = int.from_bytes(buffer[at : at + 4]) if len(buffer) - at >= 4 else 0
                return at + length if length and len(buffer) - at >= length else None
            case _ if b"\r" not in buffer:
                end = buffer.find(b"\n\n", at) + 2
                return end if end > 1 else None
            case _:
                found = _SSE_END.search(buffer, at)
                return found.end() if found is not None else None


class NativeStream:
    """A provider's stream for a caller of the same dialect. ``accumulator`` has the reply so far."""

    def __init__(
        self,
        dialect: str,
        framing: str | None,
        quirks: tuple[str, ...],
        complete_frame: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._dialect = dialect
        self._framing = framing
        self._complete_frame = complete_frame
        self._gate = FrameGate(stream_framing(dialect, framing))
        self._reader = dialects.load(dialect).stream_reader(framing, quirks)
        self.accumulator = Accumulator()
        self.fault: Fault | None = None
        self.has_content = False
        self.is_complete = False

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Nothing is lost: the provider's frames pass as they are."""
        return ()

    def feed(self, chunk: bytes) -> bytes:
        """Return the complete frames of a chunk."""
        frames = self._gate.feed(chunk)
        return self._feed_frame(frames[0]) if len(frames) == 1 else b"".join(map(self._feed_frame, frames))

    def close(self) -> bytes:
        """Return the last frame; an error if the stream ended too early."""
        rest = self._feed_frame(self._gate.close())
        if self.fault is not None:
            return rest
        fault = self._note(self._reader.close())
        return rest if fault is None else failure_frames(self._dialect, self._framing, fault)

    def fail(self, fault: Fault) -> bytes:
        """Return the bytes that end the stream with a failure."""
        if self.fault is not None:
            return b""
        self._note((StreamError(fault),))
        return failure_frames(self._dialect, self._framing, fault)

    def _feed_frame(self, frame: bytes) -> bytes:
        """Return the frame, or an error in its place; nothing after an error."""
        if self.fault is not None or not frame:
            return b""
        fault = self._note(self._reader.feed(frame))
        if fault is not None and fault.code in LOCAL_FAULTS:
            return failure_frames(self._dialect, self._framing, fault)
        return frame if self._complete_frame is None else self._complete_frame(frame)

    def _note(self, events: Iterable[StreamEvent]) -> Fault | None:
        """Add events to the reply, and return the fault among them."""
        for event in events:
            self.accumulator.add(event)
            if type(event) is TextDelta:  # most events are
                self.has_content = True
                continue
            match event:
                case StreamError(fault=fault):
                    self.fault = self.fault or fault
                case MessageComplete():
                    self.is_complete = True
                case MessageStart() | UsageUpdate():
                    pass
                case _:
                    self.has_content = True
        return self.fault


class _FinalEvent(msgspec.Struct):
    response: dict[str, Any] | None = None


class FinalResponse:
    """Finds the last event of a Responses stream, which repeats the whole response."""

    def __init__(self) -> None:
        self._gate = FrameGate("sse")
        self.response: dict[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """Read more bytes of the stream."""
        for frame in self._gate.feed(data):
            if any(mark in frame[:200] for mark in _FINAL_EVENTS):
                text = b"".join(line[5:] for line in frame.splitlines() if line.startswith(b"data:"))
                self.response = _read_response(text)


def _read_response(text: bytes) -> dict[str, Any] | None:
    """Return the response of an event; none if it has no response, or one that cannot be stored."""
    try:
        return msgspec.json.decode(text, type=_FinalEvent).response
    except DECODE_ERRORS:
        return None
