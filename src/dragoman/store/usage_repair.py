"""Usages that cannot be true, found and put right by an operator.

    await store.repair_usage(dry_run=True)       which ones there are
    await store.repair_usage()                   impossible counts become 0, and the cost unknown
    await store.repair_usage(session_id, 7)      the usage of one message is taken away, whatever it says

A repair rewrites the metadata of a message, its hash and its row in ``usage``, in one transaction with an event
``usage.repaired`` that says what stood there before. Such events stay for as long as the store. Nothing else in a store
changes what a message says that it consumed.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import DamagedError, InputError
from dragoman.message import NOT_RECORDED, Usage, is_possible_cost, usage_problems, without_figures
from dragoman.store import trace
from dragoman.store.care import Nothing
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.reading import Found, at
from dragoman.store.rows import hash_of, message_from
from dragoman.store.sessions import alone_in, get_session
from dragoman.store.totals import COUNTS, possible
from dragoman.store.values import RepairedUsage, Session, TraceEvent
from dragoman.store.writing import used

if TYPE_CHECKING:
    from dragoman.store.store import Store

_PAGE: Final = 500


async def repair(store: Store, session_id: str | None, seq: int | None, *, dry_run: bool) -> list[RepairedUsage]:
    """Put usages right, or say which would be."""
    if seq is not None and session_id is None:
        raise InputError("a message has a place in a session", where="seq", remedy="Name the session as well")
    is_named = session_id is not None and seq is not None
    places = [(session_id or "", seq or 0)] if is_named else await _impossible_messages(store, session_id)
    repaired: list[RepairedUsage] = []
    for place in places:
        found = await store._read(_planned(*place, take_away=is_named))
        if found is not None and not dry_run:
            event = _event(found, store.new_id(), store.clock())
            found = await store._write(_written(store.engine, found, event, take_away=is_named))
        if found is not None:
            repaired.append(found)
    for found in await store._read(impossible_sums()) if session_id is None else ():
        if not dry_run:
            await store._write(_written_sum(store.engine, found, _event(found, store.new_id(), store.clock())))
        repaired.append(found)
    store._recent.clear()
    return repaired


def _event(repaired: RepairedUsage, event_id: str, now: datetime) -> tuple[Any, ...]:
    """What the audit keeps of a repair, as a row. It belongs to no session, and stays when the session is deleted."""
    payload = {
        "repaired_session_id": repaired.session_id,
        "seq": repaired.seq,
        "message_id": repaired.message_id,
        "user_id": repaired.user_id,
        "team_id": repaired.team_id,
        "reason": repaired.what,
        "before": repaired.before,
        "after": repaired.after,
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
    return trace.added_row(event, trace.SYSTEM)


# --- messages --------------------------------------------------------------------------------------------------------


async def _impossible_messages(store: Store, session_id: str | None) -> list[tuple[str, int]]:
    """The places of messages with an impossible usage."""
    found: list[tuple[str, int]] = []
    after = (session_id or "", 0)
    while page := await store._read(_page(after, session_id)):
        found.extend((name, seq) for name, seq, metadata_json in page if _is_impossible(metadata_json))
        after = (page[-1][0], page[-1][1])
    return found


@operation
def _page(after: tuple[str, int], session_id: str | None) -> Generator[Statement, Rows, Rows]:
    only, named = ("", ()) if session_id is None else (" AND u.session_id = ?", (session_id,))
    rows = yield (
        "SELECT u.session_id, u.seq, m.metadata_json FROM usage AS u"
        " JOIN messages AS m ON m.session_id = u.session_id AND m.seq = u.seq"
        f" WHERE (u.session_id, u.seq) > (?, ?){only} ORDER BY u.session_id, u.seq LIMIT {_PAGE}",
        (*after, *named),
    )
    return rows


def _is_impossible(metadata_json: str) -> bool:
    usage = _usage(msgspec.json.decode(metadata_json))
    return usage is not None and bool(usage_problems(usage))


def _usage(metadata: dict[str, Any]) -> Usage | None:
    """What a message says that it consumed. What a newer version counts besides is passed over."""
    said = metadata.get("usage")
    if said is None:
        return None
    return msgspec.convert({name: said[name] for name in said if name in Usage.__struct_fields__}, Usage)


@operation
def _planned(session_id: str, seq: int, *, take_away: bool) -> Generator[Statement, Rows, RepairedUsage | None]:
    """What a message says that it consumed, put right; nothing if there is nothing to do."""
    found = yield from _looked_at(session_id, seq)
    return _plan(found, take_away=take_away)


def _plan(found: Found, *, take_away: bool) -> RepairedUsage | None:
    metadata = msgspec.json.decode(found.columns.metadata_json)
    usage = _usage(metadata)
    problems = usage_problems(usage) if usage is not None else {}
    if usage is None or not (problems or take_away):
        return None
    made = _NOTHING if take_away else _without(usage, problems)
    return RepairedUsage(
        session_id=found.session_id,
        seq=found.seq,
        message_id=found.columns.id,
        user_id=metadata.get("user_id"),
        team_id=metadata.get("team_id"),
        what="; ".join(problems.values()) or "its usage was taken away",
        before=metadata["usage"],
        after=msgspec.json.decode(msgspec.json.encode(made)),
    )


_NOTHING: Final = Usage(input_tokens=0, output_tokens=0, cost_usd=None, pricing_version=NOT_RECORDED, latency_ms=0)


def _without(usage: Usage, problems: dict[str, str]) -> Usage:
    """The usage without its impossible figures. What it cost is then not known either."""
    return without_figures(usage, problems).replace(cost_usd=None, pricing_version=NOT_RECORDED)


def _looked_at(session_id: str, seq: int) -> Generator[Statement, Rows, Found]:
    """A message of a session that is as it was written, and is the session's own."""
    where = f"session {session_id}, message {seq}"
    rows = yield from at(session_id, [seq])
    if not rows:
        raise InputError("there is no such message", where=where, remedy="dragoman show names its messages")
    (found,) = rows
    if found.session_id != session_id:
        what = f"it is a message of session {found.session_id}, from which this one was forked"
        raise InputError(what, where=where, remedy="Repair it there")
    if hash_of(session_id, seq, found.columns) != found.hash:
        raise DamagedError("its hash does not fit its content", where=where)
    return found


