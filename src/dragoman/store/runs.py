"""Runs of a session and their events, numbered through the session from 1 without a gap.

    part = store.runs.open_part(run, events, alive_s=…)     starts a run, in the transaction that stores its question
    await store.runs.append(run, after, events)           before any client receives them
    part = store.runs.close_part(run, after, events, end)    ends a run, in the transaction that stores its answer
    page = await store.runs.events(session_id, after)                             the events after a number
    await store.runs.cancel(session_id)                                           signals its worker, which also polls
    await store.runs.heartbeat(owner, …)                                          keeps the runs of a worker alive

A run whose worker died on this machine, or sends no heartbeat, expires, and any process may fail it. Runs belong to the
session that they ran in: a fork starts without runs, and deleting a session deletes them.

Invariant: an event is stored only directly after the last one, by the worker that owns the run, so no number is
assigned twice.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from dragoman.errors import ConflictError, CorruptDataError
from dragoman.offload import LARGE
from dragoman.signals import CANCEL, RUN
from dragoman.store.liveness import is_dead
from dragoman.store.operation import (
    FOR_UPDATE,
    RETURNING_ONE,
    Facet,
    Operation,
    Part,
    Statement,
    Steps,
    VolatileOperation,
    from_micros,
    length_us,
    loose_operation,
    operation,
    quick,
    to_micros,
    volatile,
)
from dragoman.store.sessions import change_session, lock_session

RunStatus = Literal["running", "finished", "error", "cancelled", "interrupted"]
RETENTION: Final = timedelta(days=7)
_RUN_COLUMNS: Final = (
    "session_id, run_id, status, request_hash, idempotency_key, user_id, owner, cancel_at, first_number, last_number,"
    " interrupts_json, started_at, ended_at"
)
_IS_EXPIRED: Final = "(status = 'running' AND alive_until < lease_now())"
_RUN_SELECT: Final = f"{_RUN_COLUMNS}, {_IS_EXPIRED}"
_BATCHES: Final = 50
_PAGE: Final = 500
_OLD_RUN_PAGE: Final = 100  # runs whose events one transaction deletes
OLD_RUNS: Final = (
    "SELECT session_id, run_id, first_number, last_number FROM runs WHERE has_events = 1 AND ended_at < ?"
    f" ORDER BY ended_at LIMIT ?{FOR_UPDATE}"
)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that a client requested, and the range of its events."""

    session_id: str
    run_id: str
    status: RunStatus
    request_hash: bytes
    owner: str  # the worker that runs it
    started_at: datetime
    first_number: int  # of its events
    last_number: int  # first_number - 1 while it has no events
    idempotency_key: str | None = None
    user_id: str | None = None
    cancel_at: datetime | None = None  # when its end was requested
    interrupts: tuple[dict[str, Any], ...] = ()  # what an interrupted run waits for
    ended_at: datetime | None = None
    is_expired: bool = False  # its worker has died, or sent no heartbeat in time

    @property
    def is_running(self) -> bool:
        """Whether it may have more events."""
        return self.status == "running"


class RunEnd(msgspec.Struct, frozen=True):
    """The final status of a run, with its interrupts."""

    status: RunStatus
    interrupts: tuple[dict[str, Any], ...] = ()


class RunExistsError(ConflictError):
    """The same request started a run before."""

    def __init__(self, run: Run) -> None:
        super().__init__("the same request started it before", where=f"run {run.run_id}", code="run_exists")
        self.run = run


class RunEvent(msgspec.Struct, frozen=True):
    """An event of a run: its number in the session, and its JSON."""

    number: int
    run_id: str
    json: str


class RunEventPage(msgspec.Struct, frozen=True):
    """Events after a number, and the latest run. If the run has ended, its events are complete."""

    events: tuple[RunEvent, ...]
    latest: Run | None


