"""Find and repair impossible usages.

    await store.costs.repair(dry_run=True)       list them
    await store.costs.repair()                   impossible counts become 0, and the cost unknown
    await store.costs.repair(session_id, 7)      remove the usage of one message, whatever it is

A repair updates the metadata of a message, its hash and its row in ``usage`` in one transaction with an event
``usage.repaired`` that contains the old values. Such events are never deleted because of their age. Nothing else
changes the usage of a stored message.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import CorruptDataError, InputError
from dragoman.message import NOT_RECORDED, Usage, is_possible_cost, usage_problems, without_figures
from dragoman.store import trace
from dragoman.store.costs import COUNTS, possible_count_sql, usage_from
from dragoman.store.message_reader import MessageRow, read_at
from dragoman.store.message_rows import message_from, message_hash
from dragoman.store.message_writer import usage_insert
from dragoman.store.operation import Rows, Steps, operation
from dragoman.store.retention.tombstones import NoBlobs
from dragoman.store.sessions import get_session, lock_session
from dragoman.store.types import Session, TraceEvent, UsageRepair

if TYPE_CHECKING:
    from dragoman.store.store import Store

_PAGE: Final = 500


async def repair_usage(store: Store, session_id: str | None, seq: int | None, *, dry_run: bool) -> list[UsageRepair]:
    """Correct impossible usages, or list them."""
    if seq is not None and session_id is None:
        raise InputError("a seq needs a session", where="seq", remedy="Name the session as well")
    is_named = session_id is not None and seq is not None
    places = [(session_id or "", seq or 0)] if is_named else await _find_impossible(store, session_id)
    repairs: list[UsageRepair] = []
    for place in places:
        plan = await store._read(_read_plan(*place, remove=is_named))
        if plan is not None and not dry_run:
            event = _audit_event(plan, store.new_id(), store.clock())
            plan = await store._write(_write_repair(plan, event, remove=is_named))
        if plan is not None:
            repairs.append(plan)
    for plan in await store._read(find_impossible_sums()) if session_id is None else ():
        if not dry_run:
            await store._write(_write_sum_repair(plan, _audit_event(plan, store.new_id(), store.clock())))
        repairs.append(plan)
    store._message_cache.clear()
    return repairs


def _audit_event(repair: UsageRepair, event_id: str, now: datetime) -> tuple[Any, ...]:
    """Return the audit event of a repair as a row. It has no session, so deleting the session keeps it."""
    payload = {
        "repaired_session_id": repair.session_id,
        "seq": repair.seq,
        "message_id": repair.message_id,
        "user_id": repair.user_id,
        "team_id": repair.team_id,
        "reason": repair.what,
        "before": repair.before,
        "after": repair.after,
    }
    event = TraceEvent(
        id=event_id,
        timestamp=now,
        session_id=trace.SYSTEM,
        type="usage.repaired",
        actor="user",
        sensitivity="pseudonymous",
        payload=payload,
    )
    return trace.import_row(event, trace.SYSTEM)


# --- messages --------------------------------------------------------------------------------------------------------


async def _find_impossible(store: Store, session_id: str | None) -> list[tuple[str, int]]:
    """Return session and seq of messages with an impossible usage."""
    places: list[tuple[str, int]] = []
    after = (session_id or "", 0)
    while page := await store._read(_read_page(after, session_id)):
        places.extend((name, seq) for name, seq, metadata_json in page if _is_impossible(metadata_json))
        after = (page[-1][0], page[-1][1])
    return places


@operation
def _read_page(after: tuple[str, int], session_id: str | None) -> Steps[Rows]:
    condition, arguments = ("", ()) if session_id is None else (" AND u.session_id = ?", (session_id,))
    rows = yield (
        "SELECT u.session_id, u.seq, m.metadata_json FROM usage AS u"
        " JOIN messages AS m ON m.session_id = u.session_id AND m.seq = u.seq"
        f" WHERE (u.session_id, u.seq) > (?, ?){condition} ORDER BY u.session_id, u.seq LIMIT {_PAGE}",
        (*after, *arguments),
    )
    return rows


def _is_impossible(metadata_json: str) -> bool:
    usage = usage_from(msgspec.json.decode(metadata_json))
    return usage is not None and bool(usage_problems(usage))


@operation
def _read_plan(session_id: str, seq: int, *, remove: bool) -> Steps[UsageRepair | None]:
    """Plan the repair of a message; None if its usage is possible."""
    row = yield from _read_intact(session_id, seq)
    return _plan(row, remove=remove)


def _plan(row: MessageRow, *, remove: bool) -> UsageRepair | None:
    metadata = msgspec.json.decode(row.columns.metadata_json)
    usage = usage_from(metadata)
    problems = usage_problems(usage) if usage is not None else {}
    if usage is None or not (problems or remove):
        return None
    new_usage = _EMPTY_USAGE if remove else _without_problems(usage, problems)
    return UsageRepair(
        session_id=row.session_id,
        seq=row.seq,
        message_id=row.columns.id,
        user_id=metadata.get("user_id"),
        team_id=metadata.get("team_id"),
        what="; ".join(problems.values()) or "its usage was removed",
        before=metadata["usage"],
        after=msgspec.json.decode(msgspec.json.encode(new_usage)),
    )


_EMPTY_USAGE: Final = Usage(input_tokens=0, output_tokens=0, cost_usd=None, pricing_version=NOT_RECORDED, latency_ms=0)


def _without_problems(usage: Usage, problems: dict[str, str]) -> Usage:
    """Return the usage without impossible figures and without a cost."""
    return without_figures(usage, problems).replace(cost_usd=None, pricing_version=NOT_RECORDED)


def _read_intact(session_id: str, seq: int) -> Steps[MessageRow]:
    """Read an intact message of the session itself, not of a parent."""
    where = f"session {session_id}, message {seq}"
    rows = yield from read_at(session_id, [seq])
    if not rows:
        raise InputError("there is no such message", where=where, remedy="dragoman show names its messages")
    (row,) = rows
    if row.session_id != session_id:
        what = f"it is a message of session {row.session_id}, from which this one was forked"
        raise InputError(what, where=where, remedy="Repair it there")
    if message_hash(session_id, seq, row.columns) != row.hash:
        raise CorruptDataError("its hash does not match its content", where=where)
    return row


@operation
def _write_repair(plan: UsageRepair, event: tuple[Any, ...], *, remove: bool) -> Steps[UsageRepair | None]:
    """Write a planned repair, unless another process has repaired the message."""
    session_id, seq = plan.session_id, plan.seq or 0
    yield from lock_session(session_id)
    row = yield from _read_intact(session_id, seq)
    if _plan(row, remove=remove) != plan:
        return None
    owner = (yield from get_session(session_id)) if remove else None
    columns = msgspec.structs.replace(row.columns, metadata_json=_repair_metadata(row, plan, owner))
    hash_ = message_hash(session_id, seq, columns)
    yield (
        "UPDATE messages SET metadata_json = ?, hash = ? WHERE session_id = ? AND seq = ?",
        (columns.metadata_json, hash_, session_id, seq),
    )
    for table in ("usage", "repricings"):
        yield f"DELETE FROM {table} WHERE session_id = ? AND seq = ?", (session_id, seq)
    yield usage_insert(session_id, seq, message_from(session_id, seq, columns, hash_, NoBlobs()))
    yield from trace.append_events([event])
    return plan


def _repair_metadata(row: MessageRow, plan: UsageRepair, owner: Session | None) -> str:
    """Return the metadata with the repaired usage; a removed usage counts for the session's user."""
    metadata = msgspec.json.decode(row.columns.metadata_json)
    metadata["usage"] = plan.after
    if owner is not None:
        for name, own in (("user_id", owner.user_id), ("team_id", owner.team_id)):
            if name in metadata and own is None:
                del metadata[name]
            elif name in metadata:
                metadata[name] = own
    return msgspec.json.encode(metadata).decode()


