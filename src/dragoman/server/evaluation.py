"""How well tasks went: ``POST /evaluate``, ``GET /evaluation/{task_id}``, and summaries of agents and models.

What comes in is a task_result letter, or what somebody says about a task; several may judge the same one. The one rule:
what one team has recorded is not there for another. Who judges is decided by the caller's key.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.bus.catalogue import EvalFailed
from dragoman.errors import DragomanError, JsonError
from dragoman.jsontext import read_json
from dragoman.letters import TaskResultLetter, read_letter, warnings_of
from dragoman.letters.schema import inlined_schema
from dragoman.letters.scores import WINDOW, Summary, Trend
from dragoman.mail.evaluation import (
    GroupSummary,
    Judgement,
    Trends,
    evaluation_of,
    record_judgement,
    record_result,
    rolling_summaries,
    trends_of,
)
from dragoman.offload import off_loop
from dragoman.server.answers import answer
from dragoman.server.asking import read_as, text_param, whole_number
from dragoman.server.endpoint import Endpoint, Query
from dragoman.server.mailroom import SCOPE, evaluator_of, letter_body, refuse_to_speak_as, session_behind, tenant_of
from dragoman.server.principal import principal_of
from dragoman.server.refusing import Refusal, not_found
from dragoman.server.state import doors_of
from dragoman.store import Evaluation
from dragoman.turn.events import evaluation_events
from dragoman.turn.telling import tell, without_secrets

_MOST_NEWEST: Final = 1_000
_MOST_KEY: Final = 255


class EvaluationTold(msgspec.Struct, frozen=True, kw_only=True):
    """How somebody judged a task."""

    id: str
    timestamp: datetime
    task_id: str | None
    agent_id: str | None  # who did it
    plan_id: str | None
    evaluator: str  # who judged
    success: bool | None
    score: float | None
    duration_sec: float | None
    notes: str | None  # without secrets
    metrics: dict[str, float] | None  # what the task used, as reported: memory_usage_mb and so on
    model: str | None  # what answered in the turn behind it
    cost_usd: Decimal | None  # of that turn
    turn_id: str | None


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What was kept, and what is odd about what came."""

    evaluation: EvaluationTold
    warnings: list[str] = []


