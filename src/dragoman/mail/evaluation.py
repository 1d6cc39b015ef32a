"""How well tasks went: kept from letters and from whoever judges, seen by one team alone.

    await record_result(store, letter, …)          what a task_result letter says about how its task went
    await record_rating(store, judgement, …)    what somebody else says about it
    await get_task_evaluation(store, task_id, …)         every evaluation of a task, in sum, and where it goes
    await recent_summaries(store, by="agent", …)  the newest few of each agent or model
    await get_trends(store, by="agent", …)          scores, successes and durations of each, over time

An evaluation that names the turn behind it takes the model, its cost and what the turn looked like from the store, so
that routing learns from it. The one rule: a letter is one evaluation, however often it comes.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeGuard

import msgspec
from msgspec import UNSET, Meta

from dragoman.errors import FormatError, InputError, LetterError, UnknownSessionError
from dragoman.ids import ids_for_owner
from dragoman.letters import Letter, TaskResult, TaskResultLetter, letter_id
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
from dragoman.message import MAX_TOKENS  # the largest count of anything that is stored

if TYPE_CHECKING:
    from dragoman.store import Evaluation, Session, Store

_MAX_EVALUATIONS: Final = 10_000  # evaluations that one answer looks at
SYSTEM: Final = "system"
Grade = Annotated[float, Meta(ge=0, le=1)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class TaskRating(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody says about how a task went: a score, whether it was good enough, or both."""

    task_id: Name
    score: Grade | None = None
    success: bool | None = None
    status: Literal["success", "partial_success", "failed"] | None = None
    duration_sec: Annotated[float, Meta(ge=0)] | None = None
    notes: Annotated[str, Meta(max_length=1000)] | None = None
    agent_id: Id | None = None  # who did it
    evaluator: Id | None = None  # who judges; without one, whoever asks
    plan_id: Id | None = None
    model: Id | None = None
    session_id: Id | None = None  # the conversation behind it
    turn_id: Id | None = None


class TaskEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was said about how a task went."""

    task_id: str
    evaluations: tuple[Any, ...]  # as the store has them, the newest first
    summary: Summary
    by_evaluator: dict[str, Summary]
    trend: Trend


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An agent or a model, by its newest evaluations."""

    name: str
    summary: Summary
    trend: Trend


class GroupTrend(msgspec.Struct, frozen=True, kw_only=True):
    """An agent or a model over time."""

    name: str | None  # none: all of them together
    summary: Summary
    direction: Literal["up", "down", "steady", "unknown"]
    change: float | None
    spans: tuple[Span, ...]


class Trends(msgspec.Struct, frozen=True, kw_only=True):
    """How agents or models do over time, by the newest evaluations that there are."""

    by: Literal["agent", "model"]
    step: Step
    groups: list[GroupTrend]  # all of them together first; none if there is nothing


# --- keeping ---------------------------------------------------------------------------------------------------------


async def record_result(
    store: Store,
    letter: TaskResultLetter,
    *,
    team_id: str = "",
    session: Session | None = None,
    turn_id: str | None = None,
) -> Evaluation:
    """Keep what a letter says about how its task went. ``session`` is the conversation behind it, if that is known."""
    if letter.is_answer:
        raise LetterError(("$.payload.result.inputs: it answers a request, and says nothing about the task",))
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
        turn_id or letter.turn_id,
        team_id=team_id,
        task_id=letter.task_id,
        agent_id=letter.sender_id,
        evaluator=letter.sender_id,
        plan_id=plan if isinstance(plan, str) and plan else None,
        score=None if payload.score is UNSET else float(payload.score),
        success=payload.status == "success",
        duration_ms=duration_ms if duration_ms is not None and duration_ms <= MAX_TOKENS else None,
        notes=None if payload.notes is UNSET else payload.notes,
        metrics=reported_metrics(payload) or None,
    )
    key = f"letter\0{letter.recipient_id}\0{letter_id(letter)}"
    evaluation = await record(key=key)
    if evaluation.evaluator != letter.sender_id:  # another sender has used the same id, which must not hide this letter
        evaluation = await record(key=f"{key}\0{letter.sender_id}")
    return evaluation


def has_evaluation(letter: Letter) -> TypeGuard[TaskResultLetter]:
    """Whether a letter has something to be kept as an evaluation: a score, whether it was a success, or metrics."""
    if not isinstance(letter, TaskResultLetter) or letter.is_answer:
        return False
    payload = letter.payload
    return payload.score is not UNSET or payload.success is not UNSET or bool(reported_metrics(payload))


RESOURCES: Final = ("memory_usage_mb", "cpu_usage_percent", "network_io_mb", "disk_usage_mb")


def reported_metrics(result: TaskResult) -> dict[str, float]:
    """What a task used, as far as its agent has reported it. An amount beyond every possible one is left out."""
    if result.metrics is UNSET:
        return {}
    values = {name: getattr(result.metrics, name) for name in RESOURCES}
    return {name: float(value) for name, value in values.items() if value is not UNSET and value <= MAX_TOKENS}


async def record_sent_result(
    store: Store, letter: TaskResultLetter, *, team_id: str, user_id: str | None
) -> Evaluation:
    """Keep what a letter that is sent says about its task. Its session counts only if it is its sender's own."""
    session = None
    for session_id in _session_ids(letter, team_id, user_id):
        with contextlib.suppress(UnknownSessionError, FormatError):
            candidate = await store.get_session(session_id)
            session = candidate if session is None and _is_owned_by(candidate, team_id, user_id) else session
    return await record_result(store, letter, team_id=team_id, session=session)


def _session_ids(letter: TaskResultLetter, team_id: str, user_id: str | None) -> tuple[str, ...]:
    """The ids that the session may have that a letter names; a program that names nobody gives the id itself."""
    if letter.session_id is None:
        return ()
    if user_id is None:
        return (letter.session_id,)
    return ids_for_owner(letter.session_id, user_id, None if team_id in ("", personal_team(user_id)) else team_id)


def _is_owned_by(session: Session, team_id: str, user_id: str | None) -> bool:
    """Whether a session is of whoever sends; a program that names nobody is trusted with what it names."""
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
    """Keep what somebody says about how a task went. The same ``key`` again gives what was kept first."""
    if rating.score is None and rating.success is None and rating.status is None:
        what = "it says neither how good it was nor whether that is enough"
        raise InputError(what, where="$", remedy="Give score, success or status", code="empty_evaluation")
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
    """Keep it; what its turn looked like fills in what it does not say itself.

    The model of a known turn comes from the store, whatever the evaluation says: routing learns from it.
    """
    turn_facts: dict[str, Any] = {"turn_id": turn_id}
    if session is not None:
        with contextlib.suppress(InputError):  # no such turn, or nobody has answered: there is nothing to learn from
            turn_facts = await store.evaluations.for_turn(session.id, turn_id)
    values = {name: value for name, value in fields.items() if value is not None}
    row = {**turn_facts, **values, **({"model": turn_facts["model"]} if turn_facts.get("model") else {})}
    try:
        return await store.evaluations.record(SYSTEM if session is None else session.id, **row)
    except UnknownSessionError:  # it was deleted meanwhile
        return await store.evaluations.record(SYSTEM, **values)


# --- looking ---------------------------------------------------------------------------------------------------------


async def get_task_evaluation(store: Store, task_id: str, *, team_id: str | None = None) -> TaskEvaluation | None:
    """Everything about how a task went; nothing if nobody has said anything."""
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
    """The newest few evaluations of each agent or model, in sum."""
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
    """How agents or models do over time."""
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
