"""The trace in a store: what happened in sessions, and how it was judged.

    await store.append_events(events)                       as the bus emits them; secrets are taken out first
    await store.events(session_id, after_id, limit=100)     in their order; the newest id is where to go on
    await store.record_evaluation(session_id, score=0.8)    how good a turn or a task was
    await store.pattern_samples()                           what routing learns from

Events are of the session that they happened in: a fork begins without any, and deleting a session takes them along.
What belongs to no session has ``"system"`` in its place. An event of a session that is not there is passed over: it was
deleted before its trace was written. The same event again changes nothing. Old events go with ``sweep_events``, all but
those that an audit needs. The one rule: nothing comes in with a secret in it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from dragoman.errors import CorruptDataError, FormatError
from dragoman.ids import derive_ulid
from dragoman.jsontext import OWN, read_json
from dragoman.message import MAX_TOKENS, is_possible_cost
from dragoman.store.message_rows import from_micros, to_micros
from dragoman.store.operation import Operation, Rows, Statement, bulk_operation, operation
from dragoman.store.sessions import unknown_session
from dragoman.store.tool_call_rows import column_text
from dragoman.store.types import Evaluation, EvaluationTotals, TraceEvent

if TYPE_CHECKING:
    from dragoman.ids import UlidSource
    from dragoman.redaction import Redactor
    from dragoman.routing import Fingerprint, PatternSample
    from dragoman.store.store import Store

SYSTEM: Final = "system"  # the session of what belongs to no session
RETENTION: Final = timedelta(days=90)
AUDIT_TYPES: Final = (  # which stay for as long as the store
    "gateway.auth_failed",
    "gateway.key_issued",
    "gateway.key_revoked",
    "gateway.key_rotated",
    "gateway.quota_exceeded",
    "trace.swept",
    "usage.repaired",
)

_EVENT_COLUMNS: Final = (
    "id, timestamp_us, session_id, turn_id, parent_event_id, type, actor, sensitivity, payload_json, hash"
)
_EVALUATION_COLUMNS: Final = (
    "id, session_id, turn_id, message_id, task_id, agent_id, plan_id, evaluator, model, score, success, cost_usd,"
    " duration_ms, notes, fingerprint_json, created_at, team_id, metrics_json, hash"
)
_ROW_LOCK: Final = {"sqlite": "", "postgres": " FOR KEY SHARE"}  # a session that is not deleted until we are done
_INSERT_BATCH: Final = 50
_PAGE: Final = 500


@functools.cache
def _redactor() -> Redactor:
    from dragoman.redaction import Redactor  # noqa: PLC0415  whoever only reads pays nothing for it

    return Redactor()


class EventLike(Protocol):
    """An event, as the bus has it."""

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


class TraceMethods:
    """What a store can do with its trace."""

    if TYPE_CHECKING:
        engine: str
        clock: Callable[[], datetime]
        _ids: UlidSource

        async def _read(self, operation: Operation[Any]) -> Any: ...
        async def _write(self, operation: Operation[Any]) -> Any: ...

    async def append_events(self, events: Iterable[EventLike], redactor: Redactor | None = None) -> int:
        """Keep events, without the secrets in them; how many were new, and of sessions that are there."""
        rows = [event_row(event, redactor or _redactor()) for event in events]
        count: int = await self._write(append_events(self.engine, rows)) if rows else 0
        return count

    async def events(
        self,
        session_id: str,
        after_id: str = "",
        limit: int = 100,
        *,
        types: Iterable[str] | None = None,
        turn_id: str | None = None,
    ) -> list[TraceEvent]:
        """What happened in a session behind an event, in order; of these types only, and in this turn, if named."""
        wanted = None if types is None else tuple(types)
        found: list[TraceEvent] = await self._read(read_events(session_id, after_id, limit, wanted, turn_id))
        return found

    async def sweep_events(
        self, older_than: timedelta = RETENTION, *, exempt: Iterable[str] = AUDIT_TYPES, dry_run: bool = False
    ) -> int:
        """Delete events that are older, but for those of the types that are exempt; how many that were."""
        before = self.clock() - older_than
        kept = frozenset(exempt)
        types: list[str] = await self._read(event_types())
        swept = 0
        for name in types:
            if name in kept:
                continue
            if dry_run:
                swept += await self._read(count_before(name, before))
                continue
            while gone := await self._write(delete_before(name, before)):
                swept += gone
        return swept

    async def record_evaluation(
        self,
        session_id: str = SYSTEM,
        *,
        score: float | None = None,
        success: bool | None = None,
        evaluator: str = "user",
        turn_id: str | None = None,
        message_id: str | None = None,
        task_id: str | None = None,
        agent_id: str | None = None,
        plan_id: str | None = None,
        model: str | None = None,
        cost_usd: Decimal | None = None,
        duration_ms: float | None = None,
        notes: str | None = None,
        fingerprint: Fingerprint | None = None,
        metrics: Mapping[str, float] | None = None,
        team_id: str = "",
        key: str | None = None,
    ) -> Evaluation:
        """Keep how good a turn, a message or a task was: a score from 0 to 1, whether it is good enough, or both.

        ``cost_usd`` and ``duration_ms`` are of what was judged. With a model and the fingerprint of the turn, routing
        learns from it. A session that is not there is an ``UnknownSessionError``. What has a ``key`` is kept once: the
        same key again gives what was kept first.
        """
        made = Evaluation(
            id=f"evl_{self._ids.next()}" if key is None else _evaluation_id(team_id, key),
            team_id=team_id,
            session_id=session_id,
            turn_id=turn_id,
            message_id=message_id,
            task_id=task_id,
            agent_id=agent_id,
            plan_id=plan_id,
            evaluator=evaluator,
            model=model,
            score=score,
            success=success,
            cost_usd=cost_usd,
            duration_ms=duration_ms,
            notes=None if notes is None else column_text(_redactor().text(notes)),
            fingerprint=None if fingerprint is None else msgspec.json.decode(msgspec.json.encode(fingerprint)),
            metrics=dict(metrics) if metrics else None,
            created_at=self.clock(),
        )
        check_evaluation(made)
        kept: Evaluation = await self._write(insert_evaluation(self.engine, made))
        return kept

    async def judged_turn(self, session_id: str, turn_id: str | None = None) -> dict[str, Any]:
        """What ``record_evaluation`` takes about a turn of a session, its last one if none is named."""
        from dragoman.store.evaluations import describe_turn  # noqa: PLC0415  only who judges needs it

        return await describe_turn(cast("Store", self), session_id, turn_id)

    async def evaluations(
        self,
        session_id: str | None = None,
        *,
        task_id: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        team_id: str | None = None,
        limit: int = 100,
    ) -> list[Evaluation]:
        """Evaluations, the newest first: of a session, a task, an agent, a model, a team, or all."""
        wanted = {
            "session_id": session_id,
            "task_id": task_id,
            "agent_id": agent_id,
            "model": model,
            "team_id": team_id,
        }
        named = {name: value for name, value in wanted.items() if value is not None}
        found: list[Evaluation] = await self._read(read_evaluations(named, limit))
        return found

    async def judged_totals(self, by: str, *, team_id: str | None = None) -> list[EvaluationTotals]:
        """How much was judged and how well, ever, by ``agent`` or by ``model``; of one team only, if named."""
        totals: list[EvaluationTotals] = await self._read(read_totals(by, team_id))
        return totals

    async def pattern_samples(self, limit: int = 1_000, *, user_id: str | None = None) -> list[PatternSample]:
        """How turns went that were judged, the newest first; of sessions of one user only, if named.

        A turn that was judged several times is one sample, as it was judged last.
        """
        found: list[PatternSample] = await self._read(read_samples(limit, user_id))
        return found


# --- events ----------------------------------------------------------------------------------------------------------


def event_row(event: EventLike, redactor: Redactor) -> tuple[Any, ...]:
    """An event as a row of the table."""
    row = (
        event.id,
        event.timestamp_us,
        event.session_id,
        event.turn_id,
        event.parent_event_id,
        event.type,
        str(event.actor),
        str(event.sensitivity),
        redactor.json(event.payload_json).decode(),
    )
    return (*row, json_hash(row))


def json_hash(row: Sequence[Any]) -> bytes:
    """SHA-256 over everything that a row says."""
    return hashlib.sha256(json.dumps(row, default=str).encode()).digest()  # which takes whatever a damaged row holds


def event_from_row(row: tuple[Any, ...]) -> TraceEvent:
    """The event of a row; ``CorruptDataError`` if it is not what was written."""
    if json_hash(row[:9]) != bytes(row[9]):
        raise CorruptDataError("its hash does not fit its content", where=f"session {row[2]}, event {row[0]}")
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


@bulk_operation
def append_events(engine: str, rows: Sequence[tuple[Any, ...]]) -> Generator[Statement, Rows, int]:
    """Add events of sessions that are there."""
    there = {SYSTEM}
    for session_id in sorted({row[2] for row in rows} - there):
        found = yield f"SELECT id FROM sessions WHERE id = ?{_ROW_LOCK[engine]}", (session_id,)
        there.update(name for (name,) in found)
    wanted = [row for row in rows if row[2] in there]
    written = 0
    while wanted:
        size = _INSERT_BATCH if len(wanted) >= _INSERT_BATCH else 1  # two statements to prepare, whatever comes
        some, wanted = wanted[:size], wanted[size:]
        values = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * size)
        new = yield (
            f"INSERT INTO events ({_EVENT_COLUMNS}) VALUES {values}"
            " ON CONFLICT (session_id, id) DO NOTHING RETURNING 1",
            [field for row in some for field in row],
        )
        written += len(new)
    return written


@operation
def read_events(
    session_id: str, after_id: str, limit: int, types: Sequence[str] | None, turn_id: str | None
) -> Generator[Statement, Rows, list[TraceEvent]]:
    """Events behind one, in order."""
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
        f"SELECT {_EVENT_COLUMNS} FROM events WHERE {' AND '.join(conditions)} ORDER BY id LIMIT ?",
        (*arguments, limit),
    )
    return [event_from_row(row) for row in rows]


@operation
def event_types() -> Generator[Statement, Rows, list[str]]:
    """The types of which there are events."""
    rows = yield "SELECT DISTINCT type FROM events ORDER BY type", ()
    return [row[0] for row in rows]


@operation
def count_before(name: str, before: datetime) -> Generator[Statement, Rows, int]:
    """How many events of a type are older."""
    rows = yield "SELECT count(*) FROM events WHERE type = ? AND timestamp_us < ?", (name, to_micros(before))
    count: int = rows[0][0]
    return count


@operation
def delete_before(name: str, before: datetime) -> Generator[Statement, Rows, int]:
    """Delete some events of a type that are older; how many. Others have their turn in between."""
    rows = yield (
        "DELETE FROM events WHERE (session_id, id) IN (SELECT session_id, id FROM events WHERE type = ?"
        " AND timestamp_us < ? LIMIT ?) RETURNING 1",
        (name, to_micros(before), _PAGE),
    )
    return len(rows)


# --- evaluations -----------------------------------------------------------------------------------------------------


def check_evaluation(evaluation: Evaluation) -> None:
    """Refuse an evaluation that says nothing, or something impossible."""
    where = "evaluation"
    if evaluation.score is None and evaluation.success is None:
        raise FormatError("it says neither how good it was nor whether that is enough", where=where)
    if evaluation.score is not None and not 0 <= evaluation.score <= 1:  # which NaN is not either
        raise FormatError(f"a score is a number from 0 to 1, not {evaluation.score}", where=where)
    if evaluation.duration_ms is not None and not 0 <= evaluation.duration_ms <= MAX_TOKENS:  # which NaN is not either
        raise FormatError(f"{evaluation.duration_ms} ms is no time that something takes", where=where)
    for name, value in (evaluation.metrics or {}).items():
        if not 0 <= value <= MAX_TOKENS:
            raise FormatError(f"{value} is no amount of {name}", where=where)
    if evaluation.cost_usd is not None and not is_possible_cost(evaluation.cost_usd):
        raise FormatError(f"{evaluation.cost_usd} is no amount", where=where)
    if not evaluation.evaluator:
        raise FormatError("somebody has judged", where=where)


def evaluation_row(evaluation: Evaluation) -> tuple[Any, ...]:
    """An evaluation as a row of the table."""
    row = (
        evaluation.id,
        evaluation.session_id,
        evaluation.turn_id,
        evaluation.message_id,
        evaluation.task_id,
        evaluation.agent_id,
        evaluation.plan_id,
        evaluation.evaluator,
        evaluation.model,
        None if evaluation.score is None else float(evaluation.score),
        None if evaluation.success is None else int(evaluation.success),
        None if evaluation.cost_usd is None else str(evaluation.cost_usd),
        None if evaluation.duration_ms is None else float(evaluation.duration_ms),
        evaluation.notes,
        None if evaluation.fingerprint is None else msgspec.json.encode(evaluation.fingerprint).decode(),
        to_micros(evaluation.created_at),
        evaluation.team_id,
        None if evaluation.metrics is None else msgspec.json.encode(evaluation.metrics, order="sorted").decode(),
    )
    return (*row, evaluation_hash(row))


def evaluation_hash(row: Sequence[Any]) -> bytes:
    """The hash of an evaluation's row. Without metrics, and of no team, it is what it was before there were any."""
    return json_hash(row[:18] if row[17] is not None else row[:17] if row[16] else row[:16])


