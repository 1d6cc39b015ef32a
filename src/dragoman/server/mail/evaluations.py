"""Evaluations over HTTP: ``POST /evaluate``, ``GET /evaluation/{task_id}``, and summaries of agents and models.

An evaluation is a task_result letter or a rating; several evaluators may rate the same task. The key of the caller
determines the evaluator. Invariant: a team cannot read the evaluations of another team.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.bus.event_types.system_events import EvalFailed
from dragoman.errors import DragomanError, JsonError
from dragoman.jsontext import read_json
from dragoman.letters import TaskResultLetter, find_warnings, read_letter
from dragoman.letters.schema import inline_schema
from dragoman.letters.statistics import WINDOW, Summary, Trend
from dragoman.mail.evaluation import (
    GroupSummary,
    TaskRating,
    Trends,
    get_task_evaluation,
    get_trends,
    recent_summaries,
    record_rating,
    record_result,
)
from dragoman.offload import run_off_loop
from dragoman.redaction import redact
from dragoman.server.auth.principal import get_principal
from dragoman.server.http.endpoint import Endpoint, Query
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state, int_param, parse_as, text_param
from dragoman.server.http.responses import json_response
from dragoman.server.mail.access import (
    linked_session,
    mail_endpoint,
    mail_team,
    read_letter_body,
    require_sender,
    resolve_evaluator,
)
from dragoman.store import Evaluation
from dragoman.turn.events import evaluation_events

_MAX_NEWEST: Final = 1_000
_MAX_KEY_LENGTH: Final = 255


class EvaluationResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of a task."""

    id: str
    timestamp: datetime
    task_id: str | None
    agent_id: str | None  # agent of the task
    plan_id: str | None
    evaluator: str
    success: bool | None
    score: float | None
    duration_sec: float | None
    notes: str | None  # without secrets
    metrics: dict[str, float] | None  # reported resources: memory_usage_mb and so on
    model: str | None  # model of the linked turn
    cost_usd: Decimal | None  # cost of the linked turn
    turn_id: str | None


class EvaluateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded evaluation, and warnings about the request."""

    evaluation: EvaluationResponse
    warnings: list[str] = []


class TaskEvaluationResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluations of a task."""

    task_id: str
    evaluations: list[EvaluationResponse]  # newest first
    summary: Summary
    by_evaluator: dict[str, Summary]
    trend: Trend


class Summaries(msgspec.Struct, frozen=True, kw_only=True):
    """Agents or models with their newest evaluations."""

    by: Literal["agent", "model"]
    newest: int  # number of evaluations of each group
    summaries: list[GroupSummary]


async def evaluate(request: Request) -> Response:
    """Record an evaluation."""
    data = await read_letter_body(request)
    try:
        plain = await run_off_loop(len(data), read_json, data)
    except JsonError:
        await run_off_loop(len(data), read_letter, data)  # reports a NaN score more precisely
        raise
    is_letter = isinstance(plain, dict) and "payload" in plain
    response = await (_record_letter(request, data) if is_letter else _record_rating(request, plain))
    return json_response(response, 201)


async def _record(request: Request, evaluator: str, task_id: str, record: Awaitable[Evaluation]) -> Evaluation:
    """Record an evaluation and emit its events; an existing evaluation emits nothing."""
    state = app_state(request)
    bus, before = state.agent.bus, state.store.clock()
    try:
        evaluation = await record
    except DragomanError as error:
        failure = {"error_message_redacted": redact(str(error)), "task_id": task_id}
        bus.try_emit(EvalFailed(evaluation_id=state.store.new_id(), evaluator=evaluator, **failure))
        raise
    if evaluation.created_at >= before:
        for payload in evaluation_events(evaluation):
            bus.try_emit(payload, session_id=evaluation.session_id, turn_id=evaluation.turn_id)
    return evaluation


async def _record_letter(request: Request, data: bytes) -> EvaluateResponse:
    letter = await run_off_loop(len(data), read_letter, data)
    if not isinstance(letter, TaskResultLetter):
        raise ApiError(422, "not_a_result", "Only a task_result letter contains an evaluation.")
    require_sender(request, letter.sender_id)
    warnings = [f"{warning} [{warning.code}]" for warning in find_warnings(letter)]
    session = await linked_session(request, letter.session_id)
    if letter.session_id is not None and session is None:
        warnings.append("$.context.session_id: the session does not exist or is not yours [unknown_session]")
    team_id = mail_team(get_principal(request))
    record = record_result(app_state(request).store, letter, team_id=team_id, session=session)
    evaluation = await _record(request, letter.sender_id, letter.task_id, record)
    return EvaluateResponse(evaluation=to_evaluation_response(evaluation), warnings=warnings)


