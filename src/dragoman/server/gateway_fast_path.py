"""A fast path for calls of models: from the connection to ``Gateway.handle`` without the application.

    ChatServer(http=make_protocol(state))

``GatewayProtocol`` answers a request itself if all of this is true; every other request goes to the application:

    - POST to a path of a chat endpoint that contains no variable
    - HTTP/1.1, no header twice, and none that only the application checks (``request_head``)
    - a body with a length of at most 64 KiB
    - a caller that needs no query: a key that was verified less than a second ago, or this user on this machine
    - no other request of the connection is in progress

Invariants: the fast path and the application send the same bytes to the provider and to the caller, and store the same
rows; ``tests/gateway/test_fast_path.py`` compares them. A caller that disconnects cancels its call.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dragoman.gateway import GatewayRequest, GatewayResponse, endpoints
from dragoman.offload import LARGE
from dragoman.server.application import COMMON_HEADERS, log_response
from dragoman.server.auth.local_access import PEER
from dragoman.server.auth.principal import LOCAL, Principal, principal_from
from dragoman.server.config import base_path
from dragoman.server.gateway_middleware import make_caller
from dragoman.server.http.connection_limits import LimitedProtocol
from dragoman.server.request_head import RequestHead, Route, read_head
from dragoman.server.state import AppState

_ID_NAMES: Final = frozenset(
    ("request-id", "x-request-id", "x-amzn-requestid", "x-dragoman-session")
)  # differ in each response
_log: Final = logging.getLogger("dragoman.server")


class _NoEvent:
    """The event of a cycle; no task waits for it."""

    def set(self) -> None:
        """Do nothing."""


class FastCall:
    """A request on the fast path. It has the attributes of a cycle of uvicorn that the protocol uses."""

    __slots__ = ("body", "disconnected", "head", "keep_alive", "principal", "response_complete")

    message_event: ClassVar = _NoEvent()

    def __init__(self, head: RequestHead, principal: Principal, *, keep_alive: bool) -> None:
        self.head = head
        self.principal = principal
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        self.disconnected = False
        self.response_complete = False


class GatewayProtocol(LimitedProtocol):
    """A connection whose calls of models do not pass the application."""

    state: AppState
    routes: dict[bytes, Route]
    _call: FastCall | None = None  # the request that is received
    _task: asyncio.Task[None] | None = None  # the call that is answered
    _head: RequestHead | None = None  # of the last request
    _data: bytes = b""  # that is parsed
    _body_left: int = 0  # bytes of a body that the parser does not receive
    _idle_until_s: float = math.inf  # when the connection is closed, if no request has begun by then
    _keep_alive_timer: asyncio.TimerHandle | None = None

    # --- requests ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Receive a request. The parser does not receive one that repeats the head of the last one."""
        body = data if self._body_left else self._skip_head(data)
        if body is None:
            self._data = data
            super().data_received(data)
            self._data = b""
        else:
            self._bytes_received += len(data)
            self._add_body(body)

    def _skip_head(self, data: bytes) -> bytes | None:
        """Open the call of a request with the same head as the last one, and return its body so far; else none."""
        head = self._head
        if head is None or self._is_due or self._is_rejected or not self.cycle.response_complete:
            return None
        length = head.find_length(data)
        call = self._open_call(head, length, keep_alive=True) if length is not None else None
        if call is None or length is None:
            return None
        self._unset_keepalive_if_required()
        self._is_due, self._idle_until_s = True, math.inf
        self._call = self.cycle = call  # type: ignore[assignment]
        self._body_left = int(length)
        return data[head.size(length) :]

    def _add_body(self, data: bytes) -> None:
        body, rest = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(body)
        self.on_body(body)
        if not self._body_left:
            self.on_message_complete()
        if rest:
            self.data_received(rest)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._is_due = self._in_head = True
        self._head_bytes = 0
        self._idle_until_s = math.inf

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        call = self._call = self._parse_call()
        if call is None:
            self._begin_scope()
            super().on_headers_complete()
            return
        self._in_head = False
        self.cycle = call  # type: ignore[assignment]

    def _begin_scope(self) -> None:
        """Prepare the request for the application."""
        url, headers = self.url, self.headers
        HttpToolsProtocol.on_message_begin(self)
        self.url = url
        self.headers += headers  # the list is in the scope
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )

    def _parse_call(self) -> FastCall | None:
        """Return the call of a request that the parser has received; none if the application must handle it."""
        cycle: Any = self.cycle  # none before the first request
        self._head = None
        if cycle is not None and not cycle.response_complete:
            return None
        if self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return None
        head = read_head(self.url, self.headers, self.routes, self._data)
        if head is None:
            return None
        keep_alive = self.parser.should_keep_alive()
        self._head = head if keep_alive else None
        length = next(value for name, value in self.headers if name == b"content-length")
        return self._open_call(head, length, keep_alive=keep_alive)

    def _open_call(self, head: RequestHead, length: bytes, *, keep_alive: bool) -> FastCall | None:
        principal = self._find_principal(head)
        if principal is None or "chat" not in principal.scopes or not _is_small(length):
            return None
        return FastCall(head, principal, keep_alive=keep_alive)

    def _find_principal(self, head: RequestHead) -> Principal | None:
        """Return the caller if no query is necessary."""
        state = self.state
        if head.key is not None:
            stored = state.keys.find_verified(head.key)
            return None if stored is None else principal_from(stored)
        is_open = head.is_local and not state.requires_keys and state.find_user is None
        return LOCAL if is_open and self.app_state[PEER].quick_uid() == os.geteuid() else None

    def on_body(self, body: bytes) -> None:
        call = self._call
        if call is None:
            super().on_body(body)
        else:
            call.body.append(body)

    def on_message_complete(self) -> None:
        call = self._call
        if call is None:
            super().on_message_complete()
            return
        self._is_due = False
        self._call = None
        task = self._task = self.loop.create_task(self._run(call))
        self.tasks.add(task)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        if self._task is not None:
            self._task.add_done_callback(self.tasks.discard)
            self._task.cancel()
        super().connection_lost(exc)

    # --- responses ---------------------------------------------------------------------------------------------------

    async def _run(self, call: FastCall) -> None:
        """Answer a request."""
        state, principal, route = self.state, call.principal, call.head.route
        start_s = time.perf_counter()
        state.counters.begin_request()
        request_id = f"req_{os.urandom(12).hex()}"
        status = 0
        request = GatewayRequest(
            method="POST",
            path=route.path,
            query=call.head.query,
            headers=call.head.headers,
            body=call.body[0] if len(call.body) == 1 else b"".join(call.body),
            caller=make_caller(principal),
            request_id=request_id,
        )
        try:
            response = await state.gateway.handle(route.found, request)
            status = response.status
            if isinstance(response.body, bytes):
                head = self._encode_head(call, response, request_id, len(response.body))
                self.transport.write(head + response.body)
            else:
                await self._send_stream(call, response, response.body, request_id)
            self._end_response(call)
        except Exception:
            _log.exception("unexpected error", extra={"request_id": request_id})
            self._end_task()
            self.transport.close()
        finally:
            seconds = time.perf_counter() - start_s
            state.counters.count_request(*route.name, status, seconds)
            log_response(request_id, route.name, status, seconds, principal.user_id)

    async def _send_stream(
        self, call: FastCall, response: GatewayResponse, body: AsyncGenerator[bytes, None], request_id: str
    ) -> None:
        async with aclosing(body):
            self.transport.write(self._encode_head(call, response, request_id, None))
            async for data in body:
                if data:
                    self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
                    if self.flow.write_paused:  # nothing more is read from the provider
                        await self.flow.drain()
            self.transport.write(b"0\r\n\r\n")

    def _end_response(self, call: FastCall) -> None:
        self._end_task()
        call.response_complete = True
        if not call.keep_alive:
            self.transport.close()
        if self.pipeline or self.transport.is_closing():
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_until_s = self.loop.time() + self.timeout_keep_alive
        if self._keep_alive_timer is None:
            self._keep_alive_timer = self.loop.call_at(self._idle_until_s, self._check_idle)

    def _end_task(self) -> None:
        if self._task is not None:
            self.tasks.discard(self._task)
            self._task = None

    def _check_idle(self) -> None:
        """Close the connection if it is idle for too long. One timer serves many requests: it moves when it fires."""
        self._keep_alive_timer = None
        if self.loop.time() >= self._idle_until_s:
            self.timeout_keep_alive_handler()
        elif self._idle_until_s < math.inf:
            self._keep_alive_timer = self.loop.call_at(self._idle_until_s, self._check_idle)

    def _encode_head(self, call: FastCall, response: GatewayResponse, request_id: str, length: int | None) -> bytes:
        lines = ["transfer-encoding: chunked\r\n" if length is None else f"content-length: {length}\r\n"]
        shared = []
        for name, value in response.headers.items():
            if name in _ID_NAMES:
                lines.append(f"{name}: {value}\r\n")
            else:
                shared.append((name, value))
        if "x-request-id" not in response.headers:
            lines.append(f"x-request-id: {request_id}\r\n")
        if not call.keep_alive:
            lines.append("connection: close\r\n")
        start = _encode_start(response.status, tuple(self.server_state.default_headers), tuple(shared))
        return b"%b%b\r\n" % (start, _encode_lines(lines))


