"""Tests of shapes that are documented or sent by compatible servers, and rare in recorded traffic."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
from dragoman.event import fold
from dragoman.exchange import Reply
from dragoman.message import ImageBlock, OpaqueBlock, TextBlock, ToolUseBlock
from tests.dialects.test_further_shapes import check, read_stream, stream_of

ANTHROPIC = dialects.load("anthropic")
BEDROCK = dialects.load("bedrock_converse")
CHAT = dialects.load("openai_chat")
OLLAMA = dialects.load("ollama")
RESPONSES = dialects.load("openai_responses")


def texts(reply: Reply) -> str:
    return "".join(block.text for block in reply.content if isinstance(block, TextBlock))


# --- Anthropic -------------------------------------------------------------------------------------------------------

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
END = [
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 3},
    },
    {"type": "message_stop"},
]


def block_events(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


TEXT_BLOCK = block_events(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello."})


def anthropic_stream(*events: dict[str, Any]) -> str:
    return stream_of([START, *events, *END], named=True)


@pytest.mark.parametrize(
    ("start", "deltas", "whole"),
    [
        (
            {"type": "compaction", "content": None, "encrypted_content": None},
            [{"type": "compaction_delta", "content": "So far.", "encrypted_content": "secret"}],
            {"type": "compaction", "content": "So far.", "encrypted_content": "secret"},
        ),
        (
            {"type": "compaction", "content": None},
            [{"type": "compaction_delta", "content": None, "encrypted_content": "secret"}],
            {"type": "compaction", "content": None, "encrypted_content": "secret"},
        ),
        (
            {"type": "news", "headline": ""},
            [{"type": "news_delta", "headline": "Sun "}, {"type": "news_delta", "headline": "shines", "places": [1]}],
            {"type": "news", "headline": "Sun shines", "places": [1]},
        ),
    ],
    ids=["compaction", "encrypted compaction", "a block of a newer version"],
)
def test_block_in_start_event_has_fields_of_deltas(
    start: dict[str, Any], deltas: list[dict[str, Any]], whole: dict[str, Any]
) -> None:
    stream = anthropic_stream(*block_events(0, start, *deltas), *TEXT_BLOCK)
    check(ANTHROPIC, "stream", stream)
    block = read_stream(ANTHROPIC, stream).content[0]
    assert isinstance(block, OpaqueBlock)
    assert block.wire == whole


@pytest.mark.parametrize("start", [{"type": "text"}, {"type": "text", "text": None}])
def test_text_block_may_start_without_text(start: dict[str, Any]) -> None:
    stream = anthropic_stream(
        *block_events(0, {"type": "thinking"}, {"type": "thinking_delta", "thinking": "Hm."}),
        *block_events(1, start, {"type": "text_delta", "text": "Hello."}),
    )
    check(ANTHROPIC, "stream", stream)
    assert [block.text for block in read_stream(ANTHROPIC, stream).content] == ["Hm.", "Hello."]


def test_image_in_assistant_message_round_trips() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    wire = {
        "model": "claude",
        "max_tokens": 9,
        "messages": [
            {"role": "assistant", "content": [image]},
            {"role": "user", "content": "What is it?"},
        ],
    }
    check(ANTHROPIC, "request", wire)
    (block,) = ANTHROPIC.read_request(wire).messages[0].content
    assert isinstance(block, ImageBlock)


def test_system_message_may_have_options_instead_of_content() -> None:
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "system", "output_config": {"effort": "low"}},
        {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"},
    ]
    wire = {"model": "claude", "max_tokens": 9, "messages": messages}
    check(ANTHROPIC, "request", wire)
    other = CHAT.write_request(ANTHROPIC.read_request(wire)).wire
    assert [message["content"] for message in other["messages"]] == ["Hi.", "Be brief."]


# --- Chat Completions ------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt", "choices": [choice]}


def test_custom_and_function_calls_keep_order_in_stream() -> None:
    calls = [
        {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "run", "input": "SELECT"}},
        {"index": 0, "custom": {"input": " 1"}},
        {"index": 1, "id": "call_2", "type": "function", "function": {"name": "look", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    chunks = [chunk({"tool_calls": [call]}) for call in calls]
    stream = stream_of([chunk({"role": "assistant", "content": None}), *chunks, chunk({}, "tool_calls")], done=True)
    check(CHAT, "stream", stream)
    found = [(block.name, block.input) for block in read_stream(CHAT, stream).content if type(block) is ToolUseBlock]
    assert found == [("run", {"input": "SELECT 1"}), ("look", {})]


@pytest.mark.parametrize(("is_done", "fault"), [(True, None), (False, "stream_incomplete")])
def test_stream_is_cut_if_another_choice_has_no_end(is_done: bool, fault: str | None) -> None:
    other = chunk({"content": "Servus."})
    other["choices"][0]["index"] = 1
    reply = read_stream(CHAT, stream_of([chunk({"content": "Hello."}), other, chunk({}, "stop")], done=is_done))
    assert (None if reply.fault is None else reply.fault.code) == fault


@pytest.mark.parametrize("blank", ["data:\n\n", "data: \r\n\r\n", "event: ping\ndata:\n\n"])
def test_event_without_data_is_ignored(blank: str) -> None:
    first, second = (stream_of([chunk({"content": text})]) for text in ("Hel", "lo."))
    stream = blank + first + blank + second + stream_of([chunk({}, "stop")], done=True)
    check(CHAT, "stream", stream)
    assert texts(read_stream(CHAT, stream)) == "Hello."


@pytest.mark.parametrize("target", ["openai_chat", "openai_responses"])
def test_disabled_reasoning_with_effort_stays_disabled(target: str) -> None:
    wire = {
        "model": "claude",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi."}],
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "max"},
    }
    dialect = dialects.load(target)
    written = dialect.write_request(ANTHROPIC.read_request(wire))
    reasoning = dialect.read_request(written.wire).options.reasoning
    assert reasoning is None or reasoning.enabled is False or reasoning.effort == "none"
    assert reasoning is not None or "reasoning" in {loss.block_type for loss in written.losses}


# --- Responses -------------------------------------------------------------------------------------------------------

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}],
}


def response(status: str, *items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    wire = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt", "status": status}
    return {**wire, "output": list(items), **fields}


def responses_stream(*events: dict[str, Any]) -> str:
    return stream_of(list(events), named=True)


def test_response_may_start_in_progress() -> None:
    stream = responses_stream(
        {"type": "response.in_progress", "response": response("in_progress")},
        {"type": "response.completed", "response": response("completed", MESSAGE)},
    )
    check(RESPONSES, "stream", stream)
    assert texts(read_stream(RESPONSES, stream)) == "Hello."


@pytest.mark.parametrize("repeated", [(), (MESSAGE,)])
def test_item_may_arrive_only_when_done(repeated: tuple[dict[str, Any], ...]) -> None:
    stream = responses_stream(
        {"type": "response.created", "response": response("in_progress")},
        {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
        {"type": "response.completed", "response": response("completed", *repeated)},
    )
    check(RESPONSES, "stream", stream)
    assert texts(read_stream(RESPONSES, stream)) == "Hello."


def test_logprobs_of_earlier_reply_round_trip() -> None:
    token = {"token": "Hi", "bytes": [72, 105], "logprob": -0.5, "top_logprobs": []}
    part = {"type": "output_text", "text": "Hi", "logprobs": [token]}
    wire = {"model": "gpt", "input": [{"role": "assistant", "content": [part]}, {"role": "user", "content": "And?"}]}
    check(RESPONSES, "request", wire)
    chat = CHAT.write_request(RESPONSES.read_request(wire))
    assert "logprobs" not in json.dumps(chat.wire)


def test_truncated_call_keeps_its_ids() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "run", "arguments": ""}
    item = {**call, "status": "incomplete"}
    stream = responses_stream(
        {"type": "response.created", "response": response("in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": {**call, "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.incomplete",
            "response": response("incomplete", item, incomplete_details={"reason": "max_output_tokens"}),
        },
    )
    check(RESPONSES, "stream", stream)
    reply = read_stream(RESPONSES, stream)
    assert reply.fault is not None
    assert reply.fault.code == "tool_input_truncated"
    (written,) = RESPONSES.write_reply(reply).wire["output"]
    assert (written["id"], written["call_id"]) == ("fc_1", "call_1")


# --- Bedrock ---------------------------------------------------------------------------------------------------------


def bedrock_stream(*deltas: dict[str, Any]) -> str:
    events = [
        ("messageStart", {"role": "assistant"}),
        *(("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta}) for delta in deltas),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}),
    ]
    return "".join(json.dumps({name: payload}) + "\n" for name, payload in events)


@pytest.mark.parametrize("extra", [{}, {"news": {"headline": "x"}}], ids=["empty", "of a newer version"])
def test_unknown_delta_does_not_end_bedrock_stream(extra: dict[str, Any]) -> None:
    data = bedrock_stream({"text": "Hel"}, extra, {"text": "lo."})
    reply = read_bedrock(BEDROCK, data)
    assert (reply.fault, texts(reply)) == (None, "Hello.")


def test_empty_reasoning_does_not_end_bedrock_stream() -> None:
    parts = ({"text": "Hm"}, {}, {"text": "m."}, {"signature": "s"})
    reply = read_bedrock(BEDROCK, bedrock_stream(*({"reasoningContent": part} for part in parts)))
    assert reply.fault is None
    assert reply.content[0].text == "Hmm."
    assert reply.content[0].signature == "s"


def read_bedrock(dialect: ModuleType, stream: str) -> Reply:
    reader = dialect.stream_reader("ndjson")
    return fold([*reader.feed(stream.encode()), *reader.close()])


# --- Ollama and Cohere -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["control", "developer"])
def test_ollama_accepts_roles_of_template(role: str) -> None:
    messages = [{"role": role, "content": "thinking"}, {"role": "user", "content": "Hi."}]
    wire = {"model": "granite3.2", "messages": messages}
    check(OLLAMA, "request", wire)
    assert "thinking" in json.dumps(CHAT.write_request(OLLAMA.read_request(wire)).wire)


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_load_stream_round_trips(reason: str) -> None:
    message = {"role": "assistant", "content": ""}
    line = {"model": "llama", "created_at": "t", "message": message, "done": True, "done_reason": reason}
    check(OLLAMA, "stream", json.dumps(line) + "\n")
    check(OLLAMA, "response", line)


def test_document_result_converts_to_cohere_v1() -> None:
    cohere, first = dialects.load("cohere"), dialects.load("cohere_v1")
    result = {"type": "document", "document": "It rains."}
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": [result]},
    ]
    wire = {"model": "command-a", "messages": messages}
    check(cohere, "request", wire)
    assert "It rains." in json.dumps(first.write_request(cohere.read_request(wire)).wire)


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": ""}])
def test_call_that_the_limit_cut_before_its_arguments_round_trips(arguments: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", **arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "length", "message": message}
    wire = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}
    reply = CHAT.read_reply(wire)
    assert [block.type for block in reply.content] == ["invalid_tool_use"]
    assert CHAT.write_reply(reply).wire == wire
