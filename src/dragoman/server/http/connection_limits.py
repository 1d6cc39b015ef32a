"""Limits of a connection: the size of a request head, and the time a request may take to arrive.

A request that stops, or arrives too slowly, is closed within ``read_timeout_s``. There is no limit for a client that
reads its response slowly. After an early response the rest of the body is read and discarded up to a limit, because a
client that still sends does not receive the response if the connection is reset.

A client of HTTP/1.0 cannot read chunks, which uvicorn sends to it as to others. Its response without a length ends with
the connection.

The head of a response is sent together with the first bytes of its body: uvicorn writes each on its own, and a write
to a socket takes longer than all other work for a small response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dragoman.server.auth.local_access import PEER, Peer
from dragoman.server.http.http_errors import ErrorBody, ErrorDetail

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
_MIN_BYTES: Final = 1024  # in half of the time-out


class ResponseTransport:
    """The transport of one response. It keeps the head until the body begins, or the event loop runs other work."""

    __slots__ = ("_head", "_is_started", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._is_started = False

    def write(self, data: bytes) -> None:
        """Send bytes; keep the first ones, which are the head."""
        if self._head:
            data, self._head = self._head + data, b""
        elif not self._is_started:
            self._is_started = True
            self._head = data
            asyncio.get_running_loop().call_soon(self._send_head)
            return
        self._transport.write(data)

    def _send_head(self) -> None:
        if self._head:
            self.write(b"")

    def is_closing(self) -> bool:
        """Whether the connection is closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        self._send_head()
        self._transport.close()


def _without_chunks(cycle: Any) -> Callable[[Any], Awaitable[None]]:
    """Return the ``send`` of a cycle that writes a body without a length as it is."""
    send = cycle.send

    async def send_unframed(message: Any) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message["headers"]):
                cycle.chunked_encoding = False
                cycle.has_no_length = True
        elif cycle.has_no_length:
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn compares them
        await send(message)

    cycle.has_no_length = False
    return send_unframed


class LimitedProtocol(HttpToolsProtocol):
    """A connection with limits."""

    read_timeout_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: Peer(self.client, self.server)}  # for every request of the connection
        self._is_due = True  # a request, or the rest of one
        self._was_due = False
        self._bytes_received = 0
        self._in_head = True
        self._head_bytes = 0
        self._discarded_bytes = 0
        self._is_rejected = False
        self._progress_timer = self.loop.call_later(self.read_timeout_s / 2, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        self._progress_timer.cancel()
        super().connection_lost(exc)

    def _check_progress(self) -> None:
        """Close the connection if a request was due at the last check and almost no data has arrived since."""
        if self.transport.is_closing():
            return
        if self._is_due and self._was_due and self._bytes_received < _MIN_BYTES and not self.flow.read_paused:
            self.transport.abort()
            return
        self._was_due = self._is_due
        self._bytes_received = 0
        self._progress_timer = self.loop.call_later(self.read_timeout_s / 2, self._check_progress)

    def data_received(self, data: bytes) -> None:
        self._bytes_received += len(data)
        if self._is_rejected:
            return
        super().data_received(data)
        if self._in_head and self.parser is not None:
            self._head_bytes += len(data)  # of an incomplete head
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_due = self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # the parser turns it into a parser error
        if b"#" in self.url:  # the application would not get the fragment
            raise ValueError("a target has no fragment")
        super().on_headers_complete()
        cycle: Any = self.cycle  # none or the last one for an upgrade; one of a fast path has no transport
        if getattr(cycle, "transport", None) is self.transport:
            cycle.transport = ResponseTransport(self.transport)
            if self.parser.get_http_version() == "1.0":
                cycle.send = _without_chunks(cycle)
                cycle.waiting_for_100_continue = False  # the client does not know interim responses

    def _has_responded(self) -> bool:
        cycle: Any = self.cycle  # none before the first request, and for an upgrade
        return cycle is not None and bool(cycle.response_complete)

    def handle_websocket_upgrade(self) -> None:
        self._progress_timer.cancel()
        super().handle_websocket_upgrade()

    def on_body(self, body: bytes) -> None:
        if self._has_responded():
            self._discarded_bytes += len(body)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_due = False
        super().on_message_complete()
        if self._has_responded():  # the response was sent before the end of the request
            self._discarded_bytes = 0
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  what uvicorn would say
        """Reject input that is not HTTP, or has too large a head."""
        self._is_rejected = True
        is_large = self._head_bytes > MAX_HEAD_BYTES
        status, code = (431, "head_too_large") if is_large else (400, "invalid_http")
        message = f"The head has more than {MAX_HEAD_BYTES} bytes." if is_large else "The request is not valid HTTP."
        body = msgspec.json.encode(ErrorBody(ErrorDetail(code, message, "")))
        head = (b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close")
        self.transport.write(STATUS_LINE[status] + b"\r\n".join((*head, b"", body)))
        self.transport.close()
