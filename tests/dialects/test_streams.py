"""Tests of streams of Anthropic and Chat Completions: events are written immediately and read alike on both paths."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from dragoman import dialects
from dragoman.event import (
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    fold,
    unfold,
)
from dragoman.exchange import Reply, StopReason
from dragoman.message import InvalidToolUseBlock, TextBlock, ToolUseBlock
from dragoman.wire.frames import make_splitter
from dragoman.wire.stream_reader import DeltaTemplate
from tests.conftest import IS_FULL, scale
from tests.corpus import records
from tests.dialects.stream_damage.case import calls_of, events_of, invalid_calls_of, text_of
from tests.dialects.test_every_dialect import CALLS
from tests.dialects.test_stream_writers import END, FAILURES, USAGE, round_trip, write_events

NAMES = ("anthropic", "openai_chat")


@pytest.fixture(params=NAMES)
def dialect(request: pytest.FixtureRequest) -> ModuleType:
    return dialects.load(request.param)


def read_streams(name: str) -> Iterator[bytes]:
    for _, record in records(name, part="stream", sample=60):
        if record["status"] in (200, None):
            yield record["stream"].encode("utf-8", "surrogatepass")


def is_due(event: StreamEvent) -> bool:
    """Return whether an event must be written immediately."""
    match event:
        case TextDelta(_, text) | ThinkingDelta(_, text) | ToolUseInputDelta(_, text):
            return bool(text)
        case MessageStart() | ToolUseStart() | MessageComplete():
            return True
        case _:
            return False


# --- writers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_recorded_events_are_written_immediately(name: str) -> None:
    dialect, count = dialects.load(name), 0
    for data in read_streams(name):
        events = events_of(dialect, [data])
        pieces = write_events(dialect, *events)
        late = [event for event, piece in zip(events, pieces, strict=False) if is_due(event) and not piece]
        assert [event for event in late if not isinstance(event, MessageComplete)] == []
        if isinstance(events[-1], MessageComplete):  # it waits for usage
            assert bool(late) == bool(pieces[-1]) == (fold(events).usage is None)
        count += 1
    assert count > (300 if IS_FULL else 40)


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
    assert [event for event, piece in zip(events, pieces, strict=False) if is_due(event) and not piece] == []
    again = fold(events_of(dialect, [b"".join(pieces)]))
    assert again.fault is None
    assert (text_of(again), calls_of(again)) == (text_of(reply), calls_of(reply))
    assert again.usage is not None
    assert (again.usage.input_tokens, again.usage.output_tokens) == (8, 42)
    assert again.stop_reason is StopReason.TOOL_USE


@pytest.mark.slow
@pytest.mark.parametrize("source", dialects.callable_names())
def test_converted_stream_has_same_content(source: str, dialect: ModuleType) -> None:
    count = 0
    for _, record in records(source, part="stream", sample=30):
        if record["status"] not in (200, None):
            continue
        data = record["stream"].encode("utf-8", "surrogatepass")
        events = events_of(dialects.load(source), [data], record["stream_format"])
        reply, again = fold(events), round_trip(dialect, *events)
        is_empty = again.fault is not None and again.fault.code == "empty_response"  # only foreign reasoning
        assert (again.fault is None) == (reply.fault is None) or is_empty, record["id"]
        if reply.fault is not None and dialect.NAME == "openai_chat":
            reply = leave_calls_open(reply)
            assert open_calls_of(again) == open_calls_of(reply), record["id"]
        assert text_and_calls(again) == text_and_calls(reply), record["id"]
        assert not is_empty or text_and_calls(reply) == ("", []), record["id"]
        count += 1
    assert count >= (20 if IS_FULL else 10)


def text_and_calls(reply: Reply) -> tuple[Any, ...]:
    """Return the text and the calls, which every dialect preserves."""
    return "".join(block.text for block in reply.content if isinstance(block, TextBlock)), calls_of(reply)


def leave_calls_open(reply: Reply) -> Reply:
    """Return a reply whose calls are incomplete: Chat Completions ends calls with the finish reason only."""
    content = [
        InvalidToolUseBlock(block.id, block.name, msgspec.json.encode(block.input).decode(), "")
        if type(block) is ToolUseBlock
        else block
        for block in reply.content
    ]
    return reply.replace(content=tuple(content))


def open_calls_of(reply: Reply) -> list[tuple[str, Any]]:
    """Return the names and inputs of the invalid calls, without white space."""
    return [(name, "".join(text.split())) for name, text in invalid_calls_of(reply)]


def test_cut_stream_keeps_call(dialect: ModuleType) -> None:
    call: Any = [ToolUseStart(0, CALLS[0].id, "f"), ToolUseInputDelta(0, '{"a": 1}'), ToolUseEnd(0)]
    reply = round_trip(dialect, MessageStart("m"), *call)
    assert reply.fault is not None
    if dialect.NAME == "openai_chat":
        assert (calls_of(reply), open_calls_of(reply)) == ([], [("f", '{"a":1}')])
    else:
        assert (calls_of(reply), open_calls_of(reply)) == ([("f", {"a": 1})], [])


@pytest.mark.parametrize("name", FAILURES)
def test_events_of_fault_round_trip_as_fault(name: str, dialect: ModuleType) -> None:
    events = FAILURES[name]
    assert fold(events).fault is not None
    reply = round_trip(dialect, *events)
    assert reply.fault is not None
    assert calls_of(reply) == []
    assert text_of(reply) == text_of(fold(events))


def test_split_surrogate_pair_is_joined(dialect: ModuleType) -> None:
    events: Any = [MessageStart("m"), TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), USAGE, END]
    assert text_of(round_trip(dialect, *events)) == "a😀b"


def test_text_after_another_block_is_written(dialect: ModuleType) -> None:
    events: Any = [TextDelta(0, "One. "), TextDelta(1, "Two. "), TextDelta(0, "Three."), USAGE, END]
    reply = round_trip(dialect, MessageStart("m"), *events)
    assert reply.fault is None
    assert text_of(reply) == "One. Two. Three."


@pytest.mark.parametrize(
    "pieces",
    [
        [(1, '{"a":1}'), (2, '{"b":2}')],
        [(1, '{"a":'), (2, '{"b":'), (1, "1}"), (2, "2}")],
        [(1, '{"a":1}'), (2, '{"b":2}'), (1, " ")],
        [(2, '{"b":2}'), (1, '{"a":1}')],
    ],
)
def test_interleaved_calls_are_read_separately(pieces: list[tuple[int, str]], dialect: ModuleType) -> None:
    events: list[StreamEvent] = [TextDelta(0, "Hi."), ToolUseStart(1, CALLS[0].id, "f")]
    if pieces[0][0] == 2:
        events.append(ToolUseStart(2, CALLS[1].id, "g"))
    for number, (index, piece) in enumerate(pieces):
        if index == 2 and number == 1:
            events.append(ToolUseStart(2, CALLS[1].id, "g"))
        events.append(ToolUseInputDelta(index, piece))
    end = (ToolUseEnd(1), ToolUseEnd(2), USAGE, MessageComplete(StopReason.TOOL_USE))
    reply = round_trip(dialect, MessageStart("m"), *events, *end)
    assert reply.fault is None
    assert calls_of(reply) == [("f", {"a": 1}), ("g", {"b": 2})]


def test_input_after_complete_call_is_a_fault(dialect: ModuleType) -> None:
    calls: Any = [ToolUseStart(0, CALLS[0].id, "f"), ToolUseInputDelta(0, "{}"), ToolUseStart(1, CALLS[1].id, "g")]
    more: Any = [ToolUseInputDelta(0, "{}"), ToolUseEnd(0), ToolUseEnd(1), USAGE, MessageComplete(StopReason.TOOL_USE)]
    assert fold([*calls, *more]).fault is not None
    assert round_trip(dialect, *calls, *more).fault is not None


@pytest.mark.parametrize(
    ("content", "notes"), [("", {"dialect": "openai_chat", "form": "empty"}), (None, None), ("Hi", None)]
)
def test_streams_with_same_start_have_separate_notes(content: str | None, notes: Any) -> None:
    delta = {"role": "assistant", "content": content}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    data = json.dumps({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    for _ in range(2):
        start = dialects.load("openai_chat").stream_reader().feed(f"data: {data}\n\n".encode())[0]
        assert isinstance(start, MessageStart)
        assert start.provider_raw is not None
        assert start.provider_raw.get("message") == notes
        assert start.provider_raw["residue"]["in"].keys() == {"id", "created"}
        start.provider_raw.get("message", {})["form"] = "changed"


def test_end_waits_only_for_usage(dialect: ModuleType) -> None:
    events = (MessageStart("m"), TextDelta(0, "Hi."))
    *_, end, rest = write_events(dialect, *events, USAGE, END)
    assert end
    assert rest == b""
    before, after = (b"".join(write_events(dialect, *events, *order)) for order in ((USAGE, END), (END, USAGE)))
    assert before == after
    reply = round_trip(dialect, *events, END)
    assert (reply.fault, text_of(reply)) == (None, "Hi.")


def test_events_after_end_are_not_written(dialect: ModuleType) -> None:
    events = (MessageStart("m"), TextDelta(0, "Hi."), USAGE, END)
    assert b"".join(write_events(dialect, *events, TextDelta(0, "more"), END, USAGE)) == b"".join(
        write_events(dialect, *events)
    )


def test_writer_does_not_store_text(dialect: ModuleType) -> None:
    writer = dialect.stream_writer()
    writer.feed(MessageStart("m"))
    for number in range(1_000):
        writer.feed(TextDelta(0, f"word {number} "))
    kept = str([vars(writer), *(vars(block) for block in writer._wire_blocks.values())])
    assert "word" not in kept.replace("words", "")
    assert len(kept) < 4_000


def test_stream_start_contains_known_fields() -> None:
    for name, sign in (("anthropic", "msg_"), ("openai_chat", "chatcmpl-")):
        dialect, seen = dialects.load(name), 0
        for data in read_streams(name):
            events = events_of(dialect, [data])
            start = next((event for event in events if isinstance(event, MessageStart)), None)
            if start is None or sign.encode() not in data:
                continue
            first = json.loads(write_events(dialect, start)[0].split(b"data: ")[1])
            provider_id = first.get("message", first)["id"]
            assert provider_id.encode() in data
            seen += 1
        assert seen > (100 if IS_FULL else 10)


# --- readers ---------------------------------------------------------------------------------------------------------


def split_events(data: bytes) -> list[bytes]:
    """Return the events of a stream, each in one piece; the last one may lack its empty line."""
    splitter = make_splitter("sse")
    frames = [*splitter.feed(data), *splitter.close()]
    return [(f"event: {f.event}\n".encode() if f.event else b"") + b"data: " + f.data + b"\n\n" for f in frames]


def encode_events(dialect: ModuleType, pieces: list[bytes]) -> bytes:
    """Return the events as JSON, with their notes."""
    return json.dumps([msgspec.to_builtins(event) for event in events_of(dialect, pieces)], sort_keys=True).encode()


def skip_fast_path(dialect: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(dialect.stream_reader()), "read_delta", lambda *_: None)


def skip_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaTemplate, "learn", lambda *_: None)


def test_fast_path_reads_recorded_streams_like_general_path(
    dialect: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [split_events(data) for data in read_streams(dialect.NAME)]
    reader = type(dialect.stream_reader())
    read_event, general = reader.read_event, []

    def count(*args: Any) -> None:
        general.append(args)
        read_event(*args)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_event", count)
        fast = [encode_events(dialect, pieces) for pieces in streams]
    share = len(general) / sum(map(len, streams))
    assert share < (0.5 if IS_FULL else 0.65)  # most events use the fast path
    with monkeypatch.context() as patch:
        skip_templates(patch)
        assert [encode_events(dialect, pieces) for pieces in streams] == fast
    skip_fast_path(dialect, monkeypatch)
    assert [encode_events(dialect, pieces) for pieces in streams] == fast


CHUNK: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "content"}, "finish_reason": None}],
    "obfuscation": "a1",
}


def test_events_do_not_depend_on_reads(dialect: ModuleType) -> None:
    for data in read_streams(dialect.NAME):
        pieces = split_events(data)
        expected = encode_events(dialect, pieces)
        for size in (2, 7, 40, len(pieces)):
            reads = [b"".join(pieces[at : at + size]) for at in range(0, len(pieces), size)]
            assert encode_events(dialect, reads) == expected
            middle = [len(read) // 2 for read in reads]  # in the middle of an event
            parts = [part for read, at in zip(reads, middle, strict=True) for part in (read[:at], read[at:])]
            assert encode_events(dialect, parts) == expected


@pytest.mark.parametrize("inserted", ['x","y', 'x"}\n\n{"y', "\\", "\\ud83d", "", "\\u2028\\n", "\0"])
def test_unusual_delta_is_read_alike_in_one_read(dialect: ModuleType, inserted: str) -> None:
    texts = [TextDelta(0, f"word{number} ") for number in range(6)]
    pieces = [piece for piece in write_events(dialect, MessageStart("m"), *texts) if piece]
    other = pieces[3].replace(b"word2 ", inserted.encode())
    assert other != pieces[3]
    alone = [*pieces[:3], other, *pieces[3:]]
    assert encode_events(dialect, [b"".join(alone)]) == encode_events(dialect, alone)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"system_fingerprint": "fp"},
        {"service_tier": "flex"},
        {"usage": {"prompt_tokens": 1, "completion_tokens": 1}},
        {"error": {"message": "stop"}},
        {"obfuscation": ""},
        {"obfuscation": "b"},
        {"obfuscation": "b2"},
        {"obfuscation": "b23"},
        {"obfuscation": '"}]'},
        {"obfuscation": "x\n"},
        {"unknown": 1},
        {"choices": []},
        {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": 'é"\\\n\u2028'}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": 1}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "a", "reasoning": "b"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "a", "content_filter": {}}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "b"}]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"refusal": "no"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "late"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None, "logprobs": {"content": [1]}}]},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_unusual_chunk_uses_general_path(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [{**CHUNK, "choices": [{**CHUNK["choices"][0], "delta": {"content": f"word{n} "}}]} for n in range(7)]
    chunks = [*texts[:3], {**texts[3], **change}, *texts[4:]]  # a template is learned from the first three
    end = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    pieces = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in (*chunks, end)]
    dialect = dialects.load("openai_chat")
    short = encode_events(dialect, pieces)
    skip_fast_path(dialect, monkeypatch)
    assert encode_events(dialect, pieces) == short
    assert encode_events(dialect, [b"".join(pieces)]) == short


def test_streams_with_random_padding_are_read_alike_in_all_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, dialect = random.Random(7), dialects.load("openai_chat")
    end = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    for _ in range(scale(150, 6_000)):
        chunks = []
        for _ in range(rng.randint(3, 14)):
            text = "".join(rng.choices(['"', "}", "\\", "\n", '","', "é", "😀", "a", "b"], k=rng.randint(0, 5)))
            padding = "".join(rng.choices("ab", k=rng.choice([0, 0, 1, 1, 2])))
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            chunks.append({**CHUNK, "choices": [choice], "obfuscation": padding})
        pieces = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in (*chunks, end)]
        with monkeypatch.context() as patch:
            skip_templates(patch)
            expected = encode_events(dialect, pieces)
        data, size = b"".join(pieces), rng.randint(2, 5)
        groups = [b"".join(pieces[at : at + size]) for at in range(0, len(pieces), size)]
        cut = rng.randrange(len(data))
        for reads in (pieces, groups, [data], [data[:cut], data[cut:]]):
            assert encode_events(dialect, reads) == expected


@pytest.mark.parametrize(
    "event",
    [
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","type":"thinking_delta","text":"x"}}',
        b'{"type":"content_block_delta","index":0,"index":1,"delta":{"type":"text_delta","text":"x"}}',
        b'{"type":"content_block_delta","type":"ping","index":0,"delta":{"type":"text_delta","text":"x"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x","text":"y"}}',
        b'{"type":"content_block_delta","index":0.0,"delta":{"type":"text_delta","text":"x"}}',
        b'{"type":"content_block_delta","index":true,"delta":{"type":"text_delta","text":"x"}}',
        b'{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x","more":1},"more":1}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":null}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"x"}}',
        b'{"delta":{"text":"x","type":"text_delta"},"index":0,"type":"content_block_delta"}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\xff"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\tb"}}',
    ],
)
def test_unusual_event_is_read_alike_on_both_paths(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = dialects.load("anthropic")
    frames = b"".join(write_events(dialect, TextDelta(0, "Hi."), TextDelta(0, "Ho."), USAGE, END)).split(b"\n\n")
    pieces = [piece + b"\n\n" for piece in frames if piece]
    pieces.insert(3, b"event: content_block_delta\ndata: " + event + b"\n\n")
    short = encode_events(dialect, pieces)
    skip_fast_path(dialect, monkeypatch)
    assert encode_events(dialect, pieces) == short
