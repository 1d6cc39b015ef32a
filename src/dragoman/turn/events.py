"""Bus events about deleted sessions, rejected swaps and evaluations, which several entry points emit."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from dragoman.bus import Bus, Payload
from dragoman.bus.event_types import routing_events, system_events, turn_events
from dragoman.handoff import SwapPlan
from dragoman.message import Role
from dragoman.store import Evaluation, Session, Store


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
