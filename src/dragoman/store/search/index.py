"""The search index: which messages it lacks, how they are added and removed, and how it is queried.

``indexed_seq`` of a session is the last indexed message. Any process that finds it behind ``last_seq`` may add the
missing ones. Several processes may do so at the same time; the first one wins.

Invariant: a message is indexed only if its hash is unchanged in the transaction that indexes it; otherwise
``indexed_seq`` stays before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import CorruptDataError
from dragoman.store.message_reader import MESSAGE_COLUMNS, MessageRow, message_row_from
from dragoman.store.operation import Steps, operation, to_micros
from dragoman.store.search.backends import BACKENDS, IndexBackend, IndexEntry
from dragoman.store.search.tokenizer import Term
from dragoman.store.sessions import LISTED_AT, Segment, lineage
from dragoman.store.types import Owners


class IndexBatch(msgspec.Struct, frozen=True):
    """The messages of one session after ``after_seq`` up to ``last_seq``, analyzed."""

    session_id: str
    after_seq: int
    last_seq: int
    entries: Sequence[IndexEntry]


class PendingMessages(msgspec.Struct, frozen=True):
    """Messages of a session that are not indexed yet."""

    session_id: str
    after_seq: int
    last_seq: int
    rows: Sequence[MessageRow]
    unreadable: Sequence[tuple[int, bytes]] = ()  # seq and hash of rows that the engine cannot read


class SearchFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Where to search."""

    session_id: str | None = None
    role: str | None = None
    model: str | None = None
    user_id: str | None = None
    team_id: str | None = None
    owners: Owners | None = None  # their sessions and what their forks share; not messages that record them
    since: datetime | None = None
    until: datetime | None = None
    has_tool: bool = False  # only messages with tool calls or results


class Match(msgspec.Struct, frozen=True):
    """A matching message, and the session to show it in."""

    session_id: str
    seq: int
    score: float
    shown_in: str


# --- filling ---------------------------------------------------------------------------------------------------------


@operation
def find_behind(sessions: Sequence[str] | None, limit: int) -> Steps[list[tuple[str, int]]]:
    """Return sessions with messages that are not indexed, and their last seq; only of ``sessions``, if given."""
    if sessions is None:
        rows = yield (
            "SELECT id, last_seq FROM sessions WHERE is_behind = 1 AND indexed_seq < last_seq ORDER BY id LIMIT ?",
            (limit,),
        )
        return [(session_id, last) for session_id, last in rows]
    results: list[tuple[str, int]] = []
    for session_id in sessions:
        rows = yield "SELECT id, last_seq FROM sessions WHERE indexed_seq < last_seq AND id = ?", (session_id,)
        results.extend((session_id, last) for session_id, last in rows)
    return results


@operation
def find_overrun() -> Steps[list[str]]:
    """Return sessions that are indexed beyond their end, which only damage causes."""
    return [row[0] for row in (yield "SELECT id FROM sessions WHERE indexed_seq > last_seq", ())]


@operation
def reset_sessions(engine: str, sessions: Sequence[str]) -> Steps[None]:
    """Remove sessions from the index, so that they are indexed again."""
    for session_id in sessions:
        yield from BACKENDS[engine].remove(session_id, 1, 2**62)
        yield "UPDATE sessions SET indexed_seq = parent_seq, is_behind = 1 WHERE id = ?", (session_id,)


@operation
def read_pending(targets: Iterable[tuple[str, int]], limit: int) -> Steps[list[PendingMessages]]:
    """Return up to ``limit`` messages of these sessions that are not indexed, each session up to a seq."""
    results: list[PendingMessages] = []
    for session_id, last in targets:
        bounds = yield "SELECT indexed_seq, last_seq FROM sessions WHERE id = ?", (session_id,)
        if limit > 0 and bounds and bounds[0][0] < min(last, bounds[0][1]):
            after_seq = bounds[0][0]
            rows = yield (
                f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
                (session_id, after_seq, limit),
            )
            last_seq = rows[-1][1] if len(rows) == limit else bounds[0][1]
            results.append(PendingMessages(session_id, after_seq, last_seq, list(map(message_row_from, rows))))
            limit -= len(rows)
    return results


