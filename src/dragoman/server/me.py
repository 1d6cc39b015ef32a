"""``GET /api/v1/agent/me``: who the server takes the caller for."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.server.endpoint import Endpoint
from dragoman.server.principal import principal_of


class Me(msgspec.Struct, frozen=True, rename="camel"):
    """Who calls."""

    user_id: str
    team_id: str | None
    key_id: str | None
    scopes: list[str]
    is_local: bool


async def me(request: Request) -> Response:
    """Say who calls."""
    who = principal_of(request)
    said = Me(who.user_id, who.team_id, who.key_id, sorted(who.scopes), who.is_local)
    return Response(msgspec.json.encode(said), media_type="application/json")


ENDPOINTS = (
    Endpoint("GET", "/api/v1/agent/me", me, name="me", summary="Who the server takes you for", answers={200: Me}),
)
