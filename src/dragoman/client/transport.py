"""HTTP transport: connections to providers, kept in a pool. It is imported for the first call.

Every failure is raised as ``NetworkError`` with its fault. Proxies come from the environment (``HTTPS_PROXY``,
``NO_PROXY`` and so on), except for loopback addresses; what goes through one is sent by ``proxy``.

Invariant: a redirect to another scheme, host or port is not followed, since the request contains the API key.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import urllib.request
import zlib
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, Protocol, Self
from urllib.parse import SplitResult, unquote, urljoin

from dragoman.client.call import REDIRECTS, NetworkError, network_fault
from dragoman.client.connection import Connection, Origin, ProtocolError, open_connection, split_url
from dragoman.exchange import ErrorClass, Fault

if TYPE_CHECKING:
    from dragoman.client.proxy import ProxyTransport

_METHOD_PRESERVED: Final = (307, 308)
_MAX_REDIRECTS: Final = 3
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_KEEP_ALIVE_S: Final = 60.0
_DECODED_BYTES: Final = 256 * 1024  # of a compressed body, per read


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

    async def pause(self, seconds: float) -> None:
        """Receive nothing for a time, so that more arrives with the next read."""


class DirectResponse:
    """A response on a connection of the pool, which gets the connection back."""

    def __init__(self, pool: _Pool, connection: Connection, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._pool = pool
        self._connection = connection
        encoding = headers.get("content-encoding", "identity").lower()
        self._decoder = None if encoding in ("", "identity") else _make_decoder(encoding)
        self._encoded = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.release(self._connection)

    @property
    def is_complete(self) -> bool:
        """Whether the whole body was read."""
        return self._connection.is_complete and not self._encoded

    async def read_chunk(self, timeout_s: float | None) -> bytes:
        """Return the next bytes, empty at the end; ``TimeoutError`` after ``timeout_s``."""
        try:
            if self._decoder is not None:
                return await self._read_decoded(self._decoder, timeout_s)
            return await self._connection.read_body(timeout_s)
        except TimeoutError:
            raise
        except (OSError, ProtocolError, zlib.error) as error:
            fault = network_fault("stream_broken", f"the connection broke: {describe_error(error)}")
            raise NetworkError(fault) from error

    async def _read_decoded(self, decoder: zlib._Decompress, timeout_s: float | None) -> bytes:
        while True:
            encoded = self._encoded or await self._connection.read_body(timeout_s)
            data = decoder.decompress(encoded, _DECODED_BYTES)
            self._encoded = decoder.unconsumed_tail
            if data:
                return data
            if not encoded:
                if not decoder.eof:
                    raise ProtocolError("the response is truncated or does not match its headers")
                return b""

    async def pause(self, seconds: float) -> None:
        """Receive nothing for a time, so that more arrives with the next read."""
        self._connection.pause()
        await asyncio.sleep(seconds)


def _make_decoder(encoding: str) -> zlib._Decompress:
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NetworkError(network_fault("stream_broken", f"the response has the unknown encoding {encoding[:40]}"))
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # with the header of gzip or of zlib


class _Pool:
    """Idle connections by origin."""

    def __init__(self) -> None:
        self._idle: defaultdict[Origin, deque[Connection]] = defaultdict(deque)
        self._origins: dict[Connection, Origin] = {}  # of connections in use
        self._timer: asyncio.TimerHandle | None = None

    def pop(self, origin: Origin) -> Connection | None:
        """Return an idle connection, the newest first."""
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()
            if connection.is_open:
                self._origins[connection] = origin
                return connection
            connection.close()
        return None

    def add(self, origin: Origin, connection: Connection) -> None:
        """Note that a new connection is in use."""
        self._origins[connection] = origin

    def release(self, connection: Connection) -> None:
        """Keep a connection whose response was read to its end, and close any other."""
        origin = self._origins.pop(connection, None)
        if origin is None or not connection.is_reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.resume()  # notices when the server closes it
        connection.is_used, connection.idle_since = True, loop.time()
        self._idle[origin].append(connection)
        if self._timer is None:
            self._timer = loop.call_later(_KEEP_ALIVE_S, self._close_old)

    def _close_old(self) -> None:
        """Close connections that were idle for long."""
        loop = asyncio.get_running_loop()
        for origin, idle in list(self._idle.items()):
            while idle and (not idle[0].is_open or idle[0].idle_since <= loop.time() - _KEEP_ALIVE_S):
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        self._timer = loop.call_later(_KEEP_ALIVE_S / 4, self._close_old) if self._idle else None

    def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in (*self._origins, *(each for idle in self._idle.values() for each in idle)):
            connection.close()
        self._origins.clear()
        self._idle.clear()


class Transport:
    """Sends requests to providers."""

    def __init__(self) -> None:
        self._pool = _Pool()
        self._proxies: dict[Origin, str | None] = {}
        self._proxy_transport: ProxyTransport | None = None

    async def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        if self._proxy_transport is not None:
            await self._proxy_transport.close()

    async def post(
        self, address: str, headers: dict[str, str], body: bytes, *, connect_s: float, head_s: float
    ) -> Response:
        """Send a request and return its response when the headers have arrived. Use it in a ``with`` block."""
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                origin, target, parts = split_url(address)
            except ValueError as error:
                fault = network_fault("unreachable", "the address is not a valid URL", retryable=False)
                raise NetworkError(fault) from error
            try:
                async with asyncio.timeout(head_s):
                    response = await self._post(origin, (target, parts), headers, body, connect_s)
            except (OSError, ProtocolError) as error:
                raise NetworkError(_to_fault(error, origin)) from error
            if response.status not in REDIRECTS:
                return response
            address = _redirect_target(address, response)
        raise NetworkError(_redirect_fault("too many redirects"))

    async def _post(
        self,
        origin: Origin,
        request: tuple[str, SplitResult],
        headers: dict[str, str],
        body: bytes,
        connect_s: float,
    ) -> Response:
        target, parts = request
        proxy = self._find_proxy(origin)
        if proxy is not None:
            return await self._get_proxy_transport().post(parts.geturl(), headers, body, proxy, connect_s)
        head = _write_head(origin, target, parts, headers, len(body))
        while True:
            connection = self._pool.pop(origin) or await self._connect(origin, connect_s)
            try:
                connection.send(head, body)
                status, response_headers = await connection.read_head()
                return DirectResponse(self._pool, connection, status, response_headers)
            except (OSError, ProtocolError):
                self._pool.release(connection)
                if not connection.is_used or connection.has_response:
                    raise  # else the server has closed an idle connection: use the next one
            except BaseException:
                self._pool.release(connection)
                raise

    async def _connect(self, origin: Origin, connect_s: float) -> Connection:
        try:
            async with asyncio.timeout(connect_s):
                connection = await open_connection(origin)
        except TimeoutError:
            fault = network_fault("unreachable", f"connecting to {origin.host}:{origin.port} timed out")
            raise NetworkError(fault) from None
        except OSError as error:
            raise NetworkError(_connect_fault(error, origin)) from error
        self._pool.add(origin, connection)
        return connection

    def _get_proxy_transport(self) -> ProxyTransport:
        if self._proxy_transport is None:
            from dragoman.client.proxy import ProxyTransport  # noqa: PLC0415  aiohttp is slow to import

            self._proxy_transport = ProxyTransport()
        return self._proxy_transport

    def needs_proxy(self, address: str) -> bool:
        """Whether requests to a URL go through a proxy."""
        try:
            return self._find_proxy(split_url(address)[0]) is not None
        except ValueError:
            return False  # the request fails

    def _find_proxy(self, origin: Origin) -> str | None:
        if origin.host in _LOOPBACK_HOSTS:
            return None
        if origin not in self._proxies:
            is_direct = urllib.request.proxy_bypass(origin.host)
            proxies = urllib.request.getproxies()
            self._proxies[origin] = None if is_direct else proxies.get(origin.scheme) or proxies.get("all")
        return self._proxies[origin]


def _write_head(origin: Origin, target: str, parts: SplitResult, headers: dict[str, str], size: int) -> bytes:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    is_default_port = origin.port == (443 if origin.scheme == "https" else 80)
    fields = {"host": host if is_default_port else f"{host}:{origin.port}", "accept-encoding": "gzip, deflate"}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        fields["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    fields |= headers
    fields["content-length"] = str(size)
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise ValueError("a header contains a line end")
    return "\r\n".join((*lines, "", "")).encode()


def _redirect_target(address: str, response: Response) -> str:
    """Return the target of a redirect within the same origin."""
    with response:
        target = urljoin(address, response.headers.get("location", ""))
    try:
        origin, _, parts = split_url(target)
    except ValueError:
        raise NetworkError(_redirect_fault("redirect to an invalid URL")) from None
    if origin != split_url(address)[0]:
        raise NetworkError(_redirect_fault(f"redirect to {origin.host}; the API key is not sent there"))
    if response.status not in _METHOD_PRESERVED:
        raise NetworkError(_redirect_fault(f"redirect to {parts.path} that drops the request body"))
    return target


def _redirect_fault(what: str) -> Fault:
    return Fault(code="bad_content_type", message=f"{what}. Check the base URL.", error_class=ErrorClass.OTHER)


def _connect_fault(error: OSError, origin: Origin) -> Fault:
    where, reason = f"{origin.host}:{origin.port}", describe_error(error)
    if isinstance(error, ssl.SSLError):
        return network_fault("unreachable", f"no secure connection to {where}: {reason}", retryable=False)
    return network_fault("unreachable", f"no connection to {where}: {reason}")


def _to_fault(error: Exception, origin: Origin) -> Fault:
    """Convert a failure before the head of a response."""
    where = f"{origin.host}:{origin.port}"
    match error:
        case TimeoutError():
            return network_fault("timeout", f"the response of {where} timed out")
        case ProtocolError():
            return network_fault("stream_broken", f"the response of {where} is not HTTP")
        case _:
            return network_fault("stream_broken", f"the connection to {where} broke: {describe_error(error)}")


def describe_error(error: Exception) -> str:
    """Describe an error without the text of a library, which may quote the request."""
    if isinstance(error, ProtocolError):
        return str(error)
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, ConnectionError):
        return "the server closed the connection"
    return type(error).__name__
