"""Evaluations of tasks: recorded from letters and from ratings, isolated by team.

    await record_result(store, letter, …)             the evaluation in a task_result letter
    await record_rating(store, rating, …)             the rating of another evaluator
    await get_task_evaluation(store, task_id, …)      every evaluation of a task, their summary and trend
    await recent_summaries(store, by="agent", …)      the newest evaluations of each agent or model
    await get_trends(store, by="agent", …)            scores, successes and durations of each over time

An evaluation that is linked to a turn contains the model, the cost and the fingerprint of the turn, so that routing
learns from it. Invariant: a letter is one evaluation, however often it is sent.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta

from dragoman.errors import FormatError, InputError, LetterError, UnknownSessionError
from dragoman.ids import ids_for_owner
from dragoman.letters import TaskResultLetter, letter_id
from dragoman.letters.records import personal_team
from dragoman.letters.statistics import (
    WINDOW,
    Span,
    Step,
    Summary,
    Trend,
    compute_trend,
    group_by,
    split_by_step,
    step_for,
    summarize,
    summarize_newest,
)
from dragoman.letters.types import Name
from dragoman.message import MAX_TOKENS  # the largest stored count

if TYPE_CHECKING:
    from dragoman.store import Evaluation, Session, Store

_MAX_EVALUATIONS: Final = 10_000  # evaluations that one query reads
SYSTEM: Final = "system"
Grade = Annotated[float, Meta(ge=0, le=1)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class TaskRating(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rating of a task: a score, a success flag, or both."""

    task_id: Name
    score: Grade | None = None
    success: bool | None = None
    status: Literal["success", "partial_success", "failed"] | None = None
    duration_sec: Annotated[float, Meta(ge=0)] | None = None
    notes: Annotated[str, Meta(max_length=1000)] | None = None
    agent_id: Id | None = None  # agent of the task
    evaluator: Id | None = None  # the caller by default
    plan_id: Id | None = None
    model: Id | None = None
    session_id: Id | None = None  # session of the task
    turn_id: Id | None = None


class TaskEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluations of a task."""

    task_id: str
    evaluations: tuple[Any, ...]  # ``Evaluation`` of the store, newest first
    summary: Summary
    by_evaluator: dict[str, Summary]
    trend: Trend


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The newest evaluations of an agent or a model."""

    name: str
    summary: Summary
    trend: Trend


class GroupTrend(msgspec.Struct, frozen=True, kw_only=True):
    """The trend of an agent or a model."""

    name: str | None  # none for all groups together
    summary: Summary
    direction: Literal["up", "down", "steady", "unknown"]
    change: float | None
    spans: tuple[Span, ...]


class Trends(msgspec.Struct, frozen=True, kw_only=True):
    """The trends of agents or models, from the newest evaluations."""

    by: Literal["agent", "model"]
    step: Step
    groups: list[GroupTrend]  # the first one covers all groups; empty without evaluations


# --- record ----------------------------------------------------------------------------------------------------------


async def record_result(
    store: Store, letter: TaskResultLetter, *, team_id: str = "", session: Session | None = None
) -> Evaluation:
    """Record the evaluation in a letter. ``session`` is the session of the task, if known."""
    if letter.is_answer:
        raise LetterError(("$.payload.result.inputs: the letter answers a request and contains no evaluation",))
    payload = letter.payload
    duration_ms = (
        None if payload.metrics is UNSET or payload.metrics.duration_ms is UNSET else float(payload.metrics.duration_ms)
    )
    if payload.duration_sec is not UNSET:
        duration_ms = payload.duration_sec * 1000.0
    plan = letter.context.get("plan_id") if letter.context else None
    record = functools.partial(
        _record,
        store,
        session,
        letter.turn_id,
        team_id=team_id,
        task_id=letter.task_id,
        agent_id=letter.sender_id,
        evaluator=letter.sender_id,
        plan_id=plan if isinstance(plan, str) and plan else None,
        score=None if payload.score is UNSET else float(payload.score),
        success=payload.status == "success",
        duration_ms=duration_ms if duration_ms is not None and duration_ms <= MAX_TOKENS else None,
        notes=None if payload.notes is UNSET else payload.notes,
        metrics=payload.resources or None,
    )
    key = f"letter\0{letter.recipient_id}\0{letter_id(letter)}"
    evaluation = await record(key=key)
    if evaluation.evaluator != letter.sender_id:  # another sender used the same letter id
        evaluation = await record(key=f"{key}\0{letter.sender_id}")
    return evaluation


async def record_sent_result(
    store: Store, letter: TaskResultLetter, *, team_id: str, user_id: str | None
) -> Evaluation:
    """Record the evaluation in a sent letter. Its session is linked only if it belongs to the sender."""
    session = None
    for session_id in _session_ids(letter, team_id, user_id):
        with contextlib.suppress(UnknownSessionError, FormatError):
            candidate = await store.get_session(session_id)
            session = candidate if session is None and _is_owned_by(candidate, team_id, user_id) else session
    return await record_result(store, letter, team_id=team_id, session=session)


