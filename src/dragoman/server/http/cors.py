"""Cross-origin requests (CORS): request headers in, response headers out.

Invariants: only origins named at start-up are allowed, and never with credentials that the browser adds itself, such as
cookies.
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
    """The origin of a request, if it is allowed."""
    origins = [value.lower() for name, value in scope["headers"] if name == b"origin"]
    return origins[0] if len(origins) == 1 and origins[0] in allowed else None


def is_preflight(scope: Scope) -> bool:
    """Whether a request is a CORS preflight."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def cors_headers(origin: bytes) -> Headers:
    """Headers that let a page of this origin read a response."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"origin"),
    ]


def preflight_headers() -> dict[str, str]:
    """Headers of a preflight response."""
    return {
        "access-control-allow-methods": _ALLOWED_METHODS.decode(),
        "access-control-allow-headers": _ALLOWED_HEADERS.decode(),
        "access-control-allow-private-network": "true",
        "access-control-max-age": _MAX_AGE_S.decode(),
    }