class TaskEvaluationTold(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was said about how a task went."""

    task_id: str
    evaluations: list[EvaluationTold]  # the newest first
    summary: Summary
    by_evaluator: dict[str, Summary]
    trend: Trend


class Summaries(msgspec.Struct, frozen=True, kw_only=True):
    """Agents or models, by their newest evaluations."""

    by: Literal["agent", "model"]
    newest: int  # how many evaluations of each are counted
    summaries: list[GroupSummary]


async def evaluate(request: Request) -> Response:
    """Keep how a task went."""
    data = await letter_body(request)
    try:
        plain = await off_loop(len(data), read_json, data)
    except JsonError:
        await off_loop(len(data), read_letter, data)  # which knows more to say about a score that is no number
        raise
    is_letter = isinstance(plain, dict) and "payload" in plain
    made = await (_of_letter(request, data) if is_letter else _of_fields(request, plain))
    return answer(made, 201)


async def _recorded(request: Request, evaluator: str, task_id: str, record: Awaitable[Evaluation]) -> Evaluation:
    """Record an evaluation, and emit that it was. One that was recorded before is emitted no second time."""
    doors = doors_of(request)
    bus, before = doors.agent.bus, doors.store.clock()
    try:
        made = await record
    except DragomanError as error:
        why = {"error_message_redacted": without_secrets(str(error)), "task_id": task_id}
        tell(bus, EvalFailed(evaluation_id=doors.store.new_id(), evaluator=evaluator, **why))
        raise
    if made.created_at >= before:
        for what in evaluation_events(made):
            tell(bus, what, session_id=made.session_id, turn_id=made.turn_id)
    return made


async def _of_letter(request: Request, data: bytes) -> Recorded:
    letter = await off_loop(len(data), read_letter, data)
    if not isinstance(letter, TaskResultLetter):
        raise Refusal(422, "not_a_result", "Only a task_result letter says how a task went.")
    refuse_to_speak_as(request, letter.sender_id)
    odd = [f"{warning} [{warning.code}]" for warning in warnings_of(letter)]
    session = await session_behind(request, letter.session_id)
    if letter.session_id is not None and session is None:
        odd.append("$.context.session_id: there is no such session, or it is not yours [unknown_session]")
    team_id = tenant_of(principal_of(request))
    record = record_result(doors_of(request).store, letter, team_id=team_id, session=session)
    made = await _recorded(request, letter.sender_id, letter.task_id, record)
    return Recorded(evaluation=told(made), warnings=odd)


async def _of_fields(request: Request, plain: object) -> Recorded:
    judgement = read_as(plain, Judgement)
    principal = principal_of(request)
    evaluator = evaluator_of(request, judgement.evaluator)
    session = await session_behind(request, judgement.session_id)
    if judgement.session_id is not None and session is None:
        raise not_found()
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _MOST_KEY:
        raise Refusal(400, "invalid_header", f"An Idempotency-Key has 1 to {_MOST_KEY} characters.")
    record = record_judgement(
        doors_of(request).store,
        judgement,
        evaluator=evaluator,
        team_id=tenant_of(principal),
        session=session,
        key=key,
    )
    made = await _recorded(request, evaluator, judgement.task_id, record)
    return Recorded(evaluation=told(made))


async def evaluation(request: Request) -> Response:
    """Every evaluation of a task of the caller's team."""
    team_id = tenant_of(principal_of(request))
    found = await evaluation_of(doors_of(request).store, request.path_params["task_id"], team_id=team_id)
    if found is None:
        raise not_found()
    return answer(
        TaskEvaluationTold(
            task_id=found.task_id,
            evaluations=[told(one) for one in found.evaluations],
            summary=found.summary,
            by_evaluator=found.by_evaluator,
            trend=found.trend,
        )
    )


async def summaries(request: Request) -> Response:
    """The newest evaluations of each agent or model, in sum."""
    by = _by(request)
    newest = whole_number(request, "newest", default=WINDOW, most=_MOST_NEWEST)
    team_id = tenant_of(principal_of(request))
    found = await rolling_summaries(doors_of(request).store, by=by, team_id=team_id, newest=newest)
    return answer(Summaries(by=by, newest=newest, summaries=found))


async def trends(request: Request) -> Response:
    """Agents or models over time."""
    team_id = tenant_of(principal_of(request))
    return answer(await trends_of(doors_of(request).store, by=_by(request), team_id=team_id))


def _by(request: Request) -> Literal["agent", "model"]:
    match text_param(request, "by", "agent"):
        case "agent":
            return "agent"
        case "model":
            return "model"
        case _:
            raise Refusal(422, "invalid_parameter", "by is agent or model.")


def told(made: Evaluation) -> EvaluationTold:
    """An evaluation as its team sees it."""
    return EvaluationTold(
        id=made.id,
        timestamp=made.created_at,
        task_id=made.task_id,
        agent_id=made.agent_id,
        plan_id=made.plan_id,
        evaluator=made.evaluator,
        success=made.success,
        score=made.score,
        duration_sec=None if made.duration_ms is None else round(made.duration_ms / 1000, 6),
        notes=made.notes,
        metrics=made.metrics,
        model=made.model,
        cost_usd=made.cost_usd,
        turn_id=made.turn_id,
    )


def _at(path: str, name: str) -> tuple[Endpoint, Endpoint]:
    """Both, under a path."""
    asks: Any = {"anyOf": [inlined_schema(), msgspec.json.schema(Judgement)["$defs"]["Judgement"]]}
    return (
        Endpoint(
            "POST",
            f"{path}/evaluate",
            evaluate,
            name=f"evaluate{name}",
            summary="Say how a task went",
            description="A task_result letter, or what somebody says about a task. A letter counts once, however"
            " often it comes; other evaluations do with an Idempotency-Key.",
            asks=asks,
            answers={201: Recorded},
            scope=SCOPE,
        ),
        Endpoint(
            "GET",
            f"{path}/evaluation/{{task_id}}",
            evaluation,
            name=f"evaluation{name}",
            summary="How a task went: every evaluation, in sum, and where it goes",
            answers={200: TaskEvaluationTold},
            scope=SCOPE,
        ),
    )


ENDPOINTS = (
    *_at("", ""),
    *_at("/api/v1/mail", "_of_mail"),
    Endpoint(
        "GET",
        "/api/v1/mail/summaries",
        summaries,
        name="summaries",
        summary="Agents or models, by their newest evaluations",
        query=(
            Query("by", {"type": "string", "enum": ["agent", "model"]}, "agent, or model"),
            Query("newest", {"type": "integer", "minimum": 1, "maximum": _MOST_NEWEST}, "how many of each"),
        ),
        answers={200: Summaries},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/trends",
        trends,
        name="trends",
        summary="Agents or models over time: scores, successes and durations by the hour, the day or the week",
        query=(Query("by", {"type": "string", "enum": ["agent", "model"]}, "agent, or model"),),
        answers={200: Trends},
        scope=SCOPE,
    ),
)
