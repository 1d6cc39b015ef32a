"""Bus events about sessions, model choices, swaps and evaluations, which several entry points emit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from dragoman.bus import Bus, Payload, Scope
from dragoman.bus.event_types import routing_events, system_events, turn_events
from dragoman.handoff import SwapPlan
from dragoman.message import Role
from dragoman.routing import Decision
from dragoman.store import Evaluation, Session, Store
from dragoman.turn.services import AgentServices


def emit_session_start(services: AgentServices, session: Session, message_count: int) -> None:
    """Emit that a session is created or resumed, at the agent's first turn in it."""
    if services.remember_session(session.id):
        return
    event: Payload
    if message_count == 0:
        path, policy = session.workspace_path, session.routing_policy
        event = turn_events.SessionCreated(
            workspace_path=path,
            workspace_hash=_hash(path.encode("utf-8", "replace")) if path else None,
            initial_active_model=session.active_model,
            routing_policy_version=None if policy is None else _hash(msgspec.json.encode(policy, order="sorted")),
        )
    else:
        event = turn_events.SessionResumed(
            message_count=message_count,
            active_model=session.active_model,
            idle_seconds=max(0.0, (services.clock() - session.updated_at).total_seconds()),
        )
    services.bus.try_emit(event, session_id=session.id)


async def make_session_end(store: Store, session: Session) -> turn_events.SessionEnded:
    """The event of a session that is about to be deleted. Emit it after the deletion."""
    turns = await store.count_messages(session.id, Role.USER)
    cost = sum((total.cost_usd for total in await store.costs.totals("session", session=session.id)), Decimal(0))
    age = (store.clock() - session.created_at).total_seconds()
    return turn_events.SessionEnded(
        disposition="completed", turn_count=turns, total_cost_usd=cost, duration_seconds=max(0.0, age)
    )


def emit_choice(scope: Scope, decision: Decision) -> None:
    """Emit a match of earlier turns, and a choice of the user against the routing."""
    if decision.winner_index < 0:
        return
    winner, alternative = decision.chain[decision.winner_index], decision.alternative
    if winner.policy == "pattern":
        best, *others = winner.pattern_alternatives or ()
        scope.try_emit(
            "pattern.matched",
            {
                "model": decision.chosen_model,
                "confidence": winner.confidence or 0.0,
                "sample_size": best.sample_size,
                "alternatives": msgspec.to_builtins(others),
            },
        )
    if alternative is None or alternative.candidate_model in (None, decision.chosen_model):
        return
    fields = {"previous_model": alternative.candidate_model, "chosen_model": decision.chosen_model}
    scope.try_emit("route.overridden", {**fields, "source": winner.policy})
    if alternative.policy == "pattern":
        scope.try_emit("pattern.override_dismissed", {"model": alternative.candidate_model})


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


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
