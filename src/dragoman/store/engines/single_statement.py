"""Fast path of PostgreSQL: an append as one statement, which commits by itself in one round trip.

A statement returns no row, and changes nothing, unless the session ends where the caller believes it to end, or the run
has the last event that the caller knows. Then the general operation decides. Messages with tool calls, tool results,
large content or attachments take the general path. Tests compare the two paths.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.message import Message, Role, ToolResultBlock
from dragoman.store import message_reader, message_writer, runs
from dragoman.store.message_writer import CALL_BLOCKS, Draft, SessionEnd, fingerprint
from dragoman.store.operation import Statement, to_micros
from dragoman.store.row_hash import row_hash
from dragoman.store.runs import Run, RunEnd
from dragoman.store.sessions import touch_arguments

_SPECIAL_BLOCKS: Final = (*CALL_BLOCKS, ToolResultBlock)
_NUMBERS: Final = (
    "seq",
    "created_at",
    "schema_version",
    "first_seq",
    "last_seq",
    "first_number",
    "last_number",
    "unpriced",
)


def _column_type(name: str) -> str:
    if name in ("hash", "fingerprint"):
        return "bytea"
    return "bigint" if name in _NUMBERS or name.endswith("_tokens") else "text"


def end_statement(session_id: str) -> Statement:
    """Read where a session ends."""
    return "SELECT last_seq, last_message_id FROM sessions WHERE id = ?", (session_id,)


def can_append(drafts: Sequence[Draft], end: SessionEnd, expected_seq: int | None) -> bool:
    """Whether the statement can append these messages at the end of a session."""
    return (
        expected_seq in (None, end[0])
        and message_writer.are_after(drafts, end[1])
        and not any(map(_has_related_rows, drafts))
    )


def _has_related_rows(draft: Draft) -> bool:
    message = draft.message
    return (
        bool(draft.columns.blobs)
        or message.role is Role.TOOL
        or message.metadata.user_message_attachments is not None
        or any(isinstance(block, _SPECIAL_BLOCKS) for block in message.content)
    )


def append_statement(
    session_id: str, drafts: Sequence[Draft], end: SessionEnd, *, now: datetime, key: str | None
) -> Statement:
    """Append messages after the end of a session, with their usage and an idempotency key; returns their seqs."""
    first, last = end[0] + 1, end[0] + len(drafts)
    used = [(seq, draft) for seq, draft in enumerate(drafts, first) if draft.message.metadata.usage is not None]
    arguments: list[Any] = [last, drafts[-1].columns.id, *touch_arguments(now), session_id, *end]
    if key is not None:
        arguments += (session_id, key)
    if used:
        arguments += _to_arguments([message_writer.usage_values(session_id, *row) for row in _to_messages(used)])
    if key is not None:
        key_columns = key, fingerprint(drafts), first, last, to_micros(now)
        arguments += (*key_columns, row_hash(*key_columns))
    arguments += _to_arguments(
        [message_writer.message_values(session_id, seq, draft.columns) for seq, draft in enumerate(drafts, first)]
    )
    return _append_sql(len(drafts) > 1, min(len(used), 2), key is not None), arguments


class Append(msgspec.Struct, frozen=True):
    """Messages to append after the end of a session."""

    session_id: str
    drafts: Sequence[Draft]
    end: SessionEnd
    now: datetime


def append_group_statement(appends: Sequence[Append]) -> Statement:
    """Append messages without usage to several sessions; returns the sessions and seqs of those that ended there."""
    moves: list[tuple[Any, ...]] = []
    rows: list[tuple[Any, ...]] = []
    for append in appends:
        first = append.end[0] + 1
        times = touch_arguments(append.now)
        moves.append(
            (append.session_id, *append.end, first - 1 + len(append.drafts), append.drafts[-1].columns.id, *times[1:3])
        )
        for seq, draft in enumerate(append.drafts, first):
            rows.append(message_writer.message_values(append.session_id, seq, draft.columns))
    columns = [list(column) for part in (moves, rows) for column in zip(*part, strict=True)]
    return _GROUP_SQL, columns


_MESSAGE_TYPES: Final = ", ".join(f"?::{_column_type(name)}[]" for name in message_reader.MESSAGE_COLUMNS.split(", "))
_GROUP_SQL: Final = (  # the sessions are locked in one order, so that two statements cannot wait for each other
    "WITH asked AS (SELECT * FROM unnest(?::text[], ?::bigint[], ?::text[], ?::bigint[], ?::text[], ?::bigint[],"
    " ?::bigint[]) AS a (id, old_seq, old_id, new_seq, new_id, at, bucket)),"
    " locked AS (SELECT s.id FROM sessions AS s JOIN asked AS a ON a.id = s.id AND a.old_seq = s.last_seq"
    " AND a.old_id = s.last_message_id ORDER BY s.id FOR NO KEY UPDATE OF s),"
    " moved AS (UPDATE sessions AS s SET last_seq = a.new_seq, last_message_id = a.new_id,"
    " updated_at = greatest(s.updated_at, a.at), listed_at = greatest(s.listed_at, a.bucket), is_behind = 1"
    " FROM asked AS a JOIN locked AS l ON l.id = a.id"
    " WHERE s.id = a.id AND s.last_seq = a.old_seq AND s.last_message_id = a.old_id RETURNING s.id)"
    f" INSERT INTO messages ({message_reader.MESSAGE_COLUMNS}) SELECT r.* FROM unnest({_MESSAGE_TYPES})"
    f" AS r ({message_reader.MESSAGE_COLUMNS}) JOIN moved ON moved.id = r.session_id RETURNING session_id, seq"
)


def _to_messages(drafts: Sequence[tuple[int, Draft]]) -> list[tuple[int, Message]]:
    return [(seq, draft.message) for seq, draft in drafts]


def _to_arguments(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The columns of rows without the session: values of one row, arrays of several."""
    return list(rows[0][1:]) if len(rows) == 1 else [list(column) for column in zip(*rows, strict=True)][1:]


