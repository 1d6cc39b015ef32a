"""HTTP transport over aiohttp. It is imported for the first call.

Every failure is raised as ``NetworkError`` with its fault. Proxies come from the environment (``HTTPS_PROXY``,
``NO_PROXY`` and so on), except for loopback addresses.

Invariant: a redirect to another scheme, host or port is not followed, since the request contains the API key.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import urllib.request
from types import SimpleNamespace
from typing import Final, Self

import aiohttp
from yarl import URL

from dragoman.client.call import REDIRECTS, NetworkError, network_fault
from dragoman.exchange import ErrorClass, Fault

_METHOD_PRESERVED: Final = (307, 308)
_MAX_REDIRECTS: Final = 3
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class Response:
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


class Transport:
    """A connection pool."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),  # callers limit their concurrency
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent",),
            trace_configs=[_trace_reuse()],
        )
        self._proxies: dict[tuple[str, str], str | None] = {}  # by scheme and host

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def post(
        self, address: str, headers: dict[str, str], body: bytes, *, connect_s: float, head_s: float
    ) -> Response:
        """Send a request and return its response when the headers have arrived. Use it in a ``with`` block."""
        url, timeout = _parse_url(address), _connect_timeout(connect_s)
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                async with asyncio.timeout(head_s):
                    response = await self._post(url, headers, body, timeout)
            except (aiohttp.ClientError, OSError) as error:
                raise NetworkError(_to_fault(error, url)) from error
            if response.status not in REDIRECTS:
                return Response(response)
            url = _redirect_target(url, response)
        raise NetworkError(_redirect_fault("too many redirects"))

    async def _post(
        self, url: URL, headers: dict[str, str], body: bytes, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send a request; if the server has closed a pooled connection, use the next one."""
        while True:
            reused: list[bool] = []
            try:
                return await self._session.post(
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._find_proxy(url),
                    timeout=timeout,
                    trace_request_ctx=reused,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not reused or isinstance(error, aiohttp.ClientConnectorError):
                    raise

    def needs_proxy(self, address: str) -> bool:
        """Whether requests to a URL go through a proxy."""
        return self._find_proxy(_parse_url(address)) is not None

    def _find_proxy(self, url: URL) -> str | None:
        if url.host in _LOOPBACK_HOSTS:
            return None
        origin = (url.scheme, url.host or "")
        if origin not in self._proxies:
            is_direct = urllib.request.proxy_bypass(origin[1])
            proxies = urllib.request.getproxies()
            self._proxies[origin] = None if is_direct else proxies.get(url.scheme) or proxies.get("all")
        return self._proxies[origin]


@functools.lru_cache(maxsize=256)
def _parse_url(address: str) -> URL:
    return URL(address, encoded=True)


@functools.lru_cache(maxsize=16)
def _connect_timeout(timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=timeout_s)


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


def _redirect_target(url: URL, response: aiohttp.ClientResponse) -> URL:
    """Return the target of a redirect within the same origin."""
    response.release()
    try:
        target = url.join(URL(response.headers.get("location", "")))
        is_same_origin = target.origin() == url.origin()
    except ValueError:
        raise NetworkError(_redirect_fault("redirect to an invalid URL")) from None
    if not is_same_origin:
        raise NetworkError(_redirect_fault(f"redirect to {target.host}; the API key is not sent there"))
    if response.status not in _METHOD_PRESERVED:
        raise NetworkError(_redirect_fault(f"redirect to {target.path} that drops the request body"))
    return target


def _redirect_fault(what: str) -> Fault:
    return Fault(code="bad_content_type", message=f"{what}. Check the base URL.", error_class=ErrorClass.OTHER)


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
