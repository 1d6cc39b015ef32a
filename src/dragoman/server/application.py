"""The ASGI application: middleware, authentication and the routes of all endpoints.

A request gets an id; its headers are checked, its caller is authenticated, and the endpoint handles it. Invariants:
every exception becomes an error response here, and every response has the same security headers.
"""

from __future__ import annotations

import functools
import gzip
import logging
import re
import secrets
import time
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.bus.event_types.system_events import GatewayAuthFailed
from dragoman.gateway import endpoints as gateway_endpoints
from dragoman.gateway.missing_endpoint import missing_endpoint
from dragoman.offload import run_off_loop
from dragoman.server import copilotkit, gateway_socket, mail, openapi, runs, ui_messages, web_page
from dragoman.server.admin import health, metrics, providers
from dragoman.server.admin.counters import Counters
from dragoman.server.auth import me
from dragoman.server.auth.principal import Principal, authenticate, get_principal
from dragoman.server.chat import (
    attachments,
    costs,
    envelopes,
    export,
    history,
    messages,
    models,
    settings,
    shares,
    swap,
    threads,
    titles,
    versions,
    why,
)
from dragoman.server.config import base_path
from dragoman.server.gateway_middleware import GatewayMiddleware
from dragoman.server.http.endpoint import Endpoint, Handler
from dragoman.server.http.http_errors import ApiError, error_response, get_request_id, not_found_error
from dragoman.server.http.requests import app_state, route_path
from dragoman.server.http.responses import accepts_gzip
from dragoman.server.mail import evaluations
from dragoman.server.state import AppState

MODULES: Final = (
    me,
    health,
    openapi,
    history,
    threads,
    versions,
    attachments,
    models,
    messages,
    why,
    swap,
    settings,
    costs,
    export,
    envelopes,
    shares,
    titles,
    runs,
    ui_messages,
    copilotkit,
    mail,
    evaluations,
    metrics,
    providers,
    web_page,
)
HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
# If a request repeated one of these headers, one value could be checked and the other used.
_SINGLE_HEADERS: Final = frozenset(
    (b"origin", b"sec-fetch-site", b"authorization", b"content-type", b"content-encoding")
)
_log: Final = logging.getLogger("dragoman.access")
HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_POLICY: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
COMMON_HEADERS: Final = (*HEADERS, _POLICY)  # of every response that does not replace them
_MIN_COMPRESSED: Final = 1_400  # bytes; a smaller body fits into one packet
_GZIP_LEVEL: Final = 4


def endpoints() -> tuple[Endpoint, ...]:
    """All endpoints."""
    return tuple(endpoint for module in MODULES for endpoint in module.ENDPOINTS)


def make_app(state: AppState, extra_endpoints: tuple[Endpoint, ...] = ()) -> ASGIApp:
    """The ASGI application over the shared state, with further endpoints of an embedding application."""
    all_endpoints = (*endpoints(), *extra_endpoints)
    app = Starlette(
        routes=[_route(endpoint) for endpoint in all_endpoints],
        exception_handlers={HTTPException: _handle_http_exception, Exception: _handle_exception},
    )
    app.router.redirect_slashes = False
    app.state.dragoman = state
    app.state.endpoints = all_endpoints
    state.app = app
    gateway_routes = ((endpoint.method, endpoint.paths[0]) for endpoint in gateway_endpoints.ENDPOINTS)
    state.counters.name_routes((*((endpoint.method, endpoint.path) for endpoint in all_endpoints), *gateway_routes))
    first_segments = frozenset(endpoint.path.split("/")[1] for endpoint in all_endpoints)
    with_gateway = GatewayMiddleware(app, state)
    with_direct_routes = DirectRouteMiddleware(with_gateway, app, filter(_has_direct_route, all_endpoints))
    with_base_path = BasePathMiddleware(with_direct_routes, base_path(state.config), first_segments)
    return RequestMiddleware(with_base_path, state.config.allow_origin, state.counters)


def _route(endpoint: Endpoint) -> Route:
    return Route(endpoint.path, _handler(endpoint), methods=[endpoint.method], name=endpoint.name)


def _handler(endpoint: Endpoint) -> Handler:
    async def handle(request: Request) -> Response:
        request.scope["dragoman.route"] = endpoint.path
        try:
            if not endpoint.public:
                request.state.principal = await _authenticate(request)
                _require_scope(endpoint.scope, request)
            return await _compress(request, await endpoint.handler(request))
        except Exception as error:
            return error_response(request, error)

    return handle


