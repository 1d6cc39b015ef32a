"""Events about sessions, choices and evaluations, as the catalogue has them.

A turn emits what happens in it where it happens. Here are the events that several entry points emit: that a session
begins, goes on or ends, what a person chose against the routing, and that something was evaluated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.bus import Payload, Scope, catalogue
from dragoman.message import Role
from dragoman.routing import Decision
from dragoman.turn.telling import tell

if TYPE_CHECKING:
    from dragoman.store import Evaluation, Session, Store
    from dragoman.turn.agent import Agent


def tell_session(agent: Agent, session: Session, message_count: int) -> None:
    """Emit that a session begins or goes on, when the agent runs its first turn there."""
    if agent.knows_session(session.id):
        return
    if message_count == 0:
        path, policy = session.workspace_path, session.routing_policy
        made: Payload = catalogue.SessionCreated(
            workspace_path=path,
            workspace_hash=_hash(path.encode("utf-8", "replace")) if path else None,
            initial_active_model=session.active_model,
            routing_policy_version=None if policy is None else _hash(msgspec.json.encode(policy, order="sorted")),
        )
    else:
        made = catalogue.SessionResumed(
            message_count=message_count,
            active_model=session.active_model,
            idle_seconds=max(0.0, (agent.clock() - session.updated_at).total_seconds()),
        )
    tell(agent.bus, made, session_id=session.id)


async def session_ended(store: Store, session: Session) -> catalogue.SessionEnded:
    """The event of a session that is about to be deleted. Emit it when that is done."""
    turns = await store.count_messages(session.id, Role.USER)
    cost = sum((one.cost_usd for one in await store.totals("session", session=session.id)), Decimal(0))
    age = (store.clock() - session.created_at).total_seconds()
    return catalogue.SessionEnded(
        disposition="completed", turn_count=turns, total_cost_usd=cost, duration_seconds=max(0.0, age)
    )


def tell_choice(scope: Scope, decision: Decision) -> None:
    """Emit what earlier turns spoke for, and what a person chose against the routing."""
    if decision.winner_index < 0:
        return
    winner, instead = decision.chain[decision.winner_index], decision.instead
    if winner.policy == "pattern":
        best, *others = winner.pattern_alternatives or ()
        tell(
            scope,
            "pattern.matched",
            {
                "model": decision.chosen_model,
                "confidence": winner.confidence or 0.0,
                "sample_size": best.sample_size,
                "alternatives": msgspec.to_builtins(others),
            },
        )
    if instead is None or instead.candidate_model in (None, decision.chosen_model):
        return
    chosen = {"previous_model": instead.candidate_model, "chosen_model": decision.chosen_model}
    tell(scope, "route.overridden", {**chosen, "source": winner.policy})
    if instead.policy == "pattern":
        tell(scope, "pattern.override_dismissed", {"model": instead.candidate_model})


def evaluation_events(made: Evaluation) -> Iterator[Payload]:
    """The events of an evaluation that was recorded."""
    whose: dict[str, Any] = {"evaluation_id": made.id, "evaluator": made.evaluator, "task_id": made.task_id}
    yield catalogue.EvalStarted(**whose)
    yield catalogue.EvalCompleted(**whose, score=made.score, success=made.success)
    if made.model is not None and made.fingerprint is not None:
        success = made.score if made.score is not None else float(bool(made.success))
        yield catalogue.PatternRecorded(
            pattern_id=made.id, primary_model=made.model, success=success, cost_usd=made.cost_usd
        )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
