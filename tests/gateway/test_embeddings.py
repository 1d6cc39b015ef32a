"""Embeddings are forwarded within an API, and translated between the APIs of OpenAI, Gemini, Ollama and Cohere."""

from __future__ import annotations

import array
import asyncio
import base64
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dragoman import pricing
from dragoman.gateway import Caller, GatewayConfig, GatewayRequest, embedding_forms, endpoints
from dragoman.gateway.hooks import CallEnd, CallStart, Hooks
from dragoman.message import TokenUsage
from tests.gateway.in_process import open_gateway
from tests.gateway.test_passthrough import post, run_gateway
from tests.import_proxy import LazyModule
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer

cohere: Any = LazyModule("cohere")
VECTORS = [[0.5, -1.0], [0.25, 2.0]]
TEXTS = ["a", "b"]
REPLIES: dict[str, Any] = {
    "openai_chat": {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": VECTORS[index]} for index in (1, 0)],
        "model": "other",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    },
    "gemini": {"embeddings": [{"values": vector} for vector in VECTORS]},
    "ollama": {"model": "other", "embeddings": VECTORS, "prompt_eval_count": 5},
    "cohere": {
        "id": "e1",
        "embeddings": {"float": VECTORS},
        "texts": ["a", "b"],
        "meta": {"billed_units": {"input_tokens": 5.0}},
    },
}
PATHS = {
    "openai_chat": "/v1/embeddings",
    "gemini": "/v1beta/models/{model}:batchEmbedContents",
    "ollama": "/api/embed",
    "cohere": "/v2/embed",
}
UPSTREAM_PATHS = {
    "openai_chat": "/embeddings",
    "gemini": "/v1beta/models/m:batchEmbedContents",
    "ollama": "/api/embed",
    "cohere": "/v2/embed",
}


def write_request(form: str, model: str, texts: list[str], size: int | None = None) -> dict[str, Any]:
    if form == "gemini":
        size_field = {"outputDimensionality": size} if size else {}
        name = f"models/{model}"
        return {"requests": [{"model": name, "content": {"parts": [{"text": text}]}, **size_field} for text in texts]}
    if form == "cohere":
        fixed = {"input_type": "search_document", "embedding_types": ["float"]}
        return {"model": model, "texts": texts, **fixed, **({"output_dimension": size} if size else {})}
    return {"model": model, "input": texts, **({"dimensions": size} if size else {})}


def read_vectors(form: str, wire: Any) -> Any:
    match form:
        case "openai_chat":
            return [entry["embedding"] for entry in wire["data"]]
        case "gemini":
            return [entry["values"] for entry in wire["embeddings"]]
        case "cohere":
            return wire["embeddings"]["float"]
        case _:
            return wire["embeddings"]


@pytest.mark.parametrize("form", REPLIES)
@pytest.mark.parametrize("upstream_form", REPLIES)
async def test_texts_are_embedded_by_model_of_any_api(tmp_path: Path, form: str, upstream_form: str) -> None:
    def play(_: ReceivedRequest) -> Answer:
        return make_answer(msgspec.json.encode(REPLIES[upstream_form]))

    model = f"{upstream_form}:m"
    async with open_gateway(tmp_path, play, REPLIES) as gateway:
        path = PATHS[form].replace("{model}", model)
        sent = await gateway.send(path, write_request(form, model, TEXTS, 2))
        (received,) = gateway.upstream.requests
    assert sent.status == 200, sent.body
    assert received.path == UPSTREAM_PATHS[upstream_form]
    assert received.json == write_request(upstream_form, "m", TEXTS, 2)
    if form == upstream_form:
        assert msgspec.json.decode(sent.body) == REPLIES[form]
    else:
        assert read_vectors(form, msgspec.json.decode(sent.body)) == VECTORS
    assert sent.headers["x-dragoman-model"] == model


