"""Requests to fixed paths get the same responses with and without the search through the routes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dragoman.server import application
from tests.server.conftest import ServerFixture

VARYING = (b"x-request-id", b"date")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


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
    kept = sorted(header for header in sent[0]["headers"] if header[0] not in VARYING) if sent else []
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], kept, re.sub(rb"req_[0-9a-f]+", b"req_", body)


@pytest.mark.parametrize("root_path", ["", "/tools"])
async def test_fixed_paths_answer_as_the_routes_do(
    keyed_server: ServerFixture, monkeypatch: pytest.MonkeyPatch, root_path: str
) -> None:
    fast = application.make_app(keyed_server.state)
    fixed = [endpoint for endpoint in application.endpoints() if application._has_fixed_path(endpoint)]
    monkeypatch.setattr(application, "_has_fixed_path", lambda _: False)
    general = application.make_app(keyed_server.state)
    assert len(fixed) > 20
    for path in sorted({endpoint.path for endpoint in fixed}):
        for method in METHODS:
            for variant in (path, f"{path}/"):
                request = method, variant, {}, root_path
                assert await send_request(fast, *request) == await send_request(general, *request), request
