"""Tests of features that only the Anthropic dialect has."""

from __future__ import annotations

import json

import pytest

from dragoman.dialects import anthropic, openai_chat
from dragoman.event import MessageComplete, TextDelta, fold
from dragoman.exchange import Reply, StopReason
from dragoman.fidelity import measure_conversion
from dragoman.message import Citation, TextBlock, ToolUseBlock


def test_input_in_start_of_call_is_read() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Boston"}}
    events = [
        {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    reader = anthropic.stream_reader()
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    reply = fold([*reader.feed(data), *reader.close()])
    assert reply.fault is None
    (block,) = reply.content
    assert isinstance(block, ToolUseBlock)
    assert block.input == {"location": "Boston"}


def test_foreign_tier_and_effort_are_losses() -> None:
    wire = {"model": "m", "messages": [{"role": "user", "content": "x"}], "service_tier": "flex"}
    written = anthropic.write_request(openai_chat.read_request({**wire, "reasoning_effort": "minimal"}))
    assert "service_tier" not in written.wire
    assert "output_config" not in written.wire
    assert {loss.block_type for loss in written.losses} == {"service_tier", "reasoning"}
    off = anthropic.write_request(openai_chat.read_request({**wire, "reasoning_effort": "none"}))
    assert off.wire["thinking"] == {"type": "disabled"}


def test_consecutive_results_become_one_user_message() -> None:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for number in (1, 2)
    ]
    answers = [{"role": "tool", "tool_call_id": f"call_{number}", "content": "ok"} for number in (1, 2)]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls}, *answers]
    wire = anthropic.write_request(openai_chat.read_request({"model": "m", "messages": messages})).wire
    assert [message["role"] for message in wire["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in wire["messages"][2]["content"]] == ["tool_result", "tool_result"]


@pytest.mark.parametrize(
    ("name", "reason", "elsewhere"),
    [
        ("compaction", StopReason.PAUSED, "pause_turn"),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS, "max_tokens"),
        ("of next year", StopReason.UNKNOWN, "end_turn"),
    ],
)
def test_stop_reason_round_trips(name: str, reason: StopReason, elsewhere: str) -> None:
    wire = anthropic.write_reply(Reply(content=(TextBlock("Hi."),), stop_reason=StopReason.END_TURN, model="m")).wire
    reply = anthropic.read_reply({**wire, "stop_reason": name})
    assert reply.stop_reason is reason
    assert anthropic.write_reply(reply).wire["stop_reason"] == name
    assert anthropic.write_reply(reply.replace(provider_raw=None)).wire["stop_reason"] == elsewhere


def test_continued_text_without_its_last_white_space_keeps_its_cache_hint() -> None:
    text = {"type": "text", "text": "Yes, ", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": [text]}]
    request = openai_chat.read_request({"model": "m", "messages": messages})
    written = anthropic.write_request(request)
    assert written.wire["messages"][-1]["content"] == [{**text, "text": "Yes,"}]
    assert [adjustment.block_type for adjustment in written.adjustments] == ["text"]
    assert {finding.outcome for finding in measure_conversion(request, anthropic)} <= {"kept", "changed"}


def test_foreign_empty_text_does_not_split_a_block() -> None:
    page = Citation(url="https://example.com/rome", title="Rome")
    signature = {"dialect": "gemini", "residue": {"set": {"thoughtSignature": "c2ln"}}}
    deltas = (TextDelta(0, "Rome "), TextDelta(0, ""), TextDelta(0, "is old."), TextDelta(0, "", signature))
    writer = anthropic.stream_writer()
    events = (*deltas, TextDelta(0, "", None, (page,)), MessageComplete(StopReason.END_TURN))
    reader = anthropic.stream_reader()
    data = b"".join([*map(writer.feed, events), writer.close()])
    (block,) = fold([*reader.feed(data), *reader.close()]).content
    assert isinstance(block, TextBlock)
    assert (block.text, [cited.url for cited in block.citations]) == ("Rome is old.", [page.url])


def test_document_of_another_type_round_trips() -> None:
    source = {"type": "base64", "media_type": "text/csv", "data": "YSxi"}
    content = [{"type": "text", "text": "Hi."}, {"type": "document", "source": source}]
    wire = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    written = anthropic.write_request(anthropic.read_request(wire))
    assert (written.wire, written.losses) == (wire, ())
