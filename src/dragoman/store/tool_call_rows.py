"""Rows of tool calls beside the messages: inserted, answered, cancelled; and the ids that providers use for them.

Invariant: a call has one result. A later one changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from dragoman.errors import CorruptDataError
from dragoman.message import InvalidToolUseBlock, Message, ToolResultBlock, ToolUseBlock
from dragoman.store.operation import Steps, column_text, from_micros, operation, optional_column_text, to_micros
from dragoman.store.row_hash import CALL_FIELDS, call_hash, check_row, rehash_sql, row_hash
from dragoman.store.sessions import Segment, lineage, lock_session
from dragoman.store.types import ToolCall

CALL_COLUMNS: Final = f"{', '.join(CALL_FIELDS)}, hash"
CALL_STATUSES: Final = ("pending", "succeeded", "failed", "cancelled")
REOPEN_CALL: Final = (  # SET clause that removes a result
    "status = 'pending', result_message_id = NULL, result_seq = NULL, completed_at = NULL, "
    + rehash_sql(status="'pending'", result_message_id="NULL", result_seq="NULL", completed_at="NULL")
)
_RESULT_HASH: Final = rehash_sql(status="?", result_message_id="?", result_seq="?", completed_at="?")
_COPY_HASH: Final = rehash_sql(status="?", result_message_id="NULL", result_seq="NULL", completed_at="NULL")
_CANCEL_HASH: Final = rehash_sql(status="'cancelled'", completed_at="?")


def insert_call(
    session_id: str, seq: int, message: Message, block_index: int, block: ToolUseBlock | InvalidToolUseBlock
) -> Steps[None]:
    raw_id = (block.provider_raw or {}).get("id")
    status = "pending" if isinstance(block, ToolUseBlock) else "failed"  # an invalid call is never run
    call_id, name, created_at = column_text(block.id), column_text(block.name), to_micros(message.created_at)
    provider, provider_id = (
        optional_column_text(message.metadata.provider),
        column_text(raw_id) if isinstance(raw_id, str) else None,
    )
    call = (
        *(call_id, message.id, seq, name, status),
        *(None, None),  # no result yet
        *(provider, provider_id, block_index, created_at),
        None,
    )
    yield (
        f"INSERT INTO tool_calls (session_id, {CALL_COLUMNS}) VALUES ({', '.join('?' * (len(call) + 2))})"
        " ON CONFLICT (session_id, id) DO NOTHING",
        (session_id, *call, call_hash(*call)),
    )


def record_result(session_id: str, seq: int, message: Message, result: ToolResultBlock) -> Steps[None]:
    status = "failed" if result.is_error else "succeeded"
    call_id = column_text(result.tool_use_id)
    answer = (status, message.id, seq, to_micros(message.created_at))
    change = (
        f"UPDATE tool_calls SET status = ?, result_message_id = ?, result_seq = ?, completed_at = ?, {_RESULT_HASH}"
        " WHERE session_id = ? AND id = ? AND result_seq IS NULL RETURNING id",
        (*answer, *answer, session_id, call_id),
    )
    rows = yield change
    if not rows and (yield from _copy_shared_call(session_id, call_id)):
        yield change


def _copy_shared_call(session_id: str, call_id: str) -> Steps[bool]:
    """Copy the row of a shared call into a fork, if the call was open at the fork; return whether it was."""
    for segment in reversed((yield from lineage(session_id))):
        key = (segment.session_id, call_id, segment.last)
        rows = yield (
            "SELECT status, result_seq FROM tool_calls WHERE session_id = ? AND id = ? AND seq <= ?",
            key,
        )
        if rows:
            status, result_seq = rows[0]
            if segment.session_id == session_id or (result_seq is not None and result_seq <= segment.last):
                return False
            yield (
                f"INSERT INTO tool_calls (session_id, {CALL_COLUMNS}) SELECT ?, {CALL_COLUMNS} FROM tool_calls"
                " WHERE session_id = ? AND id = ? AND seq <= ?",
                (session_id, *key),
            )
            new_status = status if result_seq is None else "pending"
            yield (
                "UPDATE tool_calls SET status = ?, result_message_id = NULL, result_seq = NULL, completed_at = NULL,"
                f" {_COPY_HASH} WHERE session_id = ? AND id = ?",
                (new_status, new_status, session_id, call_id),
            )
            return True
    return False


@operation
def tool_calls(session_id: str, status: str | None) -> Steps[list[ToolCall]]:
    """Read the calls of a history in order."""
    calls: dict[str, ToolCall] = {}
    for segment in (yield from lineage(session_id)):
        rows = yield (
            f"SELECT session_id, {CALL_COLUMNS} FROM tool_calls WHERE session_id = ? AND seq <= ? ORDER BY seq, block",
            (segment.session_id, segment.last),
        )
        for row in rows:
            call = call_from_row(row)
            if call.result_seq is not None and call.result_seq > segment.last:  # answered after the fork
                no_result: Any = {"result_message_id": None, "result_seq": None, "completed_at": None}
                call = msgspec.structs.replace(call, status="pending", **no_result)
            calls[call.id] = call
    return [call for call in calls.values() if status in (None, call.status)]


def is_call_intact(call: tuple[Any, ...], hash_: bytes | None) -> bool:
    """Whether the hash of a call matches its columns."""
    return hash_ is None or bytes(hash_) == call_hash(*call)


def call_from_row(row: tuple[Any, ...]) -> ToolCall:
    """A call from its session, ``ROW``; ``CorruptDataError`` if it is not what was written."""
    session_id, *columns, hash_ = row
    call = dict(zip(CALL_FIELDS, columns, strict=True))
    if not is_call_intact(tuple(columns), hash_) or call["status"] not in CALL_STATUSES:
        what = "its hash does not match its content, or its status is unknown"
        raise CorruptDataError(what, where=f"session {session_id}, call {call['id']}", remedy="Run dragoman verify")
    del call["block"]
    completed_at = call["completed_at"]
    call["created_at"] = from_micros(call["created_at"])
    call["completed_at"] = from_micros(completed_at) if completed_at is not None else None
    return ToolCall(session_id=session_id, **call)


@operation
def cancel_tool_call(session_id: str, call_id: str, now: datetime) -> Steps[bool]:
    """Cancel a call without a result; return whether it was cancelled."""
    yield from lock_session(session_id)
    call_id = column_text(call_id)
    change = (
        f"UPDATE tool_calls SET status = 'cancelled', completed_at = ?, {_CANCEL_HASH} WHERE session_id = ? AND id = ?"
        " AND status = 'pending' RETURNING id",
        (to_micros(now), to_micros(now), session_id, call_id),
    )
    rows = yield change
    if not rows and (yield from _copy_shared_call(session_id, call_id)):
        rows = yield change
    return bool(rows)


@operation
def tool_ids(session_id: str) -> Steps[list[tuple[str, str, str]]]:
    """Read the providers' ids of the calls of a session, in the order in which they were stored."""
    return (yield from tool_ids_in_segments((yield from lineage(session_id))))


