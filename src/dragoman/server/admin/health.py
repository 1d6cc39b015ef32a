"""``GET /healthz``: whether the store and mail work, and how durable stored data is."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import dragoman
from dragoman.server.http.endpoint import public_endpoint
from dragoman.server.http.requests import app_state

_TIMEOUT_S: Final = 5.0


class Health(msgspec.Struct, frozen=True):
    """State of the server."""

    status: str  # ok, degraded (mail fails) or unavailable (the store fails)
    version: str
    durability: str  # power-safe, process-crash-safe or memory
    store: str  # reachable, or unreachable
    worker: int  # id of the process that answered
    mail: str  # ok, not connected (to NATS: letters wait in the outbox) or failing (a mail task fails)


async def get_health(request: Request) -> Response:
    """Run a small query on the store, and read the state of mail."""
    state = app_state(request)
    store, mail = state.store, state.mail.state
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await store.list_sessions(limit=1)
        is_reachable = True
    except Exception:
        is_reachable = False
    health = Health(
        "unavailable" if not is_reachable else "degraded" if mail == "failing" else "ok",
        dragoman.__version__,
        store.durability,
        "reachable" if is_reachable else "unreachable",
        os.getpid(),
        mail,
    )
    return Response(msgspec.json.encode(health), 200 if is_reachable else 503, media_type="application/json")


ENDPOINTS = (
    public_endpoint(
        "GET",
        "/healthz",
        get_health,
        "State of the store and of mail, and durability of stored data",
        {200: Health, 503: Health},
        name="health",
    ),
)
