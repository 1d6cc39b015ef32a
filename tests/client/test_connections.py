"""Tests of the connection pool: reuse, replacement, back-pressure, timeouts and broken responses."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.client import connections
from dragoman.client.call import NetworkError
from dragoman.client.connections import ConnectionPool, PoolResponse
from tests.mail.certificates import Certificates
from tests.servers.faulty_server import CLOSE, RESET, SILENCE, Answer, FaultyServer, make_answer, make_head, make_stream


@contextlib.asynccontextmanager
async def open_pool(*answers: Answer) -> AsyncIterator[tuple[ConnectionPool, FaultyServer]]:
    async with FaultyServer(answers) as server:
        pool = ConnectionPool()
        yield pool, server
        await pool.close()


async def post(pool: ConnectionPool, server: FaultyServer, body: bytes = b"{}", head_s: float = 20) -> PoolResponse:
    return await pool.post(f"{server.address}/v1/x?y=1", {"a": "b"}, body, connect_s=20, head_s=head_s)


async def read_all(response: PoolResponse) -> bytes:
    chunks = []
    while chunk := await response.read_chunk(20):
        chunks.append(chunk)
    response.close()
    return b"".join(chunks)


async def test_connection_is_reused_after_complete_body() -> None:
    async with open_pool(make_answer(b"1"), make_stream([b"2", b"3"]), make_answer(b"4")) as (pool, server):
        bodies = [await read_all(await post(pool, server)) for _ in range(4)]
        assert bodies == [b"1", b"23", b"4", b"4"]
        assert server.connections == 1
        (first, *_) = server.requests
        assert (first.path, first.body, first.headers["a"]) == ("/v1/x?y=1", b"{}", "b")
        assert first.headers["host"] == server.address.removeprefix("http://")


async def test_concurrent_requests_use_separate_connections() -> None:
    async with open_pool(make_answer(b"1")) as (pool, server):
        for _ in range(3):
            responses = await asyncio.gather(*(post(pool, server) for _ in range(5)))
            assert [await read_all(response) for response in responses] == [b"1"] * 5
        assert server.connections == 5


async def test_unread_response_closes_its_connection() -> None:
    async with open_pool([make_head(content_length="9"), SILENCE], make_answer(b"1")) as (pool, server):
        (await post(pool, server)).close()
        async with asyncio.timeout(60):
            await server.disconnected.wait()
        assert await read_all(await post(pool, server)) == b"1"
        assert server.connections == 2


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_closed_pooled_connection_is_replaced(end: str) -> None:
    async with open_pool(make_answer(b"1"), [end], make_answer(b"2")) as (pool, server):
        assert await read_all(await post(pool, server)) == b"1"
        assert await read_all(await post(pool, server)) == b"2"
        assert server.connections == 2


async def test_request_on_closed_new_connection_is_not_repeated() -> None:
    async with open_pool([CLOSE]) as (pool, server):
        with pytest.raises(NetworkError) as caught:
            await post(pool, server)
        assert caught.value.fault.code == "stream_broken"
        assert len(server.requests) == 1


async def test_request_is_not_repeated_after_first_response_byte() -> None:
    async with open_pool(make_answer(b"1"), [b"HTTP/1.1 2", CLOSE]) as (pool, server):
        await read_all(await post(pool, server))
        with pytest.raises(NetworkError):
            await post(pool, server)
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([make_head(content_length="9") + b"part", CLOSE], id="shorter than its length"),
        pytest.param([make_head(content_length="9") + b"part", RESET], id="reset"),
        pytest.param(make_stream([b"part"], CLOSE), id="chunks without an end"),
        pytest.param(
            [make_head(transfer_encoding="chunked") + b"4\r\npart\r\nzz\r\n", SILENCE], id="a chunk without a length"
        ),
        pytest.param([make_head() + b"part", RESET], id="no length, and reset"),
        pytest.param(make_answer(gzip.compress(b"part" * 10)[:-10], content_encoding="gzip"), id="cut gzip"),
        pytest.param(make_answer(b"part", content_encoding="gzip"), id="not gzip"),
    ],
)
async def test_broken_body_raises(answer: Answer) -> None:
    async with open_pool(answer) as (pool, server):
        response = await post(pool, server)
        with pytest.raises(NetworkError) as caught:
            await read_all(response)
        assert caught.value.fault.code == "stream_broken"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        pytest.param([make_head() + b"all", CLOSE], b"all", id="until the connection closes"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nall", CLOSE], b"all", id="HTTP/1.0"),
        pytest.param([make_head(204)], b"", id="no content"),
        pytest.param(
            [b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", *make_answer(b"all")], b"all", id="an interim response"
        ),
        pytest.param(make_answer(gzip.compress(b"all" * 9_999), content_encoding="gzip"), b"all" * 9_999, id="gzip"),
        pytest.param([make_head(content_length="3", connection="close") + b"all"], b"all", id="a last response"),
    ],
)
async def test_body_ends_as_its_headers_state(answer: Answer, body: bytes) -> None:
    async with open_pool(answer) as (pool, server):
        for _ in range(2):
            response = await post(pool, server)
            assert await read_all(response) == body


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([b"SSH-2.0-x\r\n", SILENCE], id="another protocol"),
        pytest.param(
            [b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", SILENCE], id="an upgrade"
        ),
        pytest.param([b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 60_000, SILENCE], id="a huge head"),
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", SILENCE], id="two lengths"),
    ],
)
async def test_invalid_response_head_raises(answer: Answer) -> None:
    async with open_pool(answer) as (pool, server):
        with pytest.raises(NetworkError):
            await post(pool, server)
        async with asyncio.timeout(60):
            await server.disconnected.wait()


async def test_bytes_after_response_close_the_connection() -> None:
    async with open_pool([*make_answer(b"1"), b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]) as (pool, server):
        for number in range(1, 4):
            assert await read_all(await post(pool, server)) == b"1"
            async with asyncio.timeout(60):
                while pool.size:
                    await asyncio.sleep(0)
            assert server.connections == number


async def test_silence_before_and_within_response_times_out() -> None:
    async with open_pool([SILENCE], [make_head(content_length="9") + b"part", SILENCE]) as (pool, server):
        with pytest.raises(NetworkError) as caught:
            await post(pool, server, head_s=0.05)
        assert caught.value.fault.code == "timeout"
        response = await post(pool, server)
        assert await response.read_chunk(20) == b"part"
        with pytest.raises(TimeoutError):
            await response.read_chunk(0.05)
        response.close()


async def test_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_IDLE_S", 0.05)
    async with open_pool(make_answer(b"1")) as (pool, server):
        await read_all(await post(pool, server))
        async with asyncio.timeout(60):
            while pool.size:
                await asyncio.sleep(0.01)
        await read_all(await post(pool, server))
        assert server.connections == 2


async def test_unread_body_pauses_the_connection() -> None:
    async with open_pool(make_stream([b"x" * 65_536] * 400)) as (pool, server):
        response = await post(pool, server)
        for _ in range(2_000):
            await asyncio.sleep(0)
        received = await response.read_chunk(20)
        assert len(received) < 2_000_000
        assert len(received) + len(await read_all(response)) == 400 * 65_536


async def test_cancelled_call_closes_its_connection() -> None:
    async with open_pool([SILENCE]) as (pool, server):
        task = asyncio.create_task(post(pool, server))
        while not server.requests:
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            await server.disconnected.wait()
        assert pool.size == 0


async def test_pool_close_ends_calls_in_progress() -> None:
    async with open_pool([SILENCE]) as (pool, server):
        task = asyncio.create_task(post(pool, server))
        while not server.requests:
            await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(NetworkError):
            await asyncio.wait_for(task, 60)


async def test_call_cancelled_at_its_end_does_not_affect_next_call() -> None:
    release = asyncio.Event()
    async with open_pool([release, *make_answer(b"1")]) as (pool, server):
        first = asyncio.create_task(post(pool, server))
        while not server.requests:
            await asyncio.sleep(0)
        (connection,) = pool._all
        connection.data_received(make_answer(b"0")[0])  # the connection returns to the pool before the call resumes
        second = asyncio.create_task(post(pool, server))
        first.cancel()
        release.set()
        assert await read_all(await asyncio.wait_for(second, 60)) == b"1"
        assert server.connections == 1


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\0b"])
async def test_header_with_line_break_is_not_sent(value: str) -> None:
    async with open_pool(make_answer(b"1")) as (pool, server):
        with pytest.raises(NetworkError):
            await pool.post(server.address, {"x": value}, b"", connect_s=20, head_s=20)
        assert server.requests == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "http:///x", "ftp://127.0.0.1/", "http://127.0.0.1:1/"])
async def test_unserved_address_is_unreachable(url: str) -> None:
    with pytest.raises(NetworkError) as caught:
        await ConnectionPool().post(url, {}, b"", connect_s=20, head_s=20)
    assert caught.value.fault.code == "unreachable"


async def test_tls_requires_certificate_of_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    connections.tls_context.cache_clear()
    pool = ConnectionPool()
    try:
        with pytest.raises(NetworkError) as caught:
            await pool.post(f"https://127.0.0.1:{port}/", {}, b"", connect_s=20, head_s=20)
        assert not caught.value.fault.retryable
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        connections.tls_context.cache_clear()
        assert await read_all(await pool.post(f"https://127.0.0.1:{port}/", {}, b"", connect_s=20, head_s=20)) == b"ok"
        with pytest.raises(NetworkError):
            await pool.post(f"https://localhost:{port}/", {}, b"", connect_s=20, head_s=20)
    finally:
        connections.tls_context.cache_clear()
        await pool.close()
        server.close()
        await server.wait_closed()
