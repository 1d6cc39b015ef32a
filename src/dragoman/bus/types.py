"""Values of the bus: events, payloads, filters, and the parents of the events of a turn.

An event is immutable. Its ``payload`` is a struct of ``dragoman.bus.event_types`` or of an application;
``payload_json`` is the same payload as it is stored and sent. An event contains facts about a conversation and never
the conversation itself, which is in the store.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from dragoman.errors import EventError, UnknownEventError

SYSTEM: Final = "system"  # session id of events that belong to no session
RESERVED_PREFIXES: Final = ("message.", "text.", "thinking.", "tool.use_")  # event names of a reply stream
ALIASES: Final = {
    "tool.input_invalid": "tool_input_invalid",
    "routing.constraint_failure": "routing_constraint_failure",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Actor(enum.StrEnum):
    """The originator of an event."""

    USER = "user"  # a person
    AGENT = "agent"  # the model and its turn
    SYSTEM = "system"  # Dragoman
    TOOL = "tool"  # a tool that the model called
    WORKER = "worker"  # an agent with a delegated task


class Sensitivity(enum.StrEnum):
    """Audience of an event, from the most to the least private."""

    PRIVATE = "private"  # stays in the store that contains it
    USER_CONTROLLED = "user_controlled"  # leaves the store with the consent of its user
    PSEUDONYMOUS = "pseudonymous"  # contains people and teams as pseudonyms only
    AGGREGATABLE = "aggregatable"  # contains nothing about a person

    @property
    def openness(self) -> int:
        """Rank of the sensitivity: a greater number is less private."""
        return _OPENNESS[self]


_OPENNESS: Final = {sensitivity: rank for rank, sensitivity in enumerate(Sensitivity)}


# --- payloads --------------------------------------------------------------------------------------------------------


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of all payloads. A subclass sets its type name, default actor and sensitivity, see ``event``."""

    event_type: ClassVar[str]
    actor: ClassVar[Actor]
    floor: ClassVar[Sensitivity]  # an event can be emitted as less private, never as more private
    is_audit: ClassVar[bool] = False  # exempt from the retention of the trace
    text_field: ClassVar[str | None] = None  # field whose presence decides between the next two
    with_text: ClassVar[Sensitivity]
    without_text: ClassVar[Sensitivity]

    def sensitivity(self) -> Sensitivity:
        """Return the default sensitivity of this payload."""
        if self.text_field is None:
            return self.floor
        return self.without_text if getattr(self, self.text_field) is None else self.with_text


AnyPayload = TypeVar("AnyPayload", bound=Payload)


def event(
    event_type: str,
    actor: Actor,
    floor: Sensitivity,
    *,
    is_audit: bool = False,
    text_field: str | None = None,
    with_text: Sensitivity | None = None,
    without_text: Sensitivity | None = None,
) -> Callable[[type[AnyPayload]], type[AnyPayload]]:
    """Declare the event type of a payload class."""

    def declare(payload: type[AnyPayload]) -> type[AnyPayload]:
        payload.event_type, payload.actor, payload.floor = event_type, actor, floor
        payload.is_audit, payload.text_field = is_audit, text_field
        payload.with_text, payload.without_text = with_text or floor, without_text or floor
        return payload

    return declare


def index_event_types(payloads: Iterable[type[Payload]]) -> dict[str, type[Payload]]:
    """Map type names to payload classes; ``EventError`` if a name is duplicate or reserved."""
    index: dict[str, type[Payload]] = {}
    for payload in payloads:
        name = payload.event_type
        if name.startswith(RESERVED_PREFIXES):
            raise EventError("the prefix is reserved for reply streams", where=f"event type {name!r}")
        if name in index or name in ALIASES:
            raise EventError("the type exists already", where=f"event type {name!r}")
        index[name] = payload
    return index


def get_event_type(name: str, event_types: Mapping[str, type[Payload]]) -> type[Payload]:
    """Return the payload class of an event type, or raise ``UnknownEventError``."""
    payload_type = event_types.get(ALIASES.get(name, name))
    if payload_type is None:
        raise UnknownEventError(f"no event type {name!r}", remedy="docs/events.md lists the event types")
    return payload_type


def parse_payload(name: str, fields: Mapping[str, Any], event_types: Mapping[str, type[Payload]]) -> Payload:
    """Build a payload from its fields, or raise ``EventError``."""
    payload_type = get_event_type(name, event_types)
    try:
        return msgspec.convert(dict(fields), payload_type)
    except msgspec.ValidationError as error:
        raise EventError(str(error), where=f"event {payload_type.event_type}") from None