@operation
def _written(
    engine: str, planned: RepairedUsage, event: tuple[Any, ...], *, take_away: bool
) -> Generator[Statement, Rows, RepairedUsage | None]:
    """Put it right as planned, unless somebody else did meanwhile."""
    session_id, seq = planned.session_id, planned.seq or 0
    yield from alone_in(session_id)
    found = yield from _looked_at(session_id, seq)
    if _plan(found, take_away=take_away) != planned:
        return None
    owner = (yield from get_session(session_id)) if take_away else None
    columns = msgspec.structs.replace(found.columns, metadata_json=_metadata(found, planned, owner))
    hash_ = hash_of(session_id, seq, columns)
    yield (
        "UPDATE messages SET metadata_json = ?, hash = ? WHERE session_id = ? AND seq = ?",
        (columns.metadata_json, hash_, session_id, seq),
    )
    for table in ("usage", "repricings"):
        yield f"DELETE FROM {table} WHERE session_id = ? AND seq = ?", (session_id, seq)
    yield used(session_id, seq, message_from(session_id, seq, columns, hash_, Nothing()))
    yield from trace.append_events(engine, [event])
    return planned


def _metadata(found: Found, planned: RepairedUsage, owner: Session | None) -> str:
    """The metadata with the repaired usage; where it was taken away, counted for the session's own user."""
    metadata = msgspec.json.decode(found.columns.metadata_json)
    metadata["usage"] = planned.after
    if owner is not None:
        for name, own in (("user_id", owner.user_id), ("team_id", owner.team_id)):
            if name in metadata and own is None:
                del metadata[name]
            elif name in metadata:
                metadata[name] = own
    return msgspec.json.encode(metadata).decode()


# --- what deleted sessions have left ---------------------------------------------------------------------------------


@operation
def impossible_sums() -> Generator[Statement, Rows, list[RepairedUsage]]:
    """Rows of ``past_usage`` that cannot be true, as they would be put right."""
    rows = yield (
        f"SELECT id, user_id, team_id, cost_usd, {', '.join(COUNTS)},"
        f" {', '.join(possible(name, 'messages') for name in COUNTS)} FROM past_usage ORDER BY id",
        (),
    )
    return [made for row in rows if (made := _plan_of_sum(row)) is not None]


def _plan_of_sum(row: tuple[Any, ...]) -> RepairedUsage | None:
    name, user_id, team_id, cost, *counts = row
    before = {**dict(zip(COUNTS, counts, strict=False)), "cost_usd": cost}
    is_possible = is_possible_cost(Decimal(cost))
    after = {**dict(zip(COUNTS, counts[len(COUNTS) :], strict=True)), "cost_usd": cost if is_possible else "0"}
    if before == after:
        return None
    return RepairedUsage(
        session_id="",
        seq=None,
        message_id=name,
        user_id=user_id,
        team_id=team_id,
        what=f"what a deleted session consumed is impossible (past_usage {name}); dragoman repair-usage puts it right",
        before=before,
        after=after,
    )


@operation
def _written_sum(engine: str, planned: RepairedUsage, event: tuple[Any, ...]) -> Generator[Statement, Rows, None]:
    changes = ", ".join(f"{name} = ?" for name in planned.after)
    yield f"UPDATE past_usage SET {changes} WHERE id = ?", (*planned.after.values(), planned.message_id)
    yield from trace.append_events(engine, [event])
