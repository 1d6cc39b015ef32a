"""The fast path sends the same bytes to provider and caller as the application, and stores the same rows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.server.auth.api_keys import new_key
from dragoman.server.gateway_middleware import GatewayMiddleware
from tests.gateway.raw_gateway import (
    CHAT,
    GENERAL,
    QUESTION,
    RawGateway,
    answer_without_stream,
    make_request,
    run_raw_gateway,
)
from tests.server.raw import RawResponse
from tests.servers.faulty_server import CLOSE, SILENCE, Answer, ReceivedRequest, make_answer, make_stream

ANTHROPIC_STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"claude","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}}\n\n',
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}\n\n',
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)
OPENAI_STREAM = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}\n\n',
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
CALL = b'{"id":"c1","object":"chat.completion","created":1,"model":"gpt","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}]}}]}'
TOOLS = b'"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]'
ERROR = b'{"error":{"message":"slow down","type":"rate_limit_error"}}'
VOLATILE = re.compile(
    rb'"(?:id|created|(?:created|completed)_at|total_duration)":(?:"[^"]*"|\d+)|(?:chatcmpl-|msg_|resp_|call_|req_|sess_|tu_|toolu_)?[0-9A-HJKMNP-TV-Z]{26}'
)
CASES: dict[str, tuple[str, bytes, Answer | None]] = {
    "OpenAI to OpenAI": ("/v1/chat/completions", QUESTION, None),
    "a query and a model id": (
        "/v1/chat/completions?a=b",
        b'{"model":"up-o:gpt","x":1e2,"messages":[{"role":"user","content":"hi"}]}',
        None,
    ),
    "OpenAI to Anthropic": ("/chat/completions", QUESTION.replace(b'"o"', b'"a"'), None),
    "Anthropic to OpenAI": ("/v1/messages", QUESTION, None),
    "Anthropic to Anthropic": ("/v1/messages?beta=true", QUESTION.replace(b'"o"', b'"a"'), None),
    "Responses to OpenAI": ("/v1/responses", b'{"model":"o","input":"hi","temperature":0.5}', None),
    "Ollama to OpenAI": (
        "/api/chat",
        b'{"model":"o","stream":false,"messages":[{"role":"user","content":"hi"}]}',
        None,
    ),
    "a system prompt, a temperature and stop sequences": (
        "/v1/chat/completions",
        b'{"model":"a","temperature":0.5,"stop":["x"],"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},{"role":"assistant","content":"yes"},{"role":"user","content":"and?"}]}',
        None,
    ),
    "a tool call": ("/v1/chat/completions", QUESTION[:-1] + b"," + TOOLS + b"}", make_answer(CALL)),
    "a translated tool call": (
        "/v1/messages",
        QUESTION[:-1] + b',"tools":[{"name":"f","input_schema":{"type":"object"}}]}',
        make_answer(CALL),
    ),
    "a stream": ("/v1/chat/completions", QUESTION[:-1] + b',"stream":true}', make_stream(OPENAI_STREAM)),
    "a translated stream": ("/v1/messages", QUESTION[:-1] + b',"stream":true}', make_stream(OPENAI_STREAM)),
    "a stream to OpenAI": (
        "/v1/chat/completions",
        QUESTION.replace(b'"o"', b'"a"')[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}',
        make_stream(ANTHROPIC_STREAM),
    ),
    "a stream that breaks": (
        "/v1/messages",
        QUESTION[:-1] + b',"stream":true}',
        make_stream(OPENAI_STREAM[:1], CLOSE),
    ),
    "an error of the provider": ("/v1/chat/completions", QUESTION, make_answer(ERROR, 429, retry_after="7")),
    "a translated error": ("/v1/messages", QUESTION, make_answer(ERROR, 429, retry_after="7")),
    "no answer": ("/v1/messages", QUESTION, [CLOSE]),
    "not a reply": ("/v1/messages", QUESTION, make_answer(b"[]")),
    "not JSON": ("/v1/messages", b"{", None),
    "an empty body": ("/v1/messages", b"", None),
    "no messages": ("/v1/messages", b'{"model":"o","max_tokens":5,"messages":[]}', None),
    "an unknown model": ("/v1/messages", QUESTION.replace(b'"o"', b'"\xc3\xa9"'), None),
}


def normalize(response: RawResponse) -> tuple[int, dict[str, str], bytes]:
    ids = ("date", "x-request-id", "request-id", "content-length", "x-dragoman-session")
    headers = {name: value for name, value in response.headers.items() if name not in ids}
    return response.status, headers, VOLATILE.sub(b"", response.body)


async def read_store(served: RawGateway) -> list[Any]:
    """Return the stored sessions and messages, without ids and times."""
    sessions = sorted(await served.state.store.list_sessions(), key=lambda session: session.id)
    found: list[Any] = []
    for session in sessions:
        rows = await served.state.store.read(session.id)
        text = [msgspec.json.encode(row.message) for row in rows]
        found.append((session.title, session.metadata, [strip(data) for data in text]))
    return found


def strip(data: bytes) -> bytes:
    data = re.sub(rb'"(?:timestamp|created_at|latency_ms)":(?:"[^"]*"|\d+)', b"", data)
    return VOLATILE.sub(b"", data)


@pytest.mark.parametrize("name", CASES)
async def test_fast_path_and_application_have_same_result(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, answer = CASES[name]
    general_paths: list[str] = []
    original = GatewayMiddleware.__call__

    async def count(self: GatewayMiddleware, scope: Any, receive: Any, send: Any) -> None:
        general_paths.append(scope["path"])
        await original(self, scope, receive, send)

    monkeypatch.setattr(GatewayMiddleware, "__call__", count)

    def respond(request: ReceivedRequest) -> Answer:
        return answer if answer is not None else answer_without_stream(request)

    async with run_raw_gateway(tmp_path, respond) as served, served.connect() as client:
        headers = ("anthropic-version: 2023-06-01", "user-agent: test", "x-api-key: mine", "openai-beta: x")
        general_paths.clear()
        fast = await client.ask(make_request(path, body, *headers))
        assert general_paths == []
        fast_rows = await read_store(served)
        for session in await served.state.store.list_sessions():
            await served.state.store.delete_session(session.id)
        general = await client.ask(make_request(path, body, *headers, GENERAL))
        assert len(general_paths) == 1
        general_rows = await read_store(served)
        sent = [(request.path, request.headers, request.body) for request in served.upstream.requests]
    assert normalize(fast) == normalize(general)
    assert fast_rows == general_rows
    assert sent[: len(sent) // 2] == sent[len(sent) // 2 :]


async def test_verified_key_uses_fast_path_until_revoked(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path, require_keys=True) as served, served.connect() as client:
        key = new_key(served.state.peppers)
        await served.state.store.keys.create(key.public_id, key.secret_hash, user_id="ann", scopes=("chat",))
        request = make_request("/v1/messages", QUESTION, f"x-api-key: {key.text}")
        assert served.state.keys.find_verified(key.text) is None
        assert (await client.ask(request)).status == 200
        assert served.state.keys.find_verified(key.text) is not None
        assert (await client.ask(request)).status == 200
        await served.state.store.keys.revoke(key.public_id)
        served.state.keys.clear()
        assert (await client.ask(request)).status == 401


@pytest.mark.parametrize("headers", [pytest.param((), id="fast path"), pytest.param((GENERAL,), id="application")])
async def test_disconnect_of_caller_cancels_call(tmp_path: Path, headers: tuple[str, ...]) -> None:
    async with run_raw_gateway(tmp_path, [[SILENCE]]) as served:
        async with served.connect() as client:
            await client.send(make_request("/v1/messages", QUESTION, *headers))
            while not served.upstream.requests:
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await served.upstream.disconnected.wait()
        assert await served.state.store.list_sessions() == []


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        requests = [
            make_request("/v1/chat/completions", QUESTION),
            make_request("/v1/messages", QUESTION),
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            make_request("/v1/chat/completions", QUESTION),
        ]
        await client.send(b"".join(requests))
        answers = [msgspec.json.decode((await client.read_response()).body) for _ in requests]
    assert [answer.get("object") or answer.get("type") or answer.get("status") for answer in answers] == [
        "chat.completion",
        "message",
        "ok",
        "chat.completion",
    ]


async def test_connection_is_reused_and_closed_on_request(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        for _ in range(3):
            assert (await client.ask(make_request("/v1/messages", QUESTION))).status == 200
        writer = client.writer
        response = await client.ask(make_request("/v1/messages", QUESTION, "Connection: close"))
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert writer is not None
        assert served.upstream.connections == 1


async def test_idle_connection_is_closed_after_call(tmp_path: Path) -> None:
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        (connection,) = served.server.server_state.connections
        connection.timeout_keep_alive = 0.01
        assert (await client.ask(make_request("/v1/messages", QUESTION))).status == 200
        assert client.reader is not None
        assert await asyncio.wait_for(client.reader.read(), 60) == b""


async def test_idle_timer_does_not_end_call_in_progress(tmp_path: Path) -> None:
    release = asyncio.Event()
    answers = [make_answer(CHAT), [release, *make_answer(CHAT)], make_answer(CHAT)]
    async with run_raw_gateway(tmp_path, answers) as served, served.connect() as client:
        (connection,) = served.server.server_state.connections
        connection.timeout_keep_alive = 600
        request = make_request("/v1/messages", QUESTION)
        assert (await client.ask(request)).status == 200
        await client.send(request)
        while len(served.upstream.requests) < 2:
            await asyncio.sleep(0)
        fire_idle_timer(connection)
        assert connection._keep_alive_timer is None  # until the call ends
        release.set()
        assert (await client.read_response()).status == 200
        fire_idle_timer(connection)
        assert connection._keep_alive_timer.when() == connection._idle_until_s
        assert (await client.ask(request)).status == 200


def fire_idle_timer(connection: Any) -> None:
    connection._keep_alive_timer.cancel()
    connection._check_idle()


HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(
            HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="a length and an encoding"
        ),
        pytest.param(HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", id="two lengths"),
        pytest.param(HEAD + b"Content-Length: 2, 2\r\n\r\n{}", id="a list of lengths"),
        pytest.param(HEAD + b"Content-Length: +2\r\n\r\n{}", id="a length with a sign"),
        pytest.param(HEAD + b"Content-Length: 0x2\r\n\r\n{}", id="a length in hex"),
        pytest.param(HEAD + b"Content-Length : 2\r\n\r\n{}", id="a space before the colon"),
        pytest.param(HEAD + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", id="a folded header"),
        pytest.param(HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}", id="line feeds alone"),
        pytest.param(HEAD + b"X: a\rb\r\nContent-Length: 2\r\n\r\n{}", id="a carriage return in a value"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;a\n\r\n{}\r\n0\r\n\r\n", id="a chunk with a bare end"
        ),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", id="a negative chunk"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff2\r\n{}\r\n0\r\n\r\n", id="a huge chunk"
        ),
        pytest.param(HEAD + b"Transfer-Encoding: identity, chunked, x\r\n\r\n0\r\n\r\n", id="an unknown last encoding"),
        pytest.param(HEAD + b"Content-Length: 2\r\nX\0: 1\r\n\r\n{}", id="a NUL in a name"),
    ],
)
async def test_ambiguous_request_closes_connection(tmp_path: Path, request_bytes: bytes) -> None:
    hidden = make_request("/v1/messages", QUESTION)
    async with run_raw_gateway(tmp_path) as served, served.connect() as client:
        await client.send(request_bytes + hidden)
        assert client.reader is not None
        data = await asyncio.wait_for(client.reader.read(), 60)
        assert data.startswith(b"HTTP/1.1 400 ")
        assert data.count(b"HTTP/1.1") == 1
        assert served.upstream.requests == []


async def test_slow_body_times_out_without_delaying_others(tmp_path: Path) -> None:
    async with (
        run_raw_gateway(tmp_path, read_timeout_s=0.4) as served,
        served.connect() as slow,
        served.connect() as client,
    ):
        await slow.send(make_request("/v1/messages", QUESTION)[:-5])
        for _ in range(3):
            assert (await client.ask(make_request("/v1/messages", QUESTION))).status == 200
        assert slow.reader is not None
        assert await asyncio.wait_for(slow.reader.read(), 60) == b""


async def test_slow_reader_pauses_provider_stream(tmp_path: Path) -> None:
    piece = ANTHROPIC_STREAM[2].replace(b"Hi", b"x" * 50_000)
    pieces = [*ANTHROPIC_STREAM[:2], *[piece] * 1_000, *ANTHROPIC_STREAM[3:]]
    async with run_raw_gateway(tmp_path, [make_stream(pieces)], record="off") as served, served.connect() as client:
        await client.send(make_request("/v1/messages", QUESTION.replace(b'"o"', b'"a"')[:-1] + b',"stream":true}'))
        assert client.reader is not None
        await client.reader.readuntil(b"\r\n\r\n")
        (connection,) = served.server.server_state.connections
        async with asyncio.timeout(60):
            while not connection.flow.write_paused:
                await asyncio.sleep(0)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() < 2_000_000


async def test_stopping_server_finishes_its_calls(tmp_path: Path) -> None:
    stopped = asyncio.Event()
    async with run_raw_gateway(tmp_path, [[stopped, *make_answer(CHAT)]]) as served, served.connect() as client:
        await client.send(make_request("/v1/messages", QUESTION))
        while not served.upstream.requests:
            await asyncio.sleep(0)
        served.server.should_exit = True
        async with asyncio.timeout(60):
            while served.server.servers[0].is_serving():
                await asyncio.sleep(0)
        stopped.set()
        response = await client.read_response()
        assert (response.status, response.headers["connection"]) == (200, "close")


HTTP_1_0_CALLS: dict[str, tuple[bytes, bytes]] = {
    "a stream": (QUESTION[:-1] + b',"stream":true}', b"".join(OPENAI_STREAM)),
    "a whole reply": (QUESTION, CHAT),
    "an error": (b"{}", b"model"),
}


@pytest.mark.parametrize("name", HTTP_1_0_CALLS)
async def test_http_1_0_client_receives_no_chunks(tmp_path: Path, name: str) -> None:
    body, expected = HTTP_1_0_CALLS[name]
    answer = make_stream(OPENAI_STREAM) if b"stream" in body else make_answer(CHAT)
    async with run_raw_gateway(tmp_path, [answer]) as served, served.connect() as client:
        request = make_request("/v1/chat/completions", body, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
        await client.close()
        await client.send(request)
        assert client.reader is not None
        head, _, received = (await client.reader.read()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert (b"content-length" in head) == (name != "a stream")
    assert expected in received
    if name != "an error":
        assert received == expected