@operation
def read_unreadable(session_id: str) -> Steps[list[PendingMessages]]:
    """Return seq and hash of the next message of a session that is not indexed, without its content."""
    rows = yield (
        "SELECT s.indexed_seq, m.seq, m.hash FROM sessions AS s JOIN messages AS m ON m.session_id = s.id"
        " WHERE s.id = ? AND m.seq > s.indexed_seq ORDER BY m.seq LIMIT 1",
        (session_id,),
    )
    return [PendingMessages(session_id, after, seq, (), [(seq, hash_)]) for after, seq, hash_ in rows]


_SET_INDEXED: Final = (
    "UPDATE sessions SET indexed_seq = ?, is_behind = CASE WHEN last_seq > ? THEN 1 ELSE 0 END WHERE id = ?"
)


@operation
def put_batches(engine: str, pieces: Iterable[IndexBatch]) -> Steps[bool]:
    """Add messages to the index; return False if another process has indexed some of them."""
    was_first = True
    for piece in pieces:
        moved = yield (
            f"{_SET_INDEXED} AND indexed_seq = ? RETURNING id",
            (piece.last_seq, piece.last_seq, piece.session_id, piece.after_seq),
        )
        if moved:
            yield from _put_batch(engine, piece)
        else:
            was_first = False
    return was_first


def _put_batch(engine: str, batch: IndexBatch) -> Steps[None]:
    rows = yield (
        "SELECT seq, hash FROM messages WHERE session_id = ? AND seq > ? AND seq <= ? ORDER BY seq",
        (batch.session_id, batch.after_seq, batch.last_seq),
    )
    hashes: dict[int, bytes] = dict(rows)
    entries = {entry.seq: entry for entry in batch.entries}
    stale = [seq for seq, hash_ in hashes.items() if seq not in entries or entries[seq].hash != hash_]
    last = stale[0] - 1 if stale else batch.last_seq
    if stale:
        yield _SET_INDEXED, (last, last, batch.session_id)
    current = [entry for entry in batch.entries if entry.seq in hashes and entry.seq <= last]
    if current:
        yield from BACKENDS[engine].put(batch.session_id, current)


# --- emptying --------------------------------------------------------------------------------------------------------


@operation
def remove_messages(engine: str, session_id: str, first: int = 1, last: int = 2**62) -> Steps[None]:
    """Remove a session's own messages from the index, before they are deleted."""
    yield from BACKENDS[engine].remove(session_id, first, last)


@operation
def clear_index(engine: str) -> Steps[None]:
    """Empty the index, so that it is rebuilt, and recompute the list order of sessions."""
    yield from BACKENDS[engine].clear()
    yield (
        "UPDATE sessions SET indexed_seq = parent_seq, is_behind = 1"
        " WHERE last_seq > parent_seq OR indexed_seq <> parent_seq",
        (),
    )
    yield f"UPDATE sessions SET listed_at = {LISTED_AT} WHERE listed_at <> {LISTED_AT}", ()


@operation
def compact_index(engine: str) -> Steps[None]:
    """Remove deleted words from the files of the index. The time grows with the index."""
    yield from BACKENDS[engine].compact()


# --- asking ----------------------------------------------------------------------------------------------------------


@operation
def find_matches(
    engine: str, terms: Sequence[Term], filters: SearchFilters, limit: int, offset: int
) -> Steps[list[Match]]:
    """Return the messages that match all terms, the best first."""
    index = BACKENDS[engine]
    segments = (yield from lineage(filters.session_id)) if filters.session_id is not None else []
    parents = yield from _foreign_parents(filters)
    conditions, arguments = _conditions(index, filters, segments, parents)
    statement, order, query_arguments = index.query(
        terms, [stretch.session_id for stretch in segments], _tables_for(filters)
    )
    places = yield (
        f"{statement}{''.join(f' AND {condition}' for condition in conditions)} ORDER BY {order} LIMIT ? OFFSET ?",
        (*query_arguments, *arguments, limit, offset),
    )
    return [
        Match(session_id, seq, score, filters.session_id or parents.get(session_id, (session_id, 0))[0])
        for session_id, seq, score, *_ in places
    ]


@operation
def read_matches(matches: Sequence[Match]) -> Steps[list[MessageRow]]:
    """Return the rows of these messages in any order."""
    results: list[MessageRow] = []
    for first in range(0, len(matches), _ROWS_PER_STATEMENT):
        places = [(match.session_id, match.seq) for match in matches[first : first + _ROWS_PER_STATEMENT]]
        places.extend([places[-1]] * (_ROWS_PER_STATEMENT - len(places)))  # the same statement for any number of rows
        rows = yield (
            f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE (session_id, seq) IN ({_VALUES})",
            [value for place in places for value in place],
        )
        results.extend(map(message_row_from, rows))
    return results


