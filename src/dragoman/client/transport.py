"""HTTP transport: requests to providers, direct or through a proxy. It is imported for the first call.

Every failure is raised as ``NetworkError`` with its fault. Proxies come from the environment (``HTTPS_PROXY``,
``NO_PROXY`` and so on), except for loopback addresses; what goes through one is sent by ``proxy``.

Invariant: a redirect to another scheme, host or port is not followed, since the request contains the API key.
"""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Final, Protocol, Self
from urllib.parse import urljoin

from dragoman.client.call import REDIRECTS, NetworkError
from dragoman.client.connections import ConnectionPool, Origin, split_url
from dragoman.exchange import ErrorClass, Fault

if TYPE_CHECKING:
    from dragoman.client.proxy import ProxyTransport

_METHOD_PRESERVED: Final = (307, 308)
_MAX_REDIRECTS: Final = 3
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class Response(Protocol):
    """A response whose headers have arrived. Leaving its ``with`` block discards the unread body."""

    status: int
    headers: dict[str, str]

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def is_complete(self) -> bool:
        """Whether the whole body was read."""

    async def read_chunk(self, timeout_s: float | None) -> bytes:
        """Return the next bytes, empty at the end; ``TimeoutError`` after ``timeout_s``."""

    def take_body(self) -> bytes | None:
        """Return the rest of the body if it has arrived in one piece; none if it has to be read in chunks."""

    async def pause(self, seconds: float) -> None:
        """Receive nothing for a time, so that more arrives with the next read."""


class Transport:
    """Sends requests to providers."""

    def __init__(self) -> None:
        self._pool = ConnectionPool()
        self._proxies: dict[Origin, str | None] = {}
        self._proxy_transport: ProxyTransport | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
        if self._proxy_transport is not None:
            await self._proxy_transport.close()

    async def post(
        self, address: str, headers: dict[str, str], body: bytes, *, connect_s: float, head_s: float
    ) -> Response:
        """Send a request and return its response when the headers have arrived. Use it in a ``with`` block."""
        response: Response
        for _ in range(_MAX_REDIRECTS + 1):
            proxy = self._find_proxy(split_url(address)[0])
            if proxy is None:
                response = await self._pool.post(address, headers, body, connect_s=connect_s, head_s=head_s)
            else:
                transport = self._get_proxy_transport()
                response = await transport.post(address, headers, body, proxy, connect_s=connect_s, head_s=head_s)
            if response.status not in REDIRECTS:
                return response
            address = _redirect_target(address, response)
        raise NetworkError(_redirect_fault("too many redirects"))

    def _get_proxy_transport(self) -> ProxyTransport:
        if self._proxy_transport is None:
            from dragoman.client.proxy import ProxyTransport  # noqa: PLC0415  aiohttp is slow to import

            self._proxy_transport = ProxyTransport()
        return self._proxy_transport

    def _find_proxy(self, origin: Origin) -> str | None:
        if origin.host in _LOOPBACK_HOSTS:
            return None
        if origin not in self._proxies:
            is_direct = urllib.request.proxy_bypass(origin.host)
            proxies = urllib.request.getproxies()
            self._proxies[origin] = (
                None if is_direct else proxies.get("https" if origin.is_secure else "http") or proxies.get("all")
            )
        return self._proxies[origin]


def _redirect_target(address: str, response: Response) -> str:
    """Return the target of a redirect within the same origin."""
    with response:
        target = urljoin(address, response.headers.get("location", ""))
    try:
        origin, path = split_url(target)
    except NetworkError:
        raise NetworkError(_redirect_fault("redirect to an invalid URL")) from None
    if origin != split_url(address)[0]:
        raise NetworkError(_redirect_fault(f"redirect to {origin.host}; the API key is not sent there"))
    if response.status not in _METHOD_PRESERVED:
        raise NetworkError(_redirect_fault(f"redirect to {path.partition('?')[0]} that drops the request body"))
    return target


def _redirect_fault(what: str) -> Fault:
    return Fault(code="bad_content_type", message=f"{what}. Check the base URL.", error_class=ErrorClass.OTHER)
