"""A swap of the model that was refused, as an event: the seed's ``routing_constraint_failure``.

tell_refused(agent.bus, session, plan)     wherever a swap is asked for: the chat API, the chat, the command line
"""

from __future__ import annotations

from dragoman.bus import Bus
from dragoman.bus.event_types.routing_events import RoutingConstraintFailure
from dragoman.handoff import SwapPlan
from dragoman.store import Session


def rejection_event(session: Session, plan: SwapPlan) -> RoutingConstraintFailure:
    """The event of a plan that is not possible. The session keeps its active model."""
    return RoutingConstraintFailure(
        source="swap",
        model=plan.model,
        validation_failure=plan.failures[0],
        active_model=session.active_model,
        message=" ".join(plan.blockers),
    )


def emit_swap_rejection(bus: Bus, session: Session, plan: SwapPlan) -> None:
    """Emit that a swap was refused."""
    bus.try_emit(rejection_event(session, plan), session_id=session.id)
