"""The trace of a store: events of sessions, as the bus emits them.

    await store.trace.append(events)                         secrets are redacted first
    await store.trace.events(session_id, after_id, limit)    in order; continue after the last id
    await store.trace.delete_old_events()                    except the types that an audit needs

Events belong to the session that they happened in: a fork starts without events, and deleting a session deletes them.
Events of no session have the session id ``"system"``. An event of an unknown session is skipped: the session was
deleted before its trace was written. Storing an event twice changes nothing.

Invariant: no stored event contains a secret that the redactor knows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from dragoman.errors import CorruptDataError
from dragoman.jsontext import OWN, read_json
from dragoman.store.operation import (
    FOR_KEY_SHARE,
    Facet,
    Statement,
    Steps,
    from_micros,
    in_clause_chunks,
    insert_chunks,
    operation,
    to_micros,
    values_clause,
    volatile,
)
from dragoman.store.row_hash import json_hash
from dragoman.store.types import TraceEvent

if TYPE_CHECKING:
    from dragoman.redaction import Redactor

SYSTEM: Final = "system"  # the session id of events and evaluations of no session
RETENTION: Final = timedelta(days=90)
AUDIT_TYPES: Final = (  # never deleted because of their age
    "gateway.auth_failed",
    "gateway.key_issued",
    "gateway.key_revoked",
    "gateway.key_rotated",
    "gateway.quota_exceeded",
    "trace.swept",
    "usage.repaired",
)

_COLUMNS: Final = "id, timestamp_us, session_id, turn_id, parent_event_id, type, actor, sensitivity, payload_json, hash"
_PAGE: Final = 500


@functools.cache
def default_redactor() -> Redactor:
    """Return the redactor of stored traces."""
    from dragoman.redaction import Redactor  # noqa: PLC0415  readers do not need it

    return Redactor()


class EventLike(Protocol):
    """An event of the bus."""

    @property
    def id(self) -> str: ...
    @property
    def timestamp_us(self) -> int: ...
    @property
    def session_id(self) -> str: ...
    @property
    def turn_id(self) -> str | None: ...
    @property
    def parent_event_id(self) -> str | None: ...
    @property
    def type(self) -> str: ...
    @property
    def actor(self) -> str: ...
    @property
    def sensitivity(self) -> str: ...
    @property
    def payload_json(self) -> bytes: ...


class TraceStore(Facet):
    """The trace of a store: ``store.trace``."""

    async def append(self, events: Iterable[EventLike], redactor: Redactor | None = None) -> int:
        """Store redacted events; return how many were new and of an existing session.

        On SQLite only events that an audit needs are synced; a power cut may lose the newest of the others.
        """
        rows = event_rows(list(events), redactor or default_redactor())
        if not rows:
            return 0
        insertion = append_events(rows)
        is_audited = any(row[5] in AUDIT_TYPES for row in rows)
        return await self._store._write(insertion if is_audited else volatile(insertion))

    async def events(
        self,
        session_id: str,
        after_id: str = "",
        limit: int = 100,
        *,
        types: Iterable[str] | None = None,
        turn_id: str | None = None,
    ) -> list[TraceEvent]:
        """Return the events of a session after an id, in order; only of these types and this turn, if given."""
        type_list = None if types is None else tuple(types)
        return await self._store._read(_read_events(session_id, after_id, limit, type_list, turn_id))

    async def delete_old_events(
        self, older_than: timedelta = RETENTION, *, exempt: Iterable[str] = AUDIT_TYPES, dry_run: bool = False
    ) -> int:
        """Delete older events except those of the exempt types; return their number."""
        cutoff, exempt_types, count = self._store.clock() - older_than, sorted(set(exempt)), 0
        if dry_run:
            return await self._store._read(_count_before(cutoff, exempt_types))
        while deleted := await self._store._write(_delete_before(cutoff, exempt_types)):
            count += deleted
        return count


# --- rows ------------------------------------------------------------------------------------------------------------


def event_rows(events: Sequence[EventLike], redactor: Redactor) -> list[tuple[Any, ...]]:
    """Return the rows of events, without secrets."""
    payloads = redactor.json_list([event.payload_json for event in events])
    return [_event_row(event, payload) for event, payload in zip(events, payloads, strict=True)]


def _event_row(event: EventLike, payload: bytes) -> tuple[Any, ...]:
    row = (
        event.id,
        event.timestamp_us,
        event.session_id,
        event.turn_id,
        event.parent_event_id,
        event.type,
        str(event.actor),
        str(event.sensitivity),
        payload.decode(),
    )
    return (*row, json_hash(row))


def import_row(event: TraceEvent, session_id: str) -> tuple[Any, ...]:
    """Return the row of an event that is imported into a session."""
    row = (
        event.id,
        to_micros(event.timestamp),
        session_id,
        event.turn_id,
        event.parent_event_id,
        event.type,
        event.actor,
        event.sensitivity,
        default_redactor().json(msgspec.json.encode(event.payload)).decode(),
    )
    return (*row, json_hash(row))


def _event_from_row(row: tuple[Any, ...]) -> TraceEvent:
    if json_hash(row[:9]) != bytes(row[9]):
        raise CorruptDataError("its hash does not match its content", where=f"session {row[2]}, event {row[0]}")
    return TraceEvent(
        id=row[0],
        timestamp=from_micros(row[1]),
        session_id=row[2],
        turn_id=row[3],
        parent_event_id=row[4],
        type=row[5],
        actor=row[6],
        sensitivity=row[7],
        payload=read_json(row[8], OWN),
    )


# --- operations ------------------------------------------------------------------------------------------------------


@functools.cache
def _insert_sql(count: int) -> str:
    values = values_clause(10, count)
    return f"INSERT INTO events ({_COLUMNS}) VALUES {values} ON CONFLICT (session_id, id) DO NOTHING RETURNING 1"


@operation
def append_events(rows: Sequence[tuple[Any, ...]]) -> Steps[int]:
    """Insert the events of existing sessions; return how many were new."""
    session_ids = {SYSTEM}
    for places, names in in_clause_chunks(sorted({row[2] for row in rows} - session_ids)):
        found = yield f"SELECT id FROM sessions WHERE id IN ({places}) ORDER BY id{FOR_KEY_SHARE}", names
        session_ids.update(name for (name,) in found)
    accepted = [row for row in rows if row[2] in session_ids]
    count = 0
    for batch in insert_chunks(accepted):
        inserted = yield _insert_sql(len(batch)), list(itertools.chain.from_iterable(batch))
        count += len(inserted)
    return count


@operation
def _read_events(
    session_id: str, after_id: str, limit: int, types: Sequence[str] | None, turn_id: str | None
) -> Steps[list[TraceEvent]]:
    if types is not None and not types:
        return []
    conditions, arguments = ["session_id = ?", "id > ?"], list[Any]((session_id, after_id))
    if types is not None:
        conditions.append(f"type IN ({', '.join('?' * len(types))})")
        arguments.extend(types)
    if turn_id is not None:
        conditions.append("turn_id = ?")
        arguments.append(turn_id)
    rows = yield (
        f"SELECT {_COLUMNS} FROM events WHERE {' AND '.join(conditions)} ORDER BY id LIMIT ?",
        (*arguments, limit),
    )
    return [_event_from_row(row) for row in rows]


def _old_events(cutoff: datetime, exempt: Sequence[str]) -> Statement:
    """Return the condition of older events, and its arguments."""
    condition = f"timestamp_us < ? AND type NOT IN ({', '.join('?' * len(exempt))})" if exempt else "timestamp_us < ?"
    return condition, (to_micros(cutoff), *exempt)


@operation
def _count_before(cutoff: datetime, exempt: Sequence[str]) -> Steps[int]:
    condition, arguments = _old_events(cutoff, exempt)
    rows = yield f"SELECT count(*) FROM events WHERE {condition}", arguments
    count: int = rows[0][0]
    return count


@operation
def _delete_before(cutoff: datetime, exempt: Sequence[str]) -> Steps[int]:
    """Delete a page of older events, so that other writers do not wait for all of them."""
    condition, arguments = _old_events(cutoff, exempt)
    rows = yield (
        "DELETE FROM events WHERE (session_id, id) IN"
        f" (SELECT session_id, id FROM events WHERE {condition} ORDER BY timestamp_us LIMIT ?) RETURNING 1",
        (*arguments, _PAGE),
    )
    return len(rows)


def anonymize(user_id: str) -> Steps[None]:
    """Remove a user id from the events of other users' sessions."""
    user_json = msgspec.json.encode(user_id).decode()
    pattern = "".join(f"!{character}" if character in "!%_" else character for character in user_json)
    rows = yield f"SELECT {_COLUMNS} FROM events WHERE payload_json LIKE ? ESCAPE '!'", (f"%{pattern}%",)
    for row in rows:
        payload = _remove_value(read_json(row[8], OWN), user_id)
        new_row = (*row[:8], msgspec.json.encode(payload).decode())
        yield (
            "UPDATE events SET payload_json = ?, hash = ? WHERE session_id = ? AND id = ?",
            (new_row[8], json_hash(new_row), row[2], row[0]),
        )


