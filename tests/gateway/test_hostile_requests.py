"""Every endpoint answers an invalid value with an error of its API, never with an internal error."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.gateway import Caller, GatewayRequest, endpoints
from dragoman.gateway.endpoints import ENDPOINTS
from tests.conftest import scale
from tests.gateway.in_process import CompleteResponse, OpenGateway, open_gateway
from tests.gateway.replies import answer_call

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "hi"}]
ANTHROPIC = {
    "max_tokens": 50,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r"}]},
    ],
    "system": "s",
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "temperature": 1,
    "stop_sequences": ["a"],
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
}
GEMINI = {
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "aGk="}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}]},
    ],
    "systemInstruction": {"parts": [{"text": "s"}]},
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {"temperature": 1, "maxOutputTokens": 5, "thinkingConfig": {"thinkingBudget": 1}},
    "safetySettings": [{"category": "a", "threshold": "b"}],
    "cachedContent": "c",
}
CONVERSE = {
    "messages": [
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": "r"}]}}]},
    ],
    "system": [{"text": "s"}],
    "inferenceConfig": {"maxTokens": 5, "temperature": 1},
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": SCHEMA}}}]},
    "additionalModelRequestFields": {"a": 1},
}
INVOKE = {"anthropic_version": "bedrock-2023-05-31", "anthropic_beta": ["b"], "max_tokens": 5, "messages": MESSAGES}
EMBED = {"model": "M", "content": {"parts": [{"text": "a"}]}, "outputDimensionality": 1}
BODIES: dict[str, dict[str, Any]] = {  # by path; M is the model, C a conversation, R a response
    "/chat/completions": {
        "model": "M",
        "messages": [
            *MESSAGES,
            {"role": "assistant", "tool_calls": [{"id": "c1", **FUNCTION["function"], **FUNCTION}]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ],
        "tools": [FUNCTION],
        "tool_choice": "auto",
        "max_tokens": 5,
        "stop": ["a"],
        "stream": False,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "logit_bias": {"1": 1},
        "reasoning_effort": "low",
        "metadata": {"a": "b"},
    },
    "/responses": {
        "model": "M",
        "input": [
            *MESSAGES,
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
        ],
        "instructions": "s",
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "stream": False,
        "store": True,
        "background": False,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
        "previous_response_id": "R",
        "conversation": None,
        "truncation": "auto",
        "prompt": {"id": "p"},
    },
    "/messages": {"model": "M", "stream": False, **ANTHROPIC},
    "/models/{model}:generateContent": GEMINI,
    "/models/{model}:streamGenerateContent": GEMINI,
    "/api/chat": {
        "model": "M",
        "messages": [
            {"role": "user", "content": "hi", "images": ["aGk="]},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "content": "r", "tool_name": "f"},
        ],
        "tools": [FUNCTION],
        "format": "json",
        "options": {"temperature": 1, "num_predict": 5},
        "stream": False,
        "keep_alive": "5m",
        "think": True,
    },
    "/api/generate": {
        "model": "M",
        "prompt": "hi",
        "suffix": "s",
        "images": ["aGk="],
        "system": "s",
        "stream": False,
        "context": [1],
    },
    "/v2/chat": {
        "model": "M",
        "messages": [*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "c", **FUNCTION}], "tool_plan": "p"}],
        "tools": [FUNCTION],
        "documents": [{"data": {"a": "b"}}],
        "response_format": {"type": "json_object"},
        "thinking": {"type": "enabled", "token_budget": 5},
        "stream": False,
    },
    "/model/{model}/converse": CONVERSE,
    "/model/{model}/converse-stream": CONVERSE,
    "/model/{model}/invoke": INVOKE,
    "/model/{model}/invoke-with-response-stream": INVOKE,
    "/messages/count_tokens": {"model": "M", "messages": MESSAGES, "system": "s", "tools": []},
    "/responses/input_tokens": {"model": "M", "input": "hi", "tools": [], "conversation": None},
    "/responses/compact": {"model": "M", "input": MESSAGES, "previous_response_id": None},
    "/models/{model}:countTokens": {"generateContentRequest": {"model": "models/M", **GEMINI}},
    "/model/{model}/count-tokens": {"input": {"converse": CONVERSE}},
    "/embeddings": {"model": "M", "input": ["a"], "dimensions": 1, "encoding_format": "float"},
    "/models/{model}:embedContent": EMBED,
    "/models/{model}:batchEmbedContents": {"requests": [EMBED]},
    "/api/embed": {"model": "M", "input": ["a"], "truncate": True, "options": {}, "dimensions": 1},
    "/api/embeddings": {"model": "M", "prompt": "a", "options": {}},
    "/v2/embed": {"model": "M", "texts": ["a"], "input_type": "search_query", "embedding_types": ["float"]},
    "/api/show": {"model": "M", "verbose": True},
    "/responses/{id}/cancel": {},
    "/conversations": {"metadata": {"a": "b"}, "items": MESSAGES},
    "/conversations/{id}": {"metadata": {"a": "b"}},
    "/conversations/{id}/items": {"items": MESSAGES},
}
DEEP = b"[" * 2_000 + b"]" * 2_000
WRONG = (  # JSON, and what only looks like it
    *(b"null", b"0", b"-1", b"1.5", b"1e999", b"123456789012345678901234567890", b"NaN", b"true", b"false"),
    *(b'""', b'"text"', b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"a\\r\\nb: c"'),
    *(b"[]", b"[null]", b"[1]", b'["x"]', b"[{}]", b"[[]]", b"{}", b'{"a":1}', b'{"type":1}', b'{"type":[]}', DEEP),
)
NUL = {"role": "user", "content": "a\0b"}
UPSTREAMS = ("anthropic", "openai_chat", "openai_responses")


def test_every_endpoint_with_a_body_is_listed() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST"} == BODIES.keys()


class Attack:
    """One endpoint, and the requests with one wrong value each."""

    def __init__(self, path: str, names: dict[str, str]) -> None:
        endpoint = next(endpoint for endpoint in ENDPOINTS if (endpoint.method, endpoint.path) == ("POST", path))
        object_id = names["R" if path.startswith("/responses") else "C"]
        filled = path.replace("{model}", names["M"]).replace("{id}", object_id)
        found = endpoints.match("POST", endpoint.versions[0] + filled)
        assert found is not None
        self.found = found
        self.path = endpoint.versions[0] + filled
        self.names = names
        self.body = fill(BODIES[path], names)

    def requests(self, portion: int) -> Iterator[tuple[str, bytes]]:
        """Wrong values at all places of the body: one of ``portion`` of them, and always the same ones."""
        for place in places(self.body):
            for wrong in WRONG:
                label = f"{self.path} {place} {wrong[:20]!r} {self.names['M']}"
                if zlib.crc32(label.encode()) % portion == 0:
                    yield label, self.write(place, wrong)

    def write(self, place: tuple[Any, ...], wrong: bytes) -> bytes:
        """The body with a wrong value at a place."""
        return msgspec.json.encode(replace(self.body, place, "?")).replace(b'"?"', wrong)

    async def send(self, gateway: OpenGateway, body: bytes) -> CompleteResponse:
        """Send a body, and read the response to its end."""
        request = GatewayRequest(method="POST", path=self.path, body=body, caller=Caller("ann", None))
        response = await gateway.gateway.handle(self.found, request)
        data = response.body if isinstance(response.body, bytes) else b"".join([part async for part in response.body])
        return CompleteResponse(response.status, response.headers, data)


def fill(value: Any, names: dict[str, str]) -> Any:
    """The value with the names of the test in place of letters."""
    if isinstance(value, dict):
        return {key: fill(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, names) for part in value]
    return names.get(value.removeprefix("models/"), value) if isinstance(value, str) else value


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values, the whole first."""
    yield path
    for key, part in items(value):
        yield from places(part, (*path, key))