class RunStore(Facet):
    """The runs of a store: ``store.runs``."""

    def new(
        self,
        session_id: str,
        run_id: str,
        request_hash: bytes,
        *,
        owner: str,
        user_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Return a run that is not stored yet."""
        return Run(
            session_id=session_id,
            run_id=run_id,
            status="running",
            request_hash=request_hash,
            idempotency_key=idempotency_key,
            user_id=user_id,
            owner=owner,
            first_number=0,
            last_number=0,
            started_at=self._store.clock(),
        )

    def open_part(
        self,
        run: Run,
        events: Sequence[str] = (),
        *,
        alive_s: float,
        changes: Mapping[str, Any] | None = None,
        is_new_session: bool = False,
    ) -> Part[Run]:
        """Return the part of a transaction that stores a new run with its first events and changes its session.

        A session that the same transaction creates has no other runs.

        The part raises ``RunExistsError`` if the same request started a run before, and ``ConflictError`` if another
        request used that id or key (``idempotency_key_reused``), or if a run is running (``run_in_progress``).
        """
        fields: dict[str, Any] = {
            "changes": dict(changes or {}),
            "now": self._store.clock(),
            "is_new_session": is_new_session,
        }
        return Part(functools.partial(_open_run, run, tuple(events), length_us(alive_s), **fields))

    async def start(self, run: Run, events: Sequence[str] = (), *, alive_s: float) -> Run:
        """Store a new run in a transaction of its own."""
        return await self._store._write(self.open_part(run, events, alive_s=alive_s))

    async def append(self, run: Run, after: int, events: Sequence[str]) -> bool:
        """Append events, each as JSON, after the event ``after`` of a run.

        Return false, and store nothing, if the run has ended or its last event is another one. On SQLite a power cut
        may lose the events of a run that has not ended; the death of a process does not.
        """
        is_stored = await self._store._try_append_events(run, after, events)
        if is_stored is None:
            insertion = volatile(self._append_op(run, after, events))
            is_stored = await self._store._write(quick(insertion) if sum(map(len, events)) < LARGE else insertion)
        self.announce(run.session_id)
        return is_stored

    async def end(self, run: Run, after: int, events: Sequence[str], end: RunEnd) -> bool:
        """Append the last events of a run and end it; false as for ``append``."""
        is_stored = await self._store._try_append_events(run, after, events, end)
        if is_stored is None:
            is_stored = await self._store._write(quick(self._append_op(run, after, events, end)))
        self.announce(run.session_id)
        return is_stored

    def announce(self, session_id: str) -> None:
        """Wake the followers of a session, after a part was committed."""
        self._store.signals.publish(RUN, session_id)

    def close_part(self, run: Run, after: int, events: Sequence[str], end: RunEnd) -> Part[bool]:
        """Return the same as a part of another transaction."""
        return Part(self._append_op(run, after, events, end).__iter__)

    def _append_op(self, run: Run, after: int, events: Sequence[str], end: RunEnd | None = None) -> Operation[bool]:
        return _append_events(run, after, tuple(events), end, self._store.clock())

    async def get(self, session_id: str, run_id: str) -> Run | None:
        """Return the run of that id, if it exists."""
        return await self._store._read(quick(_get_run(session_id, run_id)))

    async def find_same(self, run: Run) -> Run | None:
        """Return the stored run of the same request; ``ConflictError`` if another request used its id or key."""
        return await self._store._read(quick(Operation(functools.partial(_find_existing, run))))

    async def latest(self, session_id: str) -> Run | None:
        """Return the run that started last, if there is one."""
        return await self._store._read(quick(_latest_run(session_id)))

    async def events(self, session_id: str, after: int = 0, limit: int = _BATCHES) -> RunEventPage:
        """Return the events after a number in order, from at most ``limit`` stored batches."""
        return await self._store._read(_read_events(session_id, after, limit))

    async def cancel(self, session_id: str, run_id: str | None = None) -> Run | None:
        """Request the end of a run, or of the running one, and return it; ``None`` if it has ended or is unknown."""
        run = await self._store._write(_cancel_run(session_id, run_id, self._store.clock()))
        if run is not None:
            self._store.signals.publish(CANCEL, run.owner)
        return run

    async def heartbeat(self, owner: str, alive_s: float) -> None:
        """Keep the runs of a worker alive for so long."""
        await self._store._write(VolatileOperation(functools.partial(_heartbeat, owner, length_us(alive_s))))

    async def to_cancel(self, owner: str) -> list[tuple[str, str]]:
        """Return session and id of each run of a worker whose end was requested."""
        return await self._store._read(_find_cancelled(owner))

    async def expires_in_s(self, run: Run) -> float:
        """Return in how many seconds a run expires if its worker sends no heartbeat."""
        return await self._store._read(_remaining_us(run)) / 1_000_000

    async def expired(self) -> list[Run]:
        """Return the runs whose worker has died, or has sent no heartbeat in time."""
        return await self._store._read(_find_expired())

    async def fail_expired(self, run: Run, event: str) -> bool:
        """Fail an expired run with a last event; false if it has ended, or is alive again."""
        is_stored = await self._store._write(quick(_fail_expired(run, event, self._store.clock())))
        self.announce(run.session_id)
        return is_stored

    async def delete_old_events(self, older_than: timedelta = RETENTION) -> int:
        """Delete the events of runs that ended so long ago, and return the number of batches. The runs stay."""
        cutoff, count, has_more = self._store.clock() - older_than, 0, True
        while has_more:
            run_count, deleted = await self._store._write(_delete_old_events(cutoff))
            count, has_more = count + deleted, run_count > 0
        return count


# --- start and append ------------------------------------------------------------------------------------------------


def _open_run(
    new_run: Run,
    events: tuple[str, ...],
    length: int,
    *,
    changes: dict[str, Any],
    now: datetime,
    is_new_session: bool,
) -> Steps[Run]:
    """Insert a run after all others of its session, unless it exists."""
    session_id, last_number = new_run.session_id, 0
    if not is_new_session:
        yield from lock_session(session_id)
        last_number = yield from _check_other_runs(new_run)
    if changes:
        yield from change_session(session_id, changes, now)
    run = msgspec.structs.replace(new_run, first_number=last_number + 1, last_number=last_number + len(events))
    yield (
        f"INSERT INTO runs ({_RUN_COLUMNS}, alive_us, alive_until) VALUES ({', '.join('?' * 14)}, lease_now() + ?)",
        (*_run_row(run), length, length),
    )
    if events:
        yield insert_batch(session_id, run.run_id, run.first_number, events, now)
    return run


def _check_other_runs(new_run: Run) -> Steps[int]:
    """Return the last event number of the session; an error if the run exists or another one is running."""
    existing = yield from _find_existing(new_run)
    if existing is not None:
        raise RunExistsError(existing)
    rows = yield (
        "SELECT max(last_number), max(CASE WHEN status = 'running' THEN run_id END) FROM runs WHERE session_id = ?",
        (new_run.session_id,),
    )
    last_number, running_id = rows[0]
    if running_id is not None:
        raise ConflictError(
            f"run {running_id} is running",
            where=f"session {new_run.session_id}",
            remedy="Wait for it, or cancel it",
            code="run_in_progress",
        )
    return int(last_number or 0)


def _find_existing(new_run: Run) -> Steps[Run | None]:
    """Return the run of that id or key; ``ConflictError`` if its request was another one."""
    for column, name in (("run_id", new_run.run_id), ("idempotency_key", new_run.idempotency_key)):
        if name is None:
            continue
        rows = yield f"SELECT {_RUN_SELECT} FROM runs WHERE session_id = ? AND {column} = ?", (new_run.session_id, name)
        if rows and (run := _run_from_row(rows[0])).request_hash == new_run.request_hash:
            return run
        if rows:
            raise ConflictError(
                "another request used this id or key",
                where=f"run {name}",
                remedy="Use a new id for a new run",
                code="idempotency_key_reused",
            )
    return None


def _run_row(run: Run) -> tuple[Any, ...]:
    return (
        run.session_id,
        run.run_id,
        run.status,
        run.request_hash,
        run.idempotency_key,
        run.user_id,
        run.owner,
        _optional_micros(run.cancel_at),
        run.first_number,
        run.last_number,
        _interrupts_json(run.interrupts),
        to_micros(run.started_at),
        _optional_micros(run.ended_at),
    )


def _run_from_row(row: tuple[Any, ...]) -> Run:
    return Run(
        session_id=row[0],
        run_id=row[1],
        status=row[2],
        request_hash=bytes(row[3]),
        idempotency_key=row[4],
        user_id=row[5],
        owner=row[6],
        cancel_at=_optional_time(row[7]),
        first_number=row[8],
        last_number=row[9],
        interrupts=tuple(msgspec.json.decode(row[10])) if row[10] is not None else (),
        started_at=from_micros(row[11]),
        ended_at=_optional_time(row[12]),
        is_expired=bool(row[13]) or (row[2] == "running" and is_dead(row[6])),
    )


def _optional_micros(time: datetime | None) -> int | None:
    return None if time is None else to_micros(time)


def _optional_time(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _interrupts_json(interrupts: tuple[dict[str, Any], ...]) -> str | None:
    return msgspec.json.encode(interrupts).decode() if interrupts else None


@operation
def _append_events(
    run: Run, after_number: int, events: tuple[str, ...], end: RunEnd | None, now: datetime
) -> Steps[bool]:
    """Append a batch of events, if the run is running and its last event is the expected one."""
    rows = yield move_run_end(run, after_number, len(events), end, now)
    if rows and events:
        yield insert_batch(run.session_id, run.run_id, after_number + 1, events, now)
    return bool(rows)


def move_run_end(run: Run, after_number: int, count: int, end: RunEnd | None, now: datetime) -> Statement:
    """Add to the number of events of a running run, and end it; returns a row if its last event is the expected one."""
    changes: tuple[Any, ...] = ()
    if end is not None:
        changes = (end.status, _interrupts_json(end.interrupts), to_micros(now))
    return (
        _MOVE_END.format(", status = ?, interrupts_json = ?, ended_at = ?" if end is not None else ""),
        (after_number + count, *changes, run.session_id, run.run_id, after_number),
    )


_MOVE_END: Final = (
    "UPDATE runs SET last_number = ?{} WHERE session_id = ? AND run_id = ? AND status = 'running' AND last_number = ?"
    " RETURNING 1"
)


def insert_batch(session_id: str, run_id: str, first: int, events: Sequence[str], now: datetime) -> Statement:
    """Insert a batch of events."""
    text, last = "\n".join(events), first + len(events) - 1
    return (
        "INSERT INTO run_events (session_id, first_number, last_number, run_id, created_at, hash, events_json)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (session_id, first, last, run_id, to_micros(now), _batch_hash(session_id, run_id, first, text), text),
    )


def _batch_hash(session_id: str, run_id: str, first: int, text: str) -> bytes:
    return hashlib.sha256(f"{session_id}\n{run_id}\n{first}\n{text}".encode()).digest()


# --- following -------------------------------------------------------------------------------------------------------


@loose_operation
def _get_run(session_id: str, run_id: str) -> Steps[Run | None]:
    rows = yield f"SELECT {_RUN_SELECT} FROM runs WHERE session_id = ? AND run_id = ?", (session_id, run_id)
    return _run_from_row(rows[0]) if rows else None


@loose_operation
def _latest_run(session_id: str) -> Steps[Run | None]:
    return (yield from _latest(session_id))


def _latest(session_id: str) -> Steps[Run | None]:
    rows = yield (
        f"SELECT {_RUN_SELECT} FROM runs WHERE session_id = ? ORDER BY first_number DESC LIMIT 1",
        (session_id,),
    )
    return _run_from_row(rows[0]) if rows else None


@loose_operation
def _read_events(session_id: str, after_number: int, limit: int) -> Steps[RunEventPage]:
    latest = yield from _latest(session_id)  # before the events: if the run has ended, they are complete
    rows = yield (  # the batch that contains the number, and the later ones
        "SELECT first_number, last_number, run_id, hash, events_json FROM run_events WHERE session_id = ?"
        " AND first_number >= coalesce((SELECT max(first_number) FROM run_events WHERE session_id = ?"
        " AND first_number <= ?), 0) ORDER BY first_number LIMIT ?",
        (session_id, session_id, after_number + 1, limit),
    )
    events = [event for row in rows for event in _events_from(session_id, row) if event.number > after_number]
    return RunEventPage(tuple(events), latest)


def _events_from(session_id: str, row: tuple[Any, ...]) -> list[RunEvent]:
    first, last, run_id, hash_, text = row
    lines = text.split("\n")
    if _batch_hash(session_id, run_id, first, text) != bytes(hash_) or len(lines) != last - first + 1:
        raise CorruptDataError("its hash does not match its content", where=f"session {session_id}, run events {first}")
    return [RunEvent(first + at, run_id, line) for at, line in enumerate(lines)]


# --- ending ----------------------------------------------------------------------------------------------------------


@operation
def _cancel_run(session_id: str, run_id: str | None, now: datetime) -> Steps[Run | None]:
    run_sql, run_arguments = (" AND run_id = ?", (run_id,)) if run_id is not None else ("", ())
    rows = yield (
        "UPDATE runs SET cancel_at = coalesce(cancel_at, ?) WHERE session_id = ? AND status = 'running'"
        f"{run_sql} RETURNING {_RUN_SELECT}",
        (to_micros(now), session_id, *run_arguments),
    )
    return _run_from_row(rows[0]) if rows else None


def _heartbeat(owner: str, length: int) -> Steps[None]:
    yield (
        "UPDATE runs SET alive_us = ?, alive_until = lease_now() + ? WHERE owner = ? AND status = 'running'",
        (length, length, owner),
    )


@loose_operation
def _find_cancelled(owner: str) -> Steps[list[tuple[str, str]]]:
    rows = yield (
        "SELECT session_id, run_id FROM runs WHERE owner = ? AND status = 'running' AND cancel_at IS NOT NULL",
        (owner,),
    )
    return [(session_id, run_id) for session_id, run_id in rows]


@operation
def _remaining_us(run: Run) -> Steps[int]:
    rows = yield (
        "SELECT alive_until - lease_now() FROM runs WHERE session_id = ? AND run_id = ?",
        (run.session_id, run.run_id),
    )
    return int(rows[0][0]) if rows else 0


@operation
def _find_expired() -> Steps[list[Run]]:
    rows = yield f"SELECT {_RUN_SELECT} FROM runs WHERE status = 'running'", ()
    return [run for run in map(_run_from_row, rows) if run.is_expired]


@operation
def _fail_expired(run: Run, event: str, now: datetime) -> Steps[bool]:
    rows = yield (
        "UPDATE runs SET status = 'error', last_number = last_number + 1, ended_at = ? WHERE session_id = ?"
        f" AND run_id = ? AND ({_IS_EXPIRED} OR (status = 'running' AND owner = ?)) RETURNING last_number",
        (to_micros(now), run.session_id, run.run_id, run.owner if is_dead(run.owner) else ""),
    )
    if rows:
        yield insert_batch(run.session_id, run.run_id, int(rows[0][0]), (event,), now)
    return bool(rows)


# --- forgetting ------------------------------------------------------------------------------------------------------


@operation
def _delete_old_events(before: datetime) -> Steps[tuple[int, int]]:
    """Delete the events of a page of runs, so that other writers get their turn in between; the runs and batches."""
    runs = yield OLD_RUNS, (to_micros(before), _OLD_RUN_PAGE)
    count = 0
    for session_id, run_id, first, last in runs:
        batches = yield (
            f"DELETE FROM run_events WHERE session_id = ? AND first_number BETWEEN ? AND ?{RETURNING_ONE}",
            (session_id, first, last),
        )
        yield "UPDATE runs SET has_events = 0 WHERE session_id = ? AND run_id = ?", (session_id, run_id)
        count += len(batches)
    return len(runs), count


def anonymize(user_id: str) -> Steps[None]:
    """Remove a user from runs in sessions of others, with the events of those runs."""
    yield (
        "DELETE FROM run_events WHERE (session_id, run_id) IN (SELECT session_id, run_id FROM runs WHERE user_id = ?)",
        (user_id,),
    )
    yield "UPDATE runs SET user_id = NULL, interrupts_json = NULL WHERE user_id = ?", (user_id,)


def delete_session_events(session_id: str) -> Steps[None]:
    """Delete the events of a session, which may repeat an erased message."""
    yield "DELETE FROM run_events WHERE session_id = ?", (session_id,)


def find_damage(session_id: str) -> Steps[list[str]]:
    """Describe what is wrong with the run events of a session. Events deleted by age are not missing."""
    problems: list[str] = []
    after_number, last_number = 0, None
    while rows := (
        yield (
            "SELECT first_number, last_number, run_id, hash, events_json FROM run_events WHERE session_id = ?"
            " AND first_number > ? ORDER BY first_number LIMIT ?",
            (session_id, after_number, _PAGE),
        )
    ):
        for row in rows:
            if last_number is not None and row[0] <= last_number:
                problems.append(f"event {row[0]} of runs is there twice")
            try:
                _events_from(session_id, row)
            except CorruptDataError as error:
                problems.append(f"events of runs from {row[0]}: {error.what}")
            last_number = row[1]
        after_number = rows[-1][0]
    return problems
