"""What goes over the bus: an event, who did it, and who may see it.

An event is said once and never changed. Its ``payload`` is one of the structs of the catalogue, or of an application;
``payload_json`` is what of it is kept and sent. The one rule: an event holds facts about a conversation, never the
conversation. What was said is in the store.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import msgspec

SYSTEM: Final = "system"  # the session of what belongs to no session
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Actor(enum.StrEnum):
    """Who did it."""

    USER = "user"  # a person
    AGENT = "agent"  # the model, and the turn that runs it
    SYSTEM = "system"  # Dragoman itself
    TOOL = "tool"  # a tool that the model called
    WORKER = "worker"  # an agent that another one delegated to


class Sensitivity(enum.StrEnum):
    """Who may see it, from the most private to the least."""

    PRIVATE = "private"  # stays with the store it is written to
    USER_CONTROLLED = "user_controlled"  # leaves it when the person whose it is says so
    PSEUDONYMOUS = "pseudonymous"  # names people and teams by pseudonyms only
    AGGREGATABLE = "aggregatable"  # says nothing about anybody

    @property
    def openness(self) -> int:
        """The greater, the less private."""
        return _OPENNESS[self]


_OPENNESS: Final = {sensitivity: place for place, sensitivity in enumerate(Sensitivity)}


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an event says. A subclass names its type, who usually does it, and how private it is at most."""

    event_type: ClassVar[str]
    actor: ClassVar[Actor]
    floor: ClassVar[Sensitivity]
    is_audit: ClassVar[bool] = False  # kept for as long as the store, whatever the retention

    def sensitivity(self) -> Sensitivity:
        """How private this one is, unless whoever emits it says that it is less."""
        return self.floor


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    id: str  # a ULID, greater than that of every event before it on this bus
    timestamp_us: int  # when: microseconds since 1970, UTC
    session_id: str  # in which session; "system" if in none
    turn_id: str | None = None  # in which turn
    parent_event_id: str | None = None  # because of which other event
    type: str  # its name in the catalogue
    actor: Actor  # who did it
    sensitivity: Sensitivity  # who may see it
    payload: Payload  # what happened
    payload_json: bytes  # the same, as JSON

    @property
    def timestamp(self) -> datetime:
        """When."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values, for JSON."""
        return {
            "id": self.id,
            "timestamp": self.timestamp.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z",
            "session_id": self.session_id,
            "turn_id": self.turn_id,
            "parent_event_id": self.parent_event_id,
            "type": self.type,
            "actor": self.actor.value,
            "sensitivity": self.sensitivity.value,
            "payload": msgspec.json.decode(self.payload_json),
        }


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events somebody wants. ``None`` means all; what is named has to fit all at once."""

    session_ids: frozenset[str] | None = None
    event_types: frozenset[str] | None = None
    actors: frozenset[Actor] | None = None

    def matches(self, event: Event) -> bool:
        """Whether this event is among them."""
        return (
            (self.session_ids is None or event.session_id in self.session_ids)
            and (self.event_types is None or event.type in self.event_types)
            and (self.actors is None or event.actor in self.actors)
        )
