"""Tests of the AG-UI encoder: the events of each answer, and the messages that a client builds from them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.event import (
    BlockComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    unfold,
)
from dragoman.exchange import Fault, Loss, Reply, StopReason
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from dragoman.server.runs.agui_encoder import RESPONSE_SCHEMA, AguiEncoder
from dragoman.store import Row
from dragoman.transcripts.ag_ui import write_messages
from dragoman.turn import AnswerEnd, AnswerStart, PendingCall, ToolResultEvent, TurnEnd
from tests.conftest import scale

NOON = datetime(2026, 5, 8, 12, tzinfo=UTC)
ID = "01M0000000000000000000000A"
CALL = "tu_01M0000000000000000000000B"
USAGE = Usage(
    input_tokens=10,
    output_tokens=5,
    cached_input_tokens=3,
    cache_creation_input_tokens=2,
    reasoning_tokens=1,
    cost_usd=Decimal("0.01"),
    pricing_version="v",
    latency_ms=7,
)


def make_answer(*blocks: ContentBlock, usage: Usage | None = USAGE) -> Row:
    metadata = MessageMetadata(model="m", provider="p", usage=usage)
    return Row(2, Message(ID, "t", Role.ASSISTANT, blocks, metadata, NOON))


def make_end(stop: StopReason = StopReason.END_TURN, **fields: Any) -> TurnEnd:
    counts = {"llm_calls": 1, "tool_calls": 0, "input_tokens": 15, "output_tokens": 5}
    money = {"cost_usd": Decimal("0.01"), "wall_time_s": 0.5}
    return TurnEnd(turn_id="r", stop_reason=stop, model="m", **counts, **money, **fields)


def encode_answer(*events: StreamEvent, version: str | None = "1.0") -> list[dict[str, Any]]:
    """Encode the events of one answer, without its step events."""
    encoder = AguiEncoder("t", "r", version=version)
    encoder.encode(AnswerStart(ID, 2, "m", 10), 1)
    encoded = [agui_event for event in events for agui_event in encoder.encode(event, 1)]
    end_events = encoder.encode(AnswerEnd(make_answer(), StopReason.END_TURN), 1)
    assert end_events[-1]["type"] == "STEP_FINISHED"
    return [
        {key: value for key, value in agui_event.items() if key != "timestamp"}
        for agui_event in (*encoded, *end_events[:-1])
    ]


def text_event(kind: str, message_id: str = ID, **fields: Any) -> dict[str, Any]:
    return {"type": f"TEXT_MESSAGE_{kind}", "messageId": message_id, **fields}


def reasoning_event(kind: str, message_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"REASONING_{kind}", "messageId": message_id, **fields}


def call_event(kind: str, call_id: str = CALL, **fields: Any) -> dict[str, Any]:
    return {"type": f"TOOL_CALL_{kind}", "toolCallId": call_id, **fields}


def signature_event(message_id: str, value: str) -> dict[str, Any]:
    fields = {"subtype": "message", "entityId": message_id, "encryptedValue": value}
    return {"type": "REASONING_ENCRYPTED_VALUE", **fields}


FIRST, THIRD = f"{ID}.0", f"{ID}.2"
ANSWERS: dict[str, tuple[list[StreamEvent], list[dict[str, Any]]]] = {
    "text is streamed as it arrives": (
        [MessageStart("m"), TextDelta(0, "Hel"), TextDelta(0, ""), TextDelta(0, "lo")],
        [
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="Hel"),
            text_event("CONTENT", delta="lo"),
            text_event("END"),
        ],
    ),
    "usage is reported at the end only": (
        [UsageUpdate(TokenUsage(input_tokens=1, output_tokens=1))],
        [],
    ),
    "reasoning precedes text and has its own message": (
        [ThinkingDelta(0, "Hm."), ThinkingDelta(0, "", "sig"), TextDelta(1, "Yes.")],
        [
            reasoning_event("START", FIRST),
            reasoning_event("MESSAGE_START", FIRST, role="reasoning"),
            reasoning_event("MESSAGE_CONTENT", FIRST, delta="Hm."),
            reasoning_event("MESSAGE_END", FIRST),
            signature_event(FIRST, "sig"),
            reasoning_event("END", FIRST),
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="Yes."),
            text_event("END"),
        ],
    ),
    "late signatures are added to closed messages without reopening them": (
        [ThinkingDelta(0, "Hm."), TextDelta(1, "Yes."), ThinkingDelta(0, "", "sig"), TextDelta(1, "")],
        [
            reasoning_event("START", FIRST),
            reasoning_event("MESSAGE_START", FIRST, role="reasoning"),
            reasoning_event("MESSAGE_CONTENT", FIRST, delta="Hm."),
            reasoning_event("MESSAGE_END", FIRST),
            reasoning_event("END", FIRST),
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="Yes."),
            signature_event(FIRST, "sig"),
            text_event("END"),
        ],
    ),
    "redacted reasoning is sent as an encrypted value": (
        [BlockComplete(0, RedactedThinkingBlock("blob")), TextDelta(1, "Yes.")],
        [
            reasoning_event("START", FIRST),
            reasoning_event("MESSAGE_START", FIRST, role="reasoning"),
            reasoning_event("MESSAGE_END", FIRST),
            signature_event(FIRST, "blob"),
            reasoning_event("END", FIRST),
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="Yes."),
            text_event("END"),
        ],
    ),
    "a call belongs to the preceding text": (
        [TextDelta(0, "Look."), ToolUseStart(1, CALL, "look"), ToolUseInputDelta(1, '{"a":1}'), ToolUseEnd(1)],
        [
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="Look."),
            text_event("END"),
            call_event("START", toolCallName="look", parentMessageId=ID),
            call_event("ARGS", delta='{"a":1}'),
            call_event("END"),
        ],
    ),
    "a call without text is its own message, and empty arguments are an object": (
        [ToolUseStart(0, CALL, "look"), ToolUseEnd(0)],
        [
            call_event("START", toolCallName="look", parentMessageId=ID),
            call_event("ARGS", delta="{}"),
            call_event("END"),
        ],
    ),
    "parallel calls are interleaved": (
        [
            ToolUseStart(0, CALL, "a"),
            ToolUseStart(1, "tu_2", "b"),
            ToolUseInputDelta(1, "{"),
            ToolUseInputDelta(0, "{}"),
            ToolUseInputDelta(1, "}"),
            ToolUseEnd(1),
            ToolUseEnd(0),
        ],
        [
            call_event("START", toolCallName="a", parentMessageId=ID),
            call_event("START", "tu_2", toolCallName="b", parentMessageId=ID),
            call_event("ARGS", "tu_2", delta="{"),
            call_event("ARGS", delta="{}"),
            call_event("ARGS", "tu_2", delta="}"),
            call_event("END", "tu_2"),
            call_event("END"),
        ],
    ),
    "text after reasoning after text is a separate message": (
        [TextDelta(0, "A"), ThinkingDelta(1, "B"), TextDelta(2, "C")],
        [
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="A"),
            text_event("END"),
            reasoning_event("START", f"{ID}.1"),
            reasoning_event("MESSAGE_START", f"{ID}.1", role="reasoning"),
            reasoning_event("MESSAGE_CONTENT", f"{ID}.1", delta="B"),
            reasoning_event("MESSAGE_END", f"{ID}.1"),
            reasoning_event("END", f"{ID}.1"),
            text_event("START", THIRD, role="assistant"),
            text_event("CONTENT", THIRD, delta="C"),
            text_event("END", THIRD),
        ],
    ),
    "unfinished parts are closed": (
        [TextDelta(0, "A"), ToolUseStart(1, CALL, "look"), ToolUseInputDelta(1, '{"a"')],
        [
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="A"),
            text_event("END"),
            call_event("START", toolCallName="look", parentMessageId=ID),
            call_event("ARGS", delta='{"a"'),
            call_event("END"),
        ],
    ),
    "split surrogates are joined": (
        [TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), TextDelta(0, "\ud83d")],
        [
            text_event("START", role="assistant"),
            text_event("CONTENT", delta="a"),
            text_event("CONTENT", delta="😀b"),
            text_event("END"),
        ],
    ),
    "blocks without an AG-UI event are custom events": (
        [BlockComplete(0, ImageBlock(ImageSource("base64", "aGk="), "image/png"))],
        [
            {
                "type": "CUSTOM",
                "name": "dragoman.block",
                "value": {
                    "message_id": ID,
                    "block": {
                        "type": "image",
                        "source": {"kind": "base64", "data": "aGk="},
                        "media_type": "image/png",
                    },
                },
            }
        ],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_is_encoded_as_events(name: str) -> None:
    inputs, expected = ANSWERS[name]
    assert encode_answer(*inputs) == expected


@pytest.mark.parametrize("version", ["1.0", None])
def test_start_event_has_protocol_version(version: str | None) -> None:
    (event,) = AguiEncoder("t", "r", version=version, parent_run_id="p").encode_start(None, 5)
    assert event == {
        "type": "RUN_STARTED",
        "threadId": "t",
        "runId": "r",
        "parentRunId": "p",
        "protocolVersion": "1.0",
        "timestamp": 5,
    }


def test_step_has_model_losses_and_cost() -> None:
    encoder = AguiEncoder("t", "r", version="1.0")
    losses = (Loss("t", ID, "image", "openai", "it sees nothing"),)
    adjustments = (Loss("t", "", "history", "openai", "the oldest 3 messages are not sent", "adjusted"),)
    (started,) = encoder.encode(AnswerStart(ID, 2, "m", 10, losses, 3, adjustments), 1)
    assert started["metadata"]["dragoman"] == {
        "message_id": ID,
        "seq": 2,
        "model": "m",
        "left_out": 3,
        "losses": [{"block_type": "image", "reason": "it sees nothing"}],
        "adjustments": [{"name": "history", "reason": "the oldest 3 messages are not sent"}],
    }
    (finished,) = encoder.encode(AnswerEnd(make_answer(TextBlock("x")), StopReason.END_TURN), 1)
    assert finished["metadata"]["dragoman"]["usage"]["cost_usd"] == "0.01"
    (last,) = encoder.encode_end(make_end(), 1)
    assert last["usage"] == [
        {
            "provider": "p",
            "model": "m",
            "inputTokens": 15,  # includes cache reads and writes
            "outputTokens": 5,
            "totalTokens": 20,
            "reasoningTokens": 1,
            "cachedInputTokens": 3,
            "cacheWriteInputTokens": 2,
        }
    ]


def make_result(*blocks: ContentBlock, is_error: bool = False) -> ToolResultEvent:
    metadata = MessageMetadata(parent_tool_use_id=CALL)
    return ToolResultEvent(
        Row(3, Message(ID, "t", Role.TOOL, (ToolResultBlock(CALL, blocks, is_error),), metadata, NOON))
    )


IMAGE = ImageBlock(ImageSource("base64", "aGk="), "image/png")


@pytest.mark.parametrize(
    ("version", "blocks", "content"),
    [
        ("1.0", (TextBlock("21"),), "21"),
        (None, (TextBlock("21"),), "21"),
        (
            "1.0",
            (TextBlock("21"), IMAGE),
            [
                {"type": "text", "text": "21"},
                {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
            ],
        ),
        (None, (TextBlock("21"), IMAGE), "21\n[image]"),
    ],
)
def test_tool_result_depends_on_protocol_version(
    version: str | None, blocks: tuple[ContentBlock], content: Any
) -> None:
    (event,) = AguiEncoder("t", "r", version=version).encode(make_result(*blocks), 1)
    assert event == {
        "type": "TOOL_CALL_RESULT",
        "messageId": ID,
        "toolCallId": CALL,
        "content": content,
        "role": "tool",
        "timestamp": 1,
    }


def test_failed_tool_result_is_marked() -> None:
    (event,) = AguiEncoder("t", "r").encode(make_result(TextBlock("no"), is_error=True), 1)
    assert event["metadata"] == {"dragoman": {"is_error": True}}


PENDING = PendingCall(CALL, "look", {"a": 1}, "caller")
APPROVAL = PendingCall("tu_2", "drop", {"b": 2}, "approval")


def test_run_with_pending_calls_lists_them_or_has_no_outcome() -> None:
    end = make_end(StopReason.TOOL_USE, pending=(PENDING,))
    (current,) = AguiEncoder("t", "r", version="1.0").encode_end(end, 1)
    assert current["outcome"] == {"type": "success", "pendingToolCallIds": [CALL]}
    (old,) = AguiEncoder("t", "r").encode_end(end, 1)
    assert "outcome" not in old  # assistant-ui treats a success as an end without open calls
    (finished,) = AguiEncoder("t", "r").encode_end(make_end(), 1)
    assert finished["outcome"] == {"type": "success"}


@pytest.mark.parametrize("version", ["1.0", None])
def test_run_that_waits_for_approval_is_interrupted(version: str | None) -> None:
    end = make_end(StopReason.TOOL_USE, pending=(PENDING, APPROVAL))
    events = AguiEncoder("t", "r", version=version).encode_interrupt(end, [{"id": "1"}], {"a": None}, 1)
    assert [event["type"] for event in events] == ["MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert events[1]["snapshot"] == {"a": None}
    assert events[2]["outcome"] == {
        "type": "interrupt",
        "interrupts": [
            {
                "id": "int-tu_2",
                "reason": "tool_call",
                "message": "May drop be run?",
                "toolCallId": "tu_2",
                "responseSchema": RESPONSE_SCHEMA,
                "metadata": {"dragoman": {"name": "drop", "input": {"b": 2}}},
            }
        ],
    }


def test_cancellation_is_an_outcome_or_an_error_for_old_clients() -> None:
    end = make_end(StopReason.CANCELLED)
    assert AguiEncoder("t", "r", version="1.0").encode_end(end, 1)[-1]["outcome"] == {"type": "cancelled"}
    old = AguiEncoder("t", "r").encode_end(end, 1)[-1]
    assert (old["type"], old["code"]) == ("RUN_ERROR", "cancelled")


def test_error_closes_open_parts_and_contains_no_secret() -> None:
    encoder = AguiEncoder("t", "r", version="1.0")
    encoder.encode(AnswerStart(ID, 2, "m", 10), 1)
    encoder.encode(TextDelta(0, "A"), 1)
    fault = Fault(code="unauthorized", message="sk-ant-REDACTED is wrong")
    events = encoder.encode_end(make_end(StopReason.ERROR, fault=fault), 1)
    assert [event["type"] for event in events] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"]
    assert events[-1]["code"] == "unauthorized"
    assert "AAAABBBB" not in json.dumps(events)


# --- properties--------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BLOCKS = st.one_of(
    TEXTS.filter(bool).map(TextBlock),
    st.builds(ThinkingBlock, TEXTS, st.none() | st.text("abc", min_size=1)),
    st.builds(RedactedThinkingBlock, st.text("abc", min_size=1)),
    st.builds(ToolUseBlock, st.just(CALL), st.just("look"), st.dictionaries(TEXTS, st.integers() | TEXTS, max_size=3)),
)


def answer_contents() -> st.SearchStrategy[tuple[ContentBlock, ...]]:
    """Generate an answer: every call has its own id, and not every block is thinking."""

    def number_calls(blocks: list[ContentBlock]) -> tuple[ContentBlock, ...]:
        return tuple(
            block.replace(id=f"tu_{index}") if isinstance(block, ToolUseBlock) else block
            for index, block in enumerate(blocks)
        )

    def has_content(blocks: tuple[ContentBlock, ...]) -> bool:
        return any(isinstance(block, TextBlock | ToolUseBlock) for block in blocks)

    return st.lists(BLOCKS, min_size=1, max_size=6).map(number_calls).filter(has_content)


def build_messages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build the messages of a client from events, and check their order."""
    messages: dict[str, dict[str, Any]] = {}
    open_ids: set[str] = set()
    calls: dict[str, dict[str, Any]] = {}
    for event in events:
        kind, name = event["type"], event.get("messageId") or event.get("toolCallId")
        match kind:
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                assert name not in messages
                open_ids.add(name)
                messages[name] = {"id": name, "role": event["role"], "content": ""}
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                assert name in open_ids
                messages[name]["content"] += event["delta"]
            case "TEXT_MESSAGE_END" | "REASONING_MESSAGE_END" | "TOOL_CALL_END":
                open_ids.remove(name)
            case "REASONING_ENCRYPTED_VALUE":
                messages[event["entityId"]]["encryptedValue"] = event["encryptedValue"]
            case "TOOL_CALL_START":
                parent = event["parentMessageId"]
                owner = messages.setdefault(parent, {"id": parent, "role": "assistant"})
                function = {"name": event["toolCallName"], "arguments": ""}
                calls[name] = {"id": name, "type": "function", "function": function}
                owner.setdefault("toolCalls", []).append(calls[name])
                open_ids.add(name)
            case "TOOL_CALL_ARGS":
                assert name in open_ids
                calls[name]["function"]["arguments"] += event["delta"]
    assert not open_ids
    return list(messages.values())


@given(answer_contents())
@settings(max_examples=scale(40, 150), deadline=None)
def test_client_builds_messages_of_written_history(content: tuple[ContentBlock, ...]) -> None:
    reply = Reply(content=content, stop_reason=StopReason.END_TURN)
    built = build_messages(encode_answer(*unfold(reply)))
    written = write_messages([make_answer(*content, usage=None).message]).wire
    expected = [{key: value for key, value in wire.items() if key != "metadata"} for wire in written]
    assert built == expected


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS), max_size=12))
@settings(max_examples=scale(30, 100), deadline=None)
def test_text_events_in_any_order_have_no_null(deltas: list[tuple[int, str]]) -> None:
    for event in encode_answer(*(TextDelta(index, text) for index, text in deltas)):
        assert None not in event.values()
