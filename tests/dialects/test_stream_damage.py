"""Tests of damaged streams of every dialect: the fault and the content before it. The reply is never complete."""

from __future__ import annotations

import importlib
import json
import logging
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
from dragoman.dialects import anthropic, bedrock_converse, cohere, gemini, ollama, openai_chat, openai_responses
from dragoman.event import MessageComplete, StreamEvent, ToolUseEnd, fold
from dragoman.exchange import FAULT_CODES, Reply, StopReason
from dragoman.message import ToolUseBlock
from dragoman.wire.frames import aws_frame
from tests.conftest import scale
from tests.dialects.stream_damage import (
    anthropic as anthropic_damage,
)
from tests.dialects.stream_damage import (
    bedrock_converse as bedrock_damage,
)
from tests.dialects.stream_damage import (
    cohere as cohere_damage,
)
from tests.dialects.stream_damage import (
    gemini as gemini_damage,
)
from tests.dialects.stream_damage import (
    ollama as ollama_damage,
)
from tests.dialects.stream_damage import (
    openai_chat as chat_damage,
)
from tests.dialects.stream_damage import (
    openai_responses as responses_damage,
)
from tests.dialects.stream_damage.case import Case, calls_of, events_of, invalid_calls_of, reply_of, split, text_of

DAMAGE: dict[str, Any] = {
    name: importlib.import_module(f"tests.dialects.stream_damage.{name}") for name in dialects.callable_names()
}
every_case = pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}-{title}")
        for name, damage in DAMAGE.items()
        for title, case in damage.CASES.items()
    ],
)
RAW_FIELDS = ("head", "tail", "late", "error")
# Bedrock has exceptions for the other faults.
CODES_WITHOUT_EXCEPTION = ("tool_input_invalid", "tool_input_truncated", "empty_response")
SECRETS = ("abcdef0123456789", "very-secret-indeed")


