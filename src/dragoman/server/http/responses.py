"""JSON responses.

json_response(value)                       200, not cached
await large_json_response(size, make)      made and encoded off the event loop
accepts_gzip(request)                      whether the client accepts gzip
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.offload import run_off_loop


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return _bytes_response(msgspec.json.encode(value), status, headers)


async def large_json_response(size: int, make: Callable[[], Any]) -> Response:
    """The JSON response of a value that ``make`` returns; ``size`` is its approximate number of bytes."""
    return _bytes_response(await run_off_loop(size, lambda: msgspec.json.encode(make())))


def _bytes_response(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        data, status, media_type="application/json", headers={"cache-control": "no-store", **(headers or {})}
    )


def accepts_gzip(request: Request) -> bool:
    """Whether the client accepts gzip."""
    items = (item.replace(" ", "").lower() for item in request.headers.get("accept-encoding", "").split(","))
    return any(item.partition(";")[0] == "gzip" and not item.endswith((";q=0", ";q=0.0")) for item in items)