def validate_payload(payload: AnyPayload) -> tuple[AnyPayload, bytes]:
    """Return the payload with normalized values and its JSON; ``EventError`` if a field has a wrong type."""
    try:
        for index, value in enumerate(msgspec.structs.astuple(payload)):
            if isinstance(value, float) and not math.isfinite(value):  # JSON would encode it as null
                raise ValueError(f"{value} is not a number - at `$.{payload.__struct_fields__[index]}`")
        data = msgspec.json.encode(payload)
        return msgspec.json.decode(data, type=type(payload)), data
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EventError(str(error), where=f"event {payload.event_type}") from None


# --- events ----------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An emitted event."""

    id: str  # a ULID, greater than the id of every earlier event on this bus
    timestamp_us: int  # microseconds since 1970, UTC
    session_id: str  # "system" if it belongs to no session
    turn_id: str | None = None
    parent_event_id: str | None = None  # the event that caused it
    type: str
    actor: Actor
    sensitivity: Sensitivity
    payload: Payload
    payload_json: bytes  # the payload as JSON

    @property
    def timestamp(self) -> datetime:
        """The time of the event."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain values for JSON."""
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
    """Conditions that an event must fulfil, all of them. ``None`` matches every value."""

    session_ids: frozenset[str] | None = None
    event_types: frozenset[str] | None = None
    actors: frozenset[Actor] | None = None

    def matches(self, event: Event) -> bool:
        """Whether an event fulfils the conditions."""
        return (
            (self.session_ids is None or event.session_id in self.session_ids)
            and (self.event_types is None or event.type in self.event_types)
            and (self.actors is None or event.actor in self.actors)
        )


# --- parents ---------------------------------------------------------------------------------------------------------

_START_TYPES: Final = (
    "tool.called",
    "tool.confirmation_requested",
    "tool.confirmation_resolved",
    "delegate.started",
    "eval.started",
)
_RESULT_TYPES: Final = ("tool.completed", "tool.failed", "tool_input_invalid", "delegate.completed", "delegate.failed")
_CALL_TYPES: Final = frozenset((*_START_TYPES[:-1], *_RESULT_TYPES, "tool.completed_late"))
SUBJECT_TYPES: Final = _CALL_TYPES | {"eval.completed", "eval.failed"}  # their parent depends on their subject


class EventParents:
    """Finds the parent of each event of a turn from the events that the turn emitted before.

    The events of a turn are a tree. ``route.decided``, the first model call and the end of the turn are children of
    ``turn.started``. An answer is a child of its model call, a tool call of the answer that contains it, a tool result
    of its call, and the next model call of the latest result.
    """

    def __init__(self) -> None:
        self._turn: str | None = None
        self._call: str | None = None
        self._answer: str | None = None
        self._step: str | None = None  # the latest tool result
        self._open_events: dict[str, str] = {}  # latest event of each call or evaluation without a result

    def find_parent(self, event_type: str, subject: str = "") -> str | None:
        """Return the parent of an event; ``subject`` is the id of its tool call or evaluation."""
        match event_type:
            case "turn.started":
                return None
            case "llm.call_started":
                return self._step or self._turn
            case "llm.call_completed" | "llm.call_failed":
                return self._call or self._turn
            case "tool.called":
                return self._answer or self._turn  # also after a confirmation
            case _ if event_type in _CALL_TYPES:
                return self._open_events.get(subject) or self._answer or self._turn
            case "eval.completed" | "eval.failed":
                return self._open_events.get(subject) or self._turn
            case _:
                return self._turn

    def record(self, event: Event) -> None:
        """Record an emitted event as a possible parent."""
        match event.type:
            case "turn.started":
                self._turn, self._call, self._answer, self._step = event.id, None, None, None
                self._open_events.clear()
            case "llm.call_started":
                self._call = event.id
            case "llm.call_completed":
                self._answer = event.id
            case _ if event.type in _START_TYPES:
                self._open_events[get_subject(event.payload)] = event.id
            case _ if event.type in _RESULT_TYPES:
                self._step = event.id


def get_subject(payload: Payload | Mapping[str, Any] | None) -> str:
    """Return the id of the tool call or evaluation of an event; empty if it has none."""
    for name in ("tool_use_id", "evaluation_id"):
        value = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
        if isinstance(value, str):
            return value
    return ""
