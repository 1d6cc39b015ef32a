"""Direct connections to providers: HTTP/1.1 with keep-alive, on protocols of the event loop.

    pool = ConnectionPool()
    response = await pool.post(url, headers, body, connect_s=…, head_s=…)     when the headers have arrived
    await response.read_chunk(timeout_s)                                      the next bytes; empty at the end
    response.close()

A connection returns to the pool as soon as the body is complete. A pooled connection that the provider has closed is
replaced by a new one if no byte of a response has arrived. A body without a reader pauses its connection.

Invariants: every wait has a time-out. A response whose connection breaks is never complete. The pool follows no
redirect and uses no proxy; ``transport`` does both.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import re
import socket
import ssl
import zlib
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs
import httptools
import msgspec

from dragoman.client.call import NetworkError, network_fault

_MAX_HEAD_BYTES: Final = 256 * 1024
_MAX_UNREAD_BYTES: Final = 64 * 1024  # of a body, before the connection is paused
_READ_BYTES: Final = 64 * 1024
_INFLATE_BYTES: Final = 1024 * 1024  # at most per step, so that a small body cannot expand to a huge one
_IDLE_S: Final = 60.0
_IS_URL: Final = re.compile(r"[^\s\x00-\x1f\x7f]+").fullmatch
_NEXT_ADDRESS_S: Final = 0.25  # before the next address of a host is tried as well
_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_ANY_HEADER: Final = zlib.MAX_WBITS | 32  # that of gzip or of zlib


class Origin(msgspec.Struct, frozen=True):
    """The server of a URL."""

    host: str
    port: int
    is_secure: bool


class ClosedEarlyError(Exception):
    """A connection was closed before any byte of the response."""

    def __init__(self, error: NetworkError) -> None:
        super().__init__(error.fault.code)
        self.error = error


class PoolResponse:
    """A response whose headers have arrived."""

    __slots__ = ("_chunks", "_connection", "_decoder", "_is_complete", "_size", "error", "headers", "status")

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_complete = False
        self.error: NetworkError | None = None
        self._decoder: _Decoder | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> PoolResponse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Discard what was not read. A connection whose body is incomplete is closed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def read_chunk(self, timeout_s: float | None) -> bytes:
        """Return the next bytes, empty at the end; ``TimeoutError`` after ``timeout_s``."""
        if self._decoder is not None:
            return await self._decoder.read(self, timeout_s)
        return await self.read_encoded(timeout_s)

    async def read_encoded(self, timeout_s: float | None) -> bytes:
        """Return the next bytes as they were sent."""
        while not self._chunks:
            if self._is_complete:
                return b""
            if self.error is not None:
                raise self.error
            if self._connection is None:
                raise _connection_error("the response was closed")
            self._connection.unpause()
            await self._connection.wait(timeout_s)
        chunks = self._take_chunks()
        if self._connection is not None and self._size <= _MAX_UNREAD_BYTES:
            self._connection.unpause()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _take_chunks(self) -> list[bytes]:
        """Remove about 64 KB at a time, so that a slow reader holds little memory."""
        count = size = 0
        for chunk in self._chunks:
            count += 1
            size += len(chunk)
            if size >= _READ_BYTES:
                break
        chunks, self._chunks = self._chunks[:count], self._chunks[count:]
        if size > 2 * _READ_BYTES:
            last = chunks.pop()
            part = len(last) - (size - _READ_BYTES)
            chunks.append(last[:part])
            self._chunks.insert(0, last[part:])
            size = _READ_BYTES
        self._size -= size
        return chunks

    def take_body(self) -> bytes | None:
        """Return the rest of the body if it has arrived in one piece; none if it has to be read in chunks."""
        chunks = self._chunks
        if not self._is_complete or self._decoder is not None or len(chunks) != 1 or self._size > _READ_BYTES:
            return None
        self._chunks, self._size = [], 0
        return chunks[0]

    async def pause(self, seconds: float) -> None:
        """Receive nothing for a time, so that more arrives with the next read."""
        if self._connection is not None:
            self._connection.pause()
        await asyncio.sleep(seconds)

    @property
    def is_complete(self) -> bool:
        """Whether the whole body was read."""
        return self._is_complete and not self._chunks and self._decoder is None

    def set_head(self, status: int, headers: dict[str, str]) -> None:
        """Store the status and the headers."""
        self.status, self.headers = status, headers
        encoding = headers.get("content-encoding")
        if encoding and encoding.lower() != "identity":
            self._decoder = _Decoder(encoding.lower())

    def add(self, data: bytes) -> bool:
        """Store bytes of the body; whether the connection must pause."""
        self._chunks.append(data)
        self._size += len(data)
        return self._size > _MAX_UNREAD_BYTES

    def complete(self) -> None:
        """Note the end of the body."""
        self._is_complete = True
        self._connection = None

    def fail(self, error: NetworkError) -> None:
        """Note that the connection broke."""
        self.error = error
        self._connection = None


class _Decoder:
    """Decompresses a body step by step."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._inflator: Any = zlib.decompressobj(_ANY_HEADER)

    async def read(self, response: PoolResponse, timeout_s: float | None) -> bytes:
        if self._encoding not in _ENCODINGS:
            raise _connection_error(f"the response has the unknown encoding {self._encoding[:40]}")
        while True:
            data = self._inflator.unconsumed_tail or await response.read_encoded(timeout_s)
            if not data:
                if not self._inflator.eof:
                    raise _connection_error("the compressed response is truncated")
                return b""
            try:
                text: bytes = self._inflator.decompress(data, _INFLATE_BYTES)
            except zlib.error:
                raise _connection_error("the response is not compressed as its headers declare") from None
            if text:
                return text


