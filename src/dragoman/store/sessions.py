"""Create, find, change and fork sessions, and resolve the lineage of a history.

A fork shares the history of its parent up to a message, so a history consists of segments of several sessions.

Invariants: every seq of a history is in exactly one segment, or the store is damaged. A damaged row never gets a hash
that matches.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import (
    ConflictError,
    CorruptDataError,
    FormatError,
    InputError,
    UnknownMessageError,
    UnknownSessionError,
)
from dragoman.jsontext import validate_json
from dragoman.store.operation import (
    FOR_UPDATE,
    RETURNING_ONE,
    Steps,
    from_micros,
    operation,
    to_micros,
    values_clause,
)
from dragoman.store.row_hash import json_hash
from dragoman.store.types import Owners, Session

_SESSION_COLUMNS: Final = (
    "id, title, workspace_path, active_model, routing_policy_json, user_id, team_id, metadata_json,"
    " parent_session_id, parent_seq, last_seq, created_at, updated_at, schema_version, hash"
)

_CONTROL: Final = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
_BUCKET: Final = 10_000_000  # microseconds
_NEWEST_FIRST: Final = "listed_at DESC, updated_at DESC, id DESC"  # an index covers the first column


LISTED_AT: Final = f"((updated_at - (updated_at % {_BUCKET} + {_BUCKET}) % {_BUCKET}) / {_BUCKET})"  # the same in SQL


TOUCH: Final = (  # SET clause of a changed session; a clock that was set back does not make it older
    "updated_at = CASE WHEN updated_at > ? THEN updated_at ELSE ? END,"
    " listed_at = CASE WHEN listed_at > ? THEN listed_at ELSE ? END"
)


def touch_arguments(now: datetime) -> tuple[int, int, int, int]:
    """Return the arguments of ``TOUCH``."""
    at = to_micros(now)
    return at, at, list_bucket(at), list_bucket(at)


def list_bucket(updated_at: int) -> int:
    """Return the time in tens of seconds, by which sessions are listed: the indexed value seldom changes."""
    return updated_at // _BUCKET


def _session_hash(row: Sequence[Any]) -> bytes:
    """Return the SHA-256 of the columns that no other row repeats, without length and lineage."""
    return json_hash((*row[:8], row[11], row[13]))


def _session_from_row(row: tuple[Any, ...]) -> Session:
    if _session_hash(row) != row[14]:
        raise CorruptDataError("the hash of its row does not match", where=f"session {row[0]}")
    policy, metadata = row[4], row[7]
    return Session(
        id=row[0],
        title=row[1],
        workspace_path=row[2],
        active_model=row[3],
        routing_policy=msgspec.json.decode(policy) if policy is not None else None,
        user_id=row[5],
        team_id=row[6],
        metadata=msgspec.json.decode(metadata) if metadata is not None else {},
        parent_session_id=row[8],
        parent_seq=row[9],
        last_seq=row[10],
        created_at=from_micros(row[11]),
        updated_at=from_micros(row[12]),
        schema_version=row[13],
    )


def _check_id(session_id: str) -> None:
    if _CONTROL.search(session_id):
        raise FormatError(
            "an id holds a control character", where=f"session {session_id!r}", remedy="Use printable characters only"
        )


def _check_limit(limit: int) -> None:
    if limit < 0:
        raise InputError(f"the limit is {limit}", remedy="Use a number from 0")


@operation
def create_session(session: Session, last_message_id: str = "") -> Steps[Session]:
    """Insert a session; ``ConflictError`` if its id exists.

    ``last_message_id`` is the greatest id of its messages, which may be inserted in the same transaction.
    """
    _check_id(session.id)
    row = (
        session.id,
        session.title,
        session.workspace_path,
        session.active_model,
        _json_column(session.routing_policy),
        session.user_id,
        session.team_id,
        _json_column(session.metadata or None),
        session.parent_session_id,
        session.parent_seq,
        session.last_seq,
        to_micros(session.created_at),
        to_micros(session.updated_at),
        session.schema_version,
    )
    rows = yield sessions_insert_sql(1), new_session_columns(row, last_message_id)
    if not rows:
        raise existing_session(session.id)
    return session


@functools.cache
def sessions_insert_sql(rows: int) -> str:
    """Return the statement that inserts so many sessions; it returns a row for each one whose id did not exist."""
    return (
        f"INSERT INTO sessions ({_SESSION_COLUMNS}, last_message_id, indexed_seq, listed_at, is_behind)"
        f" VALUES {values_clause(19, rows)} ON CONFLICT (id) DO NOTHING{RETURNING_ONE}"
    )


def new_session_columns(row: Sequence[Any], last_message_id: str) -> tuple[Any, ...]:
    """Return the columns of a new session, of those before its hash."""
    parent_seq, last_seq, updated_at = row[9], row[10], row[12]
    is_behind = last_seq > parent_seq
    return (*row, _session_hash(row), last_message_id, parent_seq, list_bucket(updated_at), int(is_behind))


def existing_session(session_id: str) -> ConflictError:
    """Return the error about a new session whose id exists."""
    return ConflictError("the session exists already", where=f"session {session_id}", code="session_exists")


def _json_column(value: dict[str, Any] | None) -> str | None:
    if value is None:
        return None
    try:
        validate_json(value, "the metadata of a session")
    except ValueError as error:
        raise FormatError(str(error)) from None
    return msgspec.json.encode(value).decode()


@operation
def get_session(session_id: str) -> Steps[Session]:
    """Read a session, or raise ``UnknownSessionError``."""
    session = yield from find_session(session_id)
    if session is None:
        raise unknown_session(session_id)
    return session


@operation
def find_session(session_id: str) -> Steps[Session | None]:
    """Read a session, or return ``None``."""
    rows = yield f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE id = ?", (session_id,)
    return _session_from_row(rows[0]) if rows else None


@operation
def read_sessions(session_ids: Sequence[str]) -> Steps[list[Session]]:
    """Read the sessions of a few ids that exist, in the order of the ids."""
    places = ", ".join("?" * len(session_ids))
    rows = yield f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE id IN ({places})", tuple(session_ids)
    return [_session_from_row(row) for row in sorted(rows, key=lambda row: session_ids.index(row[0]))]


def unknown_session(session_id: str) -> UnknownSessionError:
    return UnknownSessionError(
        f"no session {session_id!r}", remedy="List the sessions with list_sessions, or dragoman sessions"
    )


@operation
def list_sessions(
    user_id: str | None, team_id: str | None, before: tuple[datetime, str] | None, limit: int
) -> Steps[list[Session]]:
    """Read sessions, the last changed first; ``before``: time and id of the last one of the previous page."""
    _check_limit(limit)
    conditions, arguments = ["1 = 1"], list[Any]()
    for column, value in (("user_id", user_id), ("team_id", team_id)):
        if value is not None:
            conditions.append(f"{column} = ?")
            arguments.append(value)
    return (yield from select_sessions(conditions, arguments, before, limit))


def select_sessions(
    conditions: list[str], arguments: list[Any], before: tuple[datetime, str] | None, limit: int
) -> Steps[list[Session]]:
    """Read the sessions that meet all conditions, in the same order."""
    if before is None:  # SQLite uses an index for ORDER BY only if a condition uses it as well
        conditions = [*conditions, f"listed_at < {2**62}"]
    else:
        at = to_micros(before[0])
        conditions = [*conditions, "listed_at <= ?", "(updated_at, id) < (?, ?)"]
        arguments = [*arguments, list_bucket(at), at, before[1]]
    rows = yield (
        f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE {' AND '.join(conditions)} ORDER BY {_NEWEST_FIRST} LIMIT ?",
        (*arguments, limit),
    )
    return [_session_from_row(row) for row in rows]


@operation
def list_sessions_of(owners: Owners, before: tuple[datetime, str] | None, limit: int) -> Steps[list[Session]]:
    condition, arguments = owners.condition("sessions")
    return (yield from select_sessions([condition], list(arguments), before, limit))


@operation
def list_forks(parents: Sequence[str], owners: Owners) -> Steps[list[Session]]:
    """Read the forks of these sessions that belong to the owners, the oldest first."""
    condition, arguments = owners.condition("sessions")
    rows = yield (
        f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE parent_session_id IN ({', '.join('?' * len(parents))})"
        f" AND {condition} ORDER BY created_at, id",
        (*parents, *arguments),
    )
    return [_session_from_row(row) for row in rows]


@operation
def find_sessions(part: str, limit: int) -> Steps[list[Session]]:
    """Read sessions whose id starts or ends with a text, ignoring case, the last changed first."""
    _check_limit(limit)
    text, length = part.lower(), len(part)
    rows = yield (
        f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE lower(substr(id, 1, ?)) = ? OR lower(substr(id, 6, ?)) = ?"
        " OR lower(substr(id, length(id) + 1 - ?)) = ? ORDER BY updated_at DESC, id DESC LIMIT ?",
        (length, text, length, text, length, text, limit),
    )
    return [_session_from_row(row) for row in rows]


_CHANGEABLE: Final = {
    "title": "title",
    "workspace_path": "workspace_path",
    "active_model": "active_model",
    "routing_policy": "routing_policy_json",
    "metadata": "metadata_json",
    "user_id": "user_id",
    "team_id": "team_id",
}


@operation
def change_session(session_id: str, changes: dict[str, Any], now: datetime) -> Steps[Session]:
    """Change fields of a session."""
    columns = [f"{_CHANGEABLE[name]} = ?" for name in changes]
    values = [_json_column(given) if _CHANGEABLE[name].endswith("_json") else given for name, given in changes.items()]
    yield from lock_session(session_id)
    yield from get_session(session_id)  # a damaged row must not get a hash that matches
    (row,) = yield (
        f"UPDATE sessions SET {', '.join((*columns, TOUCH))} WHERE id = ? RETURNING {_SESSION_COLUMNS}",
        (*values, *touch_arguments(now), session_id),
    )
    row = (*row[:14], _session_hash(row))
    yield "UPDATE sessions SET hash = ? WHERE id = ?", (row[14], session_id)
    return _session_from_row(row)


@operation
def merge_metadata(
    session_id: str, changes: dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
) -> Steps[Session]:
    """Change keys of the metadata of a session, without moving it in the list; ``None`` removes a key.

    ``changes`` may be a function of the present metadata.
    """
    yield from lock_session(session_id)
    session = yield from get_session(session_id)
    values = changes(session.metadata) if callable(changes) else changes
    merged = {name: value for name, value in {**session.metadata, **values}.items() if value is not None}
    (row,) = yield (
        f"UPDATE sessions SET metadata_json = ? WHERE id = ? RETURNING {_SESSION_COLUMNS}",
        (_json_column(merged), session_id),
    )
    row = (*row[:14], _session_hash(row))
    yield "UPDATE sessions SET hash = ? WHERE id = ?", (row[14], session_id)
    return _session_from_row(row)


@operation
def fork_session(session_id: str, at_seq: int, fork: Session) -> Steps[Session]:
    """Create a session that shares the history of another one up to a message. Nothing is copied."""
    origin = yield from get_session(session_id)
    if not 0 <= at_seq <= origin.last_seq:
        raise UnknownMessageError(f"no message {at_seq} in session {session_id!r}; it has {origin.last_seq}")
    while at_seq <= origin.parent_seq and origin.parent_session_id is not None:  # the message is shared from further up
        origin = yield from get_session(origin.parent_session_id)
    _, last_message_id = yield from lock_session(origin.id)  # so that it cannot be deleted meanwhile
    session = msgspec.structs.replace(fork, parent_session_id=origin.id, parent_seq=at_seq, last_seq=at_seq)
    yield from create_session(session, last_message_id)
    return session


def lock_session(session_id: str) -> Steps[tuple[int, str]]:
    """Lock a session for other writers until the transaction ends; return its last seq and greatest message id."""
    rows = yield f"SELECT last_seq, last_message_id FROM sessions WHERE id = ?{FOR_UPDATE}", (session_id,)
    if not rows:
        raise unknown_session(session_id)
    last_seq, last_message_id = rows[0]
    return last_seq, last_message_id


# --- lineage ---------------------------------------------------------------------------------------------------------


class Segment(msgspec.Struct, frozen=True):
    """A part of a history: the messages of one session from ``first`` to ``last``."""

    session_id: str
    first: int
    last: int


@operation
def lineage(session_id: str) -> Steps[list[Segment]]:
    """Return the segments of a history, oldest first. The last one is the session's own and may be empty."""
    rows = yield "SELECT parent_session_id, parent_seq, last_seq FROM sessions WHERE id = ?", (session_id,)
    if not rows:
        raise unknown_session(session_id)
    parent, parent_seq, last = rows[0]
    segments = [Segment(session_id, parent_seq + 1, last)]
    while parent is not None and parent_seq > 0:
        owner, last = parent, parent_seq
        rows = yield "SELECT parent_session_id, parent_seq FROM sessions WHERE id = ?", (owner,)
        if not rows:
            raise damage_error(owner, "it shares the history of a missing session")
        parent, parent_seq = rows[0]
        segments.append(Segment(owner, parent_seq + 1, last))
    if parent_seq:
        raise damage_error(segments[-1].session_id, "the beginning of its history is missing")
    for segment in segments:
        if segment.first > 1:  # its own rows must start where the shared history ends
            rows = yield "SELECT min(seq) FROM messages WHERE session_id = ?", (segment.session_id,)
            if rows[0][0] not in (None, segment.first):
                raise damage_error(segment.session_id, "it does not start where its shared history ends")
    return segments[::-1]


def damage_error(session_id: str, what: str) -> CorruptDataError:
    return CorruptDataError(what, where=f"session {session_id}")