def _is_small(length: bytes) -> bool:
    return length.isdigit() and len(length) < 8 and int(length) <= LARGE


def _encode_lines(lines: list[str]) -> bytes:
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise ValueError("a header contains a line break")
    return text.encode("latin-1")


@functools.lru_cache(maxsize=256)
def _encode_start(
    status: int, defaults: tuple[tuple[bytes, bytes], ...], headers: tuple[tuple[str, str], ...]
) -> bytes:
    """Return the part of a head that many responses share, with the common headers that ``headers`` do not replace."""
    names = {name for name, _ in headers}
    common = [pair for pair in COMMON_HEADERS if pair[0].decode() not in names]
    own = _encode_lines([f"{name}: {value}\r\n" for name, value in headers])
    lines = [b"%b: %b\r\n" % pair for pair in defaults], [b"%b: %b\r\n" % pair for pair in common]
    return b"".join((STATUS_LINE[status], *lines[0], own, *lines[1]))


def make_protocol(state: AppState) -> type[GatewayProtocol]:
    """Return the protocol of the connections of a server."""
    prefixes = {"", base_path(state.config)}
    routes = {
        (prefix + path).encode(): Route(endpoints.Match(endpoint, {}), path, ("POST", endpoint.paths[0]))
        for endpoint in endpoints.ENDPOINTS
        for path in endpoint.paths
        for prefix in prefixes
        if endpoint.operation == "chat" and "{" not in path
    }
    attributes: dict[str, Any] = {
        "read_timeout_s": state.config.read_timeout_s,
        "state": state,
        "routes": routes,
    }
    return type("GatewayProtocol", (GatewayProtocol,), attributes)
