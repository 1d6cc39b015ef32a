"""Frames: split bytes into events and write events as bytes.

A splitter has ``feed(bytes) -> frames`` and ``close() -> frames``. It keeps incomplete data and never decodes half a
character. ``tail`` is what is left at the end of a cut stream.

    sse                        server-sent events: LF, CRLF or CR; comments; a byte order mark; several data lines
    ndjson                     one JSON value per line
    json-array                 one JSON array, each item as soon as it is complete
    aws-eventstream            binary frames of AWS
    aws-eventstream-decoded    the same frames as JSON objects, one per line, as recorders store them
    aws-ndjson                 the same events as SDKs return them: one object per line, with the type as its key
"""

from __future__ import annotations

import binascii
import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import InputError
from dragoman.jsontext import DECODE_ERRORS


class Frame(msgspec.Struct, frozen=True):
    """One event: its data, and its name where the framing has one."""

    data: bytes
    event: str | None = None
    is_failure: bool = False  # header of AWS that marks an error


_MAX_AWS_FRAME: Final = 24 * 2**20  # limit of the SDKs of AWS


class FramingError(InputError):
    """Bytes that are not a frame."""

    code = "bad_event"


class SseSplitter:
    """Server-sent events as in the HTML standard."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended
        self._data: list[bytes] = []
        self._event: str | None = None
        self._event_line = (
            b"",
            "",
        )  # the last event line and its name; the next one is usually the same
        self._prefix = b"data: "  # lines before the data of the last event
        self._is_started = False
        self._is_idle = False  # whether no line and no event is incomplete

    def feed(self, data: bytes) -> list[Frame]:
        """Return the complete events."""
        if self._rest:
            if not _completes_line(self._rest[-1], data):
                self._rest.append(data)
                return []
            data = b"".join([*self._rest, data])
            self._rest = []
        if not self._is_started:
            data = self._strip_mark(data)
        lines = data.split(b"\n") if _CARRIAGE_RETURN not in data else _LINE_END.split(data)
        rest = lines.pop()
        if rest:
            self._rest = [rest]
        frames = self._frames(lines)
        self._is_idle = self._is_started and not self._rest and not self._data and self._event is None
        return frames

    def single_event(self, data: bytes) -> bytes | None:
        """Return the data of the one event in these bytes, if it has the form of the last event."""
        prefix = self._prefix
        if (
            data[-2:] == b"\n\n"
            and data.startswith(prefix)
            and data.find(b"\n", len(prefix)) == len(data) - 2
            and _CARRIAGE_RETURN not in data
            and self._is_idle
        ):
            return data[len(prefix) : -2]
        return None

    def close(self) -> list[Frame]:
        """Return the last events. A CR at the end ends a line; an event without its empty line must be whole JSON."""
        rest = b"".join(self._rest)
        frames: list[Frame] = []
        if rest.endswith(b"\r"):
            frames = self._frames([rest[:-1]])
            self._rest, rest = [], b""
        data = b"\n".join([*self._data, *([rest[5:].lstrip(b" ")] if rest[:5] == b"data:" else [])])
        if data == b"[DONE]" or (data[:1] == b"{" and _is_json(data)):
            frames.append(Frame(data, self._event))
            self._data, self._rest, self._event = [], [], None
        return frames

    @property
    def tail(self) -> bytes:
        """The lines of an incomplete event."""
        return b"\n".join([*self._data, b"".join(self._rest)]) if self._data else b"".join(self._rest)

    def _strip_mark(self, data: bytes) -> bytes:
        """Remove the byte order mark at the start, which may arrive in parts."""
        if len(data) < 3 and data == _MARK[: len(data)]:
            self._rest = [data] if data else []
            return b""
        self._is_started = True
        return data.removeprefix(_MARK)

    def _frames(self, lines: list[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        for line in lines:
            if line[:6] == b"data: ":
                self._data.append(line[6:])
            elif not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    frames.append(Frame(data, self._event))
                    self._data = []
                    self._prefix = b"data: " if self._event is None else self._event_line[0] + b"\ndata: "
                self._event = None
            elif line == self._event_line[0]:
                self._event = self._event_line[1]
            else:
                self._read_line(line)
        return frames

    def _read_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")  # a comment has no name
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
            self._event_line = (line, self._event)


_CARRIAGE_RETURN: Final = 13
_MARK: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the very end may be half of a CRLF


def _completes_line(previous: bytes, data: bytes) -> bool:
    return b"\n" in data or b"\r" in data or previous[-1:] == b"\r" or previous in (_MARK[:1], _MARK[:2])


class LineSplitter:
    """One frame per line."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_started = False  # after the first line, which may begin with a byte order mark

    def feed(self, data: bytes) -> Iterable[Frame]:
        """Return the complete lines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and not self._is_started:
            lines[0], self._is_started = lines[0].removeprefix(_MARK), True
        return [Frame(line.rstrip(b"\r")) for line in lines if line.strip()]

    def close(self) -> Iterable[Frame]:
        """Return a last line without a newline, if it is valid JSON."""
        rest, self._rest = self._rest.strip(), self._rest
        if rest and _is_json(rest):
            self._rest = b""
            return [Frame(rest)]
        return []

    @property
    def tail(self) -> bytes:
        """The incomplete line."""
        return self._rest.strip()


class DecodedAwsSplitter(LineSplitter):
    """AWS frames as recorders store them: one JSON object per line, with headers and payload."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames; frames before a damaged one are not lost."""
        yield from (_parse_decoded_aws_frame(frame.data) for frame in super().feed(data))

    def close(self) -> Iterator[Frame]:
        """Yield a last line without a newline, if it is valid."""
        yield from (_parse_decoded_aws_frame(frame.data) for frame in super().close())


