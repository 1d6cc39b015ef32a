"""Subjects of the fuzz tests: readers, their seed inputs, and the invariants of accepted input.

A ``Subject`` reads one input. It may raise only ``InputError``. Accepted input can be encoded, written in every dialect
and format, and read again; the ``use_…`` functions check that. New dialects and transcript formats are included
automatically.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final

import msgspec

import dragoman
from dragoman import codec, dialects, entries, envelope, formats, jsontext, letters, transcripts, value
from dragoman.adapter import RequestContext
from dragoman.context_window import fit
from dragoman.errors import InputError
from dragoman.event import StreamError, StreamEvent, fold, unfold
from dragoman.exchange import Fault, Reply, Request
from dragoman.handoff import project_history
from dragoman.message import Message, MessageStatus
from dragoman.wire.frames import aws_frame, sse_frame
from tests import recordings
from tests.fuzz import seeds
from tests.fuzz.mutation import damage

Read = Callable[[Any, random.Random], None]
_UNEXPECTED: Final = jsontext.describe_unexpected(Exception()).partition(" (")[0]
_CONTEXT: Final = RequestContext(
    session_id="sess_1", message_id="01KE0000000000000000000009", created_at=datetime(2026, 1, 1, tzinfo=UTC)
)


class Subject(msgspec.Struct, frozen=True):
    """A reader and its seeds. ``spell`` converts a mutated seed to the input of the reader."""

    name: str
    seeds: Callable[[], tuple[Any, ...]]
    read: Read
    spell: Callable[[Any, random.Random], Any]


def subjects() -> tuple[Subject, ...]:
    """Return all readers of untrusted input."""
    return tuple(_subjects())


def _subjects() -> Iterator[Subject]:
    for name in dialects.names():
        module = dialects.load(name)
        for part, read in (("request", _request), ("reply", _reply), ("error", _error)):
            yield Subject(f"{name} {part}", _wires(name, part), functools.partial(read, module), as_value_or_text)
        spell = functools.partial(as_stream, name)
        yield Subject(f"{name} stream", _wires(name, "stream"), functools.partial(_stream, module), spell)
    for name, module in transcripts.FORMATS.items():
        found = functools.partial(seeds.conversations, name)
        yield Subject(name, found, functools.partial(_transcript, module), as_value_or_text)
    yield Subject("entries", seeds.entries, _entries, as_value)
    yield Subject("envelopes", seeds.envelopes, _envelopes, as_value)
    yield Subject("letter", seeds.letters, _letter, as_value_or_text)
    yield Subject("canonical", seeds.canonical, _canonical, as_text)
    yield Subject("any format", _seeds_of_every_format, _any_format, as_text)


def _wires(name: str, part: str) -> Callable[[], tuple[Any, ...]]:
    return functools.partial(seeds.wires, name, part)


def _seeds_of_every_format() -> tuple[Any, ...]:
    found = [wire for name in dialects.names() for wire in seeds.wires(name, "request")[:12]]
    found += [wire for name in transcripts.FORMATS for wire in seeds.conversations(name)[:8]]
    return (*found, *seeds.entries()[:8], *seeds.envelopes()[:8], *([wire] for wire in seeds.canonical()[:8]))


# --- input forms -----------------------------------------------------------------------------------------------------


def as_value(wire: Any, _chance: random.Random) -> Any:
    """Return the value itself."""
    return wire


def as_text(wire: Any, chance: random.Random) -> bytes:
    """Return the value as JSON text, sometimes damaged."""
    data = json.dumps(wire, ensure_ascii=chance.random() < 0.7).encode("utf-8", "surrogatepass")
    return damage(data, chance) if chance.random() < 0.1 else data


def as_value_or_text(wire: Any, chance: random.Random) -> Any:
    """Return the value or its JSON text."""
    return wire if chance.random() < 0.5 else as_text(wire, chance)


def as_stream(dialect: str, frames: Any, chance: random.Random) -> bytes:
    """Return the bytes of a stream. Its frames are a list of [event name, object]."""
    parts = [_frame(dialect, frame) for frame in (frames if isinstance(frames, list) else [frames])]
    data = b"".join(parts)
    return damage(data, chance) if chance.random() < 0.1 else data


def _frame(dialect: str, frame: Any) -> bytes:
    event, wire = frame if isinstance(frame, list) and len(frame) == 2 else (None, frame)
    name = event if isinstance(event, str) and event.isprintable() and len(event) < 200 else None
    is_marker = isinstance(wire, str) and wire.startswith("[")
    text = wire.encode("utf-8", "replace") if is_marker else json.dumps(wire).encode()
    match seeds.FRAMING.get(dialect, "sse"):
        case "ndjson":
            return text + b"\n"
        case "aws-eventstream":
            return aws_frame(msgspec.Raw(text), name or "")
        case _:
            return sse_frame(msgspec.Raw(text), name)


# --- readers ---------------------------------------------------------------------------------------------------------


def _inner(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader without its last exception handler, which would hide failures."""
    return getattr(read, "read_unchecked", read)


def _request(module: ModuleType, wire: Any, chance: random.Random) -> None:
    use_request(_inner(module.read_request)(wire), chance)


def _reply(module: ModuleType, wire: Any, chance: random.Random) -> None:
    use_reply(module, _inner(module.read_reply)(wire), chance)


def _error(module: ModuleType, wire: Any, chance: random.Random) -> None:
    fault: Fault = module.read_error(400, {}, wire)
    use_fault(fault, chance)


