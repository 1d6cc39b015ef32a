"""Hundreds of clients that send or read slowly do not delay others, and receive complete responses.

``make bench BENCH=gateway BENCH_ARGS="--slow 10000"`` does the same with 10,000 clients.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.gateway.raw_gateway import QUESTION, RawGateway, answer_without_stream, make_request, run_raw_gateway
from tests.servers.faulty_server import Answer, ReceivedRequest, make_stream

READERS: Final = 40
SENDERS: Final = 200
PIECE: Final = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
TEXT: Final = b"x" * 16_000
PIECES: Final = (
    *[PIECE % TEXT] * 100,
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
STREAM: Final = QUESTION[:-1] + b',"stream":true}'
REQUEST: Final = make_request("/v1/chat/completions", QUESTION)


def respond(request: ReceivedRequest) -> Answer:
    return make_stream(PIECES) if b'"stream":true' in request.body else answer_without_stream(request)


async def connect(port: int) -> socket.socket:
    """Open a connection with a small receive buffer."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = bytearray()
    while not data.endswith(end):
        part = await asyncio.get_running_loop().sock_recv(sock, 65_536)
        assert part, "the connection was closed"
        data += part
    return bytes(data)


async def wait_until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_done():
            await asyncio.sleep(0)


def count_paused(served: RawGateway) -> int:
    """Return the number of connections whose client does not read."""
    return sum(bool(connection.flow.write_paused) for connection in served.server.server_state.connections)


async def test_slow_clients_do_not_delay_others(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with run_raw_gateway(tmp_path, respond) as served:
        readers = [await connect(served.port) for _ in range(READERS)]
        senders = [await connect(served.port) for _ in range(SENDERS)]
        try:
            for sock in readers:
                await loop.sock_sendall(sock, make_request("/v1/chat/completions", STREAM))
            for sock in senders:
                await loop.sock_sendall(sock, REQUEST[:-10])
            await wait_until(lambda: count_paused(served) == READERS)
            async with asyncio.timeout(120), served.connect() as client:
                for _ in range(20):
                    assert (await client.ask(REQUEST)).status == 200
            assert count_paused(served) == READERS
            async with asyncio.timeout(120):
                for sock in senders:
                    await loop.sock_sendall(sock, REQUEST[-10:])
                    assert (await read_until(sock, b"}")).startswith(b"HTTP/1.1 200 ")
                for sock in readers[:4]:
                    assert (await read_until(sock, b"0\r\n\r\n")).count(TEXT) == 100
        finally:
            for sock in (*readers, *senders):
                sock.close()
