"""Derived dialects: a wire whose bodies are another arrangement of the bodies of a base dialect.

    Arrangement(to_base, from_base)                 two pure functions between the bodies of both wires
    DerivedDialect(name, base, request, reply)      reads and writes requests and replies by way of the base dialect
    DerivedStreamReader, DerivedStreamWriter        translate each event of a stream to and from the base dialect

``to_base`` and ``from_base`` need not be exact: the difference between what ``from_base`` returns and what was received
is kept as residue, like that of any dialect. Blocks carry the notes of the base dialect, requests and replies those of
the derived one. Invariant: what was read is written as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import InputError
from dragoman.event import Accumulator, MessageComplete, MessageStart, StreamError, StreamEvent
from dragoman.exchange import Fault, Loss, Reply, Request, Written
from dragoman.jsontext import (
    DECODE_ERRORS,
    accepts_json_text,
    describe_unexpected,
    log_unexpected,
    storage_problem,
    validate_json,
)
from dragoman.message import ProviderRaw
from dragoman.wire.faults import HEAD_BYTES, early_end, stream_error
from dragoman.wire.frames import Frame, FramingError, json_line, make_splitter, sse_frame
from dragoman.wire.residue import apply_diff, diff, foreign_field_losses, get_notes
from dragoman.wire.support import Support, drop_unsupported, reply_losses, report_shared_fields
from dragoman.wire.tool_definitions import MAX_BRACKETS

if TYPE_CHECKING:
    from dragoman.catalog import Model

Wire = dict[str, Any]
_COUNTED: Final = frozenset(  # names whose loss is one block or tool
    {
        "audio",
        "document",
        "image",
        "invalid_tool_use",
        "opaque",
        "redacted_thinking",
        "text",
        "thinking",
        "tool",
        "tool_result",
        "tool_use",
        "video",
    }
)
_OUTER: Final = "outer"  # the note with the difference between the derived wire and its arrangement


class Arrangement(msgspec.Struct, frozen=True):
    """Two functions between the bodies of two wires."""

    to_base: Callable[[Wire], Wire]
    from_base: Callable[[Wire], Wire]


class DerivedDialect:
    """Requests and replies of a derived dialect.

    ``prepare`` and ``prepare_reply`` remove what the wire cannot carry, and add the losses.
    """

    def __init__(
        self,
        name: str,
        base: ModuleType,
        request: Arrangement,
        reply: Arrangement,
        *,
        family: str | None = None,
        prepare: Callable[[Request, list[Loss]], Request] | None = None,
        prepare_reply: Callable[[Reply, list[Loss]], Reply] | None = None,
        support: Support | None = None,
    ) -> None:
        self.name = name
        self._prepare_reply = prepare_reply
        self._support = support
        self.base = base
        self.family = family
        self._request = request
        self._reply = reply
        self._prepare = prepare
        self.read_request = accepts_json_text()(self._read_request)
        self.read_reply = accepts_json_text()(self._read_reply)

    def _read_request(self, body: Wire) -> Request:
        request: Request = self.base.read_request(self._request.to_base(body))
        default = self._request.from_base(self.base.write_request(request).wire)
        return request.replace(provider_raw=self.add_residue(request.provider_raw, default, body))

    def write_request(
        self, request: Request, quirks: Collection[str] = (), model: Model | None = None, *, fit: bool = True
    ) -> Written:
        """Write a request and report losses."""
        losses: list[Loss] = []
        if self._support is not None:
            losses.extend(report_shared_fields(request, self.name, self._support))
            request = drop_unsupported(request, self._support)
        fields: list[Loss] = []
        if self._prepare is not None:
            is_own = bool(get_notes(request.provider_raw, self.name))  # the residue restores fields of the base
            fields = list(foreign_field_losses(request.messages, self.base.NAME if is_own else self.name))
            request = self._prepare(request, losses)
        outer = get_notes(request.provider_raw, self.name).get(_OUTER)
        request = request.replace(provider_raw=self.to_base_raw(request.provider_raw))
        written = self.base.write_request(request, quirks, model, fit=fit)
        wire = apply_diff(self._request.from_base(written.wire), outer)
        others = [loss for loss in (*written.losses, *written.notes) if loss not in fields]
        return Written(wire, self._own_losses((*losses, *fields, *others)))

    def _read_reply(self, body: Wire) -> Reply:
        reply: Reply = self.base.read_reply(self._reply.to_base(body))
        default = self._reply.from_base(self.base.write_reply(reply).wire)
        raw = self.add_residue(reply.provider_raw, default, body)
        return reply.replace(provider_raw=raw, fault=self.own_fault(reply.fault))

    def write_reply(self, reply: Reply) -> Written:
        """Write a reply and report losses."""
        losses: list[Loss] = []
        if self._support is not None:
            losses.extend(reply_losses(reply, self.name, self._support))
        if self._prepare_reply is not None:
            reply = self._prepare_reply(reply, losses)
        outer = get_notes(reply.provider_raw, self.name).get(_OUTER)
        written = self.base.write_reply(reply.replace(provider_raw=self.to_base_raw(reply.provider_raw)))
        wire = apply_diff(self._reply.from_base(written.wire), outer)
        return Written(wire, self._own_losses((*losses, *written.losses, *written.notes)))

    def add_residue(self, raw: ProviderRaw | None, default: Wire, wire: Wire) -> ProviderRaw:
        """Return the notes of the base dialect as ours, with what the arrangement cannot represent."""
        outer = diff(default, wire)
        if outer is None:
            return self.to_own_raw(raw)
        validate_json(outer, "provider_raw")
        return {**self.to_own_raw(raw), _OUTER: outer}

    def to_own_raw(self, raw: ProviderRaw | None) -> ProviderRaw:
        """Return notes of the base dialect as notes of this one."""
        family = {"family": self.family} if self.family is not None else {}
        return {**get_notes(raw, self.base.NAME), "dialect": self.name, **family}

    def to_base_raw(self, raw: ProviderRaw | None) -> ProviderRaw | None:
        """Return notes of this dialect as notes of the base dialect; those of any other dialect stay."""
        notes = get_notes(raw, self.name)
        if not notes:
            return raw
        inner = {key: value for key, value in notes.items() if key not in (_OUTER, "family")}
        return {**inner, "dialect": self.base.NAME}

    def own_fault(self, fault: Fault | None) -> Fault | None:
        """Return a fault of the base dialect as a fault of this one."""
        return fault.replace(provider=self.name) if fault is not None and fault.provider == self.base.NAME else fault

    def _own_losses(self, losses: Iterable[Loss]) -> tuple[Loss, ...]:
        """Return the losses of the base dialect as losses of this one, each field of a message or a tool once."""
        own: dict[tuple[str, str, str], Loss] = {}
        for number, loss in enumerate(losses):
            tool = loss.reason if loss.block_type.startswith("tool.") else ""  # which names the tool
            key = (loss.message_id, loss.block_type, str(number) if loss.block_type in _COUNTED else tool)
            own.setdefault(key, loss.replace(adapter=self.name))
        return tuple(own.values())


# --- streams ---------------------------------------------------------------------------------------------------------


class DerivedStreamReader:
    """Translates each event to the base dialect, whose reader reads it. ``feed`` and ``close`` never raise.

    A dialect implements ``to_base_events``, and ``whole_body`` if the stream contains the fields of a whole reply.
    """

    def __init__(
        self, dialect: DerivedDialect | None, name: str, framing: str, inner_framing: str, quirks: Collection[str]
    ) -> None:
        self._name = name
        self._quirks = quirks
        self._splitter = make_splitter(framing)
        self._inner_framing = inner_framing
        self._inner: Any = None
        self._head: bytes | None = b""  # the first bytes, until an event is recognized
        self._is_over = False
        self.dialect = dialect
        if dialect is not None:
            self.start_inner(dialect, inner_framing)

    def start_inner(self, dialect: DerivedDialect, framing: str) -> None:
        """Set the base dialect, which may be known only with the first event."""
        self.dialect, self._inner_framing = dialect, framing
        self._inner = dialect.base.stream_reader(framing, self._quirks)

    def to_base_events(self, wire: Wire, name: str | None) -> Iterable[tuple[Wire, str | None]]:
        """Return the objects of the base dialect, each with the name of its event."""
        raise NotImplementedError

    def whole_body(self) -> Wire | None:
        """Return the whole reply that the stream contained, if it can be reconstructed."""
        return None

    def read_failure(self, frame: Frame) -> Fault | None:
        """Return the fault of a frame that the framing marks as a failure."""
        raise NotImplementedError

    def unwrap(self, frame: Frame) -> bytes:
        """Return the JSON text of an event."""
        return frame.data

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that these bytes complete."""
        events: list[StreamEvent] = []
        try:
            self.read_bytes(data, events)
        except Exception as error:  # noqa: BLE001  events read before it stand
            self._abort(error, events)
        return events

    def close(self) -> list[StreamEvent]:
        """Return the last events; a fault if the stream ended too early."""
        events: list[StreamEvent] = []
        try:
            self._finish(events)
        except Exception as error:  # noqa: BLE001  events read before it stand
            self._abort(error, events)
        return events

    def read_bytes(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that these bytes complete."""
        if self._head is not None and len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        if not self._is_over:
            self._read_frames(self._splitter.feed(data), events)

    def _finish(self, events: list[StreamEvent]) -> None:
        if not self._is_over:
            self._read_frames(self._splitter.close(), events)
        if not self._is_over and self._head is not None:
            events.append(early_end(self._name, self._head, self._splitter.tail))
        elif not self._is_over and self._inner is not None:
            events.extend(self._own_event(event) for event in self._inner.close())
        self._is_over = True

    def _read_frames(self, frames: Iterable[Frame], events: list[StreamEvent]) -> None:
        try:
            for frame in frames:
                events.extend(self._read_frame(frame))
                if self._is_over:
                    break
        except InputError as error:
            events.append(stream_error(self._name, "bad_event", str(error)))
            self._is_over = True

    def _abort(self, error: Exception, events: list[StreamEvent]) -> None:
        log_unexpected(error)
        events.append(stream_error(self._name, "bad_event", describe_unexpected(error)))
        self._is_over = True

    def _read_frame(self, frame: Frame) -> Iterator[StreamEvent]:
        if frame.is_failure:
            fault = self.read_failure(frame)
            self._is_over = True
            if fault is not None:
                yield StreamError(fault)
            return
        for data in self._to_base_frames(frame):
            self._head = None
            for event in self._inner.feed(data):
                yield self._own_event(event)

    def _to_base_frames(self, frame: Frame) -> Iterator[bytes]:
        data = self.unwrap(frame)
        wire = _parse_event(data)
        if wire is not None:
            _check_depth(wire, data)
            for inner_wire, name in self.to_base_events(wire, frame.event):
                yield write_frame(inner_wire, name, self._inner_framing)
        elif self._inner is None or (self._head is not None and data.lstrip()[:1] == b"<"):
            raise FramingError("an event is not a JSON object", where="stream")
        else:  # the base reader handles what is not a JSON object
            yield b"data: " + data + b"\n\n" if self._inner_framing == "sse" else data + b"\n"

    def _own_event(self, event: StreamEvent) -> StreamEvent:
        if self.dialect is None:
            return event
        match event:
            case MessageStart(provider_raw=raw):
                return event.replace(provider_raw=self.dialect.to_own_raw(raw))
            case MessageComplete(provider_raw=raw):
                return event.replace(provider_raw=self._end_notes(self.dialect, raw))
            case StreamError(fault, raw):
                fault = self.dialect.own_fault(fault) or fault
                return event.replace(fault=fault, provider_raw=raw and self.dialect.to_own_raw(raw))
            case _:
                return event

    def _end_notes(self, dialect: DerivedDialect, raw: ProviderRaw | None) -> ProviderRaw:
        body = self.whole_body()
        if body is None:
            return dialect.to_own_raw(raw)
        try:
            notes = dialect.read_reply(body).provider_raw or {}
        except InputError:
            return dialect.to_own_raw(raw)
        late = get_notes(raw, dialect.base.NAME).get("late")
        return {**notes, "late": late} if late is not None else notes


def _parse_event(data: bytes) -> Wire | None:
    try:
        wire = msgspec.json.decode(data)
    except DECODE_ERRORS:
        return None
    return wire if type(wire) is dict else None


def _check_depth(wire: Wire, data: bytes) -> None:
    """Raise ``FramingError`` for an event that is nested too deep to be stored."""
    if data.count(b"{") + data.count(b"[") > MAX_BRACKETS:
        try:
            validate_json(wire, "$")
        except (ValueError, RecursionError) as error:
            raise FramingError(storage_problem(error)[1], where="stream") from None


def write_frame(wire: Wire, name: str | None, framing: str) -> bytes:
    """Return an event of the base dialect in its framing."""
    return sse_frame(wire, name) if framing == "sse" else json_line(wire) + b"\n"


class DerivedStreamWriter:
    """Translates each event that the writer of the base dialect writes. A dialect implements ``from_base_event``."""

    def __init__(self, dialect: DerivedDialect, inner_framing: str) -> None:
        self.dialect = dialect
        self.accumulator = Accumulator()
        self._inner = dialect.base.stream_writer(inner_framing)
        self._splitter = make_splitter(inner_framing)

    def from_base_event(self, wire: Wire, name: str | None) -> bytes:
        """Return the bytes for one event of the base dialect."""
        raise NotImplementedError

    @property
    def identity(self) -> dict[str, Any]:
        """Top-level fields of the reply, in place of the dialect's placeholders."""
        fields: dict[str, Any] = self._inner.identity
        return fields

    @identity.setter
    def identity(self, fields: dict[str, Any]) -> None:
        self._inner.identity = fields

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses of the events so far."""
        return self.dialect.write_reply(self.accumulator.reply()).losses

    def feed(self, event: StreamEvent) -> bytes:
        """Return the bytes that the wire has for one event."""
        self.accumulator.add(event)
        match event:
            case MessageStart(provider_raw=raw) | MessageComplete(provider_raw=raw) | StreamError(provider_raw=raw):
                event = event.replace(provider_raw=self.dialect.to_base_raw(raw))
        return self._translate(self._inner.feed(event))

    def close(self) -> bytes:
        """Return the last bytes."""
        return self._translate(self._inner.close())

    def _translate(self, data: bytes) -> bytes:
        frames = self._splitter.feed(data) if data else ()
        wires = ((_parse_event(frame.data), frame.event) for frame in frames)
        return b"".join(self.from_base_event(wire, name) for wire, name in wires if wire is not None)
