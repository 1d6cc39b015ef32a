"""The calls of tools, as they stand beside the messages: made, answered, given up; and what providers call them.

The one rule: a call has one answer. What comes later changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import DamagedError
from dragoman.message import InvalidToolUseBlock, Message, ToolResultBlock, ToolUseBlock
from dragoman.store.lineage import Stretch, lineage
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.row_hash import CALL, call_hash, check_row, rehashed, row_hash
from dragoman.store.rows import micros, time_from
from dragoman.store.sessions import alone_in
from dragoman.store.values import ToolCall

ROW: Final = f"{', '.join(CALL)}, hash"
STATUSES: Final = ("pending", "succeeded", "failed", "cancelled")
REOPENED: Final = (  # what an UPDATE sets to take an answer back
    "status = 'pending', result_message_id = NULL, result_seq = NULL, completed_at = NULL, "
    + rehashed(status="'pending'", result_message_id="NULL", result_seq="NULL", completed_at="NULL")
)
_ANSWERED: Final = rehashed(status="?", result_message_id="?", result_seq="?", completed_at="?")
_MADE_OWN: Final = rehashed(status="?", result_message_id="NULL", result_seq="NULL", completed_at="NULL")
_CANCELLED: Final = rehashed(status="'cancelled'", completed_at="?")


def called(
    session_id: str, seq: int, message: Message, number: int, block: ToolUseBlock | InvalidToolUseBlock
) -> Generator[Statement, Rows, None]:
    raw_id = (block.provider_raw or {}).get("id")
    status = "pending" if isinstance(block, ToolUseBlock) else "failed"  # what cannot be used is never made
    call_id, name, created_at = visible(block.id), visible(block.name), micros(message.created_at)
    provider, provider_id = maybe(message.metadata.provider), visible(raw_id) if isinstance(raw_id, str) else None
    call = (
        *(call_id, message.id, seq, name, status),
        *(None, None),  # nobody has answered it
        *(provider, provider_id, number, created_at),
        None,
    )
    yield (
        f"INSERT INTO tool_calls (session_id, {ROW}) VALUES ({', '.join('?' * (len(call) + 2))})"
        " ON CONFLICT (session_id, id) DO NOTHING",
        (session_id, *call, call_hash(*call)),
    )


def visible(text: str) -> str:
    """A word of a message as a column beside it: with U+2400 for a NUL, which not every engine can hold there."""
    return text.replace("\0", "\u2400")


def maybe(text: str | None) -> str | None:
    return None if text is None else visible(text)


def answered(session_id: str, seq: int, message: Message, result: ToolResultBlock) -> Generator[Statement, Rows, None]:
    status = "failed" if result.is_error else "succeeded"
    call_id = visible(result.tool_use_id)
    answer = (status, message.id, seq, micros(message.created_at))
    change = (
        f"UPDATE tool_calls SET status = ?, result_message_id = ?, result_seq = ?, completed_at = ?, {_ANSWERED}"
        " WHERE session_id = ? AND id = ? AND result_seq IS NULL RETURNING id",
        (*answer, *answer, session_id, call_id),
    )
    changed = yield change
    if not changed and (yield from _is_made_own(session_id, call_id)):
        yield change


def _is_made_own(session_id: str, call_id: str) -> Generator[Statement, Rows, bool]:
    """Give a fork a row of its own for a call that it shares, if the call is open where the history was shared."""
    for stretch in reversed((yield from lineage(session_id))):
        place = (stretch.session_id, call_id, stretch.last)
        rows = yield (
            "SELECT status, result_seq FROM tool_calls WHERE session_id = ? AND id = ? AND seq <= ?",
            place,
        )
        if rows:
            status, result_seq = rows[0]
            if stretch.session_id == session_id or (result_seq is not None and result_seq <= stretch.last):
                return False
            yield (
                f"INSERT INTO tool_calls (session_id, {ROW}) SELECT ?, {ROW} FROM tool_calls"
                " WHERE session_id = ? AND id = ? AND seq <= ?",
                (session_id, *place),
            )
            open_again = status if result_seq is None else "pending"
            yield (
                "UPDATE tool_calls SET status = ?, result_message_id = NULL, result_seq = NULL, completed_at = NULL,"
                f" {_MADE_OWN} WHERE session_id = ? AND id = ?",
                (open_again, open_again, session_id, call_id),
            )
            return True
    return False


@operation
def tool_calls(session_id: str, status: str | None) -> Generator[Statement, Rows, list[ToolCall]]:
    """The calls of a history in their order, as they stand in it."""
    calls: dict[str, ToolCall] = {}
    for stretch in (yield from lineage(session_id)):
        rows = yield (
            f"SELECT session_id, {ROW} FROM tool_calls WHERE session_id = ? AND seq <= ? ORDER BY seq, block",
            (stretch.session_id, stretch.last),
        )
        for row in rows:
            call = call_from(row)
            if call.result_seq is not None and call.result_seq > stretch.last:  # answered behind the fork
                pending: Any = {"result_message_id": None, "result_seq": None, "completed_at": None}
                call = msgspec.structs.replace(call, status="pending", **pending)
            calls[call.id] = call
    return [call for call in calls.values() if status in (None, call.status)]


def is_sound(call: tuple[Any, ...], hash_: bytes | None) -> bool:
    """Whether a call, as ``call_hash`` takes it, is what was written."""
    return hash_ is None or bytes(hash_) == call_hash(*call)


def call_from(row: tuple[Any, ...]) -> ToolCall:
    """A call from its session, ``ROW``; ``DamagedError`` if it is not what was written."""
    session_id, *columns, hash_ = row
    call = dict(zip(CALL, columns, strict=True))
    if not is_sound(tuple(columns), hash_) or call["status"] not in STATUSES:
        what = "its hash does not fit its content, or its status is unknown"
        raise DamagedError(what, where=f"session {session_id}, call {call['id']}", remedy="Run dragoman verify")
    del call["block"]
    completed_at = call["completed_at"]
    call["created_at"] = time_from(call["created_at"])
    call["completed_at"] = time_from(completed_at) if completed_at is not None else None
    return ToolCall(session_id=session_id, **call)


@operation
def cancel_tool_call(session_id: str, call_id: str, now: datetime) -> Generator[Statement, Rows, bool]:
    """Mark a call as given up, if nobody has answered it."""
    yield from alone_in(session_id)
    call_id = visible(call_id)
    change = (
        f"UPDATE tool_calls SET status = 'cancelled', completed_at = ?, {_CANCELLED} WHERE session_id = ? AND id = ?"
        " AND status = 'pending' RETURNING id",
        (micros(now), micros(now), session_id, call_id),
    )
    rows = yield change
    if not rows and (yield from _is_made_own(session_id, call_id)):
        rows = yield change
    return bool(rows)


@operation
def tool_ids(session_id: str) -> Generator[Statement, Rows, list[tuple[str, str, str]]]:
    """What each provider calls the calls of a session, in the order in which it was learned."""
    return (yield from tool_ids_within((yield from lineage(session_id))))


def tool_ids_within(stretches: Sequence[Stretch]) -> Generator[Statement, Rows, list[tuple[str, str, str]]]:
    """The same of a history whose stretches are known."""
    learned: list[tuple[str, str, str]] = []
    for stretch in stretches:
        rows = yield (
            "SELECT provider, tool_id, provider_id, hash FROM tool_ids WHERE session_id = ? ORDER BY number",
            (stretch.session_id,),
        )
        for *entry, hash_ in rows:
            check_row(hash_, *entry, where=f"session {stretch.session_id}, what a provider calls a call")
        learned.extend((provider, tool_id, provider_id) for provider, tool_id, provider_id, _ in rows)
    return learned


@operation
def learn_tool_ids(session_id: str, entries: Sequence[tuple[str, str, str]]) -> Generator[Statement, Rows, None]:
    """Remember what providers call the calls of a session."""
    yield from alone_in(session_id)
    rows = yield "SELECT coalesce(max(number), 0) FROM tool_ids WHERE session_id = ?", (session_id,)
    for number, entry in enumerate(entries, rows[0][0] + 1):
        yield (
            "INSERT INTO tool_ids (session_id, number, provider, tool_id, provider_id, hash) VALUES (?, ?, ?, ?, ?, ?)",
            (session_id, number, *entry, row_hash(*entry)),
        )
