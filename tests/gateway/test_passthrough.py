"""Bodies, queries, protocol headers, replies, errors and streams pass unchanged to a provider of the caller's dialect."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dragoman import settings
from dragoman.gateway.streams import FrameGate
from dragoman.server.config import ServerConfig
from dragoman.server.server import bind_socket, open_app_state, run_server
from tests.servers.faulty_server import CLOSE, RESET, Answer, FaultyServer, make_answer, make_stream

CHAT = b'{"id":"c1","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Hi","later":1}}],"later":{"a":1.0}}'
MESSAGES = b'{ "model" : "claude-x",\n "max_tokens":5, "stream": true, "x_unknown": [1e2, 12345678901234567890123],"messages":[{"role":"user","content":"hi"}]}'
STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}}\n\n'
    b'event: ping\ndata: {"type": "ping"}\n\n'
    b'event: content_block_start\r\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\r\n\r\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@contextlib.asynccontextmanager
async def run_gateway(
    folder: Path, *answers: Answer, more: str = ""
) -> AsyncIterator[tuple[aiohttp.ClientSession, FaultyServer]]:
    """Run a gateway with the providers ``up-a`` (Anthropic), ``up-o`` and ``up-r`` (OpenAI), which send these answers."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FaultyServer(answers))
        file = folder / "config.toml"
        file.write_text(
            f'[providers.up-a]\ndialect = "anthropic"\nbase_url = "{upstream.address}"\napi_key = "sk-own-secret-key"\n'
            f'[providers.up-o]\ndialect = "openai_chat"\nbase_url = "{upstream.address}/v1"\napi_key = "sk-own-secret-key"\n'
            f'[providers.up-r]\ndialect = "openai_responses"\nbase_url = "{upstream.address}/v1"\napi_key = "sk-own-secret-key"\n'
            f'[models."up-o:gpt-x"]\naliases = ["alias"]\n'
            f'[gateway.providers]\nanthropic = "up-a"\nopenai_chat = "up-o"\n{more}'
        )
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        listener, config = bind_socket(ServerConfig(store="memory:", port=0, attachments=f"file://{folder}"))
        state = await stack.enter_async_context(open_app_state(config, loaded))
        await stack.enter_async_context(run_server(state, listener))
        client = aiohttp.ClientSession(f"http://127.0.0.1:{config.port}")
        yield await stack.enter_async_context(client), upstream


async def post(client: aiohttp.ClientSession, path: str, body: bytes, **headers: str) -> tuple[int, Any, bytes]:
    fields = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with client.post(path, data=body, headers=fields) as response:
        return response.status, response.headers, await response.read()


async def test_request_and_stream_pass_unchanged(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, make_stream([STREAM])) as (client, upstream):
        status, headers, body = await post(
            client, "/v1/messages?beta=true", MESSAGES, x_api_key="mine", anthropic_beta="new-1,new-2", cookie="c=1"
        )
        (received,) = upstream.requests
    assert (status, body) == (200, STREAM)
    assert received.body == MESSAGES
    assert received.path == "/v1/messages?beta=true"
    assert received.headers["x-api-key"] == "sk-own-secret-key"
    assert received.headers["anthropic-beta"] == "new-1,new-2"
    assert "cookie" not in received.headers
    assert headers["x-dragoman-model"] == "up-a:claude-x"


async def test_only_alias_is_replaced_in_body(tmp_path: Path) -> None:
    request = b'{"messages":[{"role":"user","content":"hi"}],"model":"alias","x":1e2,"y":12345678901234567890123}'
    async with run_gateway(tmp_path, make_answer(CHAT)) as (client, upstream):
        status, headers, body = await post(client, "/v1/chat/completions", request, authorization="Bearer mine")
        (received,) = upstream.requests
    assert (status, body) == (200, CHAT)
    assert received.body == request.replace(b'"alias"', b'"gpt-x"')
    assert received.headers["authorization"] == "Bearer sk-own-secret-key"
    assert headers["x-dragoman-route"] == "id"


async def test_error_passes_with_retry_headers_and_masked_key(tmp_path: Path) -> None:
    error = b'{"error":{"message":"slow down (sk-own-secret-key)","new":1}}'
    hints = {"retry-after": "7", "x-should-retry": "false", "x-ratelimit-limit-requests": "1", "set-cookie": "a=b"}
    async with run_gateway(tmp_path, make_answer(error, 429, **hints)) as (client, _):
        status, headers, body = await post(
            client, "/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
        )
    assert (status, body) == (429, error.replace(b"sk-own-secret-key", "…-key".encode()))
    assert headers["retry-after"] == "7"
    assert headers["x-should-retry"] == "false"
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert "set-cookie" not in headers


async def test_next_model_is_called_before_first_token(tmp_path: Path) -> None:
    more = '[gateway.models]\n"best" = ["up-a:first", "up-o:second"]\n'
    bad_stream = make_stream(
        [b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"no"}}\n\n']
    )
    chunks = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}\n\ndata: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with run_gateway(tmp_path, bad_stream, make_stream([chunks]), more=more) as (client, upstream):
        request = b'{"model":"best","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}'
        status, headers, body = await post(client, "/v1/messages", request)
        assert [request.json["model"] for request in upstream.requests] == ["first", "second"]
    assert status == 200
    assert headers["x-dragoman-model"] == "up-o:second"
    assert headers["x-dragoman-route"] == "route; fallback 1"
    assert headers["x-dragoman-attempts"] == "2"
    assert b'"text":"Hi"' in body
    assert b"message_stop" in body