# --- usage of deleted sessions ---------------------------------------------------------------------------------------


@operation
def find_impossible_sums() -> Steps[list[UsageRepair]]:
    """Rows of ``past_usage`` that cannot be true, as they would be put right."""
    rows = yield (
        f"SELECT id, user_id, team_id, cost_usd, {', '.join(COUNTS)},"
        f" {', '.join(possible_count_sql(name, 'messages') for name in COUNTS)} FROM past_usage ORDER BY id",
        (),
    )
    return [plan for row in rows if (plan := _plan_sum(row)) is not None]


def _plan_sum(row: tuple[Any, ...]) -> UsageRepair | None:
    name, user_id, team_id, cost, *counts = row
    before = {**dict(zip(COUNTS, counts, strict=False)), "cost_usd": cost}
    is_possible = is_possible_cost(Decimal(cost))
    after = {**dict(zip(COUNTS, counts[len(COUNTS) :], strict=True)), "cost_usd": cost if is_possible else "0"}
    if before == after:
        return None
    return UsageRepair(
        session_id="",
        seq=None,
        message_id=name,
        user_id=user_id,
        team_id=team_id,
        what=f"the usage of a deleted session is impossible (past_usage {name}); dragoman repair-usage corrects it",
        before=before,
        after=after,
    )


@operation
def _write_sum_repair(plan: UsageRepair, event: tuple[Any, ...]) -> Steps[None]:
    changes = ", ".join(f"{name} = ?" for name in plan.after)
    yield f"UPDATE past_usage SET {changes} WHERE id = ?", (*plan.after.values(), plan.message_id)
    yield from trace.append_events([event])
