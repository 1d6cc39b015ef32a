"""Requests through a proxy, over aiohttp. It is imported for the first such request."""

from __future__ import annotations

import asyncio
import os
import ssl
from types import SimpleNamespace
from typing import Self

import aiohttp
from yarl import URL

from dragoman.client.call import NetworkError, network_fault
from dragoman.exchange import Fault


class ProxyResponse:
    """A response whose headers have arrived. Leaving its ``with`` block discards the unread body."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.release()  # returns a connection to the pool if the body was read, else closes it

    @property
    def is_complete(self) -> bool:
        """Whether the whole body was read."""
        return self._response.content.at_eof()

    async def read_chunk(self, timeout_s: float | None) -> bytes:
        """Return the next bytes, empty at the end; ``TimeoutError`` after ``timeout_s``."""
        content = self._response.content
        try:
            if (chunk := content.read_nowait(-1)) or content.at_eof():
                return chunk
            async with asyncio.timeout(timeout_s):
                return await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            if buffer := _read_buffer(self._response.content):
                return buffer
            fault = network_fault("stream_broken", f"the connection broke: {_describe_error(error)}")
            raise NetworkError(fault) from error

    def take_body(self) -> bytes | None:
        """Return none: the body has to be read in chunks."""
        return None

    async def pause(self, seconds: float) -> None:
        """Wait, so that more arrives with the next read."""
        await asyncio.sleep(seconds)


class ProxyTransport:
    """A connection pool of its own."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),  # callers limit their concurrency
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent",),
            trace_configs=[_trace_reuse()],
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def post(
        self, address: str, headers: dict[str, str], body: bytes, proxy: str, *, connect_s: float, head_s: float
    ) -> ProxyResponse:
        """Send a request and return its response when the headers have arrived."""
        try:
            async with asyncio.timeout(head_s):
                return await self._post(address, headers, body, proxy, connect_s)
        except TimeoutError as error:
            raise NetworkError(_to_fault(error, URL(address, encoded=True))) from error

    async def _post(
        self, address: str, headers: dict[str, str], body: bytes, proxy: str, connect_s: float
    ) -> ProxyResponse:
        url, timeout = URL(address, encoded=True), aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        while True:
            reused: list[bool] = []
            try:
                response = await self._session.post(
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=proxy,
                    timeout=timeout,
                    trace_request_ctx=reused,
                )
                return ProxyResponse(response)
            except (aiohttp.ClientError, OSError) as error:
                is_closed = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
                if not (is_closed and reused) or isinstance(error, aiohttp.ClientConnectorError):
                    raise NetworkError(_to_fault(error, url)) from error
                # else the server has closed an idle connection: use the next one


def _read_buffer(content: aiohttp.StreamReader) -> bytes:
    """Return the unread bytes of a broken connection. aiohttp (3.14) has no public method for it."""
    read = getattr(content, "_read_nowait", None)
    return bytes(read(-1)) if read is not None else b""


def _trace_reuse() -> aiohttp.TraceConfig:
    """Return a trace that appends to the list of a request if its connection is reused."""

    async def on_reuse(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.append(True)

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(on_reuse)
    return trace


def _to_fault(error: Exception, url: URL) -> Fault:
    """Convert a failure before any response."""
    where = f"{url.host}:{url.port}"
    match error:
        case aiohttp.ConnectionTimeoutError():
            return network_fault("unreachable", f"connecting to {where} timed out")
        case TimeoutError():
            return network_fault("timeout", f"the response of {where} timed out")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLError() | aiohttp.ClientSSLError():
            reason = _describe_error(error)
            return network_fault("unreachable", f"no secure connection to {where}: {reason}", retryable=False)
        case aiohttp.ClientConnectorError() | aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return network_fault("unreachable", f"no connection to {where}: {_describe_error(error)}")
        case aiohttp.InvalidURL():
            return network_fault("unreachable", f"{where} is not a valid address", retryable=False)
        case aiohttp.ClientResponseError():
            return network_fault("stream_broken", f"the response of {where} is not HTTP")
        case _:
            return network_fault("stream_broken", f"the connection to {where} broke: {_describe_error(error)}")


def _describe_error(error: Exception) -> str:
    """Describe an error without the text of the library, which may quote the request."""
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return {
        "ServerDisconnectedError": "the server closed the connection",
        "ClientPayloadError": "the response is truncated or does not match its headers",
    }.get(type(error).__name__, type(error).__name__)
