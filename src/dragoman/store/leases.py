"""The right to run a turn in a session. The one rule: one owner at a time, until it is given back or has expired."""

from __future__ import annotations

import functools
from collections.abc import Generator

from dragoman.errors import ConflictError
from dragoman.store.lease_clock import length_us
from dragoman.store.operation import Rows, Statement, VolatileOperation
from dragoman.store.sessions import unknown_session

IS_HELD = "leases.expires_at > lease_now()"


def acquire_lease(session_id: str, owner: str, seconds: float) -> VolatileOperation[None]:
    """The right to run a turn, if nobody else has it; taking it again prolongs it."""
    return VolatileOperation(functools.partial(_acquire, session_id, owner, length_us(seconds)))


def release_lease(session_id: str, owner: str) -> VolatileOperation[None]:
    """Give the right back."""
    return VolatileOperation(functools.partial(_release, session_id, owner))


def _acquire(session_id: str, owner: str, length: int) -> Generator[Statement, Rows, None]:
    rows = yield (
        "INSERT INTO leases (session_id, owner, length_us, expires_at) SELECT id, ?, ?, lease_now() + ? FROM sessions"
        " WHERE id = ? ON CONFLICT (session_id) DO UPDATE"
        " SET owner = excluded.owner, length_us = excluded.length_us, expires_at = excluded.expires_at"
        f" WHERE leases.owner = excluded.owner OR NOT {IS_HELD} RETURNING owner",
        (owner, length, length, session_id),
    )
    if rows:
        return
    lease_rows = yield "SELECT expires_at - lease_now() FROM leases WHERE session_id = ?", (session_id,)
    if not lease_rows:
        raise unknown_session(session_id)
    remaining_s = max(1, -(-lease_rows[0][0] // 1_000_000))
    raise ConflictError(
        f"a turn is running; if its process has died, the session is free in {remaining_s} s",
        where=f"session {session_id}",
        remedy="Wait for it, or cancel it",
        code="turn_in_flight",
    )


def _release(session_id: str, owner: str) -> Generator[Statement, Rows, None]:
    yield "DELETE FROM leases WHERE session_id = ? AND owner = ?", (session_id, owner)