async def _record_rating(request: Request, plain: object) -> EvaluateResponse:
    rating = parse_as(plain, TaskRating)
    principal = get_principal(request)
    evaluator = resolve_evaluator(request, rating.evaluator)
    session = await linked_session(request, rating.session_id)
    if rating.session_id is not None and session is None:
        raise not_found_error()
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _MAX_KEY_LENGTH:
        raise ApiError(400, "invalid_header", f"An Idempotency-Key must have 1 to {_MAX_KEY_LENGTH} characters.")
    record = record_rating(
        app_state(request).store,
        rating,
        evaluator=evaluator,
        team_id=mail_team(principal),
        session=session,
        key=key,
    )
    evaluation = await _record(request, evaluator, rating.task_id, record)
    return EvaluateResponse(evaluation=to_evaluation_response(evaluation))


async def task_evaluation(request: Request) -> Response:
    """Return the evaluations of a task."""
    team_id = mail_team(get_principal(request))
    task_evaluation = await get_task_evaluation(
        app_state(request).store, request.path_params["task_id"], team_id=team_id
    )
    if task_evaluation is None:
        raise not_found_error()
    return json_response(
        TaskEvaluationResponse(
            task_id=task_evaluation.task_id,
            evaluations=[to_evaluation_response(item) for item in task_evaluation.evaluations],
            summary=task_evaluation.summary,
            by_evaluator=task_evaluation.by_evaluator,
            trend=task_evaluation.trend,
        )
    )


async def list_summaries(request: Request) -> Response:
    """Return summaries of the newest evaluations of each agent or model."""
    by = _parse_group(request)
    newest = int_param(request, "newest", default=WINDOW, maximum=_MAX_NEWEST)
    team_id = mail_team(get_principal(request))
    summaries = await recent_summaries(app_state(request).store, by=by, team_id=team_id, newest=newest)
    return json_response(Summaries(by=by, newest=newest, summaries=summaries))


async def list_trends(request: Request) -> Response:
    """Return the trends of agents or models."""
    team_id = mail_team(get_principal(request))
    return json_response(await get_trends(app_state(request).store, by=_parse_group(request), team_id=team_id))


def _parse_group(request: Request) -> Literal["agent", "model"]:
    match text_param(request, "by", "agent"):
        case "agent":
            return "agent"
        case "model":
            return "model"
        case _:
            raise ApiError(422, "invalid_parameter", "by must be agent or model.")


def to_evaluation_response(evaluation: Evaluation) -> EvaluationResponse:
    """Return the response of an evaluation."""
    return EvaluationResponse(
        id=evaluation.id,
        timestamp=evaluation.created_at,
        task_id=evaluation.task_id,
        agent_id=evaluation.agent_id,
        plan_id=evaluation.plan_id,
        evaluator=evaluation.evaluator,
        success=evaluation.success,
        score=evaluation.score,
        duration_sec=None if evaluation.duration_ms is None else round(evaluation.duration_ms / 1000, 6),
        notes=evaluation.notes,
        metrics=evaluation.metrics,
        model=evaluation.model,
        cost_usd=evaluation.cost_usd,
        turn_id=evaluation.turn_id,
    )


def _make_endpoints(path: str, name: str) -> tuple[Endpoint, Endpoint]:
    """Return the endpoints under a path."""
    request_body: Any = {"anyOf": [inline_schema(), msgspec.json.schema(TaskRating)["$defs"]["TaskRating"]]}
    return (
        mail_endpoint(
            "POST",
            f"{path}/evaluate",
            evaluate,
            "Record an evaluation of a task",
            {201: EvaluateResponse},
            name=f"evaluate{name}",
            request_body=request_body,
            description="A task_result letter, or a rating. A letter is recorded once; a rating is recorded once per"
            " Idempotency-Key.",
        ),
        mail_endpoint(
            "GET",
            f"{path}/evaluation/{{task_id}}",
            task_evaluation,
            "List the evaluations of a task with summary and trend",
            {200: TaskEvaluationResponse},
            name=f"evaluation{name}",
        ),
    )


ENDPOINTS = (
    *_make_endpoints("", ""),
    *_make_endpoints("/api/v1/mail", "_of_mail"),
    mail_endpoint(
        "GET",
        "/api/v1/mail/summaries",
        list_summaries,
        "Summarize the newest evaluations of agents or models",
        {200: Summaries},
        name="summaries",
        query=(
            Query("by", {"type": "string", "enum": ["agent", "model"]}, "group by agent or model"),
            Query("newest", {"type": "integer", "minimum": 1, "maximum": _MAX_NEWEST}, "evaluations of each group"),
        ),
    ),
    mail_endpoint(
        "GET",
        "/api/v1/mail/trends",
        list_trends,
        "List scores, successes and durations of agents or models by hour, day or week",
        {200: Trends},
        name="trends",
        query=(Query("by", {"type": "string", "enum": ["agent", "model"]}, "group by agent or model"),),
    ),
)