# --- every dialect ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@every_case
def test_damaged_stream_has_same_outcome_for_all_chunks(
    name: str, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    dialect = dialects.load(name)
    with caplog.at_level(logging.WARNING, "dragoman.stream"):
        events = events_of(dialect, [case.data], case.framing, case.quirks)
    reply = fold(events)
    check_fault(reply, case)
    assert text_of(reply) == case.text
    assert tuple(call for _, call in calls_of(reply)) == case.calls
    assert tuple(text for _, text in invalid_calls_of(reply)) == case.invalid_inputs
    kept = {key: value for key, value in (reply.provider_raw or {}).items() if key in RAW_FIELDS}
    assert kept == case.raw
    if name != "bedrock_converse":  # the bytes of a binary frame are escaped
        assert all(len(kept.get(key, "")) <= 4096 for key in ("tail", "late"))
    assert len(caplog.records) == (int("late" in kept) if case.warnings is None else case.warnings)
    assert not [text for text in ("\ufffd", *SECRETS) if text in str(events)]
    for pieces in split(case.data):
        assert events_of(dialect, pieces, case.framing, case.quirks) == events


def check_fault(reply: Reply, case: Case) -> None:
    assert (reply.fault.code if reply.fault else None) == case.code
    assert (reply.stop_reason is StopReason.ERROR) is (case.code is not None)
    assert {key: getattr(reply.fault, key) for key in case.fault} == case.fault
    assert case.code is None or case.code in FAULT_CODES


@pytest.mark.sampled(6)
@every_case
def test_damaged_stream_stays_damaged_when_rewritten(name: str, case: Case) -> None:
    dialect = dialects.load(name)
    events = events_of(dialect, [case.data], case.framing, case.quirks)
    reply = fold(events)
    for framing in (None, "json-array") if name == "gemini" else (None,):
        data = rewrite(dialect, events, framing)
        again = fold(events_of(dialect, [data], framing))
        assert (again.fault is None) is (reply.fault is None)
        assert (text_of(again), calls_of(again)) == (text_of(reply), calls_of(reply))
        if reply.fault is not None and again.fault is not None:
            assert again.fault.code in FAULT_CODES
            if name == "gemini":
                assert again.fault.message == reply.fault.message
            if name == "bedrock_converse" and reply.fault.code in CODES_WITHOUT_EXCEPTION:
                assert again.fault.code == reply.fault.code


def rewrite(dialect: ModuleType, events: list[StreamEvent], framing: str | None = None) -> bytes:
    writer = dialect.stream_writer(framing) if framing else dialect.stream_writer()
    return b"".join([*map(writer.feed, events), writer.close()])


@pytest.mark.parametrize("name", DAMAGE)
def test_cut_stream_keeps_text_and_adds_no_call(name: str) -> None:
    dialect, data = dialects.load(name), DAMAGE[name].CUT
    complete = calls_of(fold(events_of(dialect, [data])))
    for at in range(0, len(data), scale(2, 1)):
        reply = fold(events_of(dialect, [data[:at]]))
        assert reply.fault is not None
        assert reply.fault.retryable
        assert "Héllo.".startswith(text_of(reply))
        assert calls_of(reply) in ([], complete)
        assert "\ufffd" not in repr(reply)


# --- Anthropic -------------------------------------------------------------------------------------------------------


def test_anthropic_usage_before_damage_is_in_reply() -> None:
    reply = fold(events_of(anthropic, [anthropic_damage.OPEN + anthropic_damage.HE]))
    assert reply.usage is not None
    assert reply.usage.input_tokens == 8


# --- Chat Completions ------------------------------------------------------------------------------------------------


def test_chat_stream_without_finish_reason_requires_quirk() -> None:
    quirks = ("terminal_reason_optional",)
    reply = fold(events_of(openai_chat, [chat_damage.HELLO + chat_damage.DONE], None, quirks))
    assert (reply.fault, reply.stop_reason, text_of(reply)) == (None, StopReason.UNKNOWN, "Héllo.")
    reply = fold(events_of(openai_chat, [chat_damage.HELLO], None, quirks))
    assert reply.fault is not None
    assert reply.fault.code == "stream_incomplete"


def test_chat_usage_before_error_is_in_reply() -> None:
    error = chat_damage.frame({"error": chat_damage.OVERLOADED, "usage": {"prompt_tokens": 8}})
    reply = fold(events_of(openai_chat, [chat_damage.HELLO + error]))
    assert reply.usage is not None
    assert reply.usage.input_tokens == 8


# --- Cohere ----------------------------------------------------------------------------------------------------------

# Ends that a complete reply does not have.
OPEN_CALLS = {"cut in an input", "an open input at the limit", "a call that never ends"}
INVALID_COHERE = [title for title, case in cohere_damage.CASES.items() if case.invalid_inputs]


@pytest.mark.parametrize("title", [*sorted(set(INVALID_COHERE) - OPEN_CALLS), "no content", "an empty text"])
def test_invalid_cohere_reply_has_fault_and_round_trips(title: str) -> None:
    events = events_of(cohere, [cohere_damage.CASES[title].data])
    streamed = fold(events)
    wire = cohere.write_reply(streamed).wire
    last = events[-1]
    assert isinstance(last, MessageComplete)
    assert "error" not in wire
    assert wire["usage"]["billed_units"] == {"input_tokens": 4, "output_tokens": 3}
    reply = cohere.read_reply(wire)
    assert reply.fault == streamed.fault
    assert invalid_calls_of(reply) == invalid_calls_of(streamed)
    assert cohere.write_reply(reply).wire == wire
    reasons = {StopReason.MAX_TOKENS: "MAX_TOKENS", StopReason.TOOL_USE: "TOOL_CALL", StopReason.END_TURN: "COMPLETE"}
    assert wire["finish_reason"] == reasons[last.stop_reason]


def test_invalid_foreign_call_is_an_error_for_cohere() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{]"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    reply = openai_chat.read_reply(body)
    assert invalid_calls_of(reply) == [("f", "{]")]
    wire = cohere.write_reply(reply).wire
    assert wire["finish_reason"] == "ERROR"
    assert cohere.read_reply(wire).fault is not None


# --- Ollama ----------------------------------------------------------------------------------------------------------

INVALID_OLLAMA = [title for title, case in ollama_damage.CASES.items() if case.invalid_inputs]
# A complete reply is parsed first, so only one of two equal keys remains.
EQUAL_KEYS = "an input with two equal keys"


@pytest.mark.parametrize(
    "title", [*sorted(set(INVALID_OLLAMA) - {EQUAL_KEYS}), "no content", "no content, without a reason"]
)
def test_invalid_ollama_reply_has_fault_and_round_trips(title: str) -> None:
    case = ollama_damage.CASES[title]
    *pieces, last = [json.loads(part) for part in case.data.splitlines()]
    fields: dict[str, Any] = {}
    for piece in pieces:
        fields.update({key: value for key, value in piece["message"].items() if value})
    wire = {**last, "message": {**last["message"], **fields}}
    reply, streamed = ollama.read_reply(wire), reply_of(ollama, case)
    assert reply.fault == streamed.fault
    assert invalid_calls_of(reply) == invalid_calls_of(streamed)
    assert ollama.write_reply(reply).wire == wire
    assert ollama.write_reply(streamed).wire == wire


def test_invalid_foreign_call_is_not_a_call_for_ollama() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{]"}}
    choices = (
        {"index": 0, "delta": {"tool_calls": [call]}},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
    )
    data = b"".join(chat_damage.frame({"choices": [choice]}) for choice in choices)
    events = events_of(openai_chat, [data + chat_damage.DONE])
    assert invalid_calls_of(fold(events)) == [("f", "{]")]
    sent = rewrite(ollama, events)
    assert b"tool_calls" not in sent
    assert fold(events_of(ollama, [sent])).fault is not None
    assert ollama.read_reply(ollama.write_reply(fold(events)).wire).fault is not None


# --- Gemini ----------------------------------------------------------------------------------------------------------


def test_gemini_stream_is_complete_only_with_last_chunk() -> None:
    call = gemini_damage.chunk({"functionCall": {"name": "read_file", "args": {"path": "é"}}}, finishReason="STOP")
    chunks = (gemini_damage.HEL, call)
    for data in (gemini_damage.sse(*chunks), json.dumps(chunks).encode()):
        for at in range(len(data)):
            reply = fold(events_of(gemini, [data[:at]]))
            if reply.fault is None:  # only the last empty line, or the last bracket, is missing
                assert len(data) - at <= 4
                assert reply.stop_reason is StopReason.TOOL_USE
            else:
                assert reply.fault.code in ("empty_response", "stream_incomplete")
                assert text_of(reply) in ("", "Hél")
                assert calls_of(reply) == []


def test_gemini_replies_have_faults_of_streams_and_round_trip() -> None:
    chunk = gemini_damage.chunk
    listed = chunk({"functionCall": {"name": "f", "id": "c1", "args": [1]}, "thoughtSignature": "cw=="})

    def chunk_with_reason(reason: str) -> dict[str, Any]:
        return {**listed, "candidates": [{**listed["candidates"][0], "finishReason": reason}]}

    for code, wire in (
        ("empty_response", chunk(finishReason="STOP")),
        ("empty_response", {"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "STOP"}]}),
        ("empty_response", chunk({"text": ""}, finishReason=1)),
        ("empty_response", chunk(finishReason="OTHER")),
        ("empty_response", chunk()),
        ("tool_input_invalid", chunk_with_reason("STOP")),
        ("tool_input_invalid", chunk_with_reason("SAFETY")),
        ("tool_input_invalid", listed),
        ("tool_input_truncated", chunk_with_reason("MAX_TOKENS")),
        ("tool_input_truncated", chunk({"functionCall": {"name": "f", "willContinue": True}}, finishReason=2)),
    ):
        reply = gemini.read_reply(wire)
        assert reply.fault is not None
        assert reply.fault.code == code
        assert calls_of(reply) == []
        assert gemini.write_reply(reply).wire == wire


def test_gemini_call_with_duplicate_keys_is_not_a_valid_call() -> None:
    reply = reply_of(gemini, gemini_damage.CASES["arguments with a key twice"])
    written = gemini.write_reply(reply)
    assert [loss.block_type for loss in written.losses] == ["invalid_tool_use"]
    assert gemini.read_reply(written.wire).fault is not None


# --- Bedrock Converse ------------------------------------------------------------------------------------------------


def test_changed_byte_of_bedrock_frame_is_detected() -> None:
    chance, whole = random.Random(7), bedrock_damage.WHOLE
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << chance.randrange(8)
        reply = fold(events_of(bedrock_converse, [bytes(changed)]))
        assert reply.fault is not None, at
        assert "Héllo.".startswith(text_of(reply))


def test_json_that_is_not_a_bedrock_frame_never_raises() -> None:
    chance = random.Random(8)
    lists: list[Any] = [[], [{}]]
    objects: list[Any] = [{}, {"text": 1}, {"toolUse": {}}, {"image": 1}, {"x": 1}]
    wires: list[Any] = [None, True, 0, -1, "", "text", *lists, *objects]
    names = ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
    keys = ("role", "contentBlockIndex", "delta", "start", "stopReason", "usage", "p")
    for _ in range(scale(500, 3_000)):
        frames = [bedrock_damage.START] if chance.random() < 0.9 else []
        for _ in range(chance.randrange(1, 6)):
            wire = {key: chance.choice(wires) for key in keys if chance.random() < 0.7}
            if chance.random() < 0.7:
                wire["contentBlockIndex"] = chance.randrange(2)
            frames.append(aws_frame(wire, chance.choice(names)))
        reply = fold(events_of(bedrock_converse, frames))
        assert reply.fault is None or reply.fault.code
        assert json.dumps(bedrock_converse.write_reply(reply).wire)


# --- Responses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", responses_damage.CASES)
def test_failed_responses_stream_is_not_written_as_completed(title: str) -> None:
    events = events_of(openai_responses, [responses_damage.CASES[title].data])
    fault = fold(events).fault
    if fault is not None and fault.code not in ("tool_input_invalid", "empty_response"):
        assert b'"status":"completed","error":null' not in rewrite(openai_responses, events)


def test_responses_events_after_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sse, whole = responses_damage.sse, responses_damage.WHOLE
    delta = responses_damage.item_event("output_text.delta", delta="More.")
    late = sse(delta, responses_damage.OVERLOADED, first=len(whole)) + b"data: {]\n\n"
    for pieces in split(sse(*whole) + late):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "dragoman.stream"):
            reply = fold(events_of(openai_responses, pieces))
        assert (reply.fault, reply.stop_reason, text_of(reply)) == (None, StopReason.END_TURN, "Héllo.")
        assert reply.provider_raw is not None
        assert "More." in reply.provider_raw["late"]
        assert len(reply.provider_raw["late"]) <= 4096
        assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_repeated_responses_events_after_end_are_not_late(caplog: pytest.LogCaptureFixture) -> None:
    sse, whole = responses_damage.sse, responses_damage.WHOLE
    repeated = sse(responses_damage.COMPLETED, first=len(whole) - 1) + b"data: [DONE]\n\n"
    with caplog.at_level(logging.WARNING, "dragoman.stream"):
        reply = fold(events_of(openai_responses, [sse(*whole) + repeated]))
    assert "late" not in (reply.provider_raw or {})
    assert caplog.records == []


UNEXPECTED_VALUES: list[Any] = [
    *(None, True, 0, -1, 10**30, 1.5, "", "x"),
    *([], {}, [[]], [{}], {"type": "message"}, [None], {"id": 1}),
]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths_in(value[key], (*path, key))


def replace_at(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replace_at(value[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize("number", range(len(responses_damage.STREAMS)))
def test_no_value_in_responses_event_raises(number: int) -> None:
    events = list(responses_damage.STREAMS[number])
    for at, event in enumerate(events):
        for place, path in enumerate(paths_in(event)):
            for strange in (UNEXPECTED_VALUES[(place + step) % len(UNEXPECTED_VALUES)] for step in (0, 4, 8, 12)):
                changed = [*events[:at], replace_at(event, path, strange), *events[at + 1 :]]
                data = b"".join(b"data: " + json.dumps(wire).encode() + b"\n\n" for wire in changed)
                openai_responses.write_reply(fold(events_of(openai_responses, [data])))


@pytest.mark.parametrize("number", range(len(responses_damage.STREAMS)))
def test_reordered_responses_events_add_no_text(number: int) -> None:
    events, sse = list(responses_damage.STREAMS[number]), responses_damage.sse
    whole = text_of(fold(events_of(openai_responses, [sse(*events, first=None)])))
    for at, event in enumerate(events):
        rest = [*events[:at], *events[at + 1 :]]
        for changed in (rest, [*events[:at], event, event, *events[at + 1 :]], [*rest, event], [event, *rest]):
            result = events_of(openai_responses, [sse(*changed, first=None)])
            reply = fold(result)
            assert reply.fault is not None or text_of(reply) == whole
            assert sum(isinstance(item, ToolUseEnd) for item in result) <= 1
            assert sum(isinstance(block, ToolUseBlock) for block in reply.content) <= 1
