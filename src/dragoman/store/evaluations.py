"""Evaluations: how good a turn, a message or a task was.

    facts = await store.evaluations.for_turn(session_id)                    model, cost, duration, fingerprint
    await store.evaluations.record(session_id, score=0.8, **facts)
    await store.evaluations.find(session_id)
    await store.evaluations.samples()                                       what routing learns from

Evaluations belong to a session, or to ``"system"``. They are deleted with the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import msgspec

from dragoman.errors import CorruptDataError, FormatError, InputError
from dragoman.ids import derive_ulid
from dragoman.message import MAX_TOKENS, Message, Role, TextBlock, Usage, is_possible_cost, usage_problems
from dragoman.store.operation import FOR_KEY_SHARE, Facet, Steps, column_text, from_micros, operation, to_micros
from dragoman.store.row_hash import json_hash
from dragoman.store.sessions import unknown_session
from dragoman.store.trace import SYSTEM, default_redactor, find_wrong_hashes
from dragoman.store.types import Evaluation, EvaluationTotals

if TYPE_CHECKING:
    from dragoman.routing import Fingerprint, PatternSample

_COLUMNS: Final = (
    "id, session_id, turn_id, message_id, task_id, agent_id, plan_id, evaluator, model, score, success, cost_usd,"
    " duration_ms, notes, fingerprint_json, created_at, team_id, metrics_json, hash"
)


class EvaluationFields(TypedDict, total=False):
    """Fields of an evaluation and of its subject. ``cost_usd`` and ``duration_ms`` are those of the subject."""

    score: float | None  # from 0 to 1
    success: bool | None  # whether it is good enough
    evaluator: str
    turn_id: str | None
    message_id: str | None
    task_id: str | None
    agent_id: str | None
    plan_id: str | None
    model: str | None
    cost_usd: Decimal | None
    duration_ms: float | None
    notes: str | None
    metrics: Mapping[str, float] | None
    team_id: str


class EvaluationStore(Facet):
    """The evaluations of a store: ``store.evaluations``."""

    async def record(
        self,
        session_id: str = SYSTEM,
        *,
        key: str | None = None,
        fingerprint: Fingerprint | None = None,
        **fields: Unpack[EvaluationFields],
    ) -> Evaluation:
        """Store an evaluation with a score from 0 to 1, a success, or both; ``UnknownSessionError`` for the session.

        With a model and the fingerprint of the turn, routing learns from it. A ``key`` makes it idempotent: the same
        key again returns the evaluation that was stored first.
        """
        store, team_id = self._store, fields.get("team_id", "")
        notes, metrics = fields.pop("notes", None), fields.pop("metrics", None)
        evaluation = Evaluation(
            id=f"evl_{store.new_id() if key is None else derive_ulid(0, team_id, key)}",
            session_id=session_id,
            notes=None if notes is None else column_text(default_redactor().text(notes)),
            fingerprint=None if fingerprint is None else msgspec.json.decode(msgspec.json.encode(fingerprint)),
            metrics=dict(metrics) if metrics else None,
            created_at=store.clock(),
            **{"evaluator": "user", **fields},  # type: ignore[arg-type]
        )
        check_evaluation(evaluation)
        return await store._write(insert_evaluation(evaluation))

    async def for_turn(self, session_id: str, turn_id: str | None = None) -> dict[str, Any]:
        """Return what ``record`` takes about a turn, the last one of the session by default.

        It contains no text of the turn. ``InputError`` if the turn does not exist or has no answer.
        """
        from dragoman.routing import collect_facts  # noqa: PLC0415  only evaluation needs routing

        history = [row.message async for row in self._store.history(session_id)]
        start, end = _turn_bounds(history, session_id, turn_id)
        answers = [message for message in history[start + 1 : end] if message.role is Role.ASSISTANT]
        if not answers:
            raise InputError("its last message has no answer", where=f"session {session_id}")
        usages = [usage for answer in answers if (usage := answer.metadata.usage) and not usage_problems(usage)]
        costs = [usage.amount_usd for usage in usages if usage.amount_usd is not None]
        question, last = history[start], answers[-1]
        facts = collect_facts(
            history[:start],
            question.content,
            now=question.created_at,
            estimated_input_tokens=_input_tokens(usages[0]) if usages else 0,
        )
        return {
            "turn_id": last.metadata.run_id,
            "message_id": last.id,
            "model": last.metadata.model,
            "cost_usd": sum(costs, Decimal(0)) if costs else None,
            "duration_ms": float(sum(usage.latency_ms for usage in usages)) if usages else None,
            "fingerprint": facts.fingerprint(),
        }

    async def find(
        self,
        session_id: str | None = None,
        *,
        task_id: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        team_id: str | None = None,
        limit: int = 100,
    ) -> list[Evaluation]:
        """Return evaluations, the newest first: of a session, a task, an agent, a model, a team, or all."""
        columns = {
            "session_id": session_id,
            "task_id": task_id,
            "agent_id": agent_id,
            "model": model,
            "team_id": team_id,
        }
        filters = {name: value for name, value in columns.items() if value is not None}
        return await self._store._read(_read_evaluations(filters, limit))

    async def totals(self, by: str, *, team_id: str | None = None) -> list[EvaluationTotals]:
        """Return counts and sums of all evaluations by ``agent`` or ``model``, of one team if given."""
        return await self._store._read(_read_totals(by, team_id))

    async def samples(self, limit: int = 1_000, *, user_id: str | None = None) -> list[PatternSample]:
        """Return evaluated turns with a fingerprint, the newest first, of sessions of one user if given.

        A turn that was evaluated several times is one sample, with its last evaluation.
        """
        return await self._store._read(_read_samples(limit, user_id))


def _turn_bounds(history: list[Message], session_id: str, turn_id: str | None) -> tuple[int, int]:
    """Return the index of a turn's question, and the index after its last message."""
    end = len(history)
    if turn_id is not None:
        end = next((index + 1 for index in range(end - 1, -1, -1) if history[index].metadata.run_id == turn_id), 0)
    start = next((index for index in range(end - 1, -1, -1) if _is_question(history[index])), None)
    if start is None:
        raise InputError("it has no turn yet", where=f"session {session_id}", remedy="Ask something first")
    return start, end


