"""A relay in front of a server that records every request and its status.

    async with Relay(port) as relay:
        relay.base_url, relay.requests

It forwards bytes in both directions as they arrive. After an upgrade to WebSocket, it stops parsing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self

import httptools
import msgspec


class RelayedRequest(msgspec.Struct, kw_only=True):
    """A request that the relay forwarded."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    status: int | None = None  # None: no response, or an upgrade

    @property
    def json(self) -> Any:
        """The body, or None if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class Relay:
    """Forwards connections to a port and records their requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[RelayedRequest] = []
        self.base_url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        requests = _Requests(self.requests)
        responses = _Responses(requests.own)
        try:
            await asyncio.gather(
                _pump(reader, server_writer, requests.feed), _pump(server_reader, writer, responses.feed)
            )
        finally:
            writer.close()
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, feed: Callable[[bytes], None]) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            feed(data)
            writer.write(data)
            await writer.drain()
    writer.close()


class _Requests:
    """The requests of one connection."""

    def __init__(self, all_requests: list[RelayedRequest]) -> None:
        self._all = all_requests
        self.own: list[RelayedRequest] = []
        self._parser = httptools.HttpRequestParser(self)
        self._is_parsed = True

    def feed(self, data: bytes) -> None:
        if self._is_parsed:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                self._is_parsed = False

    def on_url(self, url: bytes) -> None:
        self._current = RelayedRequest(path=url.decode())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._current.method = self._parser.get_method().decode()
        self._all.append(self._current)
        self.own.append(self._current)

    def on_body(self, data: bytes) -> None:
        self._current.body += data


class _Responses:
    """The statuses of the responses of one connection."""

    def __init__(self, requests: list[RelayedRequest]) -> None:
        self._requests = requests
        self._parser = httptools.HttpResponseParser(self)
        self._count = 0
        self._is_parsed = True

    def feed(self, data: bytes) -> None:
        if not self._is_parsed:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            self._is_parsed = False  # an upgrade, or the response to HEAD

    def on_headers_complete(self) -> None:
        if self._count < len(self._requests):
            self._requests[self._count].status = self._parser.get_status_code()
        self._count += 1