def items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())


def replace(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place."""
    if not place:
        return new
    changed = dict(items(value)) | {place[0]: replace(dict(items(value))[place[0]], place[1:], new)}
    return changed if isinstance(value, dict) else list(changed.values())


def has_own_shape(dialect: str | None, body: bytes) -> bool:
    """Whether an error has the shape of an API."""
    match dialect, msgspec.json.decode(body):
        case "anthropic", {"type": "error", "error": {"type": str(), "message": str()}}:
            return True
        case "openai_chat" | "openai_responses", {"error": {"message": str(), "type": str(), "param": _, "code": _}}:
            return True
        case "gemini", {"error": {"code": int(), "message": str(), "status": str()}}:
            return True
        case "ollama" | "ollama_generate", {"error": str()}:
            return True
        case "cohere", {"message": str()}:
            return True
        case "bedrock_converse", {"__type": str(), "message": str()}:
            return True
    return False


@contextlib.asynccontextmanager
async def open_target(folder: Path) -> AsyncIterator[tuple[OpenGateway, dict[str, str]]]:
    """A gateway with a stored response and a conversation, and their names."""
    async with open_gateway(folder, answer_call, record="durable") as gateway:
        created = await gateway.send("/v1/conversations", {"items": MESSAGES})
        first = await gateway.send("/v1/responses", {"model": "openai_chat:m", "input": "hi"})
        yield gateway, {"C": msgspec.json.decode(created.body)["id"], "R": msgspec.json.decode(first.body)["id"]}


@pytest.mark.parametrize("path", BODIES)
async def test_invalid_value_is_an_error_of_the_api(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    wrong = []
    async with open_target(tmp_path) as (gateway, names):
        for upstream in UPSTREAMS if "M" in str(BODIES[path]) or "{model}" in path else UPSTREAMS[:1]:
            attack = Attack(path, {**names, "M": f"{upstream}:m"})
            for label, body in attack.requests(scale(40, 1)):
                sent = await attack.send(gateway, body)
                is_error = sent.status >= 400
                if is_error and (sent.status >= 500 or not has_own_shape(attack.found.endpoint.dialect, sent.body)):
                    wrong.append((label, sent.status, sent.body[:200]))
                wrong += [(label, 0, record.getMessage().encode()) for record in caplog.records]
                caplog.clear()
    assert wrong == []


REJECTED = [  # path, place, value and the name in the message
    *(("/model/{model}/invoke", ("anthropic_beta",), value, "anthropic_beta") for value in (b"1", b'"a"', b"[1]")),
    ("/model/{model}/invoke", ("anthropic_beta",), b'["a\\r\\nb"]', "anthropic_beta"),
    ("/model/{model}/invoke-with-response-stream", ("anthropic_beta",), b'["\xff"]', "anthropic_beta"),
    ("/model/{model}/count-tokens", ("input",), b"1e999", "input"),
    *((path, ("model",), b"1e999", "model") for path in ("/chat/completions", "/messages", "/api/chat", "/v2/embed")),
    *((path, ("stream",), b"1e999", "stream") for path in ("/responses", "/v2/chat", "/api/generate")),
    *((path, ("messages", 0, "role"), b'"\\u0000"', "role") for path in ("/chat/completions", "/api/chat")),
    ("/conversations", ("metadata",), DEEP, "not JSON"),
    ("/conversations", ("metadata",), b"[]", "metadata"),
    ("/conversations", ("items",), b'"text"', "items"),
    ("/conversations/{id}", ("metadata",), b"1", "metadata"),
    ("/conversations/{id}/items", ("items",), b"{}", "items"),
    ("/responses", ("input",), b"[1]", "input"),
    ("/responses", ("input", 1, "call_id"), b"[]", "call"),
]


@pytest.mark.parametrize(("path", "place", "value", "name"), REJECTED)
async def test_error_message_names_invalid_field(
    tmp_path: Path, path: str, place: tuple[Any, ...], value: bytes, name: str
) -> None:
    async with open_target(tmp_path) as (gateway, names):
        attack = Attack(path, {**names, "M": "anthropic:m"})
        sent = await attack.send(gateway, attack.write(place, value))
    assert sent.status == 400, sent
    assert has_own_shape(attack.found.endpoint.dialect, sent.body)
    assert name.encode() in sent.body


async def test_null_beta_flags_are_ignored(tmp_path: Path) -> None:
    async with open_target(tmp_path) as (gateway, names):
        attack = Attack("/model/{model}/invoke", {**names, "M": "anthropic:m"})
        assert (await attack.send(gateway, attack.write(("anthropic_beta",), b"null"))).status == 200
        assert "anthropic-beta" not in gateway.upstream.requests[-1].headers


async def test_message_with_nul_character_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_target(tmp_path) as (gateway, _):
        sent = await gateway.send("/v1/messages", {"model": "anthropic:m", "max_tokens": 5, "messages": [NUL]})
        session = await gateway.gateway.services.store.get_session(sent.headers["x-dragoman-session"])
    assert session is not None
    assert session.title == "a b"
    assert "not recorded" not in caplog.text


@pytest.mark.parametrize("model", ["openai_chat:m", "openai_responses:m"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": MESSAGES}, "/v1/chat/completions"),
        ({"instructions": "s"}, "input: at least one item is required"),
        ({"input": []}, "input: at least one item is required"),
    ],
)
async def test_responses_request_without_input_is_rejected(
    tmp_path: Path, model: str, body: dict[str, Any], message: str
) -> None:
    async with open_gateway(tmp_path, answer_call) as gateway:
        sent = await gateway.send("/v1/responses", {"model": model, **body})
        assert gateway.upstream.requests == []
    assert sent.status == 400
    assert message in msgspec.json.decode(sent.body)["error"]["message"]
