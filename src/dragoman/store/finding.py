"""Finding things in a store by what others know of them: a day, the name that a client gave a message, whose it is.

    seq_before(session, when)            the newest message before a moment, in as many looks as a history has halves
    find_message(session, name)            by our id, or by the one that a client knows it by
    calls_of(session, ids)                 the tools that calls are of, and how long they took
    sessions_of(user)                      a page of what belongs to somebody
    find_attachment_refs(session, user, …)    files that only this session names, and files that others of the user name

The one rule: a page costs a page, however long the history or the list is that it is taken from.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.message import Role
from dragoman.store.lineage import Segment, damage_error, lineage
from dragoman.store.message_reader import COLUMNS, MessageRow, get_message, message_row_from, unknown_message
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.sessions import select_sessions
from dragoman.store.tool_call_rows import CALL_COLUMNS, call_from_row
from dragoman.store.types import Owners, Session


class CallInfo(msgspec.Struct, frozen=True):
    """What is known of a call."""

    name: str
    result_seq: int | None  # the place of its answer
    duration_ms: int | None  # from when the message that makes it was begun until its answer was there


@operation
def seq_before(session_id: str, moment: int) -> Generator[Statement, Rows, int]:
    segments = yield from lineage(session_id)
    low, high = 0, segments[-1].last
    while low < high:
        middle = (low + high + 1) // 2
        created_at = yield from _created_at(segments, middle)
        low, high = (middle, high) if created_at < moment else (low, middle - 1)
    return low


def _created_at(segments: Sequence[Segment], seq: int) -> Generator[Statement, Rows, int]:
    owner = next(one.session_id for one in segments if one.first <= seq <= one.last)
    rows = yield "SELECT created_at FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
    if not rows:
        raise damage_error(owner, f"message {seq} is not there")
    return int(rows[0][0])


# What the index of clients' names is made of: the same words in a condition, and the engine knows that it may use it.
_CLIENT_ID: Final = {
    "sqlite": "instr(metadata_json, '\"message_id\":') > 0 AND substr(CASE WHEN json_valid(metadata_json)"
    " THEN json_extract(metadata_json, '$.message_id') END, 1, 200)",
    "postgres": "strpos(metadata_json, '\"message_id\":') > 0 AND left(coalesce(metadata,"
    " dragoman_jsonb(replace(metadata_json, '\\u0000', '\\u2400'))) ->> 'message_id', 200)",
}
_INDEX_PREFIX: Final = 200  # signs of a name that are in the index


@operation
def find_message(engine: str, session_id: str, name: str) -> Generator[Statement, Rows, MessageRow]:
    try:
        return (yield from get_message(session_id, name))
    except UnknownMessageError:
        pass
    for segment in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND {_CLIENT_ID[engine]} = ? AND seq <= ?"
            " ORDER BY seq DESC",
            (segment.session_id, name[:_INDEX_PREFIX], segment.last),
        )
        for row in map(message_row_from, rows):
            if _decode_metadata(row.columns.metadata_json).get("message_id") == name:
                return row
    raise unknown_message(session_id, name)


def _decode_metadata(text: str) -> Mapping[str, Any]:
    """What a row says beside its words; nothing if it is damaged, which who reads the row is told."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


@operation
def count_messages(session_id: str, role: Role) -> Generator[Statement, Rows, int]:
    rows = yield "SELECT count(*) FROM messages WHERE session_id = ? AND role = ?", (session_id, role.value)
    count: int = rows[0][0]
    return count


@operation
def find_calls(session_id: str, call_ids: Sequence[str]) -> Generator[Statement, Rows, dict[str, CallInfo]]:
    calls: dict[str, CallInfo] = {}
    segments = yield from lineage(session_id)
    for call_id in call_ids:
        for segment in reversed(segments):
            rows = yield (
                f"SELECT session_id, {CALL_COLUMNS} FROM tool_calls WHERE session_id = ? AND id = ?",
                (segment.session_id, call_id),
            )
            if rows:
                call = call_from_row(rows[0])
                elapsed = None if call.completed_at is None else call.completed_at - call.created_at
                duration_ms = None if elapsed is None else max(0, round(elapsed / timedelta(milliseconds=1)))
                calls[call_id] = CallInfo(call.name, call.result_seq, duration_ms)
                break
    return calls


@operation
def list_sessions_of(
    owners: Owners, before: tuple[datetime, str] | None, limit: int
) -> Generator[Statement, Rows, list[Session]]:
    condition, arguments = owners.condition("sessions")
    return (yield from select_sessions([condition], list(arguments), before, limit))