class AwsEventLineSplitter(LineSplitter):
    """Events as the SDKs of AWS return them: one JSON object per line, whose first key is the type of the event."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete events; events before a damaged one are not lost."""
        yield from (_parse_aws_event(frame.data) for frame in super().feed(data))

    def close(self) -> Iterator[Frame]:
        """Yield a last line without a newline, if it is valid."""
        yield from (_parse_aws_event(frame.data) for frame in super().close())


def _parse_aws_event(line: bytes) -> Frame:
    try:
        (name, value), *extra = json.loads(line).items()
        payload = {**value, **dict(extra)} if isinstance(value, dict) else {}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise FramingError("not an event of AWS", where="stream") from None
    return Frame(json.dumps(payload).encode(), name, is_failure=name.endswith("Exception"))


def _parse_decoded_aws_frame(line: bytes) -> Frame:
    try:
        frame = json.loads(line)
        return _to_frame(frame["headers"], json.dumps(frame["payload"]).encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FramingError("not a decoded AWS frame", where="stream") from None


_ITEM_TOKEN: Final = re.compile(rb'["{}\[\]]')
_STRING_TOKEN: Final = re.compile(rb'["\\]')
_NON_SPACE: Final = re.compile(rb"[^ \t\r\n]")
_BEGIN, _FIRST, _AFTER_ITEM, _AFTER_COMMA, _CLOSED = b"[", b"{[]", b",]", b"{[", b""  # allowed between items
_TRAILING_BYTES: Final = 4096


class JsonArraySplitter:
    """The items of one JSON array, each as soon as it is complete. An item is an object or an array."""

    def __init__(self) -> None:
        self._item = bytearray()
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._allowed = _BEGIN
        self.trailing = b""  # bytes after the array, at most a few kilobytes

    @property
    def is_closed(self) -> bool:
        """Whether the array has ended."""
        return self._allowed is _CLOSED

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete items; anything else between items raises ``FramingError``."""
        if self.is_closed:
            self._keep_trailing(data)
            return
        at = 0
        while at < len(data):
            if not self._depth:
                at = self._find_item(data, at)
            if self._depth:
                start, at = at, self._item_end(data, at)
                self._item += data[start:at]
                if not self._depth:
                    item, self._item = bytes(self._item), bytearray()
                    self._allowed = _AFTER_ITEM
                    yield Frame(item)

    def _find_item(self, data: bytes, at: int) -> int:
        """Return where the next item starts, or the end of the bytes."""
        while (token := _NON_SPACE.search(data, at)) is not None:
            mark, at = token[0], token.end()
            if mark not in self._allowed:
                raise FramingError(f"{mark!r} between the items of an array", where="stream")
            if self._allowed is _BEGIN:
                self._allowed = _FIRST
            elif mark == b",":
                self._allowed = _AFTER_COMMA
            elif mark == b"]":
                self._allowed = _CLOSED
                self._keep_trailing(data[at:])
                break
            else:
                self._depth = 1
                self._item += mark
                return at
        return len(data)

    def _keep_trailing(self, data: bytes) -> None:
        trailing = self.trailing + data if self.trailing else data.lstrip()
        self.trailing = trailing[:_TRAILING_BYTES]

    def _item_end(self, data: bytes, at: int) -> int:
        """Return where the item ends, or the end of the bytes."""
        while at < len(data) and self._depth:
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            token = (_STRING_TOKEN if self._in_string else _ITEM_TOKEN).search(data, at)
            if token is None:
                return len(data)
            at = token.end()
            match token[0]:
                case b'"':
                    self._in_string = not self._in_string
                case b"\\":
                    self._is_escaped = True
                case b"{" | b"[":
                    self._depth += 1
                case _:
                    self._depth -= 1
        return at

    def close(self) -> list[Frame]:
        """Return nothing: no item can become complete."""
        return []

    @property
    def tail(self) -> bytes:
        """The bytes of an incomplete item."""
        return bytes(self._item)


class AwsSplitter:
    """AWS event-stream frames: lengths, headers, payload and two checksums."""

    def __init__(self) -> None:
        self._buffer = b""
        self._start = 0  # of the first frame that is not complete

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames; a wrong checksum or size raises ``FramingError``."""
        self._buffer, self._start = self._buffer[self._start :] + data, 0
        while len(self._buffer) - self._start >= 12:
            total, header_length, prelude_sum = struct.unpack_from(">III", self._buffer, self._start)
            if binascii.crc32(self._buffer[self._start : self._start + 8]) != prelude_sum:
                raise FramingError("an AWS frame with a wrong checksum", where="stream")
            if not 16 + header_length <= total <= _MAX_AWS_FRAME:
                raise FramingError("an AWS frame with a wrong size", where="stream")
            if len(self._buffer) - self._start < total:
                break
            frame = self._buffer[self._start : self._start + total]
            if binascii.crc32(frame[:-4]) != struct.unpack(">I", frame[-4:])[0]:
                raise FramingError("an AWS frame with a wrong checksum", where="stream")
            self._start += total
            yield _to_frame(_aws_headers(frame[12 : 12 + header_length]), frame[12 + header_length : -4])

    def close(self) -> list[Frame]:
        """Return nothing: no frame can become complete."""
        return []

    @property
    def tail(self) -> bytes:
        """The bytes of an incomplete frame."""
        return self._buffer[self._start :]


def _to_frame(headers: dict[str, Any], payload: bytes) -> Frame:
    """Return a frame of AWS. An unmodeled failure has a code and a text in its headers, and no payload."""
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    if ":error-code" in texts:
        payload = msgspec.json.encode({"message": texts.get(":error-message", "")})
        return Frame(payload, texts[":error-code"], is_failure=True)
    if ":exception-type" in texts:
        return Frame(payload, texts[":exception-type"], is_failure=True)
    return Frame(payload, texts.get(":event-type"))


def _aws_headers(data: bytes) -> dict[str, str]:
    """Return the headers with text values."""
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
    "aws-ndjson": AwsEventLineSplitter,
}