def _session_ids(letter: TaskResultLetter, team_id: str, user_id: str | None) -> tuple[str, ...]:
    """Return the possible ids of the session in a letter; without a user it is the id itself."""
    if letter.session_id is None:
        return ()
    if user_id is None:
        return (letter.session_id,)
    return ids_for_owner(letter.session_id, user_id, None if team_id in ("", personal_team(user_id)) else team_id)


def _is_owned_by(session: Session, team_id: str, user_id: str | None) -> bool:
    """Whether a session belongs to the sender; a program without team and user is trusted."""
    if not team_id:
        return user_id is None or session.user_id in (None, user_id)
    return user_id is not None and session.user_id == user_id and (session.team_id or personal_team(user_id)) == team_id


async def record_rating(
    store: Store,
    rating: TaskRating,
    *,
    evaluator: str,
    team_id: str = "",
    session: Session | None = None,
    key: str | None = None,
) -> Evaluation:
    """Record a rating. The same ``key`` again returns the first evaluation."""
    if rating.score is None and rating.success is None and rating.status is None:
        what = "the rating has neither score nor success nor status"
        raise InputError(what, where="$", remedy="Set score, success or status", code="empty_evaluation")
    success = rating.success
    if rating.status is not None:
        if success is not None and success != (rating.status == "success"):
            what = f"$.success: expected {str(not success).lower()} where the status is {rating.status}"
            raise LetterError((what,), code="inconsistent_result")
        success = rating.status == "success"
    return await _record(
        store,
        session,
        rating.turn_id,
        key=None if key is None else f"key\0{evaluator}\0{key}",
        team_id=team_id,
        task_id=rating.task_id,
        agent_id=rating.agent_id,
        evaluator=rating.evaluator or evaluator,
        plan_id=rating.plan_id,
        model=rating.model,
        score=rating.score,
        success=success,
        duration_ms=None if rating.duration_sec is None else rating.duration_sec * 1000,
        notes=rating.notes,
    )


async def _record(store: Store, session: Session | None, turn_id: str | None, **fields: Any) -> Evaluation:
    """Record an evaluation; the facts of its turn complete it.

    The model of a known turn comes from the store, since routing learns from it.
    """
    turn_facts: dict[str, Any] = {"turn_id": turn_id}
    if session is not None:
        with contextlib.suppress(InputError):  # the turn does not exist or has no answer
            turn_facts = await store.evaluations.for_turn(session.id, turn_id)
    values = {name: value for name, value in fields.items() if value is not None}
    row = {**turn_facts, **values, **({"model": turn_facts["model"]} if turn_facts.get("model") else {})}
    try:
        return await store.evaluations.record(SYSTEM if session is None else session.id, **row)
    except UnknownSessionError:  # deleted concurrently
        return await store.evaluations.record(SYSTEM, **values)


# --- read ------------------------------------------------------------------------------------------------------------


async def get_task_evaluation(store: Store, task_id: str, *, team_id: str | None = None) -> TaskEvaluation | None:
    """Return the evaluations of a task; none if there are none."""
    evaluations = await store.evaluations.find(task_id=task_id, team_id=team_id, limit=_MAX_EVALUATIONS)
    if not evaluations:
        return None
    return TaskEvaluation(
        task_id=task_id,
        evaluations=tuple(evaluations),
        summary=summarize(evaluations),
        by_evaluator={name: summarize(some) for name, some in group_by(evaluations, "evaluator").items()},
        trend=compute_trend(evaluations),
    )


async def recent_summaries(
    store: Store, *, by: Literal["agent", "model"], team_id: str | None = None, newest: int = WINDOW
) -> list[GroupSummary]:
    """Summarize the newest evaluations of each agent or model."""
    totals = await store.evaluations.totals(by, team_id=team_id)
    column = {"agent": "agent_id", "model": "model"}[by]
    summaries = []
    for group in totals:
        evaluations = await store.evaluations.find(team_id=team_id, limit=newest, **{column: group.group})
        summaries.append(
            GroupSummary(
                name=group.group, summary=summarize_newest(evaluations, newest), trend=compute_trend(evaluations)
            )
        )
    return summaries


async def get_trends(store: Store, *, by: Literal["agent", "model"], team_id: str | None = None) -> Trends:
    """Return the trends of agents or models."""
    evaluations = await store.evaluations.find(team_id=team_id, limit=_MAX_EVALUATIONS)
    step = step_for(evaluations)
    groups = group_by(evaluations, {"agent": "agent_id", "model": "model"}[by])
    named_groups: list[tuple[str | None, list[Evaluation]]] = (
        [(None, evaluations), *groups.items()] if evaluations else []
    )
    return Trends(by=by, step=step, groups=[_group_trend(name, some, step) for name, some in named_groups])


def _group_trend(name: str | None, evaluations: list[Evaluation], step: Step) -> GroupTrend:
    trend = compute_trend(evaluations)
    return GroupTrend(
        name=name,
        summary=summarize(evaluations),
        direction=trend.direction,
        change=trend.change,
        spans=split_by_step(evaluations, step),
    )