def _evaluation_id(team_id: str, key: str) -> str:
    return f"evl_{derive_ulid(0, team_id, key)}"


def evaluation_from_row(row: tuple[Any, ...]) -> Evaluation:
    """The evaluation of a row; ``CorruptDataError`` if it is not what was written."""
    if evaluation_hash(row) != bytes(row[18]):
        raise CorruptDataError("its hash does not fit its content", where=f"session {row[1]}, evaluation {row[0]}")
    return Evaluation(
        id=row[0],
        team_id=row[16],
        session_id=row[1],
        turn_id=row[2],
        message_id=row[3],
        task_id=row[4],
        agent_id=row[5],
        plan_id=row[6],
        evaluator=row[7],
        model=row[8],
        score=row[9],
        success=None if row[10] is None else bool(row[10]),
        cost_usd=None if row[11] is None else Decimal(row[11]),
        duration_ms=row[12],
        notes=row[13],
        fingerprint=None if row[14] is None else msgspec.json.decode(row[14]),
        created_at=from_micros(row[15]),
        metrics=None if row[17] is None else msgspec.json.decode(row[17], type=dict[str, float]),
    )


@operation
def insert_evaluation(engine: str, evaluation: Evaluation) -> Generator[Statement, Rows, Evaluation]:
    """Add an evaluation; what is there already under its id stays, and is what comes back."""
    if evaluation.session_id != SYSTEM:
        session_rows = yield f"SELECT id FROM sessions WHERE id = ?{_ROW_LOCK[engine]}", (evaluation.session_id,)
        if not session_rows:
            raise unknown_session(evaluation.session_id)
    row = evaluation_row(evaluation)
    new = yield (
        f"INSERT INTO evaluations ({_EVALUATION_COLUMNS}) VALUES ({', '.join('?' * len(row))})"
        " ON CONFLICT (session_id, id) DO NOTHING RETURNING 1",
        row,
    )
    if new:
        return evaluation
    stored_rows = yield (
        f"SELECT {_EVALUATION_COLUMNS} FROM evaluations WHERE session_id = ? AND id = ?",
        (evaluation.session_id, evaluation.id),
    )
    return evaluation_from_row(stored_rows[0])