def _stream(module: ModuleType, data: bytes, chance: random.Random) -> None:
    reader = module.stream_reader()
    events: list[StreamEvent] = []
    for start in range(0, len(data), 4096):
        reader.read_bytes(data[start : start + 4096], events)  # without the exception handler of ``feed``
    reader._finish(events)
    for event in events:
        value.encode(event)
        if isinstance(event, StreamError):
            assert _UNEXPECTED not in event.fault.message  # from a nested reader, which has an exception handler
            use_fault(event.fault, chance)
    writer = module.stream_writer()
    again = b"".join([*(writer.feed(event) for event in events), writer.close()])
    reader = module.stream_reader()
    fold([*reader.feed(again), *reader.close()])
    use_reply(module, fold(events), chance)


def _transcript(module: ModuleType, wire: Any, chance: random.Random) -> None:
    module.looks_like(wire)
    use_messages(module.read_messages(wire, session_id="sess_1", created_at=seeds.NOON), chance)


def _entries(wire: Any, chance: random.Random) -> None:
    if not isinstance(wire, list):
        wire = [wire]
    for entry in wire:
        entries.find_problems(entry)
    messages = entries.messages_from_entries(wire, session_id="sess_1")
    use_messages(messages, chance)
    views = [*entries.for_orchestrator(wire), *entries.for_manager(wire), *entries.for_worker(wire)]
    entries.is_complete(views)
    entries.merge_entries(wire, views)
    use_messages(entries.history_from_entries(wire, session_id="sess_1").messages, chance)


def _envelopes(wire: Any, chance: random.Random) -> None:
    messages = envelope.messages_from_envelopes(wire)
    envelope.to_provider_messages(wire)
    use_messages(messages, chance)


def _letter(wire: Any, _chance: random.Random) -> None:
    if isinstance(wire, bytes):
        letters.hints_from(wire)
        letter = letters.read_letter(wire)
    else:
        letter = letters.letter_from(wire)
    data = letters.write_letter(letter)
    assert letters.write_letter(letters.read_letter(data)) == data
    letters.find_warnings(letter)
    letters.letter_id(letter)
    letters.sensitive_ids(letter)
    letters.mask_secrets(letter)


def _canonical(data: bytes, chance: random.Random) -> None:
    use_messages((codec.decode(data),), chance)


def _any_format(data: bytes, chance: random.Random) -> None:
    fragment = formats.Fragment(1, data)
    for name in formats.readable():
        try:
            request = formats.read(name, [fragment], "sess_1", by_message=False)
        except InputError:
            continue
        use_messages(request.messages, chance, is_thorough=False)
    wire = dragoman.jsontext.read_json(data, dragoman.jsontext.OWN)
    formats.detect([wire])


# --- use of accepted input -------------------------------------------------------------------------------------------


def use_request(request: Request, chance: random.Random) -> None:
    """Encode a request, write it in two dialects and read it again."""
    value.encode(request)
    hash(request)
    for module in _sample_dialects(chance):
        module.read_request(_encode(module.write_request(request).wire))
    use_messages(request.messages, chance)


def use_reply(module: ModuleType, reply: Reply, chance: random.Random) -> None:
    """Encode a reply, write it in three dialects with and without a stream, and convert it to messages."""
    value.encode(reply)
    for other in (module, *_sample_dialects(chance)):
        other.read_reply(_encode(other.write_reply(reply).wire))
        writer = other.stream_writer()
        streamed = b"".join([*(writer.feed(event) for event in unfold(reply)), writer.close()])
        reader = other.stream_reader()
        fold([*reader.feed(streamed), *reader.close()])
    adapter = recordings.adapter(module.NAME)
    for status in (None, MessageStatus.PARTIAL, MessageStatus.CANCELLED):
        message = adapter.make_message(reply, _CONTEXT, status)
        use_messages((seeds.question(), message), chance, is_thorough=status is None)


def use_fault(fault: Fault, chance: random.Random) -> None:
    """Encode a fault and write it in two dialects."""
    value.encode(fault)
    for module in _sample_dialects(chance):
        module.read_error(500, {}, _encode(module.write_error(fault).wire))


def use_messages(messages: Iterable[Message], chance: random.Random, *, is_thorough: bool = True) -> None:
    """Encode and decode messages, check and repair them, and write them in some formats."""
    messages = tuple(messages)
    for message in messages:
        data = codec.encode(message)
        again = codec.decode(data)
        assert codec.encode(again) == data
        codec.message_hash(message)
    dragoman.check(messages)
    repaired = dragoman.repair(messages).messages
    assert not dragoman.check(repaired)
    if not is_thorough:
        return
    request = Request(model=None, messages=messages)
    for name in chance.sample(formats.writable(), 3):
        if name not in dialects.names():
            critical = any(message.metadata.critical for message in messages)
            try:
                formats.write(name, request)
            except InputError:
                if not critical:
                    raise
    for module in _sample_dialects(chance):
        adapter = recordings.adapter(module.NAME)
        projected = project_history(repaired, adapter.model.capabilities)
        fitted = fit(projected, 100_000, dragoman.tokens.estimate).messages
        _encode(adapter.to_wire(fitted, ()).wire)


def _sample_dialects(chance: random.Random) -> list[ModuleType]:
    """Return two dialects. All of them would be slow, and each is used over many inputs."""
    return [dialects.load(name) for name in chance.sample(dialects.names(), 2)]


def _encode(wire: Any) -> bytes:
    """Return the bytes that are sent. The encoder of Python rejects numbers that msgspec would write as null."""
    json.dumps(wire, allow_nan=False).encode()
    return msgspec.json.encode(wire)
