"""Tests of dialects that are derived from another dialect, and of Gemini Interactions."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from dragoman import dialects
from dragoman.event import StreamEvent, fold, unfold
from dragoman.exchange import Reply, Request, SideEffects, StopReason, ToolDefinition, Written
from dragoman.message import (
    ImageBlock,
    ImageSource,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.dialects.test_every_dialect import CALLS, PIXEL, REQUEST, message

INVOKE = dialects.load("bedrock_invoke")
COHERE = dialects.load("cohere_v1")
GENERATE = dialects.load("ollama_generate")
INTERACTIONS = dialects.load("gemini_interactions")


def read_stream(dialect: ModuleType, data: bytes, framing: str | None = None, size: int = 7) -> list[StreamEvent]:
    reader = dialect.stream_reader(framing)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return [*(event for piece in pieces for event in reader.feed(piece)), *reader.close()]


def write_stream(dialect: ModuleType, events: list[StreamEvent], framing: str | None = None) -> bytes:
    writer = dialect.stream_writer(framing)
    return b"".join([*(writer.feed(event) for event in events), writer.close()])


def texts_of(reply: Reply) -> list[str]:
    return [block.text for block in reply.content if isinstance(block, TextBlock)]


# --- Bedrock InvokeModel ---------------------------------------------------------------------------------------------

CLAUDE = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 100,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Hi."}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
NOVA = {
    "schemaVersion": "messages-v1",
    "system": [{"text": "Be brief."}],
    "messages": [{"role": "user", "content": [{"text": "Hi."}]}],
    "inferenceConfig": {"maxTokens": 100, "topK": 3},
}
PROMPTS: dict[str, dict[str, Any]] = {
    "titan": {"inputText": "Hi.", "textGenerationConfig": {"maxTokenCount": 100, "temperature": 0.5}},
    "llama": {"prompt": "Hi.", "max_gen_len": 100, "temperature": 0.5},
    "claude_text": {"prompt": "Hi.", "max_tokens_to_sample": 100, "temperature": 0.5, "stop_sequences": ["\n\nHuman:"]},
    "command": {"prompt": "Hi.", "max_tokens": 100, "temperature": 0.5, "p": 0.9, "num_generations": 2},
    "jurassic": {"prompt": "Hi.", "maxTokens": 100, "temperature": 0.5, "countPenalty": {"scale": 0}},
    "mistral": {"prompt": "Hi.", "max_tokens": 100, "temperature": 0.5, "top_k": 50},
    "completion": {"prompt": "Hi.", "max_tokens": 100, "temperature": 0.5},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "titan": {
        "inputTextTokenCount": 3,
        "results": [{"tokenCount": 5, "outputText": "Hello.", "completionReason": "LENGTH"}],
    },
    "llama": {"generation": "Hello.", "prompt_token_count": 3, "generation_token_count": 5, "stop_reason": "length"},
    "claude_text": {"completion": "Hello.", "stop_reason": "max_tokens", "stop": None},
    "command": {"id": "g", "generations": [{"id": "h", "text": "Hello.", "finish_reason": "MAX_TOKENS"}]},
    "jurassic": {"id": 1, "completions": [{"data": {"text": "Hello."}, "finishReason": {"reason": "length"}}]},
    "mistral": {"outputs": [{"text": "Hello.", "stop_reason": "length"}]},
    "completion": {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "Hello.", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 5},
    },
}


@pytest.mark.parametrize("wire", [CLAUDE, NOVA, *PROMPTS.values()])
def test_body_of_every_model_family_round_trips(wire: dict[str, Any]) -> None:
    request = INVOKE.read_request(wire)
    assert request.options.max_output_tokens == 100
    assert [block.text for block in request.messages[-1].content] == ["Hi."]
    assert INVOKE.write_request(request) == Written(wire)


@pytest.mark.parametrize("family", ANSWERS)
def test_reply_of_prompt_family_round_trips(family: str) -> None:
    reply = INVOKE.read_reply(ANSWERS[family])
    assert (texts_of(reply), reply.stop_reason) == (["Hello."], StopReason.MAX_TOKENS)
    assert INVOKE.write_reply(reply).wire == ANSWERS[family]


def test_claude_body_on_bedrock_has_no_model_and_no_stream_flag() -> None:
    claude = dialects.load("anthropic").read_request({**CLAUDE, "model": "claude-sonnet-4-6", "stream": True})
    wire = INVOKE.write_request(claude).wire
    assert wire == CLAUDE


def test_model_family_selects_body_format() -> None:
    hello = Request(model="amazon.titan-text-express-v1", messages=(message(Role.USER, TextBlock("Hi.")),))
    assert INVOKE.write_request(hello).wire == {"inputText": "Hi."}
    assert "messages" in INVOKE.write_request(hello.replace(model="us.amazon.nova-lite-v1:0")).wire
    assert INVOKE.write_request(hello.replace(model="meta.llama3-70b-instruct-v1:0")).wire == {"prompt": "Hi."}


def test_conversation_becomes_prompt_and_calls_are_losses() -> None:
    written = INVOKE.write_request(REQUEST.replace(model="meta.llama3-70b-instruct-v1:0"))
    assert written.wire["prompt"].startswith("System: Be brief.\n\nUser: Summarize these.")
    assert written.wire["prompt"].endswith("\n\nAssistant:")
    assert [loss.block_type for loss in written.losses] == [
        "tool",
        "image",
        "tool_use",
        "tool_use",
        "tool_result",
        "tool_result",
        *["text"] * 5,  # the text is written without the name of its role
    ]
    assert {loss.adapter for loss in written.losses} == {"bedrock_invoke"}


@pytest.mark.parametrize("framing", ["aws-eventstream", "aws-eventstream-decoded", "ndjson"])
@pytest.mark.parametrize("family", [CLAUDE, NOVA, *PROMPTS.values()])
def test_stream_of_every_family_round_trips_in_every_framing(family: dict[str, Any], framing: str) -> None:
    notes = INVOKE.read_request(family).provider_raw["family"]
    reply = Reply(
        content=(TextBlock("Hello, é."),),
        stop_reason=StopReason.END_TURN,
        provider_raw={"dialect": "bedrock_invoke", "family": notes},
    )
    data = write_stream(INVOKE, list(unfold(reply)), framing)
    again = fold(read_stream(INVOKE, data, framing))
    assert (again.fault, texts_of(again), again.stop_reason) == (None, ["Hello, é."], StopReason.END_TURN)
    assert fold(read_stream(INVOKE, data[: len(data) // 2], framing)).fault is not None


def test_bedrock_event_fields_round_trip() -> None:
    lines = [
        {"generation": "Hello.", "prompt_token_count": 3, "generation_token_count": 1, "stop_reason": None},
        {
            "generation": "",
            "prompt_token_count": None,
            "generation_token_count": 5,
            "stop_reason": "stop",
            "amazon-bedrock-invocationMetrics": {"inputTokenCount": 3, "outputTokenCount": 5, "firstByteLatency": 9},
        },
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    reply = fold(read_stream(INVOKE, data, "ndjson"))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 5)
    wire = INVOKE.write_reply(reply).wire
    assert wire["amazon-bedrock-invocationMetrics"]["firstByteLatency"] == 9
    events = read_stream(INVOKE, data, "ndjson")
    assert INVOKE.write_reply(fold(read_stream(INVOKE, write_stream(INVOKE, events)))).wire == wire


def test_exception_frame_ends_stream_with_fault() -> None:
    data = b'{"headers":{":exception-type":"throttlingException"},"payload":{"message":"slow down"}}\n'
    fault = fold(read_stream(INVOKE, data, "aws-eventstream-decoded")).fault
    assert (fault.code, fault.provider, fault.message) == ("rate_limited", "bedrock_invoke", "slow down")


def test_converse_events_are_read_in_sdk_form() -> None:
    converse = dialects.load("bedrock_converse")
    lines = [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"delta": {"text": "Hello."}, "contentBlockIndex": 0}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8}}},
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    events = read_stream(converse, data, "ndjson")
    reply = fold(events)
    assert (reply.fault, texts_of(reply), reply.usage.output_tokens) == (None, ["Hello."], 5)
    assert fold(read_stream(converse, write_stream(converse, events, "ndjson"), "ndjson")) == reply
    assert fold(read_stream(converse, data[:60], "ndjson")).fault.code == "stream_incomplete"


# --- Cohere v1 -------------------------------------------------------------------------------------------------------

WEATHER = {"name": "weather", "parameters": {"city": "Łódź"}}


def test_cohere_v1_conversation_with_calls_round_trips() -> None:
    wire = {
        "model": "command-r",
        "preamble": "Be brief.",
        "chat_history": [
            {"role": "USER", "message": "How is the weather?"},
            {"role": "CHATBOT", "message": "I'll look.", "tool_calls": [WEATHER, WEATHER]},
        ],
        "message": "",
        "tool_results": [
            {"call": WEATHER, "outputs": [{"degrees": 3}]},
            {"call": WEATHER, "outputs": [{"text": "It snows."}]},
        ],
        "tools": [
            {
                "name": "weather",
                "description": "Weather.",
                "parameter_definitions": {
                    "city": {"description": "A city.", "type": "str", "required": True},
                    "days": {"type": "List[int]"},
                },
            }
        ],
        "connectors": [{"id": "web-search"}],
        "k": 3,
    }
    request = COHERE.read_request(wire)
    assert COHERE.write_request(request).wire == wire
    assert COHERE.write_request(request).losses == ()
    calls = [block for item in request.messages for block in item.content if isinstance(block, ToolUseBlock)]
    results = [block for item in request.messages for block in item.content if isinstance(block, ToolResultBlock)]
    assert [call.id for call in calls] == [result.tool_use_id for result in results]
    assert request.tools[0].input_schema["properties"]["days"] == {"type": "array", "items": {"type": "integer"}}
    losses = dialects.load("cohere").write_request(request).losses
    assert [loss.block_type for loss in losses] == ["connectors"]


def test_calls_in_cohere_v1_results_are_read() -> None:
    wire = {"message": "How is the weather?", "tool_results": [{"call": WEATHER, "outputs": [{"degrees": 3}]}]}
    request = COHERE.read_request(wire)
    assert [item.role for item in request.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert COHERE.write_request(request).wire == wire


_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize("name", ["cohere", "cohere_v1"])
@pytest.mark.parametrize("key", ["schema", "json_schema"])
def test_cohere_schema_key_is_that_of_target(name: str, key: str) -> None:
    source = dialects.load(name)
    content = {"message": "Hi"} if source is COHERE else {"messages": [{"role": "user", "content": "Hi"}]}
    wire = {"model": "m", **content, "response_format": {"type": "json_object", key: _SCHEMA}}
    request = source.read_request(wire)
    assert source.write_request(request).wire == wire
    for target, target_key in (("cohere", "json_schema"), ("cohere_v1", "schema")):
        if target != name:
            written = dialects.load(target).write_request(request)
            assert written.wire["response_format"] == {"type": "json_object", target_key: _SCHEMA}
            assert written.losses == ()
    written = dialects.load("openai_chat").write_request(request)
    assert (written.wire["response_format"]["json_schema"]["schema"], written.losses) == (_SCHEMA, ())

    changed = request.options.response_format.replace(json_schema={"type": "object"})
    edited = request.replace(options=request.options.replace(response_format=changed))
    assert source.write_request(edited).wire["response_format"] == {"type": "json_object", key: {"type": "object"}}


def test_schema_unsupported_by_cohere_v1_is_a_loss() -> None:
    nested = {"type": "object", "properties": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    tool = REQUEST.tools[0].replace(input_schema=nested)
    losses = COHERE.write_request(REQUEST.replace(tools=(tool,))).losses
    assert [loss.block_type for loss in losses] == ["tool.input_schema", "image"]


def test_cohere_v1_reply_with_calls_stops_for_tool_use() -> None:
    body = {
        "response_id": "r",
        "generation_id": "g",
        "text": "I'll look.",
        "tool_calls": [WEATHER],
        "finish_reason": "COMPLETE",
        "meta": {"tokens": {"input_tokens": 3, "output_tokens": 5}},
    }
    lines = [
        {"is_finished": False, "event_type": "stream-start", "generation_id": "g"},
        {"is_finished": False, "event_type": "text-generation", "text": "I'll look."},
        {"is_finished": False, "event_type": "tool-calls-chunk", "tool_call_delta": {"index": 0, "name": "weather"}},
        {"is_finished": False, "event_type": "tool-calls-generation", "tool_calls": [WEATHER]},
        {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE", "response": body},
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    for reply in (COHERE.read_reply(body), fold(read_stream(COHERE, data))):
        assert reply.stop_reason is StopReason.TOOL_USE
        assert [block.input for block in reply.content if isinstance(block, ToolUseBlock)] == [{"city": "Łódź"}]
        assert COHERE.write_reply(reply).wire == body
    for cut in range(len(data) - 1):
        assert fold(read_stream(COHERE, data[:cut], size=1000)).fault is not None


# --- Ollama generate -------------------------------------------------------------------------------------------------


def test_prompt_with_system_and_images_round_trips() -> None:
    wire = {
        "model": "llava",
        "prompt": "What is this?",
        "system": "Be brief.",
        "images": [PIXEL],
        "template": "{{ .Prompt }}",
        "options": {"num_predict": 100},
        "raw": False,
    }
    request = GENERATE.read_request(wire)
    assert [item.role for item in request.messages] == [Role.SYSTEM, Role.USER]
    assert [block.type for block in request.messages[1].content] == ["text", "image"]
    assert GENERATE.write_request(request).wire == wire


def test_calls_in_reply_are_losses_for_ollama_generate() -> None:
    reply = Reply(content=(TextBlock("I'll look."), CALLS[0]), stop_reason=StopReason.TOOL_USE, model="m")
    written = GENERATE.write_reply(reply)
    assert written.wire["response"] == "I'll look."
    assert {loss.block_type for loss in written.losses} == {"tool_use", "stop_reason"}


def test_image_in_reply_is_a_loss_for_ollama_generate() -> None:
    image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
    reply = Reply(content=(TextBlock("Here."), image), stop_reason=StopReason.END_TURN, model="m")
    written = GENERATE.write_reply(reply)
    assert written.wire["response"] == "Here."
    assert [(loss.block_type, loss.reason) for loss in written.losses] == [("image", "this API answers with a text")]
    writer = GENERATE.stream_writer()
    assert b"".join([*map(writer.feed, unfold(reply)), writer.close()])
    assert [loss.block_type for loss in writer.losses] == ["image"]


def test_conversation_becomes_one_prompt_for_ollama_generate() -> None:
    written = GENERATE.write_request(REQUEST)
    assert written.wire["system"] == "Be brief."
    assert "User: Summarize these.\n\nAssistant: I'll read them." in written.wire["prompt"]
    assert written.wire["images"] == [PIXEL]
    assert [loss.block_type for loss in written.losses].count("tool_use") == 2


# --- Gemini Interactions ---------------------------------------------------------------------------------------------

STEPS = [
    {"type": "thought", "signature": "sig", "summary": [{"type": "text", "text": "Hm."}]},
    {"type": "google_search_call", "id": "s1", "arguments": {"queries": ["x"]}},
    {"type": "model_output", "content": [{"type": "text", "text": "Hello."}, {"type": "text", "text": "World."}]},
    {"type": "function_call", "id": "c1", "name": "weather", "arguments": {"city": "Łódź"}},
]


@pytest.mark.parametrize(
    "value",
    [
        "Hi.",
        [{"type": "text", "text": "Hi."}, {"type": "image", "data": PIXEL, "mime_type": "image/png"}],
        [{"role": "user", "content": "Hi."}, {"role": "model", "content": [{"type": "text", "text": "Hello."}]}],
        [{"type": "user_input", "content": [{"type": "text", "text": "Hi."}]}, *STEPS],
        [*STEPS, {"type": "function_result", "call_id": "c1", "name": "weather", "result": {"degrees": 3}}],
        [
            *STEPS,
            {"type": "user_input", "content": [{"type": "function_result", "call_id": "c1", "result": "It snows."}]},
        ],
    ],
)
def test_every_form_of_interaction_input_round_trips(value: Any) -> None:
    wire = {"model": "gemini-3.5-flash", "input": value, "previous_interaction_id": "v1", "store": False}
    request = INTERACTIONS.read_request(wire)
    assert INTERACTIONS.write_request(request).wire == wire
    more = message(Role.USER, TextBlock("And now?"))
    longer = INTERACTIONS.write_request(request.replace(messages=(*request.messages, more))).wire
    assert longer["input"][-1] == {"type": "user_input", "content": [{"type": "text", "text": "And now?"}]}


def test_server_steps_are_opaque_and_thoughts_are_native() -> None:
    body = {"id": "v1", "object": "interaction", "model": "m", "status": "requires_action", "steps": STEPS}
    reply = INTERACTIONS.read_reply(body)
    assert [block.type for block in reply.content] == ["thinking", "opaque", "text", "text", "tool_use"]
    assert reply.content[0] == ThinkingBlock("Hm.", "sig")
    assert reply.content[1] == OpaqueBlock("gemini_interactions", STEPS[1])
    assert reply.stop_reason is StopReason.TOOL_USE
    events = read_stream(INTERACTIONS, write_stream(INTERACTIONS, list(unfold(reply))))
    assert fold(events) == reply
    assert INTERACTIONS.write_reply(fold(events)).wire == body == INTERACTIONS.write_reply(reply).wire


@pytest.mark.parametrize("status", ["queued", "in_progress", "requires_continuation"])
def test_background_interaction_is_paused(status: str) -> None:
    body = {"id": "v1", "object": "interaction", "agent": "deep-research", "status": status}
    reply = INTERACTIONS.read_reply(body)
    assert (reply.stop_reason, reply.fault, reply.model) == (StopReason.PAUSED, None, "deep-research")
    assert INTERACTIONS.write_reply(reply).wire == body


def test_failed_interaction_has_a_fault() -> None:
    body = {"id": "v1", "object": "interaction", "status": "failed", "error": {"code": 503, "status": "UNAVAILABLE"}}
    reply = INTERACTIONS.read_reply(body)
    assert reply.fault.code == "overloaded"
    assert INTERACTIONS.write_reply(reply).wire == body


def test_interaction_streams_of_earlier_version_are_read() -> None:
    events = [
        {"event_type": "interaction.start", "interaction": {"id": "v1", "model": "m", "status": "in_progress"}},
        {"event_type": "content.start", "index": 0, "content": {"type": "thought"}},
        {"event_type": "content.delta", "index": 0, "delta": {"type": "thought_signature", "signature": "sig"}},
        {"event_type": "content.stop", "index": 0},
        {"event_type": "content.start", "index": 1, "content": {"type": "text", "text": ""}},
        {"event_type": "content.delta", "index": 1, "delta": {"type": "text", "text": "Hello."}},
        {"event_type": "content.stop", "index": 1},
        {"event_type": "interaction.complete", "interaction": {"id": "v1", "model": "m", "status": "completed"}},
    ]
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    reply = fold(read_stream(INTERACTIONS, data))
    assert (reply.fault, texts_of(reply), reply.content[0].signature) == (None, ["Hello."], "sig")


def test_unknown_interaction_event_is_ignored() -> None:
    reply = Reply(content=(TextBlock("Hello."), CALLS[0]), stop_reason=StopReason.TOOL_USE, model="m")
    data = write_stream(INTERACTIONS, list(unfold(reply)))
    new = b'event: step.rewind\ndata: {"event_type":"step.rewind","index":0}\n\n'
    first, rest = data.split(b"\n\n", 1)
    assert fold(read_stream(INTERACTIONS, first + b"\n\n" + new + rest)).content == reply.content


# --- calls without ids -----------------------------------------------------------------------------------------------


def test_results_without_ids_match_calls_in_order() -> None:
    chat = dialects.load("openai_chat")
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("one", "two")]
    wire = {
        "messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "first"},
            {"role": "tool", "content": "second"},
        ],
        "model": "palmyra-x4",
    }
    request = chat.read_request(wire)
    assert [block.id for block in request.messages[1].content] == [
        item.content[0].tool_use_id for item in request.messages[2:]
    ]
    assert chat.write_request(request).wire == wire


@pytest.mark.parametrize("dialect", [INVOKE, COHERE])
def test_changed_schema_of_every_tool_is_reported(dialect: ModuleType) -> None:
    choices = {"anyOf": [{"type": "object"}, {"type": "null"}]}
    tools = tuple(ToolDefinition(name, "Does it.", choices, SideEffects.NONE) for name in ("first", "second"))
    written = dialect.write_request(REQUEST.replace(tools=tools))
    reasons = [each.reason for each in (*written.losses, *written.notes) if each.block_type == "tool.input_schema"]
    assert [tool.name in reason for tool, reason in zip(tools, reasons, strict=True)] == [True, True]