async def test_embed_content_returns_one_vector(tmp_path: Path) -> None:
    def play(_: ReceivedRequest) -> Answer:
        return make_answer(msgspec.json.encode({"data": [{"embedding": VECTORS[0]}]}))

    body = {"content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY"}
    async with open_gateway(tmp_path, play, REPLIES) as gateway:
        sent = await gateway.send("/v1beta/models/openai_chat:m:embedContent", body)
    assert msgspec.json.decode(sent.body) == {"embedding": {"values": VECTORS[0]}}
    assert sent.headers["x-dragoman-losses"] == "embedding.taskType"


@pytest.mark.parametrize("model", ["openai_chat:m", "ollama:m"])
async def test_legacy_ollama_endpoint_embeds_one_text(tmp_path: Path, model: str) -> None:
    def play(request: ReceivedRequest) -> Answer:
        is_native = request.path == "/api/embeddings"
        reply = {"embedding": VECTORS[0]} if is_native else {"data": [{"embedding": VECTORS[0]}]}
        return make_answer(msgspec.json.encode(reply))

    async with open_gateway(tmp_path, play, REPLIES, "durable") as gateway:
        sent = await gateway.send("/api/embeddings", {"model": model, "prompt": "a"})
        (total,) = await gateway.gateway.services.store.costs.totals("model")
    assert msgspec.json.decode(sent.body) == {"embedding": VECTORS[0]}
    assert (total.group, total.input_tokens) == (model, 1)


async def test_base64_vectors_are_packed_floats(tmp_path: Path) -> None:
    body = {"model": "ollama:m", "input": TEXTS, "encoding_format": "base64"}
    reply = make_answer(msgspec.json.encode(REPLIES["ollama"]))
    async with open_gateway(tmp_path, lambda _: reply, REPLIES) as gateway:
        sent = await gateway.send("/v1/embeddings", body)
    wire = msgspec.json.decode(sent.body)
    packed = [base64.b64decode(entry["embedding"]) for entry in wire["data"]]
    assert [list(array.array("f", data)) for data in packed] == VECTORS
    assert wire["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


async def test_cohere_sdk_reads_vectors_of_another_api(tmp_path: Path) -> None:
    def embed(address: str) -> Any:
        with httpx.Client() as http_client:
            client = cohere.ClientV2(api_key="x", base_url=address, httpx_client=http_client)
            return client.embed(
                model="alias",
                texts=TEXTS,
                input_type="search_query",
                embedding_types=["float", "base64"],
                output_dimension=2,
            )

    answer = make_answer(msgspec.json.encode(REPLIES["openai_chat"]))
    async with run_gateway(tmp_path, answer) as (client, upstream):
        result = await asyncio.to_thread(embed, str(client._base_url).rstrip("/"))
        assert upstream.requests[0].json == {"model": "gpt-x", "input": TEXTS, "dimensions": 2}
    assert result.embeddings.float_ == VECTORS
    assert [list(array.array("f", base64.b64decode(text))) for text in result.embeddings.base64] == VECTORS
    assert (result.texts, result.meta.billed_units.input_tokens) == (TEXTS, 5)


async def test_embedding_type_of_cohere_only_is_rejected(tmp_path: Path) -> None:
    body = {"model": "ollama:m", "texts": TEXTS, "input_type": "search_query", "embedding_types": ["int8"]}
    async with open_gateway(tmp_path, lambda _: make_answer(b"{}"), REPLIES) as gateway:
        sent = await gateway.send("/v2/embed", body)
    assert sent.status == 400
    assert b"embedding_types" in sent.body


@pytest.mark.parametrize("value", [[1, 2, 3], [], None, [{"image": "x"}]])
async def test_input_that_is_not_text_is_rejected_for_another_api(tmp_path: Path, value: Any) -> None:
    async with open_gateway(tmp_path, lambda _: make_answer(b"{}"), REPLIES) as gateway:
        sent = await gateway.send("/v1/embeddings", {"model": "ollama:m", "input": value})
        assert gateway.upstream.requests == []
    assert sent.status == 400
    assert b"input" in sent.body


@pytest.mark.parametrize(
    ("status", "body"), [(404, b'{"error":"no such model"}'), (200, b'{"vectors":[]}'), (200, b"x")]
)
async def test_failure_has_error_shape_of_caller(tmp_path: Path, status: int, body: bytes) -> None:
    async with open_gateway(tmp_path, lambda _: make_answer(body, status), REPLIES) as gateway:
        sent = await gateway.send("/v1/embeddings", {"model": "ollama:m", "input": "a"})
    assert sent.status == (404 if status == 404 else 502)
    assert msgspec.json.decode(sent.body)["error"]["message"]


async def test_embeddings_are_forwarded_within_same_api(tmp_path: Path) -> None:
    vectors = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}]}'
    async with run_gateway(tmp_path, make_answer(vectors)) as (client, upstream):
        status, _, answer = await post(client, "/v1/embeddings", b'{"model":"alias","input":["a"],"new":1}')
        assert (status, answer) == (200, vectors)
        assert upstream.requests[0].path == "/v1/embeddings"
        assert upstream.requests[0].json == {"model": "gpt-x", "input": ["a"], "new": 1}
        status, _, answer = await post(client, "/v1/embeddings", b'{"model":"up-a:x","input":["a"]}')
        assert status == 400
        assert b"no embeddings" in answer


