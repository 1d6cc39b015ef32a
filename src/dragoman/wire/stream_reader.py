"""Reading a stream whose events are JSON objects: what is the same whatever they say.

    class StreamReader(FrameReader):
        def take(self, wire, name, events)      one object, and the name of its event where the framing has one
        def words(self, data)                   the next words of a text that goes on, if an event is nothing but that
        def decoded(self, data)                 the object in an event, where a dialect has to look more closely

``take`` appends events, and a ``MessageComplete`` as the last of them. It raises ``FormatError`` for what is out of
order. Everything else is done here: an object that is none, a page in place of a stream, a stream that was cut, and
what comes after the end. ``MessageComplete`` is handed out when nothing can follow it any more, so that it can name
what followed.

The one rule: any split of the bytes gives the same events, and no damage looks like a proper end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.errors import FormatError, JsonError
from dragoman.event import MessageComplete, StreamError, StreamEvent
from dragoman.jsontext import describe_unexpected, log_unexpected, storage_problem
from dragoman.message import ProviderRaw
from dragoman.wire.faults import BYTE_ORDER_MARK, HEAD_BYTES, early_end, redact, stream_error
from dragoman.wire.frames import Frame, FramingError, make_splitter

_MAX_TAIL_BYTES: Final = 4096
_DONE_MARKERS: Final = (b"[DONE]", b'"[DONE]"')


class EventReader:
    """What every stream reader is for its caller: bytes in, events out, and no exception, whatever the bytes are.

    A dialect implements ``read`` and ``finish``. An exception that they did not foresee ends the stream with a fault,
    after the events that were read before it, and is logged.
    """

    _dialect: str
    _is_broken = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete."""
        events: list[StreamEvent] = []
        if not self._is_broken:
            try:
                self.read(data, events)
            except Exception as error:  # noqa: BLE001  whatever it is, what came before it stands
                self._break(error, events)
        return events

    def close(self) -> list[StreamEvent]:
        """The events at the end of the stream; a fault, if it ended too early."""
        events: list[StreamEvent] = []
        if not self._is_broken:
            try:
                self.finish(events)
            except Exception as error:  # noqa: BLE001  whatever it is, what came before it stands
                self._break(error, events)
        return events

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        raise NotImplementedError

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        raise NotImplementedError

    def _break(self, error: Exception, events: list[StreamEvent]) -> None:
        self._is_broken = True
        log_unexpected(error)
        events.append(stream_error(self._dialect, "bad_event", describe_unexpected(error)))


