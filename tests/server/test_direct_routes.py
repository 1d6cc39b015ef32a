"""Tests of direct routes: responses are the same with and without the routing and middleware of Starlette."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Match

from dragoman.server import application
from tests.server.conftest import ServerFixture

VARYING = (b"x-request-id", b"date")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


async def send_request(app: Any, method: str, path: str, headers: dict[str, str], root_path: str) -> tuple[Any, ...]:
    """Return the status, the headers and the body of a response."""
    scope = {
        "type": "http",
        "method": method,
        "path": root_path + path,
        "raw_path": (root_path + path).encode(),
        "root_path": root_path,
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 40_000),
        "headers": [(b"host", b"127.0.0.1"), *((name.encode(), text.encode()) for name, text in headers.items())],
    }
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(received, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    compared_headers = sorted(header for header in sent[0]["headers"] if header[0] not in VARYING) if sent else []
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], compared_headers, re.sub(rb"req_[0-9a-f]+", b"req_", body)


VALUES = ("some", "ü.1", "%2F", "a b\n")


@pytest.mark.parametrize("root_path", ["", "/tools"])
async def test_direct_routes_respond_like_starlette_routes(
    keyed_server: ServerFixture, monkeypatch: pytest.MonkeyPatch, root_path: str
) -> None:
    fast = application.make_app(keyed_server.state)
    direct = [endpoint for endpoint in application.endpoints() if application._has_direct_route(endpoint)]
    monkeypatch.setattr(application, "_has_direct_route", lambda _: False)
    general = application.make_app(keyed_server.state)
    assert len(direct) > 60
    for path in sorted({endpoint.path for endpoint in direct}):
        values = VALUES if "{" in path else VALUES[:1]
        variants = {re.sub(r"\{.+?\}", value, path) for value in values}
        for variant in sorted({*variants, f"{min(variants)}/", re.sub(r"\{.+?\}", "", path)}):
            for method in METHODS:
                request = method, variant, {}, root_path
                assert await send_request(fast, *request) == await send_request(general, *request), request


async def test_each_path_reaches_endpoint_of_its_route(keyed_server: ServerFixture) -> None:
    app: Any = application.make_app(keyed_server.state)
    state = keyed_server.state
    for endpoint in filter(application._has_direct_route, application.endpoints()):
        path = re.sub(r"\{.+?\}", "some", endpoint.path)
        scope: dict[str, Any] = {"type": "http", "method": endpoint.method, "path": path, "root_path": ""}
        assert app.app.app._find(dict(scope)) is not None, path
        route = next(route for route in state.app.routes if route.matches(dict(scope))[0] is Match.FULL)
        assert route.path == endpoint.path
        params: dict[str, Any] = dict(scope)
        app.app.app._find(params)
        assert params.get("path_params", {}) == route.matches(dict(scope))[1]["path_params"]