def _remove_value(value: Any, user_id: str) -> Any:
    match value:
        case dict():
            remaining = {name: inner for name, inner in value.items() if inner != user_id}
            return {name: _remove_value(inner, user_id) for name, inner in remaining.items()}
        case list():
            return [_remove_value(inner, user_id) for inner in value if inner != user_id]
        case _:
            return value


@operation
def find_damage(session_id: str) -> Steps[list[str]]:
    """Describe what is wrong with the events of a session."""
    return (yield from find_wrong_hashes("events", _COLUMNS, session_id, json_hash))


def find_wrong_hashes(
    table: str, columns: str, session_id: str, hash_of: Callable[[Sequence[Any]], bytes]
) -> Steps[list[str]]:
    """Describe the rows of a table whose hash, their last column, does not match the others."""
    problems: list[str] = []
    after_id = ""
    while rows := (
        yield (
            f"SELECT {columns} FROM {table} WHERE session_id = ? AND id > ? ORDER BY id LIMIT ?",
            (session_id, after_id, _PAGE),
        )
    ):
        problems.extend(
            f"{table.removesuffix('s')} {row[0]}: its hash does not match its content"
            for row in rows
            if hash_of(row[:-1]) != bytes(row[-1])
        )
        after_id = rows[-1][0]
    return problems


@operation
def find_orphans() -> Steps[list[str]]:
    """Describe the events and evaluations of sessions that do not exist."""
    problems: list[str] = []
    for table in ("events", "evaluations"):
        rows = yield (
            f"SELECT DISTINCT session_id FROM {table} WHERE session_id <> ?"
            " AND session_id NOT IN (SELECT id FROM sessions)",
            (SYSTEM,),
        )
        problems.extend(f"there are {table} of session {name}, which does not exist" for (name,) in rows)
    return problems
