"""Serves the endpoints of the gateway beside the other routes: authentication, body, response.

The gateway has its own table of paths, because its endpoints follow the documents of other APIs; all other paths go to
the application. Invariant: errors before the call (key, size of the body) have the caller's own shape, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.bus.event_types.system_events import GatewayAuthFailed
from dragoman.exchange import ErrorClass, Fault
from dragoman.gateway import Caller, Gateway, GatewayRequest, GatewayResponse, endpoints
from dragoman.gateway.error_shapes import error_response
from dragoman.gateway.headers import key_candidates
from dragoman.gateway.response_socket import ResponseConnection
from dragoman.server import gateway_socket
from dragoman.server.auth.api_keys import is_key
from dragoman.server.auth.principal import Principal, authenticate_local, credentials_error, principal_from
from dragoman.server.auth.scopes import RECORD_OFF, RECORD_REDACTED
from dragoman.server.http.http_errors import ApiError, get_request_id
from dragoman.server.http.requests import read_body, route_path

if TYPE_CHECKING:
    from dragoman.server.state import AppState

MAX_BODY_BYTES: Final = 32 * 2**20
_CODES: Final = {401: "unauthorized", 403: "forbidden"}


class GatewayMiddleware:
    """Answers requests to the gateway; hands all other requests on."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self.app = app
        self._state = state

    @property
    def _gateway(self) -> Gateway:
        return self._state.gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        found = None
        if scope["type"] == "http":
            path = route_path(scope)
            found = endpoints.match(scope["method"], path)
        if found is None:
            await self.app(scope, receive, send)
            return
        scope["dragoman.route"] = found.endpoint.paths[0]
        request = Request(scope, receive)
        request.scope["app"] = self._state.app
        prepared = await self._prepare(found, path, request)
        if isinstance(prepared, GatewayResponse):
            await _send_response(prepared, send)
        else:
            await _run_until_disconnect(self._answer(found, prepared, send), receive)

    async def _answer(self, found: endpoints.Match, request: GatewayRequest, send: Send) -> None:
        await _send_response(await self._gateway.handle(found, request), send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the Responses API on a WebSocket. No other path has one."""
        path = route_path(scope)
        found = endpoints.match("POST", path)
        await receive()  # websocket.connect
        if found is None or found.endpoint.operation != "chat" or found.endpoint.dialect != "openai_responses":
            await gateway_socket.refuse(send, 404, {}, b"")
            return
        scope["dragoman.route"] = found.endpoint.paths[0]
        scope["app"] = self._state.app
        # The handshake is a GET request. Its body is empty, and authentication reads its headers only.
        request = Request({**scope, "type": "http", "method": "GET"}, receive)
        headers = _read_headers(scope)
        try:
            principal = await self._authenticate(request, headers)
        except ApiError as error:
            response = error_response("openai_responses", _to_fault(error), get_request_id(request))
            assert isinstance(response.body, bytes)
            await gateway_socket.refuse(send, response.status, response.headers, response.body)
            return
        handshake = self._make_request(request, path, headers, b"", principal)
        await gateway_socket.serve_connection(ResponseConnection(self._gateway, handshake), receive, send)

    async def _prepare(self, found: endpoints.Match, path: str, request: Request) -> GatewayRequest | GatewayResponse:
        """Return the request of a caller, or the response that rejects it."""
        headers = _read_headers(request.scope)
        try:
            principal = await self._authenticate(request, headers)
            body = await read_body(request, MAX_BODY_BYTES)
        except ApiError as error:
            dialect = endpoints.detect_dialect(found, path, headers)
            response = error_response(dialect, _to_fault(error), get_request_id(request))
            response.headers = {**response.headers, **error.headers}
            return response
        return self._make_request(request, path, headers, body, principal)

    def _make_request(
        self, request: Request, path: str, headers: dict[str, str], body: bytes, principal: Principal
    ) -> GatewayRequest:
        return GatewayRequest(
            method=request.method,
            path=path,
            query=request.scope["query_string"].decode("latin-1"),
            headers=headers,
            body=body,
            caller=make_caller(principal),
            request_id=get_request_id(request),
        )

    async def _authenticate(self, request: Request, headers: dict[str, str]) -> Principal:
        """Return the owner of the presented key.

        Clients of these APIs always send a key. Where none is required, one that is not ours is ignored.
        """
        keys = list(key_candidates(headers, request.scope["query_string"].decode("latin-1")))
        try:
            own_key = next((key for key in keys if is_key(key)), None)
            if own_key is not None:
                principal = await self._verify(own_key)
            elif self._state.requires_keys:
                raise credentials_error()
            else:
                principal = await authenticate_local(request, keys)
        except ApiError as error:
            if error.status == 401:
                self._state.audit.emit(GatewayAuthFailed(reason=error.code))
            raise
        request.state.principal = principal
        if "chat" not in principal.scopes:
            raise ApiError(403, "missing_scope", "The key does not have the scope chat.")
        return principal

    async def _verify(self, text: str) -> Principal:
        key = await self._state.keys.verify(text)
        if key is None:
            raise credentials_error()
        return principal_from(key)


def make_caller(principal: Principal) -> Caller:
    """Return the owner of a call, with what its key allows to store."""
    recording: Literal["on", "redacted", "off"] = "on"
    if RECORD_OFF in principal.scopes:
        recording = "off"
    elif RECORD_REDACTED in principal.scopes:
        recording = "redacted"
    return Caller(principal.user_id, principal.team_id, principal.is_local, recording)


def _read_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _to_fault(error: ApiError) -> Fault:
    code = _CODES.get(error.status, "invalid_request")
    error_class = ErrorClass.AUTH if error.status in _CODES else ErrorClass.INVALID_REQUEST
    return Fault(code=code, message=error.message, error_class=error_class, status=error.status, provider="dragoman")


async def _run_until_disconnect(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run a coroutine; cancel it if the caller disconnects. A disconnect after the last byte changes nothing."""
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait((task, watcher))
    if not task.cancelled():
        task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_response(response: GatewayResponse, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    if isinstance(response.body, bytes):
        headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        return
    body: Any = response.body
    async with aclosing(body):
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for data in body:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