@operation
def read_evaluations(wanted: dict[str, str], limit: int) -> Generator[Statement, Rows, list[Evaluation]]:
    """Evaluations that fit, the newest first."""
    conditions = " AND ".join(("1 = 1", *(f"{name} = ?" for name in wanted)))
    rows = yield (
        f"SELECT {_EVALUATION_COLUMNS} FROM evaluations WHERE {conditions} ORDER BY created_at DESC, id DESC LIMIT ?",
        (*wanted.values(), limit),
    )
    return [evaluation_from_row(row) for row in rows]


_GROUP_COLUMNS: Final = {"agent": "agent_id", "model": "model"}


@operation
def read_totals(by: str, team_id: str | None) -> Generator[Statement, Rows, list[EvaluationTotals]]:
    """Counts and sums by group; what has no such group is left out."""
    group = _GROUP_COLUMNS[by]
    whose, who = ("", ()) if team_id is None else (" AND team_id = ?", (team_id,))
    rows = yield (
        f"SELECT {group}, count(*), count(DISTINCT task_id), count(success), sum(success), count(score), sum(score),"
        f" decimal_sum(coalesce(cost_usd, '0')), max(created_at) FROM evaluations"
        f" WHERE {group} IS NOT NULL{whose} GROUP BY {group}",
        who,
    )
    found = [
        EvaluationTotals(
            group=row[0],
            count=int(row[1]),
            tasks=int(row[2]),
            with_success=int(row[3]),
            succeeded=int(row[4] or 0),
            with_score=int(row[5]),
            score_sum=float(row[6] or 0),
            cost_usd=Decimal(str(row[7])),
            last_at=from_micros(int(row[8])),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: one.group)


@operation
def read_samples(limit: int, user_id: str | None) -> Generator[Statement, Rows, list[PatternSample]]:
    """What was judged and has a fingerprint, each turn once, the newest first."""
    from dragoman.routing.pattern import Fingerprint, PatternSample  # noqa: PLC0415  whoever only keeps needs no routing

    user_sql, user_arguments = "", tuple[str, ...]()
    if user_id is not None:
        user_sql, user_arguments = " AND session_id IN (SELECT id FROM sessions WHERE user_id = ?)", (user_id,)
    rows = yield (
        f"SELECT {_EVALUATION_COLUMNS} FROM evaluations"
        f" WHERE fingerprint_json IS NOT NULL AND model IS NOT NULL{user_sql}"
        " ORDER BY created_at DESC, id DESC LIMIT ?",
        (*user_arguments, limit),
    )
    samples_found: dict[tuple[str, str], PatternSample] = {}
    for evaluation in map(evaluation_from_row, rows):
        subject = (
            evaluation.session_id,
            evaluation.turn_id or evaluation.message_id or evaluation.task_id or evaluation.id,
        )
        if subject not in samples_found and evaluation.fingerprint is not None and evaluation.model is not None:
            success = evaluation.score if evaluation.score is not None else float(bool(evaluation.success))
            samples_found[subject] = PatternSample(
                fingerprint=msgspec.convert(evaluation.fingerprint, Fingerprint),
                primary_model=evaluation.model,
                success=success,
                cost_usd=evaluation.cost_usd,
            )
    return list(samples_found.values())


# --- care ------------------------------------------------------------------------------------------------------------


def delete_session_trace(session_id: str) -> Generator[Statement, Rows, None]:
    """Delete the trace of a session, after the session: who was about to add to it has found it gone, or is done."""
    for table in ("events", "evaluations"):
        yield f"DELETE FROM {table} WHERE session_id = ?", (session_id,)


def anonymize(user_id: str) -> Generator[Statement, Rows, None]:
    """Take a person out of the trace of sessions of others."""
    from dragoman.letters.records import personal_team  # noqa: PLC0415  only who erases needs it

    user_json = msgspec.json.encode(user_id).decode()
    pattern = "".join(f"!{letter}" if letter in "!%_" else letter for letter in user_json)
    rows = yield f"SELECT {_EVENT_COLUMNS} FROM events WHERE payload_json LIKE ? ESCAPE '!'", (f"%{pattern}%",)
    for row in rows:
        payload = _remove_value(read_json(row[8], OWN), user_id)
        new_row = (*row[:8], msgspec.json.encode(payload).decode())
        yield (
            "UPDATE events SET payload_json = ?, hash = ? WHERE session_id = ? AND id = ?",
            (new_row[8], json_hash(new_row), row[2], row[0]),
        )
    yield "DELETE FROM evaluations WHERE team_id = ?", (personal_team(user_id),)
    rows = yield f"SELECT {_EVALUATION_COLUMNS} FROM evaluations WHERE evaluator = ?", (user_id,)
    for row in rows:
        new_row = (*row[:7], "[erased]", *row[8:13], None, *row[14:18])
        yield (
            "UPDATE evaluations SET evaluator = ?, notes = NULL, hash = ? WHERE session_id = ? AND id = ?",
            ("[erased]", evaluation_hash(new_row), row[1], row[0]),
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
def find_damage(session_id: str) -> Generator[Statement, Rows, list[str]]:
    """What is wrong with the trace of a session, in words."""
    problems: list[str] = []
    for table, columns, name in (
        ("events", _EVENT_COLUMNS, "event"),
        ("evaluations", _EVALUATION_COLUMNS, "evaluation"),
    ):
        after_id = ""
        while rows := (
            yield (
                f"SELECT {columns} FROM {table} WHERE session_id = ? AND id > ? ORDER BY id LIMIT ?",
                (session_id, after_id, _PAGE),
            )
        ):
            problems.extend(
                f"{name} {row[0]}: its hash does not fit its content"
                for row in rows
                if (json_hash if table == "events" else evaluation_hash)(row[:-1]) != bytes(row[-1])
            )
            after_id = rows[-1][0]
    return problems


@operation
def find_orphans() -> Generator[Statement, Rows, list[str]]:
    """What is there of sessions that are not, in words."""
    problems: list[str] = []
    for table in ("events", "evaluations"):
        rows = yield (
            f"SELECT DISTINCT session_id FROM {table} WHERE session_id <> ?"
            " AND session_id NOT IN (SELECT id FROM sessions)",
            (SYSTEM,),
        )
        problems.extend(f"there are {table} of session {name}, which is gone" for (name,) in rows)
    return problems


# --- elsewhere -------------------------------------------------------------------------------------------------------


class ImportedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a file that is imported."""

    id: str
    timestamp_us: int
    session_id: str
    turn_id: str | None
    parent_event_id: str | None
    type: str
    actor: str
    sensitivity: str
    payload_json: bytes


def event_for_import(event: TraceEvent, session_id: str) -> ImportedEvent:
    """An event as it is added to a session."""
    return ImportedEvent(
        id=event.id,
        timestamp_us=to_micros(event.timestamp),
        session_id=session_id,
        turn_id=event.turn_id,
        parent_event_id=event.parent_event_id,
        type=event.type,
        actor=event.actor,
        sensitivity=event.sensitivity,
        payload_json=msgspec.json.encode(event.payload),
    )


def import_row(event: TraceEvent, session_id: str) -> tuple[Any, ...]:
    """The row of an event that is imported."""
    return event_row(event_for_import(event, session_id), _redactor())
