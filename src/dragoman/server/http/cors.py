"""Pages of other servers: which of them a browser lets ask us, and what it lets them see.

A browser asks before it sends a request of a page from elsewhere, and shows the page no answer that does not name it.
What comes in is the headers of a request, what goes out are those of the answer. The one rule: no page is let in that
was not named when the server was started, and none with what a browser adds by itself, such as cookies.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

Headers = list[tuple[bytes, bytes]]
_MAX_AGE_S: Final = b"86400"
_ALLOWED_HEADERS: Final = b"authorization, content-type, accept, idempotency-key, last-event-id"
_ALLOWED_METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
_EXPOSED_HEADERS: Final = b"x-request-id, retry-after, content-disposition"


def find_allowed_origin(scope: Scope, allowed: frozenset[bytes]) -> bytes | None:
    """Which page from elsewhere asks, if it may."""
    origins = [value.lower() for name, value in scope["headers"] if name == b"origin"]
    return origins[0] if len(origins) == 1 and origins[0] in allowed else None


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if it may ask."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def cors_headers(origin: bytes) -> Headers:
    """What lets a page see an answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"origin"),
    ]


def preflight_headers() -> dict[str, str]:
    """What lets a page ask."""
    return {
        "access-control-allow-methods": _ALLOWED_METHODS.decode(),
        "access-control-allow-headers": _ALLOWED_HEADERS.decode(),
        "access-control-allow-private-network": "true",
        "access-control-max-age": _MAX_AGE_S.decode(),
    }
