"""Base class of the stream readers of all dialects: bytes in, events out.

    class StreamReader(BaseStreamReader):
        delta_type = _Delta                           struct of an event that only adds text to an open block
        def read_delta(self, delta)                   its event, or None if the general path has to read it
        def repeat_delta(self, text)                  the event of the same delta with another text; optional
        def read_event(self, wire, name, events)      the general path: append the events of one decoded object
        def decode_event(self, data)                  the object in an event; only where JSON needs a closer look
        def end_stream(self, events, *, is_done)      the last events of a stream that ends without a MessageComplete
        def read_trailing(self, data)                 an event that follows the MessageComplete

The fast path of every dialect: while ``expects_delta`` is set, the base decodes an event as ``delta_type`` first. Of
deltas that repeat the bytes around the text, it decodes the texts only, all at once (``DeltaTemplate``).

``read_event`` raises ``EventOrderError`` or ``FormatError`` for an event that the protocol does not allow. The base
handles the rest: events that are not JSON objects, a page instead of a stream, a cut stream, data after the end, and
exceptions.

Invariants: any split of the bytes yields the same events. A damaged stream never ends with a MessageComplete.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, Final

import msgspec

from dragoman.errors import FormatError, JsonError
from dragoman.event import MessageComplete, StreamError, StreamEvent, ToolUseInputDelta
from dragoman.jsontext import (
    DECODE_ERRORS,
    describe_unexpected,
    log_unexpected,
    storage_problem,
    validate_json,
    validate_text,
)
from dragoman.message import ProviderRaw
from dragoman.wire.faults import BYTE_ORDER_MARK, HEAD_BYTES, early_end, stream_error
from dragoman.wire.frames import Frame, FramingError, SseSplitter, make_splitter

SKIP: Final = object()  # returned by ``decode_event`` for an event that is a repetition
_MAX_TAIL_BYTES: Final = 4096
_MAX_TRAILING_CHARACTERS: Final = 4096
_DONE_MARKERS: Final = (b"[DONE]", b'"[DONE]"')


class EventOrderError(Exception):
    """An event that the protocol does not allow at this place."""


_SPLIT_FIELDS: Final = ("text", "partial_json")  # of events: a surrogate pair may be split between two of them
_EVENT_ERRORS: Final = (EventOrderError, FormatError, ValueError, RecursionError)


class BaseStreamReader:
    """Reads frames of JSON objects and appends events. ``feed`` and ``close`` never raise."""

    delta_type: ClassVar[Any] = None
    ends_at_once: ClassVar[bool] = False  # emit MessageComplete when it is read instead of when the stream is closed
    _delta_decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()

    def __init_subclass__(cls) -> None:
        if cls.delta_type is not None:
            cls._delta_decoder = msgspec.json.Decoder(cls.delta_type)

    def __init__(self, dialect: str, framing: str, quirks: Collection[str] = ()) -> None:
        self._dialect = dialect
        self._is_reason_optional = "terminal_reason_optional" in quirks  # an answer may end without a reason
        self._splitter = make_splitter(framing)
        self._single_event = self._splitter.single_event if isinstance(self._splitter, SseSplitter) else _no_event
        self._decode_delta = self._delta_decoder.decode
        self._has_lines = framing == "ndjson"
        self._head: bytes | None = b""  # the first bytes, until an event is recognized
        self._is_foreign = False  # the bytes are not a stream; the rest of the first kilobyte is awaited
        self._end: MessageComplete | None = None
        self._trailing = TrailingData(dialect)
        self._is_over = False
        has_template = framing == "sse" and type(self).repeat_delta is not BaseStreamReader.repeat_delta
        self._template = DeltaTemplate(is_usable=has_template)
        self.expects_delta = False
        self.joins_deltas = False  # deltas that arrive together may be one event

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that these bytes complete."""
        events: list[StreamEvent] = []
        try:
            template = self._template
            if template.prefix and data.startswith(template.prefix) and (text := template.read_text(data)):
                return [self.repeat_delta(text)]
            if template.may_learn:
                self._read_events(data, events)
            elif not self._read_single(data, events):
                self._read_rest(data, events)
        except Exception as error:  # noqa: BLE001  events read before it stand
            self._abort(error, events)
        return events

    def close(self) -> list[StreamEvent]:
        """Return the last events; a fault if the stream ended too early."""
        events: list[StreamEvent] = []
        try:
            if not self._is_over:
                self._finish(events)
        except Exception as error:  # noqa: BLE001  events read before it stand
            self._abort(error, events)
        self._stop()
        return events

    # --- methods of a dialect ----------------------------------------------------------------------------------------

    def read_delta(self, delta: Any) -> StreamEvent | None:  # noqa: ARG002
        """Return the event of a decoded ``delta_type``; ``None`` if the general path has to read it."""
        return None

    def repeat_delta(self, text: str) -> StreamEvent:
        """Return the event of a delta that is equal to the last one but for its text. Optional."""
        raise NotImplementedError

    def read_event(self, wire: dict[str, Any], name: str | None, events: list[StreamEvent]) -> None:
        """Append the events of one object. ``name`` is the name of the frame, if the framing has one."""
        raise NotImplementedError

    def decode_event(self, data: bytes) -> Any:
        """Return the value in an event or ``SKIP``. Invalid JSON raises a ``DecodeError`` or a ``JsonError``."""
        return msgspec.json.decode(data)

    def end_stream(self, events: list[StreamEvent], *, is_done: bool) -> None:
        """Append the end of a stream without a MessageComplete, at ``[DONE]`` or at the end of the bytes."""
        events.append(early_end(self._dialect, None, b"") if is_done else self._early_end())

    def read_trailing(self, data: bytes) -> None:
        """Keep an event that follows the MessageComplete."""
        self._trailing.add(_to_text(data[:_MAX_TAIL_BYTES]))

    def handle_framing_error(self, error: FramingError, events: list[StreamEvent]) -> None:
        """Append the fault for bytes that are not a frame."""
        self._fail(stream_error(self._dialect, "bad_event", str(error)), events)

    def mark_recognized(self) -> None:
        """Note that the bytes are a stream of this dialect."""
        self._head = None

    # --- bytes and frames

    def _read_events(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events of these bytes: deltas that fit the template all at once, the first others one by one."""
        template = self._template
        for _ in range(_MAX_STEPS):
            texts, data = template.read_texts(data)
            if texts:
                joined = ["".join(texts)] if self.joins_deltas else texts
                events.extend(map(self.repeat_delta, joined))
            wire, end, rest = data.partition(_EVENT_END)
            if not end:
                break
            wire += end
            if self._read_single(wire, events):
                template.learn(wire, events[-1])
            else:
                self._read_rest(wire, events)
            data = rest
        if data:
            self._read_rest(data, events)

    def _read_single(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Append the event of bytes that are one plain delta; ``False`` if they are anything else."""
        single = self._single_event(data) if self.expects_delta else None
        return single is not None and self._read_delta(single, events)

    def _read_rest(self, data: bytes, events: list[StreamEvent]) -> None:
        """The general path."""
        self._template.forget()
        if not self._is_over:
            self.read_bytes(data, events)

    def read_bytes(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        if self._head is not None and len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        if not self._is_foreign:
            self._read_frames(self._splitter.feed(data), events)
        if self._is_foreign and len(self._head or b"") == HEAD_BYTES:
            self._fail_as_foreign(events)

    def _read_frames(self, frames: Iterable[Frame], events: list[StreamEvent]) -> None:
        try:
            for frame in frames:
                if not self.expects_delta or not self._read_delta(frame.data, events):
                    self._read_frame(frame, events)
                if self._is_over or self._is_foreign:
                    break
        except FramingError as error:
            if self._end is None:
                self.handle_framing_error(error, events)

    def _read_delta(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Fast path: append the event of a plain delta; ``False`` if it is anything else."""
        try:
            delta = self._decode_delta(data)
        except DECODE_ERRORS:
            return False
        event = self.read_delta(delta)
        if event is None:
            return False
        events.append(event)
        return True

    def _read_frame(self, frame: Frame, events: list[StreamEvent]) -> None:
        data = frame.data if self._head is None else frame.data.removeprefix(BYTE_ORDER_MARK)
        if not data.strip():
            return  # some proxies keep a connection alive with events without data
        if not self._has_lines:
            self._head = None
        if data.strip() in _DONE_MARKERS:
            self.handle_done(events)
        else:
            self._read_object(data, frame.event, events)
        self._note_end(events)

    def _read_object(self, data: bytes, name: str | None, events: list[StreamEvent]) -> None:
        try:
            wire = self._decode(data)
            if wire is SKIP:
                return
            if self._end is not None:
                self.read_trailing(data)
            elif wire is None:
                self._handle_invalid_event(data, events)
            else:
                start = len(events)
                self.read_event(wire, name, events)
                if b"\\u" in data:
                    _validate_names(events, start)
        except _EVENT_ERRORS as error:
            self._fail_for(error, events)

    def _decode(self, data: bytes) -> Any:
        try:
            wire = self.decode_event(data)
        except (JsonError, *DECODE_ERRORS):
            return None
        return wire if type(wire) is dict or wire is SKIP else None

    def _handle_invalid_event(self, data: bytes, events: list[StreamEvent]) -> None:
        start = data.lstrip()
        if self._head is not None and (start[:1] == b"<" or start == b"{"):
            self._is_foreign = True
            return
        tail = _to_text(data[:_MAX_TAIL_BYTES])
        self._fail(stream_error(self._dialect, "bad_event", "an event is not a JSON object", tail=tail), events)

    # --- the end

    def handle_done(self, events: list[StreamEvent]) -> None:
        """End the stream at ``[DONE]``."""
        self._head = None
        if self._end is None:
            self._end_stream(events, is_done=True)
        elif not self.ends_at_once:
            self._complete(events)

    def _end_stream(self, events: list[StreamEvent], *, is_done: bool) -> None:
        try:
            self.end_stream(events, is_done=is_done)
        except _EVENT_ERRORS as error:
            self._fail_for(error, events)

    def _note_end(self, events: list[StreamEvent]) -> None:
        """Hold back a MessageComplete until nothing can follow it; stop after a StreamError."""
        last = events[-1] if events else None
        if isinstance(last, StreamError):
            self._stop()
        elif isinstance(last, MessageComplete) and self._end is None:
            self._end = last
            self.expects_delta = False
            events.pop()
            if self.ends_at_once:
                events.append(self._final_event(last))

    def _finish(self, events: list[StreamEvent]) -> None:
        if not self._is_foreign:
            self._read_frames(self._splitter.close(), events)
        if self._is_over:
            return
        if self._is_foreign:
            self._fail_as_foreign(events)
        elif self._end is None:
            self._end_stream(events, is_done=False)
            self._note_end(events)
        if self._end is not None and not self.ends_at_once:
            self._complete(events)

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._end is not None:
            events.append(self._final_event(self._end))
        self._stop()

    def _final_event(self, end: MessageComplete) -> MessageComplete:
        return end.replace(provider_raw=self._trailing.add_to(end.provider_raw))

    def _early_end(self) -> StreamError:
        head, tail = self._head, self._splitter.tail
        if self._has_lines and tail.removeprefix(BYTE_ORDER_MARK)[:1] == b"{":
            head = None  # the first line, cut
        return early_end(self._dialect, head, tail)

    def _fail_as_foreign(self, events: list[StreamEvent]) -> None:
        self._fail(early_end(self._dialect, self._head, b""), events)

    def _fail_for(self, error: Exception, events: list[StreamEvent]) -> None:
        if isinstance(error, ValueError | RecursionError):
            self._fail(stream_error(self._dialect, "bad_event", storage_problem(error)[1]), events)
        else:
            self._fail(stream_error(self._dialect, "protocol_violation", str(error)), events)

    def _fail(self, error: StreamError, events: list[StreamEvent]) -> None:
        if self._end is None:  # a complete message cannot fail any more
            events.append(error)
            self._stop()

    def _abort(self, error: Exception, events: list[StreamEvent]) -> None:
        log_unexpected(error)
        events.append(stream_error(self._dialect, "bad_event", describe_unexpected(error)))
        self._stop()

    def _stop(self) -> None:
        self._is_over = True
        self.expects_delta = False
        self._template.forget()


class DeltaTemplate:
    """The bytes around the text of a delta, learned from two deltas that differ in nothing but their texts.

    All other bytes of the two are equal, so their text can only be the string between ``prefix`` and ``suffix``.
    """

    def __init__(self, *, is_usable: bool) -> None:
        self.prefix = b""  # up to the opening quote of the text; empty: nothing is learned
        self._suffix = b""  # from its closing quote
        self._candidate: tuple[bytes, bytes, str] | None = None
        self._tries = _TEMPLATE_TRIES if is_usable else 0

    def read_text(self, data: bytes) -> str | None:
        """Return the text of one delta that fits the template; ``None`` if it does not, or there are several."""
        if not data.endswith(self._suffix):
            return None
        try:
            return _decode_text(data[len(self.prefix) - 1 : len(data) - len(self._suffix) + 1])
        except DECODE_ERRORS:
            return None

    @property
    def may_learn(self) -> bool:
        """Whether deltas fit a template, or may do so later."""
        return self._tries > 0

    def read_texts(self, data: bytes) -> tuple[list[str], bytes]:
        """Return the texts of the deltas at the start of the data that fit the template, and the rest of the data."""
        prefix, suffix = self.prefix, self._suffix
        if not prefix or not data.startswith(prefix):
            return [], data
        before, after = len(prefix), len(_EVENT_END) - len(suffix)
        wires = data.split(_EVENT_END)[:-1]
        while wires and not wires[-1].startswith(prefix):  # most often, only the last events are of another kind
            wires.pop()
        texts = [wire[before:after] for wire in wires]
        if not data.startswith(fitting := self._join(texts)):
            ending = suffix.removesuffix(_EVENT_END)
            count = sum(1 for _ in itertools.takewhile(lambda w: w.startswith(prefix) and w.endswith(ending), wires))
            texts = texts[:count]
            fitting = self._join(texts)
        try:
            result = _decode_texts(b'["%b"]' % b'","'.join(texts)) if texts else []
        except DECODE_ERRORS:
            return [], data
        return (result, data[len(fitting) :]) if result and len(result) == len(texts) and all(result) else ([], data)

    def _join(self, texts: list[bytes]) -> bytes:
        """Return the bytes of deltas with these encoded texts."""
        return self.prefix + (self._suffix + self.prefix).join(texts) + self._suffix

    def learn(self, data: bytes, event: StreamEvent) -> None:
        """Compare the bytes of a delta with those of the delta before it."""
        if self._tries <= 0:
            return
        self._tries -= 1
        text: str = event.partial_json if isinstance(event, ToolUseInputDelta) else event.text  # type: ignore[union-attr]
        encoded = msgspec.json.encode(text)
        at = data.find(encoded)
        prefix, suffix = data[: at + 1], data[at + len(encoded) - 1 :]
        known, self._candidate = self._candidate, (prefix, suffix, text) if at >= 0 else None
        if known is not None and known[:2] == (prefix, suffix) and known[2] != text:
            self.prefix, self._suffix, self._tries = prefix, suffix, _TEMPLATE_TRIES

    def forget(self) -> None:
        """Drop the template, because another event was read."""
        self.prefix, self._candidate = b"", None


_MAX_STEPS: Final = 8  # events of one read that did not fit the template, before the general path reads the rest
_TEMPLATE_TRIES: Final = 8  # deltas without a template, for example because of random padding, before learning stops
_EVENT_END: Final = b"\n\n"


def _validate_names(events: list[StreamEvent], start: int) -> None:
    """Raise ``ValueError`` for a lone surrogate outside a text, and remove the events. A text may have its other half
    in the next event; a name or an id may not.
    """
    try:
        for event in events[start:]:
            for name, value in msgspec.structs.asdict(event).items():
                if isinstance(value, str) and name not in _SPLIT_FIELDS:
                    validate_text(value, name)
                elif isinstance(value, dict):
                    validate_json(value, name)
    except ValueError:
        del events[start:]
        raise


_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


class TrailingData:
    """Text that follows the end of one answer: at most 4,096 characters are kept, and one warning is logged."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._text = ""
        self._is_logged = False

    def add(self, text: str) -> None:
        """Keep the text as far as there is room, and log the first one."""
        if not self._is_logged:
            import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

            log = logging.getLogger("dragoman.stream")
            log.warning("%s: data after the end of an answer is ignored", self._dialect)
        self._is_logged = True
        self._text = (self._text + text)[:_MAX_TRAILING_CHARACTERS]

    def add_to(self, raw: ProviderRaw | None) -> ProviderRaw | None:
        """Return the notes about the answer with the trailing text."""
        return {"dialect": self._dialect, **(raw or {}), "late": self._text} if self._text else raw


def _no_event(_data: bytes) -> None:
    """Replace ``SseSplitter.single_event`` for a framing without such a test."""


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
