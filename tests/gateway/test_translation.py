"""Tests of replies that are translated from the API of the provider to the API of the caller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import dialects
from dragoman.event import fold
from dragoman.exchange import Reply
from dragoman.message import ThinkingBlock, ToolUseBlock
from tests.gateway.in_process import OpenGateway, open_gateway
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer, make_stream

Play = Callable[[ReceivedRequest], Answer]
BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]},
    "cohere": {"messages": [{"role": "user", "content": "hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    "openai_chat": {"messages": [{"role": "user", "content": "hi"}]},
    "openai_responses": {"input": "hi"},
}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
IMAGE_URL = "https://example.com/a.png"


def make_frames(*events: Any) -> bytes:
    """Return events as server-sent events. An event with a type has a name."""
    out = b""
    for event in events:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        out += name.encode() + b"data: " + (event if isinstance(event, bytes) else msgspec.json.encode(event)) + b"\n\n"
    return out


def call_without_input(index: int) -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": f"toolu_{index}", "name": "look", "input": {}}
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "input_json_delta", "partial_json": ""},
        },
        {"type": "content_block_stop", "index": index},
    ]


def messages_stream(*events: dict[str, Any], stop_reason: str) -> bytes:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
    usage = {"input_tokens": 3, "output_tokens": 4}
    return make_frames(
        {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}},
        *events,
        {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    )


def chat_stream(*deltas: dict[str, Any]) -> bytes:
    chunks = [
        {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]} for delta in deltas
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    return make_frames(*chunks, b"[DONE]")


def gemini_stream(*parts: dict[str, Any]) -> bytes:
    chunks: list[dict[str, Any]] = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    return make_frames(*chunks)


EMPTY = {
    "anthropic": {"id": "m", "type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"},
    "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}]},
    "openai_chat": {
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}]
    },
}
REASONING = {
    "gemini": gemini_stream({"text": "Hm.", "thought": True}, {"text": "Yes."}),
    "openai_chat": chat_stream({"reasoning_content": "Hm"}, {"reasoning_content": "."}, {"content": "Yes."}),
}
REASONING_ONLY = {
    "gemini": gemini_stream({"text": "Hm.", "thought": True}),
    "openai_chat": chat_stream({"reasoning_content": "Hm."}),
}


def answer_with(data: bytes, *, stream: bool = False, status: int = 200) -> Play:
    return lambda _: make_stream([data]) if stream else make_answer(data, status)


async def ask(gateway: OpenGateway, client: str, upstream: str, *, stream: bool = False, **fields: Any) -> bytes:
    names = {} if client == "gemini" else {"model": f"{upstream}:model", "stream": stream}
    body = msgspec.json.encode({**BODIES[client], **names, **fields})
    sent = await gateway.post(client, f"{upstream}:model", body, stream=stream)
    assert sent.status == 200, sent.body
    return sent.body


async def stream_reply(gateway: OpenGateway, client: str, upstream: str) -> Reply:
    reader = dialects.load(client).stream_reader()
    data = await ask(gateway, client, upstream, stream=True)
    return fold([*reader.feed(data), *reader.close()])


@pytest.mark.parametrize("client", ["cohere", "openai_chat", "openai_responses"])
@pytest.mark.parametrize("count", [1, 2])
async def test_call_without_input_has_empty_object(tmp_path: Path, client: str, count: int) -> None:
    calls = [event for index in range(count) for event in call_without_input(index)]
    data = messages_stream(*calls, stop_reason="tool_use")
    async with open_gateway(tmp_path, answer_with(data, stream=True)) as gateway:
        sent = await ask(gateway, client, "anthropic", stream=True)
    reader = dialects.load(client).stream_reader()
    inputs: dict[int, str] = {}
    for event in reader.feed(sent):
        if hasattr(event, "partial_json"):
            inputs[event.index] = inputs.get(event.index, "") + event.partial_json
    assert list(inputs.values()) == ["{}"] * count


async def test_chat_stream_calls_without_input_are_complete(tmp_path: Path) -> None:
    calls = [
        {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": "look", "arguments": ""}}
        for at in range(2)
    ]
    chunk = {"index": 0, "delta": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
    data = make_frames({"id": "c", "object": "chat.completion.chunk", "choices": [chunk]}, b"[DONE]")
    async with open_gateway(tmp_path, answer_with(data, stream=True)) as gateway:
        reply = await stream_reply(gateway, "openai_responses", "openai_chat")
    assert [block.input for block in reply.content if isinstance(block, ToolUseBlock)] == [{}, {}]


@pytest.mark.parametrize("streams", [REASONING, REASONING_ONLY])
@pytest.mark.parametrize("upstream", REASONING)
@pytest.mark.parametrize("client", ["anthropic", "gemini", "openai_responses"])
async def test_streamed_reasoning_has_signature(
    tmp_path: Path, client: str, upstream: str, streams: dict[str, bytes]
) -> None:
    if client == upstream:
        return
    async with open_gateway(tmp_path, answer_with(streams[upstream], stream=True)) as gateway:
        reply = await stream_reply(gateway, client, upstream)
    (thought,) = [block for block in reply.content if isinstance(block, ThinkingBlock)]
    assert thought.text == "Hm."
    assert thought.signature


@pytest.mark.parametrize("upstream", REASONING)
async def test_streamed_foreign_reasoning_is_not_sent_to_native_provider(tmp_path: Path, upstream: str) -> None:
    def respond(request: ReceivedRequest) -> Answer:
        return make_answer(msgspec.json.encode(EMPTY["anthropic"])) if "messages" in request.path else stream

    stream = make_stream([REASONING[upstream]])
    async with open_gateway(tmp_path, respond) as gateway:
        reply = await stream_reply(gateway, "anthropic", upstream)
        wire = dialects.load("anthropic").write_reply(reply).wire
        history = [
            *BODIES["anthropic"]["messages"],
            {"role": "assistant", "content": wire["content"]},
            {"role": "user", "content": "more"},
        ]
        assert wire["content"][0]["type"] == "thinking"
        await ask(gateway, "anthropic", "anthropic", messages=history)
        sent = gateway.upstream.requests[-1].json["messages"]
    assert [block["type"] for block in sent[1]["content"]] == ["text"]


@pytest.mark.parametrize("upstream", EMPTY)
@pytest.mark.parametrize("client", BODIES)
async def test_empty_reply_is_translated(tmp_path: Path, client: str, upstream: str) -> None:
    async with open_gateway(tmp_path, answer_with(msgspec.json.encode(EMPTY[upstream]))) as gateway:
        wire = msgspec.json.decode(await ask(gateway, client, upstream))
    reply = dialects.load(client).read_reply(wire)
    assert reply.fault is not None
    assert reply.fault.code == "empty_response"


@pytest.mark.parametrize("upstream", ["gemini", "openai_chat", "openai_responses"])
async def test_unknown_model_receives_images(tmp_path: Path, upstream: str) -> None:
    image = {"type": "image", "source": {"type": "url", "url": IMAGE_URL}}
    history = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    data = msgspec.json.encode(EMPTY.get(upstream, {"id": "r", "object": "response", "status": "completed"}))
    async with open_gateway(tmp_path, answer_with(data)) as gateway:
        await gateway.post(
            "anthropic",
            f"{upstream}:model",
            msgspec.json.encode({**BODIES["anthropic"], "model": f"{upstream}:model", "messages": history}),
        )
        assert IMAGE_URL in str(gateway.upstream.requests[-1].json)


@pytest.mark.parametrize("client", ["anthropic", "openai_chat"])
async def test_restored_call_has_id_of_its_result(tmp_path: Path, client: str) -> None:
    call = {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2lnbmVk"}
    first = {"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}]}
    async with open_gateway(tmp_path, answer_with(msgspec.json.encode(first)), record="durable") as gateway:
        wire = msgspec.json.decode(await ask(gateway, client, "gemini"))
        question = BODIES[client]["messages"]
        if client == "anthropic":
            result = {"type": "tool_result", "tool_use_id": wire["content"][0]["id"], "content": "x"}
            history = [{"role": "assistant", "content": wire["content"]}, {"role": "user", "content": [result]}]
        else:
            message = wire["choices"][0]["message"]
            history = [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"}]
        await ask(gateway, client, "gemini", messages=[*question, *history])
        _, answer, result = gateway.upstream.requests[-1].json["contents"]
    assert answer["parts"][0]["thoughtSignature"] == "c2lnbmVk"
    assert answer["parts"][0]["functionCall"]["id"] == result["parts"][0]["functionResponse"]["id"]


@pytest.mark.parametrize(
    ("client", "status", "kind", "code"),
    [
        ("anthropic", 402, "billing_error", None),
        ("anthropic", 403, "permission_error", None),
        ("anthropic", 529, "overloaded_error", None),
        ("openai_chat", 402, "insufficient_quota", "insufficient_quota"),
        ("openai_chat", 403, "permission_error", None),
        ("openai_responses", 402, "authentication_error", "insufficient_quota"),
        ("openai_responses", 403, "authentication_error", "permission_error"),
        ("openai_responses", 408, "server_error", "timeout"),
    ],
)
async def test_error_type_and_code_match_status(
    tmp_path: Path, client: str, status: int, kind: str, code: str | None
) -> None:
    async with open_gateway(tmp_path, answer_with(b'{"error":"no"}', status=status)) as gateway:
        body = {**BODIES[client], "model": "ollama:model"}
        sent = await gateway.post(client, "ollama:model", msgspec.json.encode(body))
    wire = msgspec.json.decode(sent.body)["error"]
    assert (sent.status, wire["type"], wire.get("code")) == (status, kind, code)


@pytest.mark.parametrize(("client", "status"), [("anthropic", 529), ("cohere", 503), ("openai_responses", 503)])
async def test_status_529_is_translated(tmp_path: Path, client: str, status: int) -> None:
    error = b'{"error":{"message":"busy","type":"server_error","code":"x"}}'
    async with open_gateway(tmp_path, answer_with(error, status=529)) as gateway:
        body = msgspec.json.encode({**BODIES[client], "model": "openai_chat:model"})
        sent = await gateway.post(client, "openai_chat:model", body)
    assert sent.status == status


def chat_refusal(*, stream: bool) -> bytes:
    if stream:
        return chat_stream(
            {"role": "assistant", "content": "", "refusal": None}, {"refusal": "I"}, {"refusal": " won't."}
        )
    message = {"role": "assistant", "content": None, "refusal": "I won't."}
    return msgspec.json.encode({"id": "c", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]})


def response_refusal(*, stream: bool) -> bytes:
    part = {"type": "refusal", "refusal": "I won't."}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    if not stream:
        return msgspec.json.encode(response)
    start = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return make_frames(
        {"type": "response.created", "response": start},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **place, "part": {**part, "refusal": ""}},
        {"type": "response.refusal.delta", **place, "delta": "I"},
        {"type": "response.refusal.delta", **place, "delta": " won't."},
        {"type": "response.refusal.done", **place, "refusal": "I won't."},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["openai_chat", "openai_responses"])
async def test_refusal_is_translated_between_openai_apis(tmp_path: Path, client: str, stream: bool) -> None:
    is_chat = client == "openai_chat"
    upstream = "openai_responses" if is_chat else "openai_chat"
    data = (response_refusal if is_chat else chat_refusal)(stream=stream)
    async with open_gateway(tmp_path, answer_with(data, stream=stream)) as gateway:
        if stream:
            wire = dialects.load(client).write_reply(await stream_reply(gateway, client, upstream)).wire
        else:
            wire = msgspec.json.decode(await ask(gateway, client, upstream))
    if is_chat:
        (choice,) = wire["choices"]
        assert (choice["message"]["refusal"], choice["message"]["content"]) == ("I won't.", None)
        assert choice["finish_reason"] == "stop"
    else:
        assert wire["output"][0]["content"] == [{"type": "refusal", "refusal": "I won't."}]
        assert wire["status"] == "completed"


@pytest.mark.parametrize("upstream", ["anthropic", "openai_responses"])
async def test_background_response_is_returned_complete(tmp_path: Path, upstream: str) -> None:
    data = msgspec.json.encode(
        {"id": "resp_1", "object": "response", "status": "completed", "output": [], "tools": [], "tool_choice": "auto"}
        if upstream == "openai_responses"
        else {**EMPTY["anthropic"], "content": [{"type": "text", "text": "Hi"}]}
    )
    async with open_gateway(tmp_path, answer_with(data), record="durable") as gateway:
        wire = msgspec.json.decode(await ask(gateway, "openai_responses", upstream, background=True))
        assert "background" not in gateway.upstream.requests[-1].json
    assert wire["status"] == "completed"


@pytest.mark.parametrize("has_question", [False, True])
async def test_images_of_tool_results_follow_in_user_message(tmp_path: Path, has_question: bool) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    calls = [{"type": "tool_use", "id": f"toolu_{at}", "name": "look", "input": {}} for at in range(2)]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_0", "content": [{"type": "text", "text": "A screen:"}, image]},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"},
    ]
    question = [{"type": "text", "text": "What is it?"}] if has_question else []
    history = [
        *BODIES["anthropic"]["messages"],
        {"role": "assistant", "content": calls},
        {"role": "user", "content": [*results, *question]},
    ]
    async with open_gateway(tmp_path, answer_with(msgspec.json.encode(EMPTY["openai_chat"]))) as gateway:
        await ask(gateway, "anthropic", "openai_chat", messages=history, tools=[TOOL])
        sent = gateway.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert "A screen:" in str(sent[2]["content"])
    assert "image" in str(sent[2]["content"])
    parts = sent[4]["content"]
    assert parts[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert [part["text"] for part in parts[2:]] == ["What is it?"] * has_question