def _is_question(message: Message) -> bool:
    return message.role is Role.USER and any(
        not isinstance(block, TextBlock) or block.text for block in message.content
    )


def _input_tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens


# --- rows ------------------------------------------------------------------------------------------------------------


def check_evaluation(evaluation: Evaluation) -> None:
    """Raise ``FormatError`` for an evaluation without a verdict, or with an impossible value."""
    where = "evaluation"
    if evaluation.score is None and evaluation.success is None:
        raise FormatError("it has neither a score nor a success", where=where)
    if evaluation.score is not None and not 0 <= evaluation.score <= 1:  # rejects NaN as well
        raise FormatError(f"score is {evaluation.score}, not a number from 0 to 1", where=where)
    if evaluation.duration_ms is not None and not 0 <= evaluation.duration_ms <= MAX_TOKENS:  # rejects NaN as well
        raise FormatError(f"duration_ms is {evaluation.duration_ms}, which is impossible", where=where)
    for name, value in (evaluation.metrics or {}).items():
        if not 0 <= value <= MAX_TOKENS:
            raise FormatError(f"metric {name} is {value}, which is impossible", where=where)
    if evaluation.cost_usd is not None and not is_possible_cost(evaluation.cost_usd):
        raise FormatError(f"cost_usd is {evaluation.cost_usd}, which is impossible", where=where)
    if not evaluation.evaluator:
        raise FormatError("evaluator is empty", where=where)


def _evaluation_row(evaluation: Evaluation) -> tuple[Any, ...]:
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
    """Return the hash of a row. Rows without metrics or team hash as they did before those columns existed."""
    return json_hash(row[:18] if row[17] is not None else row[:17] if row[16] else row[:16])


def _evaluation_from_row(row: tuple[Any, ...]) -> Evaluation:
    if evaluation_hash(row) != bytes(row[18]):
        raise CorruptDataError("its hash does not match its content", where=f"session {row[1]}, evaluation {row[0]}")
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
def insert_evaluation(evaluation: Evaluation) -> Steps[Evaluation]:
    """Insert an evaluation; if its id exists, return the stored one instead."""
    if evaluation.session_id != SYSTEM:
        session_rows = yield f"SELECT id FROM sessions WHERE id = ?{FOR_KEY_SHARE}", (evaluation.session_id,)
        if not session_rows:
            raise unknown_session(evaluation.session_id)
    row = _evaluation_row(evaluation)
    inserted = yield (
        f"INSERT INTO evaluations ({_COLUMNS}) VALUES ({', '.join('?' * len(row))})"
        " ON CONFLICT (session_id, id) DO NOTHING RETURNING 1",
        row,
    )
    if inserted:
        return evaluation
    stored_rows = yield (
        f"SELECT {_COLUMNS} FROM evaluations WHERE session_id = ? AND id = ?",
        (evaluation.session_id, evaluation.id),
    )
    return _evaluation_from_row(stored_rows[0])


