"""Recorded wires with one change: a null, missing or new field, an unknown value, another kind of number.

A provider may send any of them tomorrow. A wire is read and written as it was, or refused with an error, and a
conversion to another dialect reports whatever it leaves out. Streams are also framed in the other ways that SSE allows.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dragoman import codec, dialects
from dragoman.cli.prove import first_difference
from dragoman.errors import InputError
from dragoman.event import StreamEvent, fold
from dragoman.exchange import Reply, Request, Written
from dragoman.fidelity import measure_conversion
from dragoman.fidelity.reply_comparison import compare_replies
from dragoman.message import TextBlock, ToolUseBlock
from dragoman.wire.frames import sse_frame
from tests.conftest import scale
from tests.fuzz import seeds
from tests.fuzz.mutation import paths_of

PARTS = ("request", "reply")
COUNT = scale(40, 1_500)  # of each dialect and part
NEW_FIELDS: tuple[Any, ...] = ("v", None, {"a": [1]}, 7)
NEW_ITEMS: tuple[Any, ...] = ({"type": "x_new", "x": 1}, {"x_new": {"a": 1}})
NAME = re.compile(r"[A-Za-z_.\-/]{2,40}")
MISSING = object()
UNKNOWN_ROLES = {
    "id": "01KE0000000000000000000000",
    "session_id": "",
    "role": "user",
    "content": [{"type": "text", "text": "Hi."}],
    "metadata": {},
    "created_at": "2026-01-01T12:00:00.000000Z",
}


def changes(value: Any) -> list[Any]:
    """Return values that replace a value."""
    found: list[Any] = [None]
    if isinstance(value, str):
        found += ["", "x_new_value"] if NAME.fullmatch(value) else [""]
    elif isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int | float):
        found += [str(value), float(value), 0]
    elif isinstance(value, list):
        found += [[], [*value, *value[-1:]]]
        found += [[*value, item] for item in NEW_ITEMS if value and isinstance(value[0], dict)]
    elif isinstance(value, dict):
        found += [{}, *({**value, "x_new": field} for field in NEW_FIELDS)]
    return found


def change_wire(wire: Any, chance: random.Random) -> Any:
    """Return a copy with one change."""
    box = [copy.deepcopy(wire)]
    *steps, last = chance.choice([path for path in paths_of(box) if path])
    holder: Any = box
    for step in steps:
        holder = holder[step]
    choices = [*changes(holder[last]), *([MISSING] if isinstance(holder, dict) else [])]
    new = chance.choice(choices)
    if new is MISSING:
        del holder[last]
    else:
        holder[last] = copy.deepcopy(new)
    return box[0]


def changed_wires(name: str, part: str) -> Iterator[tuple[Any, random.Random]]:
    chance, wires = random.Random(f"{name} {part}"), seeds.wires(name, part)
    assert wires
    for _ in range(COUNT):
        yield change_wire(chance.choice(wires), chance), chance


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", dialects.names())
def test_changed_wire_round_trips_or_is_rejected(name: str, part: str) -> None:
    dialect, equal = dialects.load(name), 0
    read, write = getattr(dialect, f"read_{part}"), getattr(dialect, f"write_{part}")
    for wire, _ in changed_wires(name, part):
        try:
            value = read(copy.deepcopy(wire))
        except InputError:
            continue
        assert first_difference(write(value).wire, wire) is None, wire
        equal += 1
    assert equal > COUNT / 2


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", dialects.names())
def test_changed_wire_has_no_silent_loss(name: str, part: str) -> None:
    dialect, measured = dialects.load(name), 0
    others = [other for other in dialects.names() if other != name]
    for wire, chance in changed_wires(name, part):
        try:
            value = getattr(dialect, f"read_{part}")(copy.deepcopy(wire))
        except InputError:
            continue
        if isinstance(value, Reply) and value.fault is not None:
            continue
        target = chance.choice(others)
        findings = measure_conversion(value, dialects.load(target))
        assert [finding for finding in findings if finding.outcome == "silent"] == [], (target, wire)
        measured += 1
    assert measured > COUNT / 3


# --- framing ---------------------------------------------------------------------------------------------------------


def sse_streams(name: str) -> list[list[bytes]]:
    streams = seeds.wires(name, "stream") if seeds.FRAMING.get(name, "sse") == "sse" else ()
    return [[_frame(*frame) for frame in stream] for stream in streams]


def _frame(event: str | None, wire: Any) -> bytes:
    return b"data: " + wire.encode() + b"\n\n" if isinstance(wire, str) else sse_frame(wire, event)


def between(extra: bytes, frames: list[bytes]) -> bytes:
    return b"".join(frame + extra for frame in frames)


FRAMINGS = {
    "CRLF": lambda frames: b"".join(frames).replace(b"\n", b"\r\n"),
    "CR": lambda frames: b"".join(frames).replace(b"\n", b"\r"),
    "byte order mark": lambda frames: b"\xef\xbb\xbf" + b"".join(frames),
    "no end of the last line": lambda frames: b"".join(frames).rstrip(b"\n"),
    "no last empty line": lambda frames: b"".join(frames)[:-1],
    "no space after the colon": lambda frames: b"".join(frames).replace(b"data: ", b"data:"),
    "comments": lambda frames: between(b": keep-alive\n\n", frames),
    "empty lines": lambda frames: between(b"\n\n", frames),
    "ids and times": lambda frames: between(b"id: 7\nretry: 3000\n\n", frames),
    "pings": lambda frames: between(b'event: ping\ndata: {"type": "ping"}\n\n', frames[:-1]) + frames[-1],
    "unknown events": lambda frames: (
        between(b'event: x_new\ndata: {"type": "x_new", "a": 1}\n\n', frames[:-1]) + frames[-1]
    ),
}


def events_of(name: str, data: bytes) -> list[StreamEvent]:
    reader = dialects.load(name).stream_reader()
    return [*reader.feed(data), *reader.close()]


def reply_content(reply: Reply) -> tuple[Any, ...]:
    blocks = tuple(block for block in reply.content if isinstance(block, TextBlock | ToolUseBlock))
    return [getattr(block, "text", getattr(block, "input", None)) for block in blocks], reply.stop_reason, reply.usage


@pytest.mark.parametrize("name", [name for name, framing in seeds.FRAMING.items() if framing == "ndjson"])
def test_byte_order_mark_is_ignored(name: str) -> None:
    for stream in seeds.wires(name, "stream"):
        data = b"".join(msgspec.json.encode(wire) + b"\n" for _, wire in stream)
        assert events_of(name, b"\xef\xbb\xbf" + data) == events_of(name, data)


SSE = [name for name in dialects.names() if seeds.FRAMING.get(name, "sse") == "sse"]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("name", SSE)
def test_stream_has_same_content_in_every_framing(name: str, framing: str) -> None:
    compared = 0
    for frames in sse_streams(name):
        reply = fold(events_of(name, b"".join(frames)))
        if reply.fault is not None:
            continue
        again = fold(events_of(name, FRAMINGS[framing](frames)))
        assert again.fault is None
        assert reply_content(again) == reply_content(reply)
        compared += 1
    assert compared


# --- unknown fields in streams ---------------------------------------------------------------------------------------

ARGUMENTS = ("input", "args", "arguments", "parameters", "partial_json")


def objects_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in an event except the input of a call."""
    if isinstance(value, dict):
        yield value
        for key, part in value.items():
            yield from objects_of(part) if key not in ARGUMENTS else ()
    elif isinstance(value, list):
        for part in value:
            yield from objects_of(part)