@functools.cache
def _append_sql(has_many: bool, usages: int, has_key: bool) -> str:
    unused = " AND NOT EXISTS (SELECT FROM idempotency WHERE session_id = ? AND key = ?)" if has_key else ""
    move = f"{message_writer.MOVE_END} AND last_seq = ? AND last_message_id = ?{unused} RETURNING id"
    parts = [f"moved AS ({move})"]
    if usages:
        parts.append(f"used AS ({_insert_sql('usage', message_writer.USAGE_COLUMNS, usages > 1)})")
    if has_key:
        parts.append(f"named AS ({_insert_sql('idempotency', message_writer.KEY_COLUMNS, False)})")
    insert = _insert_sql("messages", message_reader.MESSAGE_COLUMNS, has_many)
    return f"WITH {', '.join(parts)} {insert} RETURNING seq"


def _insert_sql(table: str, columns: str, has_many: bool) -> str:
    """Insert one row, or the rows of arrays, if the session was moved."""
    types = [_column_type(name) for name in columns.split(", ")[1:]]
    if has_many:
        values = f"SELECT moved.id, r.* FROM moved, unnest({', '.join(f'?::{name}[]' for name in types)}) AS r"
    else:
        values = f"SELECT moved.id, {', '.join(f'?::{name}' for name in types)} FROM moved"
    return f"INSERT INTO {table} ({columns}) {values}"


def append_events_statement(
    run: Run, after: int, events: Sequence[str], end: RunEnd | None, now: datetime
) -> Statement:
    """Append a batch of events to a run, and end it; returns a row if the last event was the expected one."""
    update, update_arguments = runs.move_run_end(run, after, len(events), end, now)
    insert, insert_arguments = runs.insert_batch(run.session_id, run.run_id, after + 1, events, now)
    return _append_events_sql(update, insert), (*update_arguments, *insert_arguments)


@functools.cache
def _append_events_sql(update: str, insert: str) -> str:
    head, _, values = insert.partition(" VALUES ")
    columns = head.partition("(")[2].rstrip(")").split(", ")
    assert values.count("?") == len(columns)
    typed = ", ".join(f"?::{_column_type(name)}" for name in columns)
    return f"WITH moved AS ({update}) {head} SELECT {typed} FROM moved RETURNING 1"