class Connection(asyncio.Protocol):
    """One connection. It has at most one request at a time."""

    def __init__(self, pool: ConnectionPool, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._origin = origin
        self._loop = loop
        self._body_parts: list[bytes] = []  # of the data that is being parsed
        self.on_body = self._body_parts.append  # of the parser, for each chunk: no function of Python is called
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._response: PoolResponse | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._in_head = True
        self._has_length = False
        self._is_paused = False
        self._is_lost = False
        self._keeps_alive = True

    # --- requests ----------------------------------------------------------------------------------------------------

    async def send(self, head: bytes, body: bytes, timeout_s: float) -> PoolResponse:
        """Send a request and return its response when the headers have arrived."""
        response = self._response = PoolResponse(self)
        self._in_head, self._head_bytes = True, 0
        if len(body) < 64 * 1024:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        try:
            while not response.status and response.error is None:
                await self.wait(timeout_s)
        except BaseException:
            response.close()
            raise
        if response.status:
            return response
        assert response.error is not None
        raise response.error if self._head_bytes else ClosedEarlyError(response.error)

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for news; ``TimeoutError`` after ``timeout_s``."""
        waiter = self._waiter = self._loop.create_future()
        if timeout_s is not None:
            self._set_deadline(timeout_s)
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # else the connection has the next request already
                self._waiter = None

    def abort(self) -> None:
        """Close the connection immediately."""
        response, self._response = self._response, None
        if response is not None:
            response.fail(_connection_error("it was closed"))
            self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.discard(self)
        self._transport.abort()

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        return not self._is_lost and not self._transport.is_closing()

    @property
    def origin(self) -> Origin:
        """The server at the other end."""
        return self._origin

    def pause(self) -> None:
        """Read nothing until ``unpause``."""
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def unpause(self) -> None:
        """Read on after a pause."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # --- time-outs: one timer, which is moved only when it fires -----------------------------------------------------

    def _set_deadline(self, timeout_s: float) -> None:
        self._deadline = deadline = self._loop.time() + timeout_s
        timer = self._timer
        if timer is None or timer.when() > deadline:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None and self._response is not None:
            return  # no request waits for the provider
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        elif self._waiter is None:  # idle
            self.abort()
        elif not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- events of the connection ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # nothing was requested
            self.abort()
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the response is not HTTP")
        else:
            if self._in_head and self._head_bytes > _MAX_HEAD_BYTES:
                self._fail("the head of the response is too large")
        if self._body_parts:
            self._add_body(response)
        if response.status:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.discard(self)
        response = self._response
        if response is None:
            return
        if exc is None and not self._in_head and not self._has_length:
            self._end_body()  # a body without a length ends with its connection
            self._wake()
        elif exc is None and self._in_head:
            self._fail("the server closed the connection")
        elif exc is None:
            self._fail("the response is truncated or does not match its headers")
        else:
            self._fail(describe_error(exc))

    def _fail(self, reason: str) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.fail(_connection_error(reason, None if response.status else self._origin))
        self._wake()
        if not self._is_lost:
            self.abort()

    # --- events of the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is None:
            raise ValueError("a response without a request")  # becomes an error of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, {}
        status = self._parser.get_status_code()
        if status < 200 or self._response is None:
            return
        self._in_head = False
        self._has_length = "content-length" in headers or "transfer-encoding" in headers
        self._keeps_alive = self._parser.should_keep_alive()
        self._response.set_head(status, headers)

    def on_message_complete(self) -> None:
        if not self._in_head:  # else it was an interim response
            self._end_body()

    def _add_body(self, response: PoolResponse) -> None:
        """Hand over the parts of the body that were parsed."""
        parts = self._body_parts
        if response.add(parts[0] if len(parts) == 1 else b"".join(parts)) and self._response is response:
            self.pause()
        parts.clear()

    def _end_body(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        response.complete()
        self._in_head = True
        self._head_bytes = 0
        self.unpause()
        has_sent_all = not self._transport.get_write_buffer_size()
        if self._is_lost or not self._keeps_alive or not has_sent_all:
            self._transport.close()
        else:
            self._set_deadline(_IDLE_S)
            self._pool.release(self)


class ConnectionPool:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._all: set[Connection] = set()

    async def post(
        self, url: str, headers: dict[str, str], body: bytes, *, connect_s: float, head_s: float
    ) -> PoolResponse:
        """Send a request and return its response when the headers have arrived."""
        origin = split_url(url)[0]
        head = b"%bcontent-length: %d\r\n\r\n" % (_encode_head(url, tuple(headers.items())), len(body))
        try:
            while (connection := self._take(origin)) is not None:
                try:
                    return await connection.send(head, body, head_s)
                except ClosedEarlyError:
                    continue
            connection = await self._connect(origin, connect_s)
            return await connection.send(head, body, head_s)
        except ClosedEarlyError as error:
            raise error.error from None
        except TimeoutError:
            where = f"{origin.host}:{origin.port}"
            raise NetworkError(network_fault("timeout", f"the response of {where} timed out")) from None

    @property
    def size(self) -> int:
        """Number of connections."""
        return len(self._all)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        self._idle.setdefault(connection.origin, []).append(connection)

    def discard(self, connection: Connection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    async def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._all):
            connection.abort()
        await asyncio.sleep(0)  # lets the event loop close the sockets

    def _take(self, origin: Origin) -> Connection | None:
        """Return the idle connection that was used last."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self, origin: Origin, timeout_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        where = f"{origin.host}:{origin.port}"
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
                sock = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1
                )
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _, connection = await loop.create_connection(
                    lambda: Connection(self, origin, loop),
                    sock=sock,
                    ssl=tls_context() if origin.is_secure else None,
                    server_hostname=origin.host if origin.is_secure else None,
                )
        except TimeoutError:
            raise NetworkError(network_fault("unreachable", f"connecting to {where} timed out")) from None
        except ssl.SSLError as error:
            message = f"no secure connection to {where}: {describe_error(error)}"
            raise NetworkError(network_fault("unreachable", message, retryable=False)) from error
        except OSError as error:
            message = f"no connection to {where}: {describe_error(error)}"
            raise NetworkError(network_fault("unreachable", message)) from error
        self._all.add(connection)
        return connection


@functools.lru_cache(maxsize=1024)
def split_url(url: str) -> tuple[Origin, str]:
    """Return the server of a URL, and the target of a request to it."""
    try:
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        host = (parts.hostname or "").encode("ascii" if url.isascii() else "idna").decode()
    except ValueError:  # also of an encoding
        host, port = "", 0
    if not host or not port or parts.scheme not in ("http", "https") or not _IS_URL(url):
        raise NetworkError(network_fault("unreachable", "the address is not a valid URL", retryable=False))
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(host, port, is_secure), target


@functools.lru_cache(maxsize=256)
def _encode_head(url: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return the head of a request up to the length of its body."""
    origin, target = split_url(url)
    fields = {"host": _host(origin), "accept-encoding": "gzip, deflate", **_basic_authorization(url), **dict(headers)}
    lines = [f"POST {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items())]
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise NetworkError(network_fault("unreachable", "a configured header contains a line break", retryable=False))
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _basic_authorization(url: str) -> dict[str, str]:
    """Return the header for a name and a password in a URL."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}


def _host(origin: Origin) -> str:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return host if origin.port == (443 if origin.is_secure else 80) else f"{host}:{origin.port}"


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The TLS settings of all connections: the certificate authorities of the system."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _connection_error(reason: str, origin: Origin | None = None) -> NetworkError:
    where = "the connection" if origin is None else f"the connection to {origin.host}:{origin.port}"
    return NetworkError(network_fault("stream_broken", f"{where} broke: {reason}"))


def describe_error(error: Exception) -> str:
    """Describe an error without the text of a library, which may quote the request."""
    if isinstance(error, OSError) and error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return type(error).__name__
