"""The event bus: events of turns, model calls, tools and routing, and their subscribers.

    async with Bus() as bus:
        bus.subscribe("screen", show)
        turn = bus.scope(session_id, turn_id)
        turn.emit(turn_events.TurnStarted(...))

``dragoman.bus.event_types`` defines every event type. docs/events.md explains them.
"""

from __future__ import annotations

from dragoman.bus.bus import Bus, Scope, Subscription
from dragoman.bus.event_types import AUDIT, EVENT_TYPES
from dragoman.bus.types import SYSTEM, Actor, Event, Filter, Payload, Sensitivity, event

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
    "event",
]
