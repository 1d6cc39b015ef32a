"""An HTTP/1.1 connection to a provider: one request at a time, and its response in chunks.

    connection = await open_connection(origin)
    connection.send(head, body)
    status, headers = await connection.read_head(timeout_s)
    data = await connection.read_body(timeout_s)           empty at the end; then ``is_reusable`` may be true

What arrives is kept as it is, and parsed when it is read: many small parts that arrived together cost little more than
one. Invariant: at most ``_MAX_BUFFER`` bytes are kept, and the rest waits at the sender.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from aiohappyeyeballs import start_connection

_MAX_BUFFER: Final = 256 * 1024
_MAX_HEAD: Final = 64 * 1024
_MAX_SIZE_LINE: Final = 4096  # of a chunk, with extensions
_EYEBALLS_DELAY_S: Final = 0.25  # before the next address of a host is tried, too
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_SIZE_LINE: Final = rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n"
_FIRST_SIZE: Final = re.compile(_SIZE_LINE).match
_NEXT_SIZE: Final = re.compile(rb"\r\n" + _SIZE_LINE).match
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ProtocolError(Exception):
    """Bytes that are not an HTTP response."""


class Origin(NamedTuple):
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int


@functools.lru_cache(maxsize=256)
def split_url(address: str) -> tuple[Origin, str, SplitResult]:
    """Return the origin, the request target and the parts of a URL; ``ValueError`` if it is not an HTTP URL."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or set(address) & set(" \r\n\t"):
        raise ValueError("not an HTTP URL")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.scheme, host, port), target, parts


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The TLS settings of all connections: the certificate authorities of the system."""
    return ssl.create_default_context()


async def open_connection(origin: Origin) -> Connection:
    """Connect to an origin. Raises ``OSError``, of which ``ssl.SSLError`` is a kind."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    sock = await start_connection(addresses, happy_eyeballs_delay=_EYEBALLS_DELAY_S, interleave=1)
    try:
        is_tls = origin.scheme == "https"
        tls: dict[str, Any] = {"ssl": tls_context(), "server_hostname": origin.host} if is_tls else {}
        _, connection = await loop.create_connection(lambda: Connection(loop), sock=sock, **tls)
    except BaseException:
        sock.close()
        raise
    return connection