class BaseStreamReader(EventReader):
    """Events in frames, each of which is a JSON object."""

    def __init__(self, dialect: str, framing: str) -> None:
        self._dialect = dialect
        self._splitter = make_splitter(framing)
        self._is_line_based = framing == "ndjson"
        self._head: bytes | None = b""  # how it begins, as long as nothing has been understood
        self._is_foreign = False  # no stream at all, and its first kilobyte is not there yet
        self._end: MessageComplete | None = None
        self._trailing = TrailingData(dialect)
        self._is_over = False

    def read_event(self, wire: dict[str, Any], name: str | None, events: list[StreamEvent]) -> None:
        """One object of the stream."""
        raise NotImplementedError

    def decode_text_delta(self, _data: bytes) -> StreamEvent | None:
        """The next words of a text that goes on; ``None`` if there is anything else to see. A short way, for most."""
        return None

    def decode_event(self, data: bytes) -> Any:
        """The value in an event. What is no JSON is a ``DecodeError`` of msgspec, or a ``JsonError``."""
        return msgspec.json.decode(data)

    def read(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        if self._is_over:
            return
        if self._head is not None and len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        try:
            if not self._is_foreign:
                self._read_frames(self._splitter.feed(data), events)
        except FramingError as error:
            self._fail(stream_error(self._dialect, "bad_event", str(error)), events)
        if self._is_foreign and len(self._head or b"") == HEAD_BYTES:
            self._fail_as_foreign(events)

    def finish(self, events: list[StreamEvent]) -> None:
        """Append the events at the end of the stream; a fault, if it ended too early."""
        if not self._is_over and not self._is_foreign:
            self._read_frames(self._splitter.close(), events)
        if self._is_over:
            return
        if self._end is not None:
            self._complete(events)
        elif self._is_foreign:
            self._fail_as_foreign(events)
        else:
            self._fail(self._early_end(), events)

    def mark_recognized(self) -> None:
        """What comes is a stream of this dialect."""
        self._head = None

    def _read_frames(self, frames: Any, events: list[StreamEvent]) -> None:
        for frame in frames:
            delta = self.decode_text_delta(frame.data) if self._head is None and self._end is None else None
            if delta is not None:
                events.append(delta)
                continue
            self._read_frame(frame, events)
            if self._is_over or self._is_foreign:
                break

    def _read_frame(self, frame: Frame, events: list[StreamEvent]) -> None:
        data = frame.data.removeprefix(BYTE_ORDER_MARK) if self._head is not None else frame.data
        if data.strip() in _DONE_MARKERS:
            self._handle_done(events)
        elif self._end is not None:
            self._trailing.add(_to_text(data[:_MAX_TAIL_BYTES]))
        else:
            wire = self._decode_object(data)
            if wire is None:
                self._handle_invalid_event(data, events)
            else:
                self._read_object(wire, frame.event, events)

    def _decode_object(self, data: bytes) -> dict[str, Any] | None:
        try:
            wire = self.decode_event(data)
        except (JsonError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return wire if isinstance(wire, dict) else None

    def _read_object(self, wire: dict[str, Any], name: str | None, events: list[StreamEvent]) -> None:
        new_events: list[StreamEvent] = []
        try:
            self.read_event(wire, name, new_events)
        except FormatError as error:
            new_events.append(stream_error(self._dialect, "protocol_violation", str(error)))
        except (ValueError, RecursionError) as error:
            new_events.append(stream_error(self._dialect, "bad_event", storage_problem(error)[1]))
        if new_events and isinstance(new_events[-1], MessageComplete):
            self._end = new_events.pop()  # type: ignore[assignment]
        self._is_over = bool(new_events) and isinstance(new_events[-1], StreamError)
        events.extend(new_events)

    def _handle_invalid_event(self, data: bytes, events: list[StreamEvent]) -> None:
        start = data.lstrip()
        if self._head is not None and self._is_line_based and (start[:1] == b"<" or start == b"{"):
            self._is_foreign = True
            return
        tail = _to_text(data[:_MAX_TAIL_BYTES])
        self._fail(stream_error(self._dialect, "bad_event", "an event that is not a JSON object", tail=tail), events)

    def _handle_done(self, events: list[StreamEvent]) -> None:
        if self._end is not None:
            self._complete(events)
        else:
            self.mark_recognized()
            self._fail(early_end(self._dialect, None, b""), events)

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._end is not None:
            events.append(self._end.replace(provider_raw=self._trailing.add_to(self._end.provider_raw)))
        self._is_over = True

    def _early_end(self) -> StreamError:
        head, tail = self._head, self._splitter.tail
        if self._is_line_based and tail.removeprefix(BYTE_ORDER_MARK)[:1] == b"{":
            head = None  # the first line, cut
        return early_end(self._dialect, head, tail)

    def _fail_as_foreign(self, events: list[StreamEvent]) -> None:
        head = redact(self._head or b"")
        message = "something else came instead of a stream"
        self._fail(stream_error(self._dialect, "bad_content_type", message, head=head), events)

    def _fail(self, error: StreamError, events: list[StreamEvent]) -> None:
        events.append(error)
        self._is_over = True


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


_MAX_CHARACTERS: Final = 4096


class TrailingData:
    """What came late in one stream."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._text = ""
        self._is_logged = False

    def add(self, text: str) -> None:
        """Keep some of it, and say so once."""
        if not self._is_logged:
            import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

            log = logging.getLogger("dragoman.stream")
            log.warning("%s: what came after the end of an answer is no part of it", self._dialect)
        self._is_logged = True
        self._text = (self._text + text)[:_MAX_CHARACTERS]

    def add_to(self, raw: ProviderRaw | None) -> ProviderRaw | None:
        """The notes about the answer, with what came late."""
        return {"dialect": self._dialect, **(raw or {}), "late": self._text} if self._text else raw
