"""Tests of Bedrock Converse: dialect-specific options and written streams."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from dragoman import dialects
from dragoman.dialects import bedrock_converse as dialect
from dragoman.event import (
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
from dragoman.exchange import Fault, Options, Reasoning, Reply, StopReason
from dragoman.message import (
    InvalidToolUseBlock,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolUseBlock,
)
from dragoman.wire.frames import aws_frame, make_splitter
from tests.conftest import IS_FULL
from tests.corpus import records
from tests.dialects.test_every_dialect import CALLS, REQUEST, message
from tests.dialects.test_sdk import read_stream

OWN = {"dialect": dialect.NAME, "own": True}
CALL = {"toolUseId": "tooluse_1", "name": "delete", "input": {"target": "all"}}
ANSWER: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello."}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 8, "outputTokens": 3, "totalTokens": 11},
    "metrics": {"latencyMs": 412},
}


def answer(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {**ANSWER, "output": {"message": {"role": "assistant", "content": list(blocks)}}, **more}


def frames(data: bytes) -> list[tuple[str | None, Any]]:
    return [(frame.event, json.loads(frame.data)) for frame in make_splitter("aws-eventstream").feed(data)]


def write(*events: StreamEvent) -> bytes:
    writer = dialect.stream_writer()
    return b"".join([*map(writer.feed, events), writer.close()])


def frame_order(data: bytes) -> list[str]:
    """Return the block index of each frame."""
    short = {"contentBlockStart": "start", "contentBlockDelta": "delta", "contentBlockStop": "stop"}
    return [f"{short[name]} {wire['contentBlockIndex']}" if name in short else str(name) for name, wire in frames(data)]


# --- written streams -------------------------------------------------------------------------------------------------


def texts_and_calls(reply: Reply) -> tuple[str, list[tuple[str, Any]]]:
    """Return the joined text and all calls."""
    joined_text = "".join(block.text for block in reply.content if isinstance(block, TextBlock))
    return joined_text, [(block.name, block.input) for block in reply.content if isinstance(block, ToolUseBlock)]


NOTHING = ("", [])


def is_written_immediately(event: StreamEvent, own_reasoning: set[int]) -> bool:
    match event:
        case TextDelta(_, text):
            return bool(text)
        case ThinkingDelta(index, text, _, raw):
            if raw is not None and raw.get("dialect") == dialect.NAME:
                own_reasoning.add(index)
            return bool(text) and index in own_reasoning
        case ToolUseStart() | ToolUseInputDelta() | MessageStart():
            return True
        case _:
            return False


@pytest.mark.slow
def test_recorded_streams_of_every_dialect_convert_event_by_event() -> None:
    count: Counter[str] = Counter()
    other = []
    for source, record in records(*dialects.callable_names(), part="stream", sample=15):
        if record["status"] not in (200, None):
            continue
        count[source] += 1
        reader, writer = dialects.load(source).stream_reader(record["stream_format"]), dialect.stream_writer()
        data = record["stream"].encode("utf-8", "surrogatepass")
        events = [*reader.feed(data), *reader.close()]
        own: set[int] = set()
        pieces = []
        for event in events:
            pieces.append(writer.feed(event))
            if is_written_immediately(event, own) and not pieces[-1]:
                other.append((record["id"], event))
        reply, again = fold(events), read_stream(dialect, b"".join([*pieces, writer.close()]))
        if texts_and_calls(again) != texts_and_calls(reply) or (reply.usage is not None and again.usage is None):
            other.append((record["id"], reply, again))
        if texts_and_calls(reply) == NOTHING and reply.fault is None:  # only content of the source dialect
            assert again.fault is None or again.fault.code == "empty_response"
            count["nothing"] += 1
        elif (again.fault is None) is not (reply.fault is None):
            other.append((record["id"], reply.fault, again.fault))
    assert other == []
    assert count.pop("nothing", 0) < count.total() / (50 if IS_FULL else 20)
    assert set(count) == set(dialects.callable_names())
    assert count.total() > (1_700 if IS_FULL else 120)


def test_blocks_are_sequential_even_when_calls_end_together() -> None:
    first, second = (ToolUseStart(index, CALLS[index].id, "read_file") for index in (0, 1))
    data = write(
        first,
        ToolUseInputDelta(0, '{"path":"a\\'),
        ToolUseInputDelta(0, '"}"}'),
        second,
        ToolUseInputDelta(1, "{}"),
        ToolUseEnd(0),
        ToolUseEnd(1),
        MessageComplete(StopReason.TOOL_USE),
    )
    assert frame_order(data) == [
        "messageStart",
        *("start 0", "delta 0", "delta 0", "stop 0"),
        *("start 1", "delta 1", "stop 1"),
        "messageStop",
        "metadata",
    ]
    assert texts_and_calls(read_stream(dialect, data))[1] == [("read_file", {"path": 'a"}'}), ("read_file", {})]


def test_interleaved_calls_are_identified_by_block_index() -> None:
    data = write(
        ToolUseStart(0, CALLS[0].id, "read_file"),
        ToolUseInputDelta(0, '{"path":'),
        ToolUseStart(1, CALLS[1].id, "read_file"),
        ToolUseInputDelta(1, '{"path":'),
        ToolUseInputDelta(0, '"a"}'),
        ToolUseInputDelta(1, '"b"}'),
        ToolUseEnd(0),
        ToolUseEnd(1),
        MessageComplete(StopReason.TOOL_USE),
    )
    assert texts_and_calls(read_stream(dialect, data))[1] == [
        ("read_file", {"path": "a"}),
        ("read_file", {"path": "b"}),
    ]


def test_text_after_call_starts_new_block() -> None:
    data = write(
        TextDelta(0, "a"),
        ToolUseStart(1, CALLS[0].id, "now"),
        ToolUseInputDelta(1, "{}"),
        TextDelta(0, "b"),
        ToolUseEnd(1),
        MessageComplete(StopReason.TOOL_USE),
    )
    content = read_stream(dialect, data).content
    assert [block.type for block in content] == ["text", "tool_use", "text"]
    assert texts_and_calls(read_stream(dialect, data))[0] == "ab"


def test_input_after_complete_call_is_a_failure() -> None:
    data = write(
        ToolUseStart(0, CALLS[0].id, "now"),
        ToolUseInputDelta(0, "{}"),
        TextDelta(1, "a"),
        ToolUseInputDelta(0, "{}"),
        ToolUseEnd(0),
        MessageComplete(StopReason.TOOL_USE),
    )
    assert read_stream(dialect, data).fault is not None


UNFINISHED: dict[str, tuple[StreamEvent, ...]] = {
    "nothing": (),
    "no end": (TextDelta(0, "a"),),
    "an end that has failed": (TextDelta(0, "a"), MessageComplete(StopReason.ERROR)),
    "a block is missing": (TextDelta(0, "a"), TextDelta(2, "b"), MessageComplete(StopReason.END_TURN)),
    "half of a character": (TextDelta(0, "a\ud83d"), MessageComplete(StopReason.END_TURN)),
    "a call without input or end": (ToolUseStart(0, CALLS[0].id, "now"), MessageComplete(StopReason.TOOL_USE)),
    "a call without end": (
        ToolUseStart(0, CALLS[0].id, "now"),
        ToolUseInputDelta(0, "{}"),
        MessageComplete(StopReason.MAX_TOKENS),
    ),
    "input without a call": (ToolUseInputDelta(0, "{}"), MessageComplete(StopReason.TOOL_USE)),
    "two starts": (MessageStart(), MessageStart(), TextDelta(0, "a"), MessageComplete(StopReason.END_TURN)),
    "a fault that does not show": (TextDelta(0, "a"), StreamError(Fault(code="tool_input_invalid", message="?"))),
    "a fault that is not so": (TextDelta(0, "a"), StreamError(Fault(code="empty_response", message="?"))),
    "a fault that cost something": (
        TextDelta(0, "a"),
        UsageUpdate(TokenUsage(input_tokens=1, output_tokens=1)),
        StreamError(Fault(code="timeout", message="?")),
    ),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_unfinished_messages_are_not_written_as_finished(name: str) -> None:
    assert fold(UNFINISHED[name]).fault is not None
    again = read_stream(dialect, write(*UNFINISHED[name]))
    assert again.fault is not None
    assert texts_and_calls(again)[1] == []
    assert again.usage == fold(UNFINISHED[name]).usage  # the usage is charged


def test_split_surrogates_are_joined() -> None:
    data = write(TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), MessageComplete(StopReason.END_TURN))
    assert texts_and_calls(read_stream(dialect, data))[0] == "a😀b"


def test_only_native_reasoning_is_written() -> None:
    reply = Reply(content=(ThinkingBlock("secret", "c2ln"), TextBlock("Hello.")), stop_reason=StopReason.END_TURN)
    assert b"secret" not in write(*unfold(reply))
    own = reply.replace(content=(ThinkingBlock("mine", "c2ln", OWN), ThinkingBlock("", "c2ln", OWN), TextBlock("Hi.")))
    assert read_stream(dialect, write(*unfold(own))).content == own.content


def test_message_start_contains_fields_for_writers() -> None:
    wire = answer({"text": "Hello."}, {"toolUse": CALL}, stopReason="tool_use")
    wire["output"]["message"]["role"] = "someone"
    data = write(*unfold(dialect.read_reply(wire)))
    reader = dialect.stream_reader()
    events = [*reader.feed(data), *reader.close()]
    whole = fold(events)
    start = next(event for event in events if isinstance(event, MessageStart))
    call = next(event for event in events if isinstance(event, ToolUseStart))
    assert (start.provider_raw or {})["residue"]["in"]["output"] == (whole.provider_raw or {})["residue"]["in"][
        "output"
    ]
    assert call.provider_raw == {"dialect": dialect.NAME, "id": "tooluse_1"}
    assert frames(data)[0] == ("messageStart", {"role": "someone"})
    assert dialect.write_reply(whole).wire == {**wire, "metrics": {"latencyMs": 412}}


@pytest.mark.parametrize(
    "block",
    [
        {"hologram": {"format": "holo", "source": {"bytes": "AAAA"}}},
        {"hologram": ["a", "b"]},
        {"toolResult": {"toolUseId": "tooluse_1", "type": "nova_grounding", "content": [{"text": "a"}]}},
        {"toolUse": {**CALL, "type": "server_tool_use"}},
        {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
        {"citationsContent": {"citations": [{"title": "A page"}]}},
        {"citationsContent": {"content": [{"text": "So it is."}], "citations": [{"title": "A page"}, {"title": "B"}]}},
        {"image": {"format": "png", "source": {"bytes": "AAAA"}}},
    ],
    ids=lambda block: json.dumps(block)[:50],
)
def test_blocks_of_every_type_round_trip_in_stream(block: dict[str, Any]) -> None:
    wire = answer({"text": "Look:"}, block)
    again = read_stream(dialect, write(*unfold(dialect.read_reply(wire))))
    assert dialect.write_reply(again).wire == wire


# --- unusable replies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["{", "", '{"a":1}', ["a"], None, 7])
def test_call_with_non_object_input_is_invalid_and_round_trips(value: Any) -> None:
    wire = answer({"toolUse": {**CALL, "input": value}}, stopReason="tool_use", x=1)
    reply = dialect.read_reply(wire)
    (block,) = reply.content
    assert isinstance(block, InvalidToolUseBlock)
    assert reply.fault is not None
    assert reply.fault.code == "tool_input_invalid"
    assert dialect.write_reply(reply).wire == wire
    again = read_stream(dialect, write(*unfold(reply)))
    assert again.fault is not None
    assert again.fault.code == "tool_input_invalid"
    history = REQUEST.replace(messages=(message(Role.ASSISTANT, block),))
    _, sent, *rest = dialect.write_request(history).wire["messages"]
    if value == '{"a":1}':  # the API rejects requests with other values
        assert sent["content"][0]["toolUse"]["input"] == {"a": 1}
        assert "is invalid" in json.dumps(rest)
    else:
        assert "invalid call of" in sent["content"][0]["text"]


def test_call_at_token_limit_is_truncated() -> None:
    wire = answer({"toolUse": {**CALL, "input": "{"}}, stopReason="max_tokens")
    reply = dialect.read_reply(wire)
    assert reply.fault is not None
    assert reply.fault.code == "tool_input_truncated"
    assert dialect.write_reply(reply).wire == wire


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
def test_empty_reply_is_a_fault_and_round_trips(reason: str) -> None:
    wire = answer(stopReason=reason, additionalModelResponseFields={"stop_sequence": "X"})
    reply = dialect.read_reply(wire)
    assert reply.fault is not None
    assert reply.fault.code == "empty_response"
    assert dialect.write_reply(reply).wire == wire


# --- requests --------------------------------------------------------------------------------------------------------


def test_system_prompt_in_message_list_keeps_position() -> None:
    wire = {
        "system": [{"text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"text": "Hi."}]},
            {"role": "system", "content": [{"text": "Be kind."}, {"toolAddition": {"tool": {"name": "now"}}}]},
            {"role": "system", "content": [{"text": "Be quick."}]},
            {"role": "user", "content": [{"text": "Well?"}]},
        ],
    }
    request = dialect.read_request(wire)
    assert [item.role for item in request.messages] == [Role.SYSTEM, Role.USER, Role.SYSTEM, Role.SYSTEM, Role.USER]
    assert isinstance(request.messages[2].content[1], OpaqueBlock)
    assert dialect.write_request(request).wire == wire


def test_model_independent_effort_round_trips() -> None:
    wire = {"messages": [{"role": "user", "content": [{"text": "Hi."}]}], "outputConfig": {"effort": "high"}}
    request = dialect.read_request(wire)
    assert request.options.reasoning == Reasoning(effort="high")
    assert dialect.write_request(request).wire == wire
    assert dialect.write_request(request).losses == ()
    less = request.replace(options=Options(reasoning=Reasoning(effort="low")))
    assert dialect.write_request(less).wire["outputConfig"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (Options(temperature=1.4), "temperature"),
        (Options(temperature=-1), "temperature"),
        (Options(top_p=2), "top_p"),
        (Options(max_output_tokens=0), "max_output_tokens"),
    ],
)
def test_out_of_range_number_is_clamped(options: Options, name: str) -> None:
    sent = dialect.write_request(REQUEST.replace(options=options))
    assert list(sent.wire["inferenceConfig"].values()) in ([0], [1])
    assert sent.losses == ()
    assert [adjustment.block_type for adjustment in sent.adjustments] == [name]
    wire = {"messages": [], "inferenceConfig": {"temperature": 1.4}}
    assert dialect.write_request(dialect.read_request(wire)).wire == wire  # values of the same dialect are unchanged


@pytest.mark.parametrize(
    ("delta", "start", "block_type"),
    [
        ({"text": "Hi"}, None, "text"),
        ({"reasoningContent": {"text": "Hm"}}, None, "thinking"),
        ({"toolUse": {"input": "{}"}}, {"toolUse": {"toolUseId": "t1", "name": "f"}}, "tool_use"),
    ],
)
def test_unknown_delta_is_stored_and_reported_as_loss(
    delta: dict[str, Any], start: dict[str, Any] | None, block_type: str
) -> None:
    place = {"contentBlockIndex": 0}
    frames = [
        aws_frame({"role": "assistant"}, "messageStart"),
        aws_frame({**place, "start": start}, "contentBlockStart") if start is not None else b"",
        aws_frame({**place, "delta": delta}, "contentBlockDelta"),
        aws_frame({**place, "delta": {"newThing": {"a": 1}}}, "contentBlockDelta"),
        aws_frame(place, "contentBlockStop"),
        aws_frame({"stopReason": "end_turn" if start is None else "tool_use"}, "messageStop"),
        aws_frame({"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}, "metadata"),
    ]
    reader = dialect.stream_reader()
    reply = fold([*reader.feed(b"".join(frames)), *reader.close()])
    (block,) = reply.content
    assert (block.type, reply.fault) == (block_type, None)
    assert block.provider_raw["unread"] == {"set": {"newThing": [{"a": 1}]}}  # type: ignore[union-attr, index]
    losses = dialects.load("anthropic").write_reply(reply).losses
    assert f"{block_type}.newThing" in {loss.block_type for loss in losses}
    assert "newThing" not in json.dumps(dialect.write_reply(reply).wire)
