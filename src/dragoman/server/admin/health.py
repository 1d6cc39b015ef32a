"""``GET /healthz``: whether the server can do its work, and how safe what it keeps is."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import dragoman
from dragoman.server.http.endpoint import Endpoint
from dragoman.server.http.requests import app_state

_TIMEOUT_S: Final = 5.0


class Health(msgspec.Struct, frozen=True):
    """How it is."""

    status: str  # ok, degraded (mail does not work) or unavailable (the store does not)
    version: str
    durability: str  # power-safe, process-crash-safe or memory
    store: str  # reachable, or unreachable
    worker: int  # the process that answered
    mail: str  # ok, not connected (to NATS: letters wait in the outbox) or failing (a task of mail does not work)


async def get_health(request: Request) -> Response:
    """Ask the store something small, and mail how it is."""
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
    Endpoint(
        "GET",
        "/healthz",
        get_health,
        name="health",
        summary="Whether the server can do its work, and how safe what it keeps is",
        responses={200: Health, 503: Health},
        public=True,
    ),
)
