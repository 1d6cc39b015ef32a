"""Raw HTTP: requests that no client library would send."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

import msgspec


class RawResponse(msgspec.Struct, frozen=True):
    """A parsed response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error response."""
        return str(msgspec.json.decode(self.body)["error"]["code"])


class RawClient:
    """Holds one connection, and reopens it when the server has closed it."""

    def __init__(self, base_url: str) -> None:
        self._host, _, port = base_url.removeprefix("http://").partition(":")
        self._port = int(port)
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            with contextlib.suppress(OSError):
                await self.writer.wait_closed()
        self.reader = self.writer = None

    async def get(self, target: str, *headers: str) -> RawResponse:
        """Request a target without normalizing it, and return the response."""
        lines = (f"GET {target} HTTP/1.1", f"Host: {self._host}:{self._port}", *headers)
        data = "\r\n".join((*lines, "", "")).encode("latin-1")
        for _ in range(2):
            try:
                return await self.ask(data)
            except (asyncio.IncompleteReadError, OSError):  # closed after the previous response
                await self.close()
        raise AssertionError(f"no response to {target!r}")

    async def ask(self, data: bytes) -> RawResponse:
        """Send bytes and return the response."""
        await self.send(data)
        return await self.read_response()

    async def send(self, data: bytes) -> None:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self._host, self._port)
        self.writer.write(data)
        await self.writer.drain()

    async def read_response(self) -> RawResponse:
        assert self.reader is not None
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            await self.close()
        return RawResponse(int(head[0].split(" ")[1]), headers, body)

    async def _chunks(self) -> bytes:
        assert self.reader is not None
        data = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            data += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return data
