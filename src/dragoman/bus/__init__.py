"""Who is told: events of turns, calls, tools and routing, and who listens to them.

    async with Bus() as bus:
        bus.subscribe("screen", show)
        turn = bus.scope(session_id, turn_id)
        turn.emit(catalogue.TurnStarted(...))

``catalogue`` has every event type. docs/events.md explains them.
"""

from __future__ import annotations

from dragoman.bus import catalogue
from dragoman.bus.bus import Bus, Scope, Subscription
from dragoman.bus.catalogue import AUDIT, EVENT_TYPES
from dragoman.bus.types import SYSTEM, Actor, Event, Filter, Payload, Sensitivity

__all__ = [
    "AUDIT",
    "EVENT_TYPES",
    "SYSTEM",
    "Actor",
    "Bus",
    "Event",
    "Filter",
    "Payload",
    "Scope",
    "Sensitivity",
    "Subscription",
    "catalogue",
]