def tool_ids_in_segments(segments: Sequence[Segment]) -> Steps[list[tuple[str, str, str]]]:
    """Read the providers' ids of a history with known segments."""
    ids: list[tuple[str, str, str]] = []
    for segment in segments:
        rows = yield (
            "SELECT provider, tool_id, provider_id, hash FROM tool_ids WHERE session_id = ? ORDER BY number",
            (segment.session_id,),
        )
        for *entry, hash_ in rows:
            check_row(hash_, *entry, where=f"session {segment.session_id}, the provider's id of a call")
        ids.extend((provider, tool_id, provider_id) for provider, tool_id, provider_id, _ in rows)
    return ids


@operation
def insert_tool_ids(session_id: str, entries: Sequence[tuple[str, str, str]]) -> Steps[None]:
    """Insert providers' ids of calls."""
    yield from lock_session(session_id)
    rows = yield "SELECT coalesce(max(number), 0) FROM tool_ids WHERE session_id = ?", (session_id,)
    for number, entry in enumerate(entries, rows[0][0] + 1):
        yield (
            "INSERT INTO tool_ids (session_id, number, provider, tool_id, provider_id, hash) VALUES (?, ?, ?, ?, ?, ?)",
            (session_id, number, *entry, row_hash(*entry)),
        )


class CallInfo(msgspec.Struct, frozen=True):
    """Name, result and duration of a call."""

    name: str
    result_seq: int | None  # seq of its result
    duration_ms: int | None  # from the start of the calling message to the result


@operation
def find_calls(session_id: str, call_ids: Sequence[str]) -> Steps[dict[str, CallInfo]]:
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
