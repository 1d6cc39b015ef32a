"""A fast path for calls of models: from the connection to ``Gateway.handle`` without the application.

    ChatServer(http=make_protocol(state))

``GatewayProtocol`` answers a request itself if all of this is true; every other request goes to the application:

    - POST to a path of a chat endpoint that contains no variable
    - HTTP/1.1, no header twice, and none of ``_GENERAL_HEADERS``
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
from typing import Any, ClassVar, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dragoman.gateway import GatewayRequest, GatewayResponse, endpoints
from dragoman.gateway.headers import key_candidates
from dragoman.offload import LARGE
from dragoman.server.application import COMMON_HEADERS, HOST, log_response
from dragoman.server.auth.api_keys import is_key
from dragoman.server.auth.local_access import PEER
from dragoman.server.auth.principal import LOCAL, PROXY_HEADERS, Principal, principal_from, strip_port
from dragoman.server.config import base_path, is_loopback
from dragoman.server.gateway_middleware import make_caller
from dragoman.server.http.connection_limits import MAX_HEAD_BYTES, LimitedProtocol
from dragoman.server.state import AppState

# Requests with one of these headers need a check or a step that only the application has.
_GENERAL_HEADERS: Final = frozenset(
    ("content-encoding", "expect", "origin", "sec-fetch-site", "transfer-encoding", "upgrade", *PROXY_HEADERS)
)
_LENGTH: Final = b"content-length"
_ID_NAMES: Final = ("request-id", "x-request-id", "x-amzn-requestid", "x-dragoman-session")  # differ in each response
_log: Final = logging.getLogger("dragoman.server")
Pairs = list[tuple[bytes, bytes]]


class Route(NamedTuple):
    """An endpoint, its path without the base path, and its name in counters and the log."""

    found: endpoints.Match
    path: str
    name: tuple[str, str]


class _NoEvent:
    """The event of a cycle; no task waits for it."""

    def set(self) -> None:
        """Do nothing."""


class RequestHead:
    """The head of a request that the fast path accepts. Clients repeat it on a connection, except the length."""

    __slots__ = ("before", "behind", "headers", "is_local", "key", "query", "route", "url")

    def __init__(self, url: bytes, pairs: Pairs, at: int, route: Route, headers: dict[str, str]) -> None:
        self.url = url
        self.before, self.behind = pairs[:at], pairs[at + 1 :]  # without the length
        self.route = route
        self.query = url.partition(b"?")[2].decode("latin-1")
        self.headers = headers
        self.key = next((key for key in key_candidates(headers, self.query) if is_key(key)), None)
        self.is_local = is_loopback(strip_port(headers["host"].lower()))

    def matches(self, url: bytes, pairs: Pairs) -> bool:
        """Whether another head differs in its length only."""
        at = len(self.before)
        return (
            url == self.url
            and len(pairs) == at + 1 + len(self.behind)
            and pairs[at][0] == _LENGTH
            and pairs[:at] == self.before
            and pairs[at + 1 :] == self.behind
        )


class FastCall:
    """A request on the fast path. It has the attributes of a cycle of uvicorn that the protocol uses."""

    __slots__ = ("body", "disconnected", "head", "headers", "keep_alive", "principal", "response_complete")

    message_event: ClassVar = _NoEvent()

    def __init__(self, head: RequestHead, length: bytes, principal: Principal, *, keep_alive: bool) -> None:
        self.head = head
        self.headers = {**head.headers, "content-length": length.decode()}
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
    _idle_until_s: float = math.inf  # when the connection is closed, if no request has begun by then
    _keep_alive_timer: asyncio.TimerHandle | None = None

    # --- requests ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._is_due = self._in_head = True
        self._head_bytes = 0
        self._idle_until_s = math.inf

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        call = self._call = self._open_call()
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

    def _open_call(self) -> FastCall | None:
        """Return the call of a request; none if the application must handle it."""
        cycle: Any = self.cycle  # none before the first request
        if cycle is not None and not cycle.response_complete:
            return None
        head = self._head
        if head is None or not head.matches(self.url, self.headers):
            head = self._head = self._read_head()
        if head is None or self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return None
        length = self.headers[len(head.before)][1]
        principal = self._find_principal(head)
        if principal is None or "chat" not in principal.scopes or not _is_small(length):
            return None
        return FastCall(head, length, principal, keep_alive=self.parser.should_keep_alive())

    def _read_head(self) -> RequestHead | None:
        """Return the head of a request; none if the application must check it."""
        pairs = self.headers
        route = self.routes.get(self.url.partition(b"?")[0])
        at = next((at for at, pair in enumerate(pairs) if pair[0] == _LENGTH), None)
        if route is None or at is None:
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in pairs)
        if len(headers) != len(pairs) or size > MAX_HEAD_BYTES or not _GENERAL_HEADERS.isdisjoint(headers):
            return None
        if not HOST.fullmatch(headers.get("host", "").encode("latin-1")):
            return None
        return RequestHead(self.url, pairs, at, route, headers)

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
            headers=call.headers,
            body=call.body[0] if len(call.body) == 1 else b"".join(call.body),
            caller=make_caller(principal),
            request_id=request_id,
        )
        try:
            response = await state.gateway.handle(route.found, request)
            status = response.status
            await self._send(call, response, request_id)
        except Exception:
            _log.exception("unexpected error", extra={"request_id": request_id})
            self._end_task()
            self.transport.close()
        finally:
            seconds = time.perf_counter() - start_s
            state.counters.count_request(*route.name, status, seconds)
            log_response(request_id, route.name, status, seconds, principal.user_id)

    async def _send(self, call: FastCall, response: GatewayResponse, request_id: str) -> None:
        body = response.body
        if isinstance(body, bytes):
            self.transport.write(self._encode_head(call, response, request_id, len(body)) + body)
        else:
            await self._send_stream(call, response, body, request_id)
        self._end_response(call)

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
        headers = response.headers
        lines = [f"{name}: {headers[name]}\r\n" for name in _ID_NAMES if name in headers]
        lines.append("transfer-encoding: chunked\r\n" if length is None else f"content-length: {length}\r\n")
        if "x-request-id" not in headers:
            lines.append(f"x-request-id: {request_id}\r\n")
        if not call.keep_alive:
            lines.append("connection: close\r\n")
        others = _encode_headers(tuple([pair for pair in headers.items() if pair[0] not in _ID_NAMES]))
        defaults = b"".join([b"%b: %b\r\n" % pair for pair in self.server_state.default_headers])
        return b"".join((STATUS_LINE[response.status], defaults, others, _encode_lines(lines), b"\r\n"))


def _is_small(length: bytes) -> bool:
    return length.isdigit() and len(length) < 8 and int(length) <= LARGE


def _encode_lines(lines: list[str]) -> bytes:
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise ValueError("a header contains a line break")
    return text.encode("latin-1")


@functools.lru_cache(maxsize=256)
def _encode_headers(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return headers that many responses share, with those of every response that they do not replace."""
    names = {name for name, _ in headers}
    common = [b"%b: %b\r\n" % pair for pair in COMMON_HEADERS if pair[0].decode() not in names]
    return b"".join((_encode_lines([f"{name}: {value}\r\n" for name, value in headers]), *common))


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