def with_new_field(stream: list[Any], chance: random.Random) -> list[Any]:
    """Return a copy with an unknown field in one event."""
    frames = copy.deepcopy(stream)
    objects = [found for _, wire in frames for found in objects_of(wire)]
    chance.choice(objects)["x_new"] = chance.choice(NEW_FIELDS)
    return frames


def write_stream(name: str, events: list[StreamEvent]) -> tuple[bytes, Any]:
    writer = dialects.load(name).stream_writer()
    return b"".join([*(writer.feed(event) for event in events), writer.close()]), writer.losses


def frames_to_bytes(name: str, frames: list[Any]) -> bytes:
    if name in SSE:
        return b"".join(_frame(*frame) for frame in frames)
    return b"".join(msgspec.json.encode(wire) + b"\n" for _, wire in frames)


@pytest.mark.parametrize("name", [name for name in dialects.names() if "aws" not in seeds.FRAMING.get(name, "sse")])
def test_unknown_stream_field_round_trips_or_is_a_loss(name: str) -> None:
    dialect, chance, compared = dialects.load(name), random.Random(name), 0
    others = [other for other in dialects.names() if other != name]
    streams = [stream for stream in seeds.wires(name, "stream") if any(isinstance(wire, dict) for _, wire in stream)]
    for _ in range(COUNT // 4):
        stream = chance.choice(streams)
        reply = fold(events_of(name, frames_to_bytes(name, stream)))
        if reply.fault is not None:
            continue
        frames = with_new_field(stream, chance)
        events = events_of(name, frames_to_bytes(name, frames))
        found = fold(events)
        assert (found.fault, reply_content(found)) == (None, reply_content(reply)), frames
        again = fold(events_of(name, write_stream(name, events)[0]))
        assert first_difference(dialect.write_reply(again).wire, dialect.write_reply(found).wire) is None, frames
        target = chance.choice(others)
        data, losses = write_stream(target, events)
        written = Written(None, tuple(losses) * (len(found.content) + 1))  # a stream reports each loss once
        findings = compare_replies(found, written, fold(events_of(target, data)), target)
        assert [finding for finding in findings if finding.outcome == "silent"] == [], (target, frames)
        compared += 1
    assert compared > COUNT / 8


@pytest.mark.parametrize("document", ["data:;b", {}, {"name": 1}])
def test_unusual_document_round_trips(document: Any) -> None:
    converse = dialects.load("bedrock_converse")
    request = converse.read_request({"messages": [{"role": "user", "content": [{"document": document}]}]})
    written = converse.write_request(request).wire
    assert written["messages"][0]["content"][0] == {"document": document}


@pytest.mark.parametrize("messages", [0.5, "hi", {"role": "user"}, None, [1]])
def test_invalid_messages_are_rejected(messages: Any) -> None:
    with pytest.raises(InputError):
        dialects.load("bedrock_invoke").read_request({"messages": messages})


@pytest.mark.parametrize("name", dialects.names())
def test_unknown_role_is_written_or_rejected(name: str) -> None:
    message = codec.decode(msgspec.json.encode({**UNKNOWN_ROLES, "role": "critic"}))
    try:
        written = dialects.load(name).write_request(Request(model="m", messages=(message,)))
    except InputError:
        return
    assert b"Hi." in msgspec.json.encode(written.wire) or written.losses


@pytest.mark.parametrize("residue", [{"set": "x"}, {"in": True}, {"in": {"a": 0.5}}, {"in": {"a": {"in": ["b"]}}}])
def test_invalid_residue_is_ignored(residue: Any) -> None:
    block = TextBlock("Hi.", provider_raw={"dialect": "gemini", "residue": residue})
    message = codec.decode(msgspec.json.encode(UNKNOWN_ROLES)).replace(content=(block,))
    assert dialects.load("anthropic").write_request(Request(model="m", messages=(message,))).losses == ()


@pytest.mark.parametrize("schema", [{"required": [[]]}, {"required": 1}, {"$defs": ["x"]}, {"definitions": 1}])
def test_invalid_schema_of_strict_tool_is_unchanged(schema: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False, **schema}
    tool = {"type": "function", "name": "look", "parameters": schema, "strict": True}
    request = dialects.load("openai_responses").read_request({"model": "m", "input": "Hi.", "tools": [tool]})
    written = dialects.load("openai_chat").write_request(request).wire
    assert written["tools"][0]["function"]["parameters"] == schema
