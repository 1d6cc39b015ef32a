"""Bytes to a provider and back, over aiohttp. It is loaded when the first call is made.

Whatever goes wrong here is raised as ``Broken``, which holds the fault. Proxies are those of the environment
(``HTTPS_PROXY``, ``NO_PROXY`` and their like), except for this machine itself. The one rule: no redirect is followed to
another scheme, host or port, because the key would go along.
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

from dragoman.client.broken import NetworkError, network_fault
from dragoman.exchange import ErrorClass, Fault

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_METHOD_PRESERVED: Final = (307, 308)
_MAX_REDIRECTS: Final = 3
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class Response:
    """An answer whose head has arrived. What was not read of it when its ``with`` ends is cut off."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.release()  # kept for the next call if it was read to its end, else closed

    async def read_chunk(self, timeout_s: float | None) -> bytes:
        """What arrives next, or nothing at the end. ``TimeoutError`` if that takes too long."""
        content = self._response.content
        try:
            if (piece := content.read_nowait(-1)) or content.at_eof():
                return piece  # it was there already
            async with asyncio.timeout(timeout_s):
                return await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            if buffer := _read_buffer(self._response.content):
                return buffer
            raise NetworkError(
                network_fault("stream_broken", f"the connection broke: {_describe_error(error)}")
            ) from error


class Transport:
    """One pool of connections, kept for the next call."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),  # how many at once is for the callers to say
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent",),
            trace_configs=[_trace_reuse()],
        )
        self._proxies: dict[str, str | None] = {}

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def post(
        self, address: str, headers: dict[str, str], body: bytes, *, connect_s: float, head_s: float
    ) -> Response:
        """The answer to a request, once its head is there, to be used in a ``with``."""
        return Response(await self._send(_parse_url(address), headers, body, connect_s, head_s))

    async def _send(
        self, url: URL, headers: dict[str, str], body: bytes, connect_s: float, head_s: float
    ) -> aiohttp.ClientResponse:
        timeout = _connect_timeout(connect_s)
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                async with asyncio.timeout(head_s):
                    response = await self._post(url, headers, body, timeout)
            except (aiohttp.ClientError, OSError) as error:
                raise NetworkError(_to_fault(error, url)) from error
            if response.status not in _REDIRECTS:
                return response
            url = _redirect_target(url, response)
        raise NetworkError(_redirect_fault("it redirects without end"))

    async def _post(
        self, url: URL, headers: dict[str, str], body: bytes, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """What is answered. A kept connection may have been closed by the other side just now: then by the next one."""
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

    def _find_proxy(self, url: URL) -> str | None:
        if url.host in _LOOPBACK_HOSTS:
            return None
        origin = str(url.origin())
        if origin not in self._proxies:
            is_direct = urllib.request.proxy_bypass(url.host or "")
            proxies = urllib.request.getproxies()
            self._proxies[origin] = None if is_direct else proxies.get(url.scheme) or proxies.get("all")
        return self._proxies[origin]


@functools.lru_cache(maxsize=256)
def _parse_url(address: str) -> URL:
    return URL(address, encoded=True)


@functools.lru_cache(maxsize=16)
def _connect_timeout(timeout_s: float) -> aiohttp.ClientTimeout:
    """The rest is waited for here."""
    return aiohttp.ClientTimeout(total=None, sock_connect=timeout_s)


def _read_buffer(content: aiohttp.StreamReader) -> bytes:
    """What had arrived when the connection broke, and was not read. aiohttp (3.14) has no public way to it."""
    read = getattr(content, "_read_nowait", None)
    return bytes(read(-1)) if read is not None else b""


def _trace_reuse() -> aiohttp.TraceConfig:
    """A trace that notes in the list of a request whether its connection had been used before."""

    async def on_reuse(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.append(True)

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(on_reuse)
    return trace


def _redirect_target(url: URL, response: aiohttp.ClientResponse) -> URL:
    """Where it is redirected to, if that is the same place."""
    response.release()
    try:
        target = url.join(URL(response.headers.get("location", "")))
        is_same_place = target.origin() == url.origin()
    except ValueError:
        raise NetworkError(_redirect_fault("it redirects to what is no address")) from None
    if not is_same_place:
        raise NetworkError(_redirect_fault(f"it redirects to {target.host}, which was not asked: the key stays here"))
    if response.status not in _METHOD_PRESERVED:
        raise NetworkError(_redirect_fault(f"it redirects to {target.path}, and not what was asked along with it"))
    return target


def _redirect_fault(what: str) -> Fault:
    return Fault(code="bad_content_type", message=f"{what}. Is the base URL right?", error_class=ErrorClass.OTHER)


def _to_fault(error: Exception, url: URL) -> Fault:
    """What a failure before any answer was."""
    where = f"{url.host}:{url.port}"
    match error:
        case aiohttp.ConnectionTimeoutError():
            return network_fault("unreachable", f"no connection to {where} in time")
        case TimeoutError():
            return network_fault("timeout", f"{where} did not begin to answer in time")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLError() | aiohttp.ClientSSLError():
            return network_fault(
                "unreachable", f"no safe connection to {where}: {_describe_error(error)}", retryable=False
            )
        case aiohttp.ClientConnectorError() | aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return network_fault("unreachable", f"no connection to {where}: {_describe_error(error)}")
        case aiohttp.InvalidURL():
            return network_fault("unreachable", f"{where} is no address", retryable=False)
        case aiohttp.ClientResponseError():
            return network_fault("stream_broken", f"what {where} answered is not HTTP")
        case _:
            return network_fault("stream_broken", f"the connection to {where} broke: {_describe_error(error)}")


def _describe_error(error: Exception) -> str:
    """Why, in the system's words if it has any. Never the text of the library: it may quote what was sent."""
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return {
        "ServerDisconnectedError": "the server hung up",
        "ClientPayloadError": "it was cut off, or was not what its head said",
    }.get(type(error).__name__, type(error).__name__)
