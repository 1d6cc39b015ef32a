"""A transport for the libraries that only read from an HTTP client: it answers from memory."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from benchmarks import bodies


def httpx_of(package: str) -> Any:
    """The HTTP library that an SDK really uses; newer ones have moved to a second generation of it."""
    client = importlib.import_module(f"{package}._base_client")
    return next(getattr(client, name) for name in ("httpx", "httpx2") if hasattr(client, name))


def clients(httpx: Any) -> tuple[Any, Any]:
    """A client and an asynchronous one, whose every request is answered with the stream or the reply of its path."""

    class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, chunks: list[bytes]) -> None:
            self._chunks = chunks

        def __iter__(self) -> Iterator[bytes]:
            return iter(self._chunks)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self._chunks:
                yield chunk

        def close(self) -> None: ...

        async def aclose(self) -> None: ...

    streams = {True: bodies.anthropic_stream(), False: bodies.chat_stream()}

    def answer(request: Any) -> Any:
        is_anthropic = request.url.path.endswith("/messages")
        stream = Chunks(streams[is_anthropic])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)

    class Transport(httpx.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            request.read()
            return answer(request)

    class AsyncTransport(httpx.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            await request.aread()
            return answer(request)

    return httpx.Client(transport=Transport()), httpx.AsyncClient(transport=AsyncTransport())


LOOP = asyncio.new_event_loop()
