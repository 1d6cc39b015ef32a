"""A turn in the words of AG-UI, by itself: what each event becomes, and what a client makes of all of them."""

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


def make_end(stop: StopReason = StopReason.END_TURN, **given: Any) -> TurnEnd:
    counts = {"llm_calls": 1, "tool_calls": 0, "input_tokens": 15, "output_tokens": 5}
    money = {"cost_usd": Decimal("0.01"), "wall_time_s": 0.5}
    return TurnEnd(turn_id="r", stop_reason=stop, model="m", **counts, **money, **given)


def told(*events: StreamEvent, version: str | None = "1.0") -> list[dict[str, Any]]:
    """Encode the events of one answer, without its step."""
    telling = AguiEncoder("t", "r", version=version)
    telling.encode(AnswerStart(ID, 2, "m", 10), 1)
    made = [one for event in events for one in telling.encode(event, 1)]
    closing = telling.encode(AnswerEnd(make_answer(), StopReason.END_TURN), 1)
    assert closing[-1]["type"] == "STEP_FINISHED"
    return [{key: value for key, value in one.items() if key != "timestamp"} for one in (*made, *closing[:-1])]


def text(what: str, message_id: str = ID, **fields: Any) -> dict[str, Any]:
    return {"type": f"TEXT_MESSAGE_{what}", "messageId": message_id, **fields}


def thought(what: str, message_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"REASONING_{what}", "messageId": message_id, **fields}


def call_event(what: str, call_id: str = CALL, **fields: Any) -> dict[str, Any]:
    return {"type": f"TOOL_CALL_{what}", "toolCallId": call_id, **fields}


def signature_event(message_id: str, value: str) -> dict[str, Any]:
    fields = {"subtype": "message", "entityId": message_id, "encryptedValue": value}
    return {"type": "REASONING_ENCRYPTED_VALUE", **fields}


