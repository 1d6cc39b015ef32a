"""A server that sends exactly the bytes, delays and connection errors that a test defines.

    async with FaultyServer([make_answer(b"{}")]) as server:   one answer per request; the last one is repeated
        server.address                                         http://127.0.0.1:PORT
        server.requests                                        the received requests, in order
        await server.disconnected.wait()                       a client closed a connection before the end of the answer

An answer is a list of steps: bytes to send, seconds to wait, an event to wait for, ``SILENCE`` (until the client
disconnects), ``RESET`` (reset the connection), ``CLOSE`` (close it properly). After the last step the connection stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

import msgspec

SILENCE: Final = "silence"
RESET: Final = "reset"
CLOSE: Final = "close"
Step = bytes | float | str | asyncio.Event
Answer = Sequence[Step]


class ReceivedRequest(msgspec.Struct, frozen=True):
    """A request as the server received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int  # number of the connection, from 0

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class FaultyServer:
    """Sends ``answers`` in order, or the answer that a function returns for a request."""

    def __init__(self, answers: Sequence[Answer] | Callable[[ReceivedRequest], Answer]) -> None:
        self._answers = answers
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.disconnected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)  # the connections end in the next callbacks

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer, self.connections))
        self.connections += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also if the task is cancelled before it begins

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            while request := await _read_request(reader, number):
                answer = self._next(request)
                self.requests.append(request)
                if not await self._play(answer, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _next(self, request: ReceivedRequest) -> Answer:
        if callable(self._answers):
            return self._answers(request)
        return self._answers[min(len(self.requests), len(self._answers) - 1)]

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for step in answer:
            match step:
                case bytes():
                    writer.write(step)
                    await writer.drain()
                case "silence":
                    await reader.read()
                    self.disconnected.set()
                    return False
                case "reset":
                    raw: socket.socket = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                    return False
                case "close":
                    return False
                case asyncio.Event():
                    await step.wait()
                case _:
                    await asyncio.sleep(float(step))
        return True


async def _read_request(reader: asyncio.StreamReader, connection: int) -> ReceivedRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return ReceivedRequest(method, path, headers, body, connection)


def make_head(status: int = 200, **headers: str) -> bytes:
    """Return the head of an answer; underscores in header names become hyphens."""
    lines = [
        f"HTTP/1.1 {status} As Defined",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def make_answer(body: bytes, status: int = 200, **headers: str) -> list[Step]:
    """Return a whole answer."""
    all_headers = {"content_type": "application/json", **headers}
    return [make_head(status, **all_headers, content_length=str(len(body))) + body]


def encode_chunk(data: bytes) -> bytes:
    """Return bytes in the framing of a chunked answer."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


END: Final = b"0\r\n\r\n"


def make_stream(
    pieces: Iterable[bytes], *end: Step, content_type: str = "text/event-stream", **headers: str
) -> list[Step]:
    """Return a streamed answer: its pieces, and then the steps of ``end`` or a proper end."""
    begin = make_head(content_type=content_type, transfer_encoding="chunked", **headers)
    return [begin, *(encode_chunk(piece) for piece in pieces if piece), *(end or (END,))]
