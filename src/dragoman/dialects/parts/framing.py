"""Framing: how a stream of bytes is cut into events, and events into bytes.

A splitter has ``feed(bytes) -> frames`` and ``close() -> frames``; it keeps what is not complete yet and never decodes
half a character. ``tail`` is what was left over at the end: a stream cut in the middle of an event.

    sse           server-sent events: LF, CRLF or CR; comments; a byte order mark; several data lines
    ndjson        one JSON value a line
    json-array    one JSON array, its items as they become complete
    aws-eventstream            AWS's binary frames
    aws-eventstream-decoded    the same, one JSON object a line, as recorders keep them
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from dragoman.errors import InputError


class Frame(msgspec.Struct, frozen=True):
    """One event: its name, where the framing has one, and its data."""

    data: bytes
    event: str | None = None


class FramingError(InputError):
    """Bytes that are no frame."""

    code = "bad_event"


class SseSplitter:
    """Server-sent events, as the HTML standard reads them."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._event: str | None = None
        self._begun = False

    def feed(self, data: bytes) -> list[Frame]:
        """The events that are complete now."""
        buffer = self._rest + data
        if not self._begun and buffer[:3] == b"\xef\xbb\xbf"[: len(buffer)]:
            if len(buffer) < 3:
                self._rest = buffer
                return []
            buffer = buffer[3:]
        self._begun = self._begun or bool(buffer)
        frames: list[Frame] = []
        start = 0
        while True:
            end, after = _line_end(buffer, start)
            if end < 0:
                break
            self._take(buffer[start:end], frames)
            start = after
        self._rest = buffer[start:]
        return frames

    def close(self) -> list[Frame]:
        """At the end of the stream a lone CR ends a line; an event without its empty line is not dispatched."""
        frames: list[Frame] = []
        if self._rest.endswith(b"\r"):
            self._take(self._rest[:-1], frames)
            self._rest = b""
        return frames

    @property
    def tail(self) -> bytes:
        """What was left over: lines of an event that was never completed."""
        return b"\n".join([*self._data, self._rest]) if self._data else self._rest

    def _take(self, line: bytes, frames: list[Frame]) -> None:
        if not line:
            if self._data:
                frames.append(Frame(b"\n".join(self._data), self._event))
            self._data, self._event = [], None
            return
        name, colon, value = line.partition(b":")
        if not name and colon:
            return  # a comment
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")


def _line_end(buffer: bytes, start: int) -> tuple[int, int]:
    """Where the next line ends and the one after begins; a CR at the very end may be half of a CRLF."""
    newline, carriage = buffer.find(b"\n", start), buffer.find(b"\r", start)
    if carriage < 0 or 0 <= newline < carriage:
        return newline, newline + 1
    if carriage + 1 == len(buffer):
        return -1, -1
    return carriage, carriage + (2 if buffer[carriage + 1] == 10 else 1)


class LineSplitter:
    """One frame a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterable[Frame]:
        """The lines that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [Frame(line.rstrip(b"\r")) for line in lines if line.strip()]

    def close(self) -> Iterable[Frame]:
        """A last line needs no newline, if it is whole."""
        rest, self._rest = self._rest.strip(), self._rest
        if rest and _is_json(rest):
            self._rest = b""
            return [Frame(rest)]
        return []

    @property
    def tail(self) -> bytes:
        """What was left over."""
        return self._rest.strip()


class DecodedAwsSplitter(LineSplitter):
    """AWS frames as recorders keep them: one JSON object a line, with headers and payload."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now, one by one: what stands before a damaged one is not lost with it."""
        yield from (_decoded_aws_frame(frame.data) for frame in super().feed(data))

    def close(self) -> Iterator[Frame]:
        """A last line needs no newline, if it is whole."""
        yield from (_decoded_aws_frame(frame.data) for frame in super().close())


def _decoded_aws_frame(line: bytes) -> Frame:
    try:
        frame = json.loads(line)
        event = frame["headers"].get(":event-type") or frame["headers"].get(":exception-type")
        return Frame(json.dumps(frame["payload"]).encode(), event)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FramingError("not a decoded AWS frame", where="stream") from None


