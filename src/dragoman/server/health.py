"""``GET /healthz``: whether the server can do its work, and how safe what it keeps is."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import dragoman
from dragoman.server.endpoint import Endpoint
from dragoman.server.state import doors_of

_PATIENCE_S: Final = 5.0


class Health(msgspec.Struct, frozen=True):
    """How it is."""

    status: str  # ok, degraded (mail does not work) or unavailable (the store does not)
    version: str
    durability: str  # power-safe, process-crash-safe or memory
    store: str  # reachable, or unreachable
    worker: int  # the process that answered
    mail: str  # ok, not connected (to NATS: letters wait in the outbox) or failing (a task of mail does not work)


async def healthz(request: Request) -> Response:
    """Ask the store something small, and mail how it is."""
    doors = doors_of(request)
    store, mail = doors.store, doors.mail.state
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await store.list_sessions(limit=1)
        is_well = True
    except Exception:
        is_well = False
    health = Health(
        "unavailable" if not is_well else "degraded" if mail == "failing" else "ok",
        dragoman.__version__,
        store.durability,
        "reachable" if is_well else "unreachable",
        os.getpid(),
        mail,
    )
    return Response(msgspec.json.encode(health), 200 if is_well else 503, media_type="application/json")


ENDPOINTS = (
    Endpoint(
        "GET",
        "/healthz",
        healthz,
        name="health",
        summary="Whether the server can do its work, and how safe what it keeps is",
        answers={200: Health, 503: Health},
        public=True,
    ),
)
