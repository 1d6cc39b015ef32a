"""The right to run a turn in a session. The one rule: one owner at a time, until it is given back or has expired."""

from __future__ import annotations

import functools
from collections.abc import Generator
from datetime import datetime

from dragoman.errors import ConflictError
from dragoman.store.operation import Passing, Rows, Statement
from dragoman.store.rows import micros, time_from
from dragoman.store.sessions import unknown_session
from dragoman.store.values import Lease


def take_lease(session_id: str, owner: str, now: datetime, until: datetime) -> Passing[Lease]:
    """The right to run a turn, if nobody else has it; taking it again prolongs it."""
    return Passing(functools.partial(_taken, session_id, owner, now, until))


def release_lease(session_id: str, owner: str) -> Passing[None]:
    """Give the right back."""
    return Passing(functools.partial(_released, session_id, owner))


def _taken(session_id: str, owner: str, now: datetime, until: datetime) -> Generator[Statement, Rows, Lease]:
    rows = yield (
        "INSERT INTO leases (session_id, owner, expires_at) SELECT id, ?, ? FROM sessions WHERE id = ?"
        " ON CONFLICT (session_id) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at"
        " WHERE leases.owner = excluded.owner OR leases.expires_at <= ? RETURNING owner",
        (owner, micros(until), session_id, micros(now)),
    )
    if rows:
        return Lease(session_id=session_id, owner=owner, expires_at=until)
    held = yield "SELECT expires_at FROM leases WHERE session_id = ?", (session_id,)
    if not held:
        raise unknown_session(session_id)
    raise ConflictError(
        f"a turn is running, until {time_from(held[0][0]).isoformat()} at the latest",
        where=f"session {session_id}",
        remedy="Wait for it, or cancel it",
        code="turn_in_flight",
    )


def _released(session_id: str, owner: str) -> Generator[Statement, Rows, None]:
    yield "DELETE FROM leases WHERE session_id = ? AND owner = ?", (session_id, owner)