class JsonArraySplitter:
    """The items of one JSON array, each as soon as it is complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._start = -1
        self._at = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_closed = False

    def feed(self, data: bytes) -> list[Frame]:
        """The items that are complete now."""
        self._buffer += data
        frames: list[Frame] = []
        for at in range(self._at, len(self._buffer)):
            self._step(at, self._buffer[at], frames)
        self._at = len(self._buffer)
        if self._start < 0:
            self._buffer, self._at = b"", 0
        return frames

    def _step(self, at: int, byte: int, frames: list[Frame]) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif byte == 0x5C:
                self._escaped = True
            elif byte == 0x22:
                self._in_string = False
        elif byte == 0x22:
            self._in_string = True
        elif byte in b"[{":
            self._depth += 1
            if self._depth == 2:
                self._start = at
        elif byte in b"]}":
            self._depth -= 1
            if self._depth == 1 and self._start >= 0:
                frames.append(Frame(self._buffer[self._start : at + 1]))
                self._start = -1
            self.is_closed = self._depth == 0

    def close(self) -> list[Frame]:
        """Nothing more can become complete."""
        return []

    @property
    def tail(self) -> bytes:
        """What was left over of an item."""
        return self._buffer[self._start :] if self._start >= 0 else b""


class AwsSplitter:
    """AWS event-stream frames: lengths, headers, payload and two checksums."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now, one by one; a wrong checksum is a ``FramingError``."""
        self._rest += data
        while len(self._rest) >= 12:
            total, header_length, prelude_sum = struct.unpack(">III", self._rest[:12])
            if binascii.crc32(self._rest[:8]) != prelude_sum or total < 16 + header_length:
                raise FramingError("an AWS frame with a wrong checksum", where="stream")
            if len(self._rest) < total:
                break
            frame, self._rest = self._rest[:total], self._rest[total:]
            if binascii.crc32(frame[:-4]) != struct.unpack(">I", frame[-4:])[0]:
                raise FramingError("an AWS frame with a wrong checksum", where="stream")
            headers = _aws_headers(frame[12 : 12 + header_length])
            event = headers.get(":event-type") or headers.get(":exception-type")
            yield Frame(frame[12 + header_length : -4], event)

    def close(self) -> list[Frame]:
        """Nothing more can become complete."""
        return []

    @property
    def tail(self) -> bytes:
        """What was left over of a frame."""
        return self._rest


def _aws_headers(data: bytes) -> dict[str, str]:
    """The headers that are texts; the others are not ours to read."""
    try:
        return _text_headers(data)
    except (IndexError, struct.error):
        raise FramingError("an AWS frame with broken headers", where="stream") from None


def _text_headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    sizes = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
    at = 0
    while at < len(data):
        length = data[at]
        name = data[at + 1 : at + 1 + length].decode("utf-8", "replace")
        kind = data[at + 1 + length]
        at += 2 + length
        if kind in (6, 7):
            size = struct.unpack(">H", data[at : at + 2])[0]
            if kind == 7:
                headers[name] = data[at + 2 : at + 2 + size].decode("utf-8", "replace")
            at += 2 + size
        else:
            at += sizes.get(kind, len(data))
    return headers


SPLITTERS: Final[dict[str, type[Any]]] = {
    "sse": SseSplitter,
    "ndjson": LineSplitter,
    "json-array": JsonArraySplitter,
    "aws-eventstream": AwsSplitter,
    "aws-eventstream-decoded": DecodedAwsSplitter,
}


def splitter(framing: str) -> Any:
    """A splitter for a framing, by its name."""
    if framing not in SPLITTERS:
        raise LookupError(f"no framing {framing!r}; there are {', '.join(SPLITTERS)}")
    return SPLITTERS[framing]()


# --- writing ---------------------------------------------------------------------------------------------------------

# JavaScript and some line splitters take these for line ends; in JSON they can be written as escapes.
_LINE_ENDS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def sse_frame(wire: Any, event: str | None = None) -> bytes:
    """One event, with JSON as its data."""
    data = json_line(wire)
    return (b"event: " + event.encode() + b"\n" if event else b"") + b"data: " + data + b"\n\n"


def json_line(wire: Any) -> bytes:
    """JSON on one line, also for readers that take U+2028 for the end of one."""
    data = msgspec.json.encode(wire)
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def aws_frame(wire: Any, event: str) -> bytes:
    """One AWS event-stream frame."""
    headers = b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value
        for name, value in (
            (b":event-type", event.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    payload = msgspec.json.encode(wire)
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack(">I", binascii.crc32(prelude))
    body = head + headers + payload
    return body + struct.pack(">I", binascii.crc32(body))


def decoded_aws_frame(wire: Any, event: str) -> bytes:
    """The same as recorders keep it."""
    return msgspec.json.encode({"headers": {":event-type": event}, "payload": wire}) + b"\n"


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
