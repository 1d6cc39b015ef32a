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

from dragoman.client.broken import Broken, network_fault
from dragoman.exchange import ErrorClass, Fault

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_KEEPING_THE_METHOD: Final = (307, 308)
_MOST_REDIRECTS: Final = 3
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


class Answer:
    """An answer whose head has arrived. What was not read of it when its ``with`` ends is cut off."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.release()  # kept for the next call if it was read to its end, else closed

    async def piece(self, within_s: float | None) -> bytes:
        """What arrives next, or nothing at the end. ``TimeoutError`` if that takes too long."""
        content = self._response.content
        try:
            if (piece := content.read_nowait(-1)) or content.at_eof():
                return piece  # it was there already
            async with asyncio.timeout(within_s):
                return await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            if left := _left_in(self._response.content):
                return left
            raise Broken(network_fault("stream_broken", f"the connection broke: {_reason(error)}")) from error


class Transport:
    """One pool of connections, kept for the next call."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),  # how many at once is for the callers to say
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent",),
            trace_configs=[_noting_reuse()],
        )
        self._proxies: dict[str, str | None] = {}

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def post(
        self, address: str, headers: dict[str, str], body: bytes, *, connect_s: float, head_s: float
    ) -> Answer:
        """The answer to a request, once its head is there, to be used in a ``with``."""
        return Answer(await self._asked(_url_of(address), headers, body, connect_s, head_s))

    async def _asked(
        self, url: URL, headers: dict[str, str], body: bytes, connect_s: float, head_s: float
    ) -> aiohttp.ClientResponse:
        timeout = _only_to_connect(connect_s)
        for _ in range(_MOST_REDIRECTS + 1):
            try:
                async with asyncio.timeout(head_s):
                    response = await self._posted(url, headers, body, timeout)
            except (aiohttp.ClientError, OSError) as error:
                raise Broken(_fault_of(error, url)) from error
            if response.status not in _REDIRECTS:
                return response
            url = _redirected(url, response)
        raise Broken(_misled("it redirects without end"))

    async def _posted(
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
                    proxy=self._proxy_for(url),
                    timeout=timeout,
                    trace_request_ctx=reused,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not reused or isinstance(error, aiohttp.ClientConnectorError):
                    raise

    def _proxy_for(self, url: URL) -> str | None:
        if url.host in _THIS_MACHINE:
            return None
        origin = str(url.origin())
        if origin not in self._proxies:
            is_direct = urllib.request.proxy_bypass(url.host or "")
            known = urllib.request.getproxies()
            self._proxies[origin] = None if is_direct else known.get(url.scheme) or known.get("all")
        return self._proxies[origin]


@functools.lru_cache(maxsize=256)
def _url_of(address: str) -> URL:
    return URL(address, encoded=True)


@functools.lru_cache(maxsize=16)
def _only_to_connect(within_s: float) -> aiohttp.ClientTimeout:
    """The rest is waited for here."""
    return aiohttp.ClientTimeout(total=None, sock_connect=within_s)


def _left_in(content: aiohttp.StreamReader) -> bytes:
    """What had arrived when the connection broke, and was not read. aiohttp (3.14) has no public way to it."""
    read = getattr(content, "_read_nowait", None)
    return bytes(read(-1)) if read is not None else b""


def _noting_reuse() -> aiohttp.TraceConfig:
    """A trace that notes in the list of a request whether its connection had been used before."""

    async def note(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.append(True)

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note)
    return trace


def _redirected(url: URL, response: aiohttp.ClientResponse) -> URL:
    """Where it is redirected to, if that is the same place."""
    response.release()
    try:
        target = url.join(URL(response.headers.get("location", "")))
        is_same_place = target.origin() == url.origin()
    except ValueError:
        raise Broken(_misled("it redirects to what is no address")) from None
    if not is_same_place:
        raise Broken(_misled(f"it redirects to {target.host}, which was not asked: the key stays here"))
    if response.status not in _KEEPING_THE_METHOD:
        raise Broken(_misled(f"it redirects to {target.path}, and not what was asked along with it"))
    return target


def _misled(what: str) -> Fault:
    return Fault(code="bad_content_type", message=f"{what}. Is the base URL right?", error_class=ErrorClass.OTHER)


def _fault_of(error: Exception, url: URL) -> Fault:
    """What a failure before any answer was."""
    where = f"{url.host}:{url.port}"
    match error:
        case aiohttp.ConnectionTimeoutError():
            return network_fault("unreachable", f"no connection to {where} in time")
        case TimeoutError():
            return network_fault("timeout", f"{where} did not begin to answer in time")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLError() | aiohttp.ClientSSLError():
            return network_fault("unreachable", f"no safe connection to {where}: {_reason(error)}", retryable=False)
        case aiohttp.ClientConnectorError() | aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return network_fault("unreachable", f"no connection to {where}: {_reason(error)}")
        case aiohttp.InvalidURL():
            return network_fault("unreachable", f"{where} is no address", retryable=False)
        case aiohttp.ClientResponseError():
            return network_fault("stream_broken", f"what {where} answered is not HTTP")
        case _:
            return network_fault("stream_broken", f"the connection to {where} broke: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Why, in the system's words if it has any. Never the text of the library: it may quote what was sent."""
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return {
        "ServerDisconnectedError": "the server hung up",
        "ClientPayloadError": "it was cut off, or was not what its head said",
    }.get(type(error).__name__, type(error).__name__)