# --- usage and cost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", REPLIES)
@pytest.mark.parametrize("upstream_form", REPLIES)
async def test_only_usage_of_embeddings_is_stored(tmp_path: Path, form: str, upstream_form: str) -> None:
    model = f"{upstream_form}:m"
    answer = make_answer(msgspec.json.encode(REPLIES[upstream_form]))
    async with open_gateway(tmp_path, lambda _: answer, REPLIES, "durable") as gateway:
        sent = await gateway.send(PATHS[form].replace("{model}", model), write_request(form, model, TEXTS))
        assert sent.status == 200, sent.body
        store = gateway.gateway.services.store
        (total,) = await store.costs.totals("model")
        (by_user,) = await store.costs.totals("user")
        assert await store.list_sessions() == []
    assert (total.group, total.messages, total.output_tokens) == (model, 1, 0)
    assert total.input_tokens == (5 if upstream_form != "gemini" else 2)  # Gemini reports no usage: an estimate
    assert by_user.group == "ann"


async def test_embedding_has_a_price(tmp_path: Path) -> None:
    rates = {"input_per_mtok_usd": "2000", "output_per_mtok_usd": 0}
    answer = make_answer(msgspec.json.encode(REPLIES["openai_chat"]))
    async with open_gateway(tmp_path, lambda _: answer, REPLIES, "durable") as gateway:
        services = gateway.gateway.services
        prices = {"pricing_version": "t", "models": {"openai_chat:m": [rates]}}
        services.price_table = pricing.prices_from_mapping(prices)
        await gateway.send("/v1/embeddings", {"model": "openai_chat:m", "input": "a"})
        (total,) = await services.store.costs.totals("day")
    assert (total.cost_usd, total.unpriced) == (Decimal("0.01"), 0)


async def test_server_metrics_include_embeddings(tmp_path: Path) -> None:
    answer = make_answer(msgspec.json.encode(REPLIES["openai_chat"]))
    async with run_gateway(tmp_path, answer) as (client, _):
        status, _, _ = await post(client, "/v1/embeddings", b'{"model":"alias","input":["a"]}')
        assert status == 200
        async with client.get("/metrics", headers={"accept": "application/json"}) as response:
            costs = (await response.json())["cost"]
    assert costs["input_tokens"] == 5
    assert costs["unpriced"] == {"up-o:gpt-x": 1}


@pytest.mark.parametrize(
    ("model", "cost"), [("openai:text-embedding-3-small", "0.02"), ("google:gemini-embedding-001", "0.15")]
)
def test_price_library_contains_embedding_models(model: str, cost: str) -> None:
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=0)
    receipt = pricing.receipt(pricing.library_prices(), model, usage, datetime(2026, 11, 1, tzinfo=UTC))
    assert str(receipt.total_usd) == cost