async def test_retries_follow_configuration(tmp_path: Path) -> None:
    failure = make_answer(b'{"error":{"message":"oh"}}', 500)
    more = "[gateway]\nretries = 1\n"
    async with run_gateway(tmp_path, failure, make_answer(CHAT), more=more) as (client, upstream):
        status, headers, _ = await post(
            client, "/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
        )
        assert len(upstream.requests) == 2
    assert (status, headers["x-dragoman-attempts"]) == (200, "2")


@pytest.mark.parametrize("size", range(0, len(STREAM), 60))
async def test_stream_cut_anywhere_ends_with_error(tmp_path: Path, size: int) -> None:
    async with run_gateway(tmp_path, make_stream([STREAM[:size]], RESET if size % 120 else CLOSE)) as (client, _):
        status, _, body = await post(client, "/v1/messages", MESSAGES)
    if status == 200:
        assert body.startswith(b"event: message_start")
        last = body.rstrip().rpartition(b"\n\n")[2]
        assert last.startswith(b"event: error\n"), body
        assert msgspec.json.decode(last.partition(b"data: ")[2])["type"] == "error"
    else:
        assert status == 502
        assert msgspec.json.decode(body)["type"] == "error"


@pytest.mark.parametrize("page", [b"<html>Bad gateway</html>", b'{"error": "no"}', b"", b"data: {nonsense\n\n"])
async def test_body_that_is_not_a_stream_is_a_502(tmp_path: Path, page: bytes) -> None:
    async with run_gateway(tmp_path, make_stream([page])) as (client, _):
        status, _, body = await post(client, "/v1/messages", MESSAGES)
    assert status == 502
    assert msgspec.json.decode(body)["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"\xfa","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}', 400),
        (b'{"model":"m","stream":"\xfa","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}', 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"messages":[]}', 400),
        (b'{"model":"m","messages":[]}', 400),
        (b'{"model":"m"}', 400),
        (b'{"model":7,"messages":[1]}', 400),
        (b'{"model":"m","stream":"yes","messages":[1]}', 400),
        (b'{"model":"a b","messages":[{"role":"user","content":"hi"}]}', 404),
    ],
)
async def test_invalid_request_is_not_sent_to_provider(tmp_path: Path, body: bytes, status: int) -> None:
    async with run_gateway(tmp_path, make_answer(CHAT)) as (client, upstream):
        for path, kind in (("/v1/messages", "anthropic"), ("/v1/chat/completions", "openai")):
            found, _, text = await post(client, path, body)
            error = msgspec.json.decode(text)
            assert found == status
            assert error["error"]["message"]
            assert (error.get("type") == "error") == (kind == "anthropic")
        assert upstream.requests == []


def test_frames_are_complete_and_keep_their_bytes() -> None:
    for framing, data in (("sse", STREAM), ("ndjson", b'{"a":1}\n{"b":2}\n'), ("json-array", b'[{"a":1}]')):
        for step in (1, 7, len(data)):
            gate = FrameGate(framing)
            frames = [frame for at in range(0, len(data), step) for frame in gate.feed(data[at : at + step])]
            assert b"".join(frames) + gate.close() == data
            if framing == "ndjson":
                assert len(frames) == 2


REPEATED = {
    "the model": b'{"model":"claude-x","messages":[{"role":"user","content":"hi"}],"model":"other","max_tokens":5}',
    "with spaces": b'{ "model": "claude-x", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "model": "b" }',
    "with an escape": b'{"model":"claude-x","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"\\u006dodel":"other"}',
    "with an escaped colon": b'{"model":"a\\u003ab","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"model":"a"}',
    "an option": b'{"model":"claude-x","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"max_tokens":6}',
}


@pytest.mark.parametrize("name", REPEATED)
async def test_repeated_name_in_body_is_rejected(tmp_path: Path, name: str) -> None:
    """Otherwise gateway and provider could read different models from the same body."""
    async with run_gateway(tmp_path, make_answer(b"{}")) as (client, upstream):
        status, _, body = await post(client, "/v1/messages", REPEATED[name])
        assert upstream.requests == []
    error = msgspec.json.decode(body)
    repeated = "max_tokens" if name == "an option" else "model"
    assert (status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert error["error"]["message"] == f"{repeated}: this name occurs twice in the body. Send it once."


async def test_unique_names_in_body_are_accepted(tmp_path: Path) -> None:
    bodies = (
        b'{"model":"claude-x","max_tokens":5,"messages":[{"role":"user","content":"a\\u003a \\"model\\":"}]}',
        b'{"model":"claude-x", "max_tokens":5,"x\\u003a":1,\n"messages":[{"role":"user","content":"a: b","model":1}]}',
        b'{"model":"claude-x","max_tokens":5,"metadata":{"model":1,"a":123456789012345678901234567890},"messages":[1]} ',
    )
    async with run_gateway(tmp_path, *[make_answer(b'{"type":"error"}', 400)] * len(bodies)) as (client, upstream):
        for body in bodies:
            await post(client, "/v1/messages", body)
        assert tuple(request.body for request in upstream.requests) == bodies


async def test_deeply_nested_body_is_rejected(tmp_path: Path) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    async with run_gateway(tmp_path, make_answer(b"{}")) as (client, _):
        status, _, body = await post(client, "/v1/messages", b'{"model":"claude-x","messages":' + deep + b"}")
    assert status == 400
    assert b"not a JSON object" in body
