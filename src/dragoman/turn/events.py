"""Bus events that several modules emit: calls of models, deleted sessions, rejected swaps and evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Protocol

from dragoman.bus import Bus, Payload
from dragoman.bus.event_types import routing_events, system_events, tool_events, turn_events
from dragoman.catalog import Model
from dragoman.client import CallLog
from dragoman.exchange import Fault, Reply
from dragoman.handoff import SwapPlan
from dragoman.message import InvalidToolUseBlock, Role, ThinkingBlock, ToolUseBlock, Usage
from dragoman.redaction import redact
from dragoman.store import Evaluation, Session, Store
from dragoman.turn.state import TurnState


class OwnerFields(Protocol):
    """A session or a request of a user."""

    @property
    def user_id(self) -> str | None: ...
    @property
    def team_id(self) -> str | None: ...


async def make_session_end(store: Store, session: Session) -> turn_events.SessionEnded:
    """The event of a session that is about to be deleted. Emit it after the deletion."""
    turns = await store.count_messages(session.id, Role.USER)
    cost = sum((total.cost_usd for total in await store.costs.totals("session", session=session.id)), Decimal(0))
    age = (store.clock() - session.created_at).total_seconds()
    return turn_events.SessionEnded(
        disposition="completed", turn_count=turns, total_cost_usd=cost, duration_seconds=max(0.0, age)
    )


def rejection_event(session: Session, plan: SwapPlan) -> routing_events.RoutingConstraintFailure:
    """The event of a swap that is rejected. The session keeps its active model."""
    return routing_events.RoutingConstraintFailure(
        source="swap",
        model=plan.model,
        validation_failure=plan.failures[0],
        active_model=session.active_model,
        message=" ".join(plan.blockers),
    )


def emit_swap_rejection(bus: Bus, session: Session, plan: SwapPlan) -> None:
    """Emit that a swap of the model is rejected."""
    bus.try_emit(rejection_event(session, plan), session_id=session.id)


def evaluation_events(evaluation: Evaluation) -> Iterator[Payload]:
    """The events of a recorded evaluation."""
    fields: dict[str, Any] = {
        "evaluation_id": evaluation.id,
        "evaluator": evaluation.evaluator,
        "task_id": evaluation.task_id,
    }
    yield system_events.EvalStarted(**fields)
    yield system_events.EvalCompleted(**fields, score=evaluation.score, success=evaluation.success)
    if evaluation.model is not None and evaluation.fingerprint is not None:
        success = evaluation.score if evaluation.score is not None else float(bool(evaluation.success))
        yield routing_events.PatternRecorded(
            pattern_id=evaluation.id, primary_model=evaluation.model, success=success, cost_usd=evaluation.cost_usd
        )


# --- calls of a model ------------------------------------------------------------------------------------------------


def completion_event(
    model: Model, request_id: str, reply: Reply, usage: Usage, call_log: CallLog, *, owner: OwnerFields
) -> turn_events.LlmCallCompleted:
    """The event of a call that succeeded. ``owner`` has the user and the team who are charged."""
    return turn_events.LlmCallCompleted(
        model=model.id,
        provider=model.provider,
        request_id=request_id,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cost_usd=usage.amount_usd,
        pricing_version=usage.pricing_version,
        latency_ms=usage.latency_ms,
        stop_reason=reply.stop_reason,
        produced_tool_calls=sum(isinstance(block, ToolUseBlock | InvalidToolUseBlock) for block in reply.content),
        produced_thinking_blocks=sum(isinstance(block, ThinkingBlock) for block in reply.content),
        response_model=reply.model,
        time_to_first_token_ms=call_log.first_byte_ms,
        retry_count=call_log.retry_count,
        retries=_retries(call_log),
        user_id=owner.user_id,
        team_id=owner.team_id,
    )


def failure_event(model: Model, request_id: str, fault: Fault, call_log: CallLog) -> turn_events.LlmCallFailed:
    """The event of a call that failed."""
    return turn_events.LlmCallFailed(
        model=model.id,
        provider=model.provider,
        request_id=request_id,
        error_class=fault.error_class,
        error_code=fault.code,
        error_message_redacted=redact(fault.message),
        retry_count=call_log.retry_count,
        retries=_retries(call_log),
        latency_ms=call_log.latency_ms or 0,
    )


def _retries(call_log: CallLog) -> tuple[turn_events.RetryRecord, ...]:
    return tuple(
        turn_events.RetryRecord(error_code=fault.code, error_class=fault.error_class, delay_ms=delay_s * 1000)
        for fault, delay_s in call_log.retries
    )


def emit_call_start(turn: TurnState, request_id: str, estimated_input_tokens: int, omitted_count: int = 0) -> None:
    """Emit that the model of a turn is about to be called."""
    turn.usage.llm_calls += 1
    turn.emit(
        turn_events.LlmCallStarted(
            model=turn.model.id,
            provider=turn.model.provider,
            estimated_input_tokens=estimated_input_tokens,
            request_id=request_id,
            is_worker=turn.request.is_worker,
            omitted_messages=omitted_count,
        )
    )


def emit_call_end(turn: TurnState, request_id: str, reply: Reply, usage: Usage | None, call_log: CallLog) -> None:
    """Emit that the call of a turn succeeded or failed."""
    if reply.fault is not None:
        turn.emit(failure_event(turn.model, request_id, reply.fault, call_log))
        return
    assert usage is not None  # of a reply without a fault
    turn.emit(completion_event(turn.model, request_id, reply, usage, call_log, owner=turn.request))


def emit_invalid_call(turn: TurnState, call: InvalidToolUseBlock) -> None:
    """Emit that the input of a call cannot be used. The repair of the history tells the model."""
    errors = (f"$: {call.reason}",)
    turn.emit(tool_events.ToolInputInvalid(tool_name=call.name, validation_errors=errors, tool_use_id=call.id))
