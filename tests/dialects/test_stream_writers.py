"""Tests of the stream writers of Cohere and Ollama: each event is written immediately, and the end contains the rest."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
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
    unfold,
)
from dragoman.exchange import Fault, Reply, StopReason
from dragoman.message import InvalidToolUseBlock, TextBlock, TokenUsage
from tests.corpus import records
from tests.dialects.stream_damage.case import calls_of, events_of, text_of
from tests.dialects.test_every_dialect import CALLS

NAMES = ("cohere", "ollama")
USAGE = UsageUpdate(TokenUsage(input_tokens=8, output_tokens=42))
END = MessageComplete(StopReason.END_TURN)
CALL = CALLS[0].id


@pytest.fixture(params=NAMES)
def dialect(request: pytest.FixtureRequest) -> ModuleType:
    return dialects.load(request.param)


def write_events(dialect: ModuleType, *events: StreamEvent) -> list[bytes]:
    """Return the bytes of each event, and of the end."""
    writer = dialect.stream_writer()
    return [*(writer.feed(event) for event in events), writer.close()]


def round_trip(dialect: ModuleType, *events: StreamEvent) -> Reply:
    """Write events, read them again and fold them."""
    return fold(events_of(dialect, [b"".join(write_events(dialect, *events))]))


def is_due(event: StreamEvent, name: str) -> bool:
    """Return whether an event must be written immediately. Ollama calls are written at their end."""
    match event:
        case TextDelta(_, text) | ThinkingDelta(_, text):
            return bool(text)
        case ToolUseInputDelta(_, text):
            return bool(text) and name != "ollama"
        case ToolUseEnd() | MessageComplete() | StreamError():
            return True
        case _:
            return False


@pytest.mark.parametrize("name", NAMES)
def test_recorded_events_are_written_immediately(name: str) -> None:
    dialect, count = dialects.load(name), 0
    for _, record in records(name):
        if not record.get("stream") or record["status"] != 200:
            continue
        events = events_of(dialect, [record["stream"].encode()], record["stream_format"])
        pieces = write_events(dialect, *events)
        late = [event for event, piece in zip(events, pieces, strict=False) if is_due(event, name) and not piece]
        assert [event for event in late if not isinstance(event, ToolUseEnd)] == []
        assert len(late) <= 1  # a call without input waits, because it is truncated at the limit
        assert pieces[-1] == b""
        count += 1
    assert count >= 20


@pytest.mark.parametrize("source", dialects.callable_names())
def test_converted_events_are_written_immediately(source: str, dialect: ModuleType) -> None:
    reply = Reply(
        content=(TextBlock("I'll read é😀."), *CALLS),
        stop_reason=StopReason.TOOL_USE,
        usage=USAGE.usage,
        model="some-model",
    )
    other = dialects.load(source)
    events = events_of(other, [b"".join(write_events(other, *unfold(reply)))])
    pieces = write_events(dialect, *events)
    assert [
        event for event, piece in zip(events, pieces, strict=False) if is_due(event, dialect.NAME) and not piece
    ] == []
    again = fold(events_of(dialect, [b"".join(pieces)]))
    assert again.fault is None
    assert (text_of(again), calls_of(again)) == (text_of(reply), calls_of(reply))
    assert again.usage == reply.usage
    assert again.stop_reason is StopReason.TOOL_USE


@pytest.mark.parametrize("name", NAMES)
def test_fast_path_for_text_writes_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = dialects.load(name)
    streams = [
        (record["stream"].encode(), record["stream_format"])
        for _, record in records(name)
        if record.get("stream") and record["status"] == 200
    ]
    short = [events_of(dialect, [data], framing) for data, framing in streams]
    bytes_of_short = [write_events(dialect, *events) for events in short]
    monkeypatch.setattr(type(dialect.stream_reader()), "read_delta", lambda _reader, _delta: None)
    monkeypatch.setattr(type(dialect.stream_writer()), "set_text_template", lambda *_: None)
    assert [events_of(dialect, [data], framing) for data, framing in streams] == short
    assert [write_events(dialect, *events) for events in short] == bytes_of_short


def test_writer_and_reader_do_not_store_text(dialect: ModuleType) -> None:
    """The writer of Cohere stores it, because citations contain the text that they cite."""
    writer, reader = dialect.stream_writer(), dialect.stream_reader()
    reader.feed(writer.feed(MessageStart("m")))
    for number in range(1_000):
        reader.feed(writer.feed(TextDelta(0, f"word {number} ")))
    for state in (reader,) if dialect.NAME == "cohere" else (writer, reader):
        assert "word 999" not in str(vars(state))
        assert len(str(vars(state))) < 4_000


def test_end_waits_only_for_usage(dialect: ModuleType) -> None:
    events = (MessageStart("m"), TextDelta(0, "Hi."))
    *_, end, rest = write_events(dialect, *events, USAGE, END)
    assert end
    assert rest == b""
    before, after, never = (
        b"".join(write_events(dialect, *events, *end)) for end in ((USAGE, END), (END, USAGE), (END,))
    )
    assert before == after
    reply = round_trip(dialect, *events, END)
    assert never != before
    assert (reply.fault, reply.usage, text_of(reply)) == (None, None, "Hi.")


def test_events_after_end_are_not_written(dialect: ModuleType) -> None:
    events = (MessageStart("m"), TextDelta(0, "Hi."), USAGE, END)
    assert b"".join(write_events(dialect, *events, TextDelta(0, "more"), END, USAGE)) == b"".join(
        write_events(dialect, *events)
    )


FAILURES: dict[str, tuple[StreamEvent, ...]] = {
    "nothing": (),
    "no end": (MessageStart("m"), TextDelta(0, "Hi.")),
    "an error first": (StreamError(Fault(code="overloaded", message="busy")),),
    "an error": (MessageStart("m"), TextDelta(0, "Hi."), StreamError(Fault(code="overloaded", message="busy"))),
    "an error, and then an end": (TextDelta(0, "Hi."), StreamError(Fault(code="timeout", message="x")), USAGE, END),
    "an end in an unexplained error": (MessageStart("m"), TextDelta(0, "Hi."), MessageComplete(StopReason.ERROR)),
    "a second start": (MessageStart("m"), TextDelta(0, "Hi."), MessageStart("m"), USAGE, END),
    "a fragment of a call that has not begun": (TextDelta(0, "Hi."), ToolUseInputDelta(1, "{}"), USAGE, END),
    "a fragment of a text": (TextDelta(0, "Hi."), ToolUseInputDelta(0, "{}"), USAGE, END),
    "a call in the place of a text": (TextDelta(0, "Hi."), ToolUseStart(0, CALL, "f"), USAGE, END),
    "a text in the place of a call": (ToolUseStart(0, CALL, "f"), TextDelta(0, "Hi."), USAGE, END),
    "reasoning in the place of a text": (TextDelta(0, "Hi."), ThinkingDelta(0, "Hm."), USAGE, END),
    "a block twice": (BlockComplete(0, TextBlock("Hi.")), BlockComplete(0, TextBlock("Hi.")), USAGE, END),
    "a missing block": (TextDelta(0, "Hi."), TextDelta(2, "Ho."), USAGE, END),
    "an open call": (ToolUseStart(0, CALL, "f"), ToolUseInputDelta(0, "{}"), USAGE, END),
    "an open call at the limit": (
        ToolUseStart(0, CALL, "f"),
        ToolUseInputDelta(0, '{"a":'),
        USAGE,
        MessageComplete(StopReason.MAX_TOKENS),
    ),
    "an unusable call": (ToolUseStart(0, CALL, "f"), ToolUseInputDelta(0, "{]"), ToolUseEnd(0), USAGE, END),
    "an unusable call in one piece": (BlockComplete(0, InvalidToolUseBlock(CALL, "f", "{]", "no JSON")), USAGE, END),
    "a call without input at the limit": (
        ToolUseStart(0, CALL, "f"),
        ToolUseEnd(0),
        USAGE,
        MessageComplete(StopReason.MAX_TOKENS),
    ),
    "half of a character": (TextDelta(0, "Hi \ud83d"), USAGE, END),
    "the wrong halves of a character": (TextDelta(0, "\ude00 \ud83d"), TextDelta(0, "!"), USAGE, END),
    "no content": (MessageStart("m"), USAGE, END),
}


@pytest.mark.parametrize("name", FAILURES)
def test_events_of_fault_round_trip_as_fault(name: str, dialect: ModuleType) -> None:
    events = FAILURES[name]
    assert fold(events).fault is not None
    reply = round_trip(dialect, *events)
    assert reply.fault is not None
    assert calls_of(reply) == []
    assert text_of(reply).replace("\n", "") == text_of(fold(events))


def test_split_surrogate_pair_is_joined(dialect: ModuleType) -> None:
    events: Any = [MessageStart("m"), TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), USAGE, END]
    assert text_of(round_trip(dialect, *events)) == "a😀b"


def test_text_after_another_block_is_written(dialect: ModuleType) -> None:
    events: Any = [
        MessageStart("m"),
        TextDelta(0, "One. "),
        TextDelta(1, "Two. "),
        TextDelta(0, "Three."),
        USAGE,
        END,
    ]
    reply = round_trip(dialect, *events)
    assert reply.fault is None
    assert "".join(text_of(reply).split("\n")) == "One. Two. Three."