@operation
def _read_evaluations(filters: dict[str, str], limit: int) -> Steps[list[Evaluation]]:
    conditions = " AND ".join(("1 = 1", *(f"{name} = ?" for name in filters)))
    rows = yield (
        f"SELECT {_COLUMNS} FROM evaluations WHERE {conditions} ORDER BY created_at DESC, id DESC LIMIT ?",
        (*filters.values(), limit),
    )
    return [_evaluation_from_row(row) for row in rows]


_GROUP_COLUMNS: Final = {"agent": "agent_id", "model": "model"}


@operation
def _read_totals(by: str, team_id: str | None) -> Steps[list[EvaluationTotals]]:
    group = _GROUP_COLUMNS[by]
    team_sql, team_arguments = ("", ()) if team_id is None else (" AND team_id = ?", (team_id,))
    rows = yield (
        f"SELECT {group}, count(*), count(DISTINCT task_id), count(success), sum(success), count(score), sum(score),"
        f" decimal_sum(coalesce(cost_usd, '0')), max(created_at) FROM evaluations"
        f" WHERE {group} IS NOT NULL{team_sql} GROUP BY {group}",
        team_arguments,
    )
    totals = [
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
    return sorted(totals, key=lambda total: total.group)


@operation
def _read_samples(limit: int, user_id: str | None) -> Steps[list[PatternSample]]:
    from dragoman.routing.pattern import Fingerprint, PatternSample  # noqa: PLC0415  only samples need routing

    user_sql, user_arguments = "", tuple[str, ...]()
    if user_id is not None:
        user_sql, user_arguments = " AND session_id IN (SELECT id FROM sessions WHERE user_id = ?)", (user_id,)
    rows = yield (
        f"SELECT {_COLUMNS} FROM evaluations"
        f" WHERE fingerprint_json IS NOT NULL AND model IS NOT NULL{user_sql}"
        " ORDER BY created_at DESC, id DESC LIMIT ?",
        (*user_arguments, limit),
    )
    samples: dict[tuple[str, str], PatternSample] = {}
    for evaluation in map(_evaluation_from_row, rows):
        subject = (
            evaluation.session_id,
            evaluation.turn_id or evaluation.message_id or evaluation.task_id or evaluation.id,
        )
        if subject not in samples and evaluation.fingerprint is not None and evaluation.model is not None:
            success = evaluation.score if evaluation.score is not None else float(bool(evaluation.success))
            samples[subject] = PatternSample(
                fingerprint=msgspec.convert(evaluation.fingerprint, Fingerprint),
                primary_model=evaluation.model,
                success=success,
                cost_usd=evaluation.cost_usd,
            )
    return list(samples.values())


# --- retention and verification --------------------------------------------------------------------------------------


def anonymize(user_id: str) -> Steps[None]:
    """Delete the evaluations of a user's personal team, and remove the user as evaluator of others."""
    from dragoman.letters.records import personal_team  # noqa: PLC0415  only erasure needs it

    yield "DELETE FROM evaluations WHERE team_id = ?", (personal_team(user_id),)
    rows = yield f"SELECT {_COLUMNS} FROM evaluations WHERE evaluator = ?", (user_id,)
    for row in rows:
        new_row = (*row[:7], "[erased]", *row[8:13], None, *row[14:18])
        yield (
            "UPDATE evaluations SET evaluator = ?, notes = NULL, hash = ? WHERE session_id = ? AND id = ?",
            ("[erased]", evaluation_hash(new_row), row[1], row[0]),
        )


@operation
def find_damage(session_id: str) -> Steps[list[str]]:
    """Describe what is wrong with the evaluations of a session."""
    return (yield from find_wrong_hashes("evaluations", _COLUMNS, session_id, evaluation_hash))