class Connection(asyncio.Protocol):
    """A connection and the response that it receives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []  # as they arrived
        self._size = 0  # of all pieces
        self._is_paused = False
        self._is_closed = False
        self.error: Exception | None = None  # by which the connection was lost
        self._waiter: asyncio.Future[None] | None = None
        self.is_used = False  # a response was received before
        self.idle_since = 0.0
        self._start_response()

    def _start_response(self) -> None:
        self.has_response = False  # bytes of it arrived
        self.is_complete = False
        self._is_persistent = False
        self._is_chunked = False
        self._left: int | None = 0  # bytes of the body or of the chunk; None: until the connection closes
        self._is_first_chunk = True
        self._is_trailer = False

    # --- callbacks of the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep bytes until they are read."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _MAX_BUFFER:
            self.pause()
        self._wake()

    def eof_received(self) -> None:
        """Close the connection, because the other end did."""
        self._is_closed = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note why the connection is gone."""
        self._is_closed = True
        self.error = exc
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- requests ----------------------------------------------------------------------------------------------------

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request."""
        self._start_response()
        self._transport.write(head + body)

    @property
    def is_open(self) -> bool:
        """Whether the connection is idle and can take a request."""
        return not self._is_closed and not self._size

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can take another request after this response."""
        return self.is_complete and self._is_persistent and self.is_open

    def close(self) -> None:
        """Close the connection at once."""
        self._is_closed = True
        self._transport.abort()

    def pause(self) -> None:
        """Receive nothing more: what arrives waits in the buffers of the system."""
        if not self._is_paused and not self._is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Receive again."""
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self._transport.resume_reading()

    # --- responses ---------------------------------------------------------------------------------------------------

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for bytes or the end; ``TimeoutError`` after ``timeout_s``."""
        self._waiter = waiter = self._loop.create_future()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, _expire, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _take(self) -> bytes:
        """Return the bytes that arrived, and receive again."""
        data = b"".join(self._pieces) if len(self._pieces) != 1 else self._pieces[0]
        self._pieces.clear()
        self._size = 0
        return data

    def _keep(self, data: bytes) -> None:
        """Keep bytes that cannot be parsed yet."""
        if data:
            self._pieces.insert(0, data)
            self._size += len(data)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers. ``ProtocolError`` if they are not HTTP, ``ConnectionError`` if there are none."""
        data = b""
        while True:
            data += self._take()
            self.has_response = self.has_response or bool(data)
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                head, data = data[:end], data[end + 4 :]
                status, headers = self._parse_head(head)
                if status >= 200:
                    self._keep(data)
                    return status, headers
                continue  # an interim response
            if len(data) > _MAX_HEAD or not b"HTTP/1.".startswith(data[:7]):
                raise ProtocolError("the response is not HTTP")
            if self._is_closed:
                raise self.error or ConnectionResetError()
            await self._wait(None)

    def _parse_head(self, head: bytes) -> tuple[int, dict[str, str]]:
        first, *lines = head.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if match is None:
            raise ProtocolError("the response is not HTTP")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.decode("utf-8", "replace").partition(":")
            if not colon or not _NAME.fullmatch(name):
                raise ProtocolError("the response has an invalid header")
            headers[name.lower()] = value.strip(" \t")
        status = int(match[2])
        self._start_body(status, headers, is_persistent=match[1] == b"1")
        return status, headers

    def _start_body(self, status: int, headers: dict[str, str], *, is_persistent: bool) -> None:
        self._is_persistent = is_persistent and headers.get("connection", "").lower() != "close"
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        if self._is_chunked:
            self._left = 0
        elif length is not None and not _LENGTH.fullmatch(length):
            raise ProtocolError("the response has an invalid content-length")
        else:
            self._left = None if length is None else int(length)
        if status in (204, 304):
            self._is_chunked, self._left = False, 0
        self.is_complete = not self._is_chunked and self._left == 0

    async def read_body(self, timeout_s: float | None) -> bytes:
        """Return the next bytes, empty at the end; ``TimeoutError`` after ``timeout_s``.

        ``ProtocolError`` and ``ConnectionError`` if the body is damaged or cut.
        """
        while not self.is_complete:
            data = self._parse_body() if self._size else b""
            if data or self._is_at_end():
                return data
            self.resume()
            await self._wait(timeout_s)
        return b""

    def _is_at_end(self) -> bool:
        """Whether the body is complete; an error if the connection is closed before."""
        if self.is_complete or not self._is_closed:
            return self.is_complete
        if self._left is None and self.error is None:
            self.is_complete = True
            return True
        raise self.error or ProtocolError("the response is truncated or does not match its headers")

    def _parse_body(self) -> bytes:
        data = self._take()
        if self._is_trailer:
            self._keep(self._read_trailer(data))
            return b""
        if self._is_chunked:
            return self._parse_chunks(data)
        if self._left is None:
            return data
        body, rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.is_complete = not self._left
        self._keep(rest)
        return body

    def _parse_chunks(self, data: bytes) -> bytes:
        """Return the content of the chunks, and keep an incomplete line."""
        parts, at = [data[: self._left]], self._left or 0
        size = len(data)
        while at <= size:  # the chunk that ends there has arrived
            line = self._next_size(data, at)
            if line is None:
                break
            left, start = int(line[1], 16), line.end()
            self._is_first_chunk = False
            if not left:
                self._is_trailer = True
                self._keep(self._read_trailer(data[start:]))
                return b"".join(parts)
            at = start + left
            parts.append(data[start:at])
        self._left = max(0, at - size)
        self._keep(data[at:])
        return b"".join(parts)

    def _next_size(self, data: bytes, at: int) -> re.Match[bytes] | None:
        """Return the line end of a chunk and the size of the next one; none if they have not arrived."""
        line = (_FIRST_SIZE if self._is_first_chunk else _NEXT_SIZE)(data, at)
        if line is None and (len(data) - at > _MAX_SIZE_LINE or b"\n" in data[at + 2 :]):
            raise ProtocolError("the response has an invalid chunk")
        return line

    def _read_trailer(self, data: bytes) -> bytes:
        """Skip the fields after the last chunk; return what is left of the bytes."""
        while not self.is_complete and (end := data.find(b"\r\n")) >= 0:
            self.is_complete = not end
            data = data[end + 2 :]
        if len(data) > _MAX_HEAD:
            raise ProtocolError("the response has an invalid chunk")
        return data


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
