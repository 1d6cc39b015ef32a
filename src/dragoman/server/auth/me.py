"""``GET /api/v1/agent/me``: the caller's identity."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.server.auth.principal import get_principal
from dragoman.server.http.endpoint import Endpoint


class Me(msgspec.Struct, frozen=True, rename="camel"):
    """The caller."""

    user_id: str
    team_id: str | None
    key_id: str | None
    scopes: list[str]
    is_local: bool


async def get_me(request: Request) -> Response:
    """Return the caller's identity."""
    principal = get_principal(request)
    body = Me(principal.user_id, principal.team_id, principal.key_id, sorted(principal.scopes), principal.is_local)
    return Response(msgspec.json.encode(body), media_type="application/json")


ENDPOINTS = (Endpoint("GET", "/api/v1/agent/me", get_me, "The caller's identity", {200: Me}, name="me"),)