_ROWS_PER_STATEMENT: Final = 20
_VALUES: Final = f"VALUES {', '.join(['(CAST(? AS text), CAST(? AS bigint))'] * _ROWS_PER_STATEMENT)}"


def _tables_for(filters: SearchFilters) -> str:
    if (filters.user_id, filters.team_id, filters.owners) != (None, None, None):
        return "sessions"
    is_about_messages = filters.has_tool or any(
        value is not None for value in (filters.role, filters.model, filters.since, filters.until)
    )
    return "messages" if is_about_messages else ""


def _conditions(
    index: IndexBackend, filters: SearchFilters, segments: Sequence[Segment], parents: dict[str, tuple[str, int]]
) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    arguments: list[Any] = []
    if segments:
        segment_sql = f"({index.place}.session_id = ? AND {index.place}.seq BETWEEN ? AND ?)"
        conditions.append(f"({' OR '.join([segment_sql] * len(segments))})")
        arguments.extend(value for segment in segments for value in (segment.session_id, segment.first, segment.last))
    for expression, expected in (("m.role", filters.role), (index.model, filters.model)):
        if expected is not None:
            conditions.append(f"{expression} = ?")
            arguments.append(expected)
    if filters.has_tool:
        conditions.append(
            "EXISTS (SELECT 1 FROM tool_calls AS t WHERE t.session_id = m.session_id"
            " AND (t.seq = m.seq OR t.result_seq = m.seq))"
        )
    for sign, when in ((">=", filters.since), ("<", filters.until)):
        if when is not None:
            conditions.append(f"m.created_at {sign} ?")
            arguments.append(to_micros(when))
    for column, expression, expected in (
        ("s.user_id", index.owner, filters.user_id),
        ("s.team_id", index.team, filters.team_id),
    ):
        if expected is not None:
            parent_sql = f" OR ({index.place}.session_id = ? AND {index.place}.seq <= ?)" * len(parents)
            conditions.append(f"({column} = ? OR {expression} = ?{parent_sql})")
            arguments.extend((expected, expected))
            arguments.extend(value for owner, (_, last) in parents.items() for value in (owner, last))
    if filters.owners is not None:
        owner_sql, owner_arguments = filters.owners.condition("s")
        parent_sql = f" OR ({index.place}.session_id = ? AND {index.place}.seq <= ?)" * len(parents)
        conditions.append(f"({owner_sql}{parent_sql})")
        arguments.extend(owner_arguments)
        arguments.extend(value for owner, (_, last) in parents.items() for value in (owner, last))
    return conditions, arguments


def _foreign_parents(filters: SearchFilters) -> Steps[dict[str, tuple[str, int]]]:
    """Return foreign sessions that the filtered sessions share: the fork to show them in, and the last shared seq."""
    if filters.owners is not None:
        owner_sql, arguments = filters.owners.condition("c")
        other_sql = f"NOT coalesce({filters.owners.condition('p')[0]}, false)"
    else:
        filter_columns = {"user_id": filters.user_id, "team_id": filters.team_id}
        columns = {column: value for column, value in filter_columns.items() if value is not None}
        if not columns:
            return {}
        owner_sql, arguments = " AND ".join(f"c.{column} = ?" for column in columns), tuple(columns.values())
        other_sql = " OR ".join(f"p.{column} IS DISTINCT FROM ?" for column in columns)
    forks = yield (
        "SELECT c.id, p.id FROM sessions AS c JOIN sessions AS p ON p.id = c.parent_session_id"
        f" WHERE {owner_sql} AND ({other_sql}) ORDER BY c.parent_seq, c.id",
        (*arguments, *arguments),
    )
    longest = {parent: fork for fork, parent in forks}
    shown: dict[str, tuple[str, int]] = {}
    for fork in longest.values():
        try:
            segments = yield from lineage(fork)
        except CorruptDataError:
            continue  # other sessions can still be searched
        for segment in segments:
            if segment.session_id != fork and segment.last > shown.get(segment.session_id, ("", 0))[1]:
                shown[segment.session_id] = fork, segment.last
    return shown