def select_framing(dialect: str, framing: str | None, framings: Sequence[str]) -> str:
    """Return a framing of a dialect; its first one by default."""
    if framing is None:
        return framings[0]
    if framing not in framings:
        raise LookupError(f"{dialect} has no framing {framing!r}; there are {', '.join(framings)}")
    return framing


def make_splitter(framing: str) -> Any:
    """Return a splitter for a framing."""
    if framing not in SPLITTERS:
        raise LookupError(f"no framing {framing!r}; there are {', '.join(SPLITTERS)}")
    return SPLITTERS[framing]()


# --- writing ---------------------------------------------------------------------------------------------------------

# JavaScript and some line splitters treat these as line ends; JSON can escape them.
_LINE_ENDS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def sse_frame(wire: Any, event: str | None = None) -> bytes:
    """Return one event with JSON data."""
    data = json_line(wire)
    return (b"event: " + event.encode() + b"\n" if event else b"") + b"data: " + data + b"\n\n"


def json_line(wire: Any) -> bytes:
    """Return JSON on one line, also for readers that treat U+2028 as a line end."""
    return _escape_line_ends(_encode(wire))


def json_text(text: str) -> bytes:
    """Return a text as JSON on one line."""
    data = _encode(text)
    return data if text.isascii() else _escape_line_ends(data)


def _escape_line_ends(data: bytes) -> bytes:
    for raw, replacement in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, replacement)
    return data


_encode: Final = msgspec.json.Encoder().encode


def aws_frame(wire: Any, event: str, kind: str = "event") -> bytes:
    """Return one AWS event-stream frame of kind ``event`` or ``exception``."""
    headers = b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value
        for name, value in (
            (f":{kind}-type".encode(), event.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", kind.encode()),
        )
    )
    payload = msgspec.json.encode(wire)
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack(">I", binascii.crc32(prelude))
    body = head + headers + payload
    return body + struct.pack(">I", binascii.crc32(body))


def aws_frame_as_json(wire: Any, event: str, kind: str = "event") -> bytes:
    """Return the frame as recorders store it."""
    return json_line({"headers": {f":{kind}-type": event, ":message-type": kind}, "payload": wire}) + b"\n"


def aws_event_line(wire: Any, event: str, kind: str = "event") -> bytes:  # noqa: ARG001  the type tells the kind
    """Return the event as SDKs return it."""
    return json_line({event: wire}) + b"\n"


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except DECODE_ERRORS:
        return False
    return True