FIRST, THIRD = f"{ID}.0", f"{ID}.2"
ANSWERS: dict[str, tuple[list[StreamEvent], list[dict[str, Any]]]] = {
    "words come as they are said": (
        [MessageStart("m"), TextDelta(0, "Hel"), TextDelta(0, ""), TextDelta(0, "lo")],
        [text("START", role="assistant"), text("CONTENT", delta="Hel"), text("CONTENT", delta="lo"), text("END")],
    ),
    "what was consumed is told at the end": (
        [UsageUpdate(TokenUsage(input_tokens=1, output_tokens=1))],
        [],
    ),
    "a thought comes before the words and has a place of its own": (
        [ThinkingDelta(0, "Hm."), ThinkingDelta(0, "", "sig"), TextDelta(1, "Yes.")],
        [
            thought("START", FIRST),
            thought("MESSAGE_START", FIRST, role="reasoning"),
            thought("MESSAGE_CONTENT", FIRST, delta="Hm."),
            thought("MESSAGE_END", FIRST),
            signature_event(FIRST, "sig"),
            thought("END", FIRST),
            text("START", role="assistant"),
            text("CONTENT", delta="Yes."),
            text("END"),
        ],
    ),
    "the end of a stream adds notes to what is closed and opens nothing again": (
        [ThinkingDelta(0, "Hm."), TextDelta(1, "Yes."), ThinkingDelta(0, "", "sig"), TextDelta(1, "")],
        [
            thought("START", FIRST),
            thought("MESSAGE_START", FIRST, role="reasoning"),
            thought("MESSAGE_CONTENT", FIRST, delta="Hm."),
            thought("MESSAGE_END", FIRST),
            thought("END", FIRST),
            text("START", role="assistant"),
            text("CONTENT", delta="Yes."),
            signature_event(FIRST, "sig"),
            text("END"),
        ],
    ),
    "a thought that nobody may read is sealed": (
        [BlockComplete(0, RedactedThinkingBlock("blob")), TextDelta(1, "Yes.")],
        [
            thought("START", FIRST),
            thought("MESSAGE_START", FIRST, role="reasoning"),
            thought("MESSAGE_END", FIRST),
            signature_event(FIRST, "blob"),
            thought("END", FIRST),
            text("START", role="assistant"),
            text("CONTENT", delta="Yes."),
            text("END"),
        ],
    ),
    "a call belongs to the words before it": (
        [TextDelta(0, "Look."), ToolUseStart(1, CALL, "look"), ToolUseInputDelta(1, '{"a":1}'), ToolUseEnd(1)],
        [
            text("START", role="assistant"),
            text("CONTENT", delta="Look."),
            text("END"),
            call_event("START", toolCallName="look", parentMessageId=ID),
            call_event("ARGS", delta='{"a":1}'),
            call_event("END"),
        ],
    ),
    "a call without words is the message, and one without arguments has none": (
        [ToolUseStart(0, CALL, "look"), ToolUseEnd(0)],
        [
            call_event("START", toolCallName="look", parentMessageId=ID),
            call_event("ARGS", delta="{}"),
            call_event("END"),
        ],
    ),
    "calls arrive side by side": (
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
    "words after a thought after words are a message of their own": (
        [TextDelta(0, "A"), ThinkingDelta(1, "B"), TextDelta(2, "C")],
        [
            text("START", role="assistant"),
            text("CONTENT", delta="A"),
            text("END"),
            thought("START", f"{ID}.1"),
            thought("MESSAGE_START", f"{ID}.1", role="reasoning"),
            thought("MESSAGE_CONTENT", f"{ID}.1", delta="B"),
            thought("MESSAGE_END", f"{ID}.1"),
            thought("END", f"{ID}.1"),
            text("START", THIRD, role="assistant"),
            text("CONTENT", THIRD, delta="C"),
            text("END", THIRD),
        ],
    ),
    "what breaks off is closed": (
        [TextDelta(0, "A"), ToolUseStart(1, CALL, "look"), ToolUseInputDelta(1, '{"a"')],
        [
            text("START", role="assistant"),
            text("CONTENT", delta="A"),
            text("END"),
            call_event("START", toolCallName="look", parentMessageId=ID),
            call_event("ARGS", delta='{"a"'),
            call_event("END"),
        ],
    ),
    "a character that comes in two halves is told whole": (
        [TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), TextDelta(0, "\ud83d")],
        [text("START", role="assistant"), text("CONTENT", delta="a"), text("CONTENT", delta="😀b"), text("END")],
    ),
    "what AG-UI has no word for is told as something of ours": (
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
def test_what_an_answer_becomes(name: str) -> None:
    events, wanted = ANSWERS[name]
    assert told(*events) == wanted


@pytest.mark.parametrize("version", ["1.0", None])
def test_the_beginning_says_which_protocol_is_spoken(version: str | None) -> None:
    (event,) = AguiEncoder("t", "r", version=version, parent_run_id="p").encode_start(None, 5)
    assert event == {
        "type": "RUN_STARTED",
        "threadId": "t",
        "runId": "r",
        "parentRunId": "p",
        "protocolVersion": "1.0",
        "timestamp": 5,
    }


def test_a_step_tells_which_model_answers_and_what_it_cost() -> None:
    telling = AguiEncoder("t", "r", version="1.0")
    losses = (Loss("t", ID, "image", "openai", "it sees nothing"),)
    trimmed = (Loss("t", "", "history", "openai", "the oldest 3 messages are not sent", "adjusted"),)
    (began,) = telling.encode(AnswerStart(ID, 2, "m", 10, losses, 3, trimmed), 1)
    assert began["metadata"]["dragoman"] == {
        "message_id": ID,
        "seq": 2,
        "model": "m",
        "left_out": 3,
        "losses": [{"block_type": "image", "reason": "it sees nothing"}],
        "adjustments": [{"name": "history", "reason": "the oldest 3 messages are not sent"}],
    }
    (finished,) = telling.encode(AnswerEnd(make_answer(TextBlock("x")), StopReason.END_TURN), 1)
    assert finished["metadata"]["dragoman"]["usage"]["cost_usd"] == "0.01"
    (last,) = telling.encode_end(make_end(), 1)
    assert last["usage"] == [
        {
            "provider": "p",
            "model": "m",
            "inputTokens": 15,  # what was read from and written to caches is a part of it
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


PICTURE = ImageBlock(ImageSource("base64", "aGk="), "image/png")


@pytest.mark.parametrize(
    ("version", "blocks", "content"),
    [
        ("1.0", (TextBlock("21"),), "21"),
        (None, (TextBlock("21"),), "21"),
        (
            "1.0",
            (TextBlock("21"), PICTURE),
            [
                {"type": "text", "text": "21"},
                {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
            ],
        ),
        (None, (TextBlock("21"), PICTURE), "21\n[image]"),
    ],
)
def test_a_result_is_what_the_client_can_read(version: str | None, blocks: tuple[ContentBlock], content: Any) -> None:
    (event,) = AguiEncoder("t", "r", version=version).encode(make_result(*blocks), 1)
    assert event == {
        "type": "TOOL_CALL_RESULT",
        "messageId": ID,
        "toolCallId": CALL,
        "content": content,
        "role": "tool",
        "timestamp": 1,
    }


def test_a_result_that_is_an_error_says_so() -> None:
    (event,) = AguiEncoder("t", "r").encode(make_result(TextBlock("no"), is_error=True), 1)
    assert event["metadata"] == {"dragoman": {"is_error": True}}


PENDING = PendingCall(CALL, "look", {"a": 1}, "caller")
CONSENT = PendingCall("tu_2", "drop", {"b": 2}, "approval")


def test_a_run_that_waits_for_the_client_names_the_calls_or_has_no_outcome() -> None:
    waits = make_end(StopReason.TOOL_USE, pending=(PENDING,))
    (modern,) = AguiEncoder("t", "r", version="1.0").encode_end(waits, 1)
    assert modern["outcome"] == {"type": "success", "pendingToolCallIds": [CALL]}
    (before,) = AguiEncoder("t", "r").encode_end(waits, 1)
    assert "outcome" not in before  # assistant-ui takes a success for an end without open calls
    (done,) = AguiEncoder("t", "r").encode_end(make_end(), 1)
    assert done["outcome"] == {"type": "success"}


@pytest.mark.parametrize("version", ["1.0", None])
def test_a_run_that_waits_for_consent_is_interrupted(version: str | None) -> None:
    waits = make_end(StopReason.TOOL_USE, pending=(PENDING, CONSENT))
    events = AguiEncoder("t", "r", version=version).encode_interrupt(waits, [{"id": "1"}], {"a": None}, 1)
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


def test_a_cancel_is_an_outcome_or_an_error_to_those_who_know_no_such_outcome() -> None:
    stopped = make_end(StopReason.CANCELLED)
    assert AguiEncoder("t", "r", version="1.0").encode_end(stopped, 1)[-1]["outcome"] == {"type": "cancelled"}
    before = AguiEncoder("t", "r").encode_end(stopped, 1)[-1]
    assert (before["type"], before["code"]) == ("RUN_ERROR", "cancelled")


def test_an_error_closes_what_is_open_and_holds_no_secret() -> None:
    telling = AguiEncoder("t", "r", version="1.0")
    telling.encode(AnswerStart(ID, 2, "m", 10), 1)
    telling.encode(TextDelta(0, "A"), 1)
    fault = Fault(code="unauthorized", message="sk-ant-REDACTED is wrong")
    events = telling.encode_end(make_end(StopReason.ERROR, fault=fault), 1)
    assert [event["type"] for event in events] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"]
    assert events[-1]["code"] == "unauthorized"
    assert "AAAABBBB" not in json.dumps(events)


# --- laws ------------------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BLOCKS = st.one_of(
    WORDS.filter(bool).map(TextBlock),
    st.builds(ThinkingBlock, WORDS, st.none() | st.text("abc", min_size=1)),
    st.builds(RedactedThinkingBlock, st.text("abc", min_size=1)),
    st.builds(ToolUseBlock, st.just(CALL), st.just("look"), st.dictionaries(WORDS, st.integers() | WORDS, max_size=3)),
)


def contents() -> st.SearchStrategy[tuple[ContentBlock, ...]]:
    """Generate an answer: every call has its own id, and not every block is thinking."""

    def numbered(blocks: list[ContentBlock]) -> tuple[ContentBlock, ...]:
        return tuple(
            block.replace(id=f"tu_{at}") if isinstance(block, ToolUseBlock) else block
            for at, block in enumerate(blocks)
        )

    def says(blocks: tuple[ContentBlock, ...]) -> bool:
        return any(isinstance(block, TextBlock | ToolUseBlock) for block in blocks)

    return st.lists(BLOCKS, min_size=1, max_size=6).map(numbered).filter(says)


def build_messages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that a client makes of events; anything out of order fails."""
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


@given(contents())
@settings(max_examples=scale(40, 150), deadline=None)
def test_a_client_makes_the_messages_that_the_history_is_written_as(content: tuple[ContentBlock, ...]) -> None:
    reply = Reply(content=content, stop_reason=StopReason.END_TURN)
    made = build_messages(told(*unfold(reply)))
    written = write_messages([make_answer(*content, usage=None).message]).wire
    wanted = [{key: value for key, value in wire.items() if key != "metadata"} for wire in written]
    assert made == wanted


@given(st.lists(st.tuples(st.integers(0, 3), WORDS), max_size=12))
@settings(max_examples=scale(30, 100), deadline=None)
def test_no_event_of_words_in_any_order_has_a_null(deltas: list[tuple[int, str]]) -> None:
    for event in told(*(TextDelta(index, words) for index, words in deltas)):
        assert None not in event.values()
