"""Tests of model lists and token counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.in_process import open_gateway
from tests.gateway.test_passthrough import post, run_gateway
from tests.import_proxy import LazyModule
from tests.server.conftest import ServerFixture
from tests.servers.faulty_server import make_answer

anthropic: Any = LazyModule("anthropic")
cohere: Any = LazyModule("cohere")
genai: Any = LazyModule("google.genai")
ollama: Any = LazyModule("ollama")
HI = [{"role": "user", "content": "hi there, how are you?"}]


async def get(server: ServerFixture, path: str, **headers: str) -> Any:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    async with server.client.get(path, headers=fields) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_model_list_has_shape_of_client_api(gateway_server: ServerFixture) -> None:
    listed = await get(gateway_server, "/v1/models", authorization="Bearer x")
    assert {"anthropic", "gemini"} <= {model["id"] for model in listed["data"]}
    listed = await get(gateway_server, "/v1/models", anthropic_version="2026-10-21")
    assert all(model["type"] == "model" and model["display_name"] for model in listed["data"])
    assert listed["has_more"] is False
    listed = await get(gateway_server, "/v1beta/models")
    assert "models/gemini" in {model["name"] for model in listed["models"]}
    listed = await get(gateway_server, "/api/tags")
    assert {"name", "model", "digest", "details"} <= listed["models"][0].keys()
    assert (await get(gateway_server, "/v1/models/gemini"))["id"] == "gemini"
    assert "version" in await get(gateway_server, "/api/version")
    assert await get(gateway_server, "/api/ps") == {"models": []}
    (info,) = [
        model for model in (await get(gateway_server, "/v1/model/info"))["data"] if model["model_name"] == "ollama"
    ]
    assert info["model_info"]["max_input_tokens"] == 200000
    async with gateway_server.client.head("/api/hello") as response:
        assert response.status == 200
    async with gateway_server.client.post("/api/show", json={"model": "ollama"}) as response:
        assert "tools" in (await response.json())["capabilities"]


async def test_ollama_request_without_prompt_loads_model(gateway_server: ServerFixture) -> None:
    def load() -> list[tuple[str, str | None]]:
        client = ollama.Client(host=gateway_server.base_url)
        fields = {"model": "anthropic"}
        chats = [client.chat(**fields), *client.chat(**fields, stream=True), client.chat(**fields, keep_alive=0)]
        generations = [client.generate(**fields), *client.generate(**fields, stream=True)]
        client._client.close()
        assert all(reply.message.content == "" for reply in chats)
        assert all(reply.response == "" for reply in generations)
        return [(reply.model, reply.done_reason) for reply in (*chats, *generations)]

    loaded = ("anthropic", "load")
    expected = [loaded, loaded, ("anthropic", "unload"), loaded, loaded]
    assert await asyncio.to_thread(load) == expected
    assert gateway_server.fakes["anthropic"].bodies == [], "a provider was called"


async def test_model_lists_have_pages(gateway_server: ServerFixture) -> None:
    def collect() -> None:
        base_url = gateway_server.base_url
        with anthropic.Anthropic(api_key="x", base_url=base_url, max_retries=0) as client:
            ids = [model.id for model in client.models.list()]
            assert len(ids) > 5
            page = client.models.list(limit=2)
            assert ([model.id for model in page.data], page.has_more) == (ids[:2], True)
            assert [model.id for model in client.models.list(limit=2)] == ids
            before = client.models.list(limit=2, before_id=ids[3])
            assert ([model.id for model in before.data], before.has_more) == (ids[1:3], True)
            assert page.data[0].max_input_tokens > 0
            for invalid in ({"limit": -1}, {"after_id": "none"}):
                with pytest.raises(anthropic.BadRequestError):
                    client.models.list(**invalid)
        options = genai.types.HttpOptions(base_url=base_url)
        with genai.Client(api_key="x", http_options=options) as client:
            pager = client.models.list(config={"page_size": 2})
            assert [model.name for model in pager.page] == [f"models/{name}" for name in ids[:2]]
            assert [model.name for model in pager] == [f"models/{name}" for name in ids]

    await asyncio.to_thread(collect)


async def test_cohere_sdk_reads_model_list(gateway_server: ServerFixture) -> None:
    def collect() -> None:
        with httpx.Client() as http_client:
            client = cohere.ClientV2(api_key="x", base_url=gateway_server.base_url, httpx_client=http_client)
            listed = client.models.list()
            names = [model.name for model in listed.models]
            assert {"cohere", "gemini"} <= set(names)
            assert listed.models[0].context_length > 0
            page = client.models.list(page_size=2)
            assert [model.name for model in page.models] == names[:2]
            page = client.models.list(page_size=2, page_token=page.next_page_token)
            assert [model.name for model in page.models] == names[2:4]
            assert client.models.get("cohere").endpoints == ["chat"]

    await asyncio.to_thread(collect)


@pytest.mark.parametrize("model", ["openai_chat", "anthropic", "gemini"])
async def test_tokens_are_estimated_for_every_model(gateway_server: ServerFixture, model: str) -> None:
    calls: dict[str, tuple[Any, str]] = {
        "/v1/messages/count_tokens": ({"model": model, "messages": HI}, "input_tokens"),
        "/v1/responses/input_tokens": ({"model": model, "input": HI[0]["content"]}, "input_tokens"),
        f"/model/{model}/count-tokens": (
            {"input": {"converse": {"messages": [{"role": "user", "content": [{"text": HI[0]["content"]}]}]}}},
            "inputTokens",
        ),
        f"/v1beta/models/{model}:countTokens": ({"contents": [{"parts": [{"text": HI[0]["content"]}]}]}, "totalTokens"),
    }
    for path, (body, field) in calls.items():
        async with gateway_server.client.post(path, json=body) as response:
            assert response.status == 200, await response.text()
            assert response.headers["x-dragoman-count"] == "estimate"
            assert 0 < (await response.json())[field] < 20


async def test_provider_counts_tokens_if_supported(tmp_path: Path) -> None:
    body = msgspec.json.encode({"model": "claude-x", "messages": HI})
    async with run_gateway(tmp_path, make_answer(b'{"input_tokens": 1234}')) as (client, upstream):
        for path in ("/v1/messages/count_tokens", "/v1/responses/input_tokens"):
            data = body if "messages" in path else b'{"model":"up-a:claude-x","input":"hi"}'
            status, headers, answer = await post(client, path, data)
            assert (status, headers["x-dragoman-count"]) == (200, "provider")
            assert msgspec.json.decode(answer)["input_tokens"] == 1234
        assert [request.path for request in upstream.requests] == ["/v1/messages/count_tokens"] * 2
        assert upstream.requests[0].body == body
        assert "max_tokens" not in upstream.requests[1].json


async def test_provider_counts_tokens_for_alias(tmp_path: Path) -> None:
    more = '[models."up-a:claude-x"]\naliases = ["big"]\n'
    body = b'{"model":"big","messages":[{"role":"user","content":"hi"}],"new":1e2}'
    async with run_gateway(tmp_path, make_answer(b'{"input_tokens": 7}'), more=more) as (client, upstream):
        _, headers, _ = await post(client, "/v1/messages/count_tokens", body)
        assert headers["x-dragoman-count"] == "provider"
        assert upstream.requests[0].body == body.replace(b'"big"', b'"claude-x"')


async def test_unknown_model_does_not_disable_counts_of_others(tmp_path: Path) -> None:
    answers = (make_answer(b'{"type":"error"}', 404), make_answer(b'{"input_tokens": 7}'))
    async with run_gateway(tmp_path, *answers) as (client, upstream):
        for model, count in (("none", "estimate"), ("none", "estimate"), ("claude-x", "provider")):
            body = msgspec.json.encode({"model": model, "messages": HI})
            _, headers, _ = await post(client, "/v1/messages/count_tokens", body)
            assert headers["x-dragoman-count"] == count
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("answer", [b'{"input_tokens": "\xff"}', b"[" * 20_000, b"<html>"])
async def test_count_is_estimated_if_reply_is_not_json(tmp_path: Path, answer: bytes) -> None:
    body = msgspec.json.encode({"model": "claude-x", "messages": HI})
    async with run_gateway(tmp_path, make_answer(answer)) as (client, _):
        status, headers, _ = await post(client, "/v1/messages/count_tokens", body)
    assert (status, headers["x-dragoman-count"]) == (200, "estimate")


BEDROCK_MESSAGES = [{"role": "user", "content": [{"text": "hi"}]}]
INVOKE_BODY = msgspec.json.encode({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 5, "messages": HI})


@pytest.mark.parametrize("upstream_dialect", ["bedrock_converse", "anthropic", "openai_chat"])
@pytest.mark.parametrize(
    "input_value", [{"converse": {"messages": BEDROCK_MESSAGES}}, {"invokeModel": {"body": INVOKE_BODY}}]
)
async def test_bedrock_counts_converse_and_invoke_requests(
    tmp_path: Path, upstream_dialect: str, input_value: Any
) -> None:
    body = {"input": input_value}
    answer = make_answer(b'{"input_tokens": 7, "inputTokens": 7}')
    async with open_gateway(tmp_path, lambda _: answer, ["bedrock_converse", "anthropic", "openai_chat"]) as gateway:
        sent = await gateway.send(f"/model/{upstream_dialect}:m/count-tokens", body)
        requests = gateway.upstream.requests
    count = msgspec.json.decode(sent.body)["inputTokens"]
    if upstream_dialect == "openai_chat":
        assert (sent.headers["x-dragoman-count"], requests) == ("estimate", [])
        assert 0 < count < 20
        return
    assert (sent.headers["x-dragoman-count"], count) == ("provider", 7)
    if upstream_dialect == "bedrock_converse":
        assert requests[0].path == "/model/m/count-tokens"
        assert requests[0].json == msgspec.json.decode(msgspec.json.encode(body))
    else:
        assert requests[0].path == "/v1/messages/count_tokens"
        assert requests[0].json.keys() == {"model", "messages"}


@pytest.mark.parametrize("value", [None, {}, {"converse": 1}, {"invokeModel": {"body": "%"}}])
async def test_count_without_request_is_rejected(tmp_path: Path, value: Any) -> None:
    async with open_gateway(tmp_path, lambda _: make_answer(b"{}"), ["bedrock_converse"]) as gateway:
        sent = await gateway.send("/model/bedrock_converse:m/count-tokens", {"input": value})
    assert sent.status == 400
    assert b"converse or invokeModel" in sent.body
