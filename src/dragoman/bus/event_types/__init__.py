"""Every event type of Dragoman, one payload struct each.

    from dragoman.bus.event_types import turn_events
    scope.emit(turn_events.TurnStarted(...))

``EVENT_TYPES`` maps each type name to its payload class. A payload contains no text that a person or a model wrote,
except in fields whose name contains ``redacted`` or ``summary``. Hashes are SHA-256 in hexadecimal, amounts of money
are exact decimals, times are ISO 8601 in UTC.

``tool_input_invalid`` and ``routing_constraint_failure`` are spelled as the specification of the format spells them;
the spelling with a dot is accepted as an alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dragoman.bus.event_types import routing_events, system_events, tool_events, turn_events
from dragoman.bus.types import Payload, index_event_types

__all__ = ["AUDIT", "EVENT_TYPES", "routing_events", "system_events", "tool_events", "turn_events"]

EVENT_TYPES: Final[Mapping[str, type[Payload]]] = index_event_types(Payload.__subclasses__())
AUDIT: Final = frozenset(name for name, payload in EVENT_TYPES.items() if payload.is_audit)