async def test_failed_or_unrecorded_embedding_has_no_cost(tmp_path: Path) -> None:
    answers = iter([make_answer(b'{"error":"no"}', 500), make_answer(msgspec.json.encode(REPLIES["openai_chat"]))])
    async with open_gateway(tmp_path, lambda _: next(answers), REPLIES, "durable") as gateway:
        sent = await gateway.send("/v1/embeddings", {"model": "openai_chat:m", "input": "a"})
        assert sent.status == 500
        found = endpoints.match("POST", "/v1/embeddings")
        assert found is not None
        request = GatewayRequest(
            method="POST",
            path="/v1/embeddings",
            body=b'{"model":"openai_chat:m","input":"a"}',
            caller=Caller("ann", None, recording="off"),
        )
        response = await gateway.gateway.handle(found, request)
        assert response.status == 200
        assert await gateway.gateway.services.store.costs.totals("model") == []


@pytest.mark.parametrize(("status", "embedding_model"), [(500, "ollama:m"), (404, "ollama:m"), (400, None)])
async def test_embedding_falls_back_to_next_model(tmp_path: Path, status: int, embedding_model: str | None) -> None:
    def play(request: ReceivedRequest) -> Answer:
        if request.path == UPSTREAM_PATHS["ollama"]:
            return make_answer(msgspec.json.encode(REPLIES["ollama"]))
        return make_answer(b'{"error":{"message":"no"}}', status)

    ends: list[CallEnd] = []

    async def after(call: CallEnd) -> None:
        ends.append(call)

    async with open_gateway(tmp_path, play, ["anthropic", *REPLIES], "durable") as gateway:
        route = ("anthropic:m", "openai_chat:m", "gemini:m", "ollama:m")  # the first model has no embeddings
        gateway.gateway.config = GatewayConfig(models={"route": route})
        gateway.gateway.reload_models()
        gateway.gateway.hooks = Hooks(None, after)
        sent = await gateway.send("/v1/embeddings", {"model": "route", "input": TEXTS})
        totals = await gateway.gateway.services.store.costs.totals("model")
    assert sent.status == (200 if embedding_model else status)
    assert (ends[0].model, ends[0].start.models) == (embedding_model, route[1:])
    assert [total.group for total in totals] == ([embedding_model] if embedding_model else [])
    if embedding_model:
        assert read_vectors("openai_chat", msgspec.json.decode(sent.body)) == VECTORS
        assert sent.headers["x-dragoman-model"] == embedding_model


async def test_hooks_run_for_embeddings(tmp_path: Path) -> None:
    starts: list[CallStart] = []
    ends: list[CallEnd] = []

    async def before(call: CallStart) -> None:
        starts.append(call)

    async def after(call: CallEnd) -> None:
        ends.append(call)

    answers = iter([make_answer(msgspec.json.encode(REPLIES["ollama"])), make_answer(b'{"error":"no"}', 404)])
    async with open_gateway(tmp_path, lambda _: next(answers), REPLIES, "durable") as gateway:
        gateway.gateway.hooks = Hooks(before, after)
        for _ in range(2):
            await gateway.send("/v1/embeddings", {"model": "ollama:m", "input": "a"})
    assert [call.models for call in starts] == [("ollama:m",)] * 2
    success, failure = ends
    assert (success.model, success.usage and success.usage.input_tokens, success.fault) == ("ollama:m", 5, None)
    assert (failure.model, failure.usage, failure.fault and failure.fault.code) == (None, None, "not_found")


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"input": [1, 2, 3]}, 3),
        ({"input": [[1, 2], [3]]}, 3),
        ({"input": "a"}, 1),
        ({"requests": [{"content": {"parts": [{"text": "a"}]}}]}, 1),
        ({}, 0),
    ],
)
def test_tokens_are_estimated_without_usage_of_provider(fields: dict[str, Any], count: int) -> None:
    assert embedding_forms.estimate_tokens(fields, "m") == count
