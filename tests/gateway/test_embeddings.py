"""Embeddings: passed on in the same API, translated between the APIs of OpenAI, Gemini and Ollama."""

from __future__ import annotations

import array
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.in_process import open_gateway
from tests.gateway.test_passthrough import post, run_gateway
from tests.servers.faulty_server import Answer, ReceivedRequest, make_answer

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
}
PATHS = {
    "openai_chat": "/v1/embeddings",
    "gemini": "/v1beta/models/{model}:batchEmbedContents",
    "ollama": "/api/embed",
}
UPSTREAM_PATHS = {"openai_chat": "/embeddings", "gemini": "/v1beta/models/m:batchEmbedContents", "ollama": "/api/embed"}


def write_request(form: str, model: str, texts: list[str], size: int | None = None) -> dict[str, Any]:
    if form == "gemini":
        size_field = {"outputDimensionality": size} if size else {}
        name = f"models/{model}"
        return {"requests": [{"model": name, "content": {"parts": [{"text": text}]}, **size_field} for text in texts]}
    return {"model": model, "input": texts, **({"dimensions": size} if size else {})}


def read_vectors(form: str, wire: Any) -> Any:
    match form:
        case "openai_chat":
            return [entry["embedding"] for entry in wire["data"]]
        case "gemini":
            return [entry["values"] for entry in wire["embeddings"]]
        case _:
            return wire["embeddings"]


@pytest.mark.parametrize("form", REPLIES)
@pytest.mark.parametrize("upstream_form", REPLIES)
async def test_texts_are_embedded_by_a_model_of_any_api(tmp_path: Path, form: str, upstream_form: str) -> None:
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


async def test_one_content_has_one_vector(tmp_path: Path) -> None:
    def play(_: ReceivedRequest) -> Answer:
        return make_answer(msgspec.json.encode({"data": [{"embedding": VECTORS[0]}]}))

    body = {"content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY"}
    async with open_gateway(tmp_path, play, REPLIES) as gateway:
        sent = await gateway.send("/v1beta/models/openai_chat:m:embedContent", body)
    assert msgspec.json.decode(sent.body) == {"embedding": {"values": VECTORS[0]}}
    assert sent.headers["x-dragoman-losses"] == "embedding.taskType"


async def test_vectors_are_packed_as_the_sdk_of_openai_wants_them(tmp_path: Path) -> None:
    body = {"model": "ollama:m", "input": TEXTS, "encoding_format": "base64"}
    reply = make_answer(msgspec.json.encode(REPLIES["ollama"]))
    async with open_gateway(tmp_path, lambda _: reply, REPLIES) as gateway:
        sent = await gateway.send("/v1/embeddings", body)
    wire = msgspec.json.decode(sent.body)
    packed = [base64.b64decode(entry["embedding"]) for entry in wire["data"]]
    assert [list(array.array("f", data)) for data in packed] == VECTORS
    assert wire["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


@pytest.mark.parametrize("wrong", [[1, 2, 3], [], None, [{"image": "x"}]])
async def test_input_that_is_no_text_is_refused_for_another_api(tmp_path: Path, wrong: Any) -> None:
    async with open_gateway(tmp_path, lambda _: make_answer(b"{}"), REPLIES) as gateway:
        sent = await gateway.send("/v1/embeddings", {"model": "ollama:m", "input": wrong})
        assert gateway.upstream.requests == []
    assert sent.status == 400
    assert b"input" in sent.body


@pytest.mark.parametrize(
    ("status", "body"), [(404, b'{"error":"no such model"}'), (200, b'{"vectors":[]}'), (200, b"x")]
)
async def test_a_failure_has_the_shape_of_the_caller(tmp_path: Path, status: int, body: bytes) -> None:
    async with open_gateway(tmp_path, lambda _: make_answer(body, status), REPLIES) as gateway:
        sent = await gateway.send("/v1/embeddings", {"model": "ollama:m", "input": "a"})
    assert sent.status == (404 if status == 404 else 502)
    assert msgspec.json.decode(sent.body)["error"]["message"]


async def test_embeddings_pass_to_a_provider_of_the_same_api(tmp_path: Path) -> None:
    vectors = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}]}'
    async with run_gateway(tmp_path, make_answer(vectors)) as (client, upstream):
        status, _, answer = await post(client, "/v1/embeddings", b'{"model":"alias","input":["a"],"new":1}')
        assert (status, answer) == (200, vectors)
        assert upstream.requests[0].path == "/v1/embeddings"
        assert upstream.requests[0].json == {"model": "gpt-x", "input": ["a"], "new": 1}
        status, _, answer = await post(client, "/v1/embeddings", b'{"model":"up-a:x","input":["a"]}')
        assert status == 400
        assert b"no embeddings" in answer
