"""Tests of misbehaving connections: timeouts, size limits and malformed requests."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.server.http.connection_limits import MAX_HEAD_BYTES, ResponseTransport
from tests.server.conftest import ServerFixture, run_test_server

HEAD = b"POST /api/v1/agent/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def open_connection(server: ServerFixture) -> AsyncIterator[Connection]:
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection."""
    data = b""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                data += chunk
    return data


@contextlib.asynccontextmanager
async def run_short_timeout_server(folder: Path) -> AsyncIterator[ServerFixture]:
    async with run_test_server(folder, read_timeout_s=0.4) as server:
        yield server


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="no bytes"),
        pytest.param(b"GET / HT", id="half a line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: 127", id="half a header"),
        pytest.param(HEAD + b"Content-Length: 100\r\n\r\n" + b'{"a":' + b" " * 45, id="half a body"),
        pytest.param(HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n', id="unfinished chunked body"),
    ],
)
async def test_incomplete_request_is_closed_and_nothing_is_stored(tmp_path: Path, sent: bytes) -> None:
    async with run_short_timeout_server(tmp_path) as server, open_connection(server) as (reader, writer):
        writer.write(sent)
        assert b"200 OK" not in await read_to_end(reader)
        assert await server.store.list_sessions() == []


async def test_trickling_request_is_closed(tmp_path: Path) -> None:
    async with run_short_timeout_server(tmp_path) as server, open_connection(server) as (reader, writer):

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                for byte in HEAD * 100:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.05)

        task = asyncio.create_task(trickle())
        await read_to_end(reader)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_slow_body_with_steady_progress_is_read(tmp_path: Path) -> None:
    """The whole body exceeds the time limit, but no part of it does."""
    limit_s = 2.0
    async with run_test_server(tmp_path, read_timeout_s=limit_s) as server, open_connection(server) as (reader, writer):
        writer.write(HEAD + b"Connection: close\r\nContent-Length: 40960\r\n\r\n")
        for _ in range(10):
            writer.write(b" " * 4096)
            await writer.drain()
            await asyncio.sleep(limit_s / 8)
        assert b"error" in await read_to_end(reader)  # the request was read, and its body is not JSON


async def test_idle_connection_is_kept_for_keep_alive_time(tmp_path: Path) -> None:
    """The read timeout applies to requests only. An idle connection is kept for the keep-alive time."""
    async with run_test_server(tmp_path, read_timeout_s=1) as server, open_connection(server) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
            await asyncio.sleep(1.2)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"X-Large: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", id="one header"),
        pytest.param(b"".join(b"X-%d: a\r\n" % n for n in range(3_000)) + b"\r\n", id="many headers"),
        pytest.param(b"X-Endless: " + b"a" * 4 * MAX_HEAD_BYTES, id="endless header"),
        pytest.param(b"Authorization: Bearer " + b"a" * 65_536 + b"\r\n\r\n", id="64 KiB key"),
    ],
)
async def test_head_is_limited_to_16_kib(chat_server: ServerFixture, head: bytes) -> None:
    async with open_connection(chat_server) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head)
        response = await read_to_end(reader)
        assert response.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"head_too_large"' in response


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x00b\r\n\r\n",
        b"GET /\xc3\xbc HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
async def test_malformed_request_is_rejected_with_error_body(chat_server: ServerFixture, sent: bytes) -> None:
    async with open_connection(chat_server) as (reader, writer):
        writer.write(sent)
        response = await read_to_end(reader)
        assert response.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"invalid_http"' in response


async def test_missing_or_second_host_header_is_rejected(chat_server: ServerFixture) -> None:
    for hosts in (b"", b"Host: 127.0.0.1\r\nHost: evil.example\r\n"):
        async with open_connection(chat_server) as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
            assert (await read_to_end(reader)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("target", [b"//healthz", b"/%2e/healthz", b"/healthz;x", b"/./healthz", b"/healthz/"])
async def test_path_similar_to_route_is_not_found(chat_server: ServerFixture, target: bytes) -> None:
    async with open_connection(chat_server) as (reader, writer):
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 404 ")


async def test_absolute_target_is_routed_by_its_path(keyed_server: ServerFixture) -> None:
    async with open_connection(keyed_server) as (reader, writer):
        writer.write(
            b"GET http://evil.example/api/v1/agent/me HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 401 ")


async def test_too_large_body_gets_response_and_client_can_retry(chat_server: ServerFixture) -> None:
    headers = {"Content-Type": "application/json"}
    for _ in range(2):
        async with chat_server.client.post(
            "/api/v1/agent/runs", data=io.BytesIO(b" " * 6_000_000), headers=headers
        ) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "too_large"


class _RecordingTransport(asyncio.Transport):
    """Records the written packets."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.packets.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def test_response_head_is_sent_with_first_body_bytes() -> None:
    transport = _RecordingTransport()
    response = ResponseTransport(transport)
    response.write(b"head ")
    response.write(b"first")
    response.write(b"second")
    await asyncio.sleep(0)
    assert transport.packets == [b"head first", b"second"]


async def test_pending_head_is_sent_on_next_iteration_or_close() -> None:
    transport = _RecordingTransport()
    ResponseTransport(transport).write(b"head")
    assert transport.packets == []
    await asyncio.sleep(0)
    assert transport.packets == [b"head"]
    response = ResponseTransport(transport)
    response.write(b"next head")
    response.close()
    assert transport.packets == [b"head", b"next head"]
    assert response.is_closing()


@pytest.mark.parametrize(
    ("request_line", "has_length"),
    [("POST /api/v1/agent/runs", False), ("GET /api/v1/agent/me", True), ("GET /none", True), ("HEAD /healthz", True)],
)
async def test_http_1_0_client_receives_no_chunks(
    chat_server: ServerFixture, request_line: str, *, has_length: bool
) -> None:
    message = {"id": "m1", "role": "user", "content": "hi"}
    body = (
        json.dumps({"threadId": "t1", "runId": "r1", "messages": [message]}).encode() if "POST" in request_line else b""
    )
    lines = [f"{request_line} HTTP/1.0", "Host: 127.0.0.1", "Content-Type: application/json", "Expect: 100-continue"]
    lines += ["Accept: text/event-stream", f"Content-Length: {len(body)}", "", ""]
    async with open_connection(chat_server) as (reader, writer):
        writer.write("\r\n".join(lines).encode() + body)
        head, _, received = (await read_to_end(reader)).partition(b"\r\n\r\n")
    assert b" 100 " not in head
    assert b"transfer-encoding" not in head
    assert (b"content-length" in head) == has_length
    if not has_length:
        assert received.startswith(b"id: 1\n")
        assert b"RUN_FINISHED" in received
        assert received.endswith(b"\n\n")