async def _compress(request: Request, response: Response) -> Response:
    """A JSON response, compressed if it is large and the client accepts gzip; other responses are returned as they are.

    Small responses fit into one packet. Bodies of other types are compressed already, or streams.
    """
    is_whole_json = type(response) is Response and response.media_type == "application/json"
    if not is_whole_json or len(response.body) < _MIN_COMPRESSED:
        return response
    response.headers["vary"] = "accept-encoding"
    if accepts_gzip(request):
        body = bytes(response.body)
        response.body = await run_off_loop(len(body), lambda: gzip.compress(body, _GZIP_LEVEL, mtime=0))
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    return response


async def _authenticate(request: Request) -> Principal:
    """Authenticate the caller. A failure emits an audit event."""
    try:
        return await authenticate(request)
    except ApiError as refusal:
        if refusal.status == 401:
            app_state(request).audit.emit(GatewayAuthFailed(reason=refusal.code))
        raise


def _require_scope(scope: str | None, request: Request) -> None:
    if scope is not None and scope not in get_principal(request).scopes:
        raise ApiError(403, "missing_scope", f"The key does not have the scope {scope}.")


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """Respond to a request without a route."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status != 405:
        return _missing_endpoint(request) or error_response(request, not_found_error())
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    allow = ", ".join(sorted({method for route in routes for method in route.methods}))
    return error_response(
        request, ApiError(405, "method_not_allowed", "This path does not support the method.", headers={"allow": allow})
    )


def _missing_endpoint(request: Request) -> Response | None:
    """Return the response to a client of a provider's API whose endpoint the gateway does not serve."""
    path, request_id = route_path(request.scope), get_request_id(request)
    missing = missing_endpoint(request.method, path, request.headers, request_id)
    return None if missing is None else Response(missing.body, missing.status, missing.headers)


async def _handle_exception(request: Request, error: Exception) -> Response:
    """Respond to an exception that was raised before the response started."""
    return error_response(request, error)


class DirectRouteMiddleware:
    """Fast path: calls the endpoint of a path, without the search through the routes and the layers of Starlette.

    All other requests are handed on. Invariants: the handler of an endpoint turns every exception into a response, and
    the responses are those of the routes; ``tests/server/test_direct_routes.py`` compares them.
    """

    def __init__(self, app: ASGIApp, starlette: Starlette, direct: Iterable[Endpoint]) -> None:
        self.app = app
        self._starlette = starlette
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._patterns: dict[tuple[str, int], list[tuple[re.Pattern[str], Handler]]] = {}  # by their slashes
        for endpoint in direct:
            method, path, handler = endpoint.method, endpoint.path, _handler(endpoint)
            if "{" in path:
                pattern, _, _ = compile_path(path)
                self._patterns.setdefault((method, path.count("/")), []).append((pattern, handler))
            else:
                self._handlers[method, path] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._find(scope) if scope["type"] == "http" else None
        if handle is None:
            await self.app(scope, receive, send)
            return
        scope["app"] = self._starlette
        response = await handle(Request(scope, receive))
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> Handler | None:
        method, path = scope["method"], route_path(scope)
        handler = self._handlers.get((method, path))
        if handler is not None:
            return handler
        for pattern, handler in self._patterns.get((method, path.count("/")), ()):
            if (match := pattern.match(path)) is not None:
                scope["path_params"] = {**scope.get("path_params", {}), **match.groupdict()}
                return handler
        return None


_PARAMETER: Final = re.compile(r"\{[A-Za-z_]+\}")  # one that is a text without slashes


def _has_direct_route(endpoint: Endpoint) -> bool:
    return _is_direct(endpoint.path)


@functools.cache
def _is_direct(path: str) -> bool:
    example = _PARAMETER.sub("a", path)
    return "{" not in example and not gateway_endpoints.has_path(example)


class BasePathMiddleware:
    """Serves under the path of the base URL, whether or not a proxy strips that path.

    An application that mounts this one sets the root path itself; then this class does nothing.
    """

    def __init__(self, app: ASGIApp, path: str, first_segments: frozenset[str]) -> None:
        self.app = app
        self._path = path
        self._first_segments = (
            first_segments  # first segments of the routes, which distinguish a path without the base path
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self._path and not scope.get("root_path"):
            if scope["path"] == self._path and scope["type"] == "http":
                await RedirectResponse(f"{self._path}/", 308)(scope, receive, send)
                return
            if self._has_base_path(scope["path"]):
                scope["root_path"] = self._path
        await self.app(scope, receive, send)

    def _has_base_path(self, path: str) -> bool:
        rest = path.removeprefix(f"{self._path}/")
        is_route = rest.partition("/")[0] in self._first_segments or gateway_endpoints.has_path(f"/{rest}")
        return rest != path and is_route


class RequestMiddleware:
    """Wraps every request: request id, header checks, CORS, counters, access log and common headers."""

    def __init__(self, app: ASGIApp, origins: Iterable[str] = (), counters: Counters | None = None) -> None:
        self.app = app
        self._counters = counters or Counters()
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start_s = time.perf_counter()
        self._counters.begin_request()
        scope["dragoman.request_id"] = request_id = f"req_{secrets.token_hex(12)}"
        status = 0
        origin = _find_allowed_origin(scope, self._origins) if self._origins else None

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _add_headers(message.get("headers", ()), request_id, origin)
            await send(message)

        try:
            if (error := _check_headers(scope)) is not None:
                await error_response(Request(scope), error)(scope, receive, send_with_headers)
            elif origin is not None and _is_preflight(scope):
                await Response(status_code=204, headers=_preflight_headers())(scope, receive, send_with_headers)
            else:
                await self.app(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - start_s
            principal = scope.get("state", {}).get("principal")
            user_id = principal.user_id if isinstance(principal, Principal) else ""
            route = (scope["method"], scope.get("dragoman.route", ""))
            self._counters.count_request(*route, status, seconds)
            log_response(request_id, route, status, seconds, user_id)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["dragoman.request_id"] = f"req_{secrets.token_hex(12)}"
        if (error := _check_headers(scope)) is not None:
            await gateway_socket.refuse(send, error.status, {}, b"")
        else:
            await self.app(scope, receive, send)


def _check_headers(scope: Scope) -> ApiError | None:
    hosts = [value for key, value in scope["headers"] if key == b"host"]
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        return ApiError(400, "invalid_host", "The Host header is missing or malformed.")
    names = [key for key, _ in scope["headers"] if key in _SINGLE_HEADERS]
    if len(set(names)) != len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        return ApiError(400, "invalid_header", f"The header {duplicate.decode().title()} is duplicated.")
    return None


def log_response(request_id: str, route: tuple[str, str], status: int, seconds: float, user_id: str) -> None:
    """Log one line. It has the route instead of the URL, because a URL can contain a token."""
    if not _log.isEnabledFor(logging.INFO):
        return
    _log.info(
        "answered" if status else "client disconnected",
        extra={
            "request_id": request_id,
            "method": route[0],
            "route": route[1],
            "status": status,
            "ms": round(seconds * 1000, 1),
            "user": user_id,
        },
    )


def _add_headers(headers: Any, request_id: str, origin: bytes | None) -> list[tuple[bytes, bytes]]:
    """The headers of a response with the common headers. An existing content security policy is kept."""
    result = list(headers)
    names = {key.lower() for key, _ in result}
    defaults = (*COMMON_HEADERS, (b"x-request-id", request_id.encode()))
    cors = _cors_headers(origin) if origin is not None else ()
    return [*result, *(pair for pair in defaults if pair[0] not in names), *cors]


# --- cross-origin requests (CORS) ------------------------------------------------------------------------------------

# Invariants: only origins named at start-up are allowed, and never with credentials that the browser adds itself, such
# as cookies.
_MAX_AGE_S: Final = b"86400"
_ALLOWED_HEADERS: Final = b"authorization, content-type, accept, idempotency-key, last-event-id"
_ALLOWED_METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
_EXPOSED_HEADERS: Final = b"x-request-id, retry-after, content-disposition"


def _find_allowed_origin(scope: Scope, allowed: frozenset[bytes]) -> bytes | None:
    """The origin of a request, if it is allowed."""
    origins = [value.lower() for name, value in scope["headers"] if name == b"origin"]
    return origins[0] if len(origins) == 1 and origins[0] in allowed else None


def _is_preflight(scope: Scope) -> bool:
    """Whether a request is a CORS preflight."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def _cors_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Headers that let a page of this origin read a response."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"origin"),
    ]


def _preflight_headers() -> dict[str, str]:
    """Headers of a preflight response."""
    return {
        "access-control-allow-methods": _ALLOWED_METHODS.decode(),
        "access-control-allow-headers": _ALLOWED_HEADERS.decode(),
        "access-control-allow-private-network": "true",
        "access-control-max-age": _MAX_AGE_S.decode(),
    }
