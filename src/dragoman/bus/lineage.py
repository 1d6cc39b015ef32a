"""Because of what something happened: the parents of a turn's events.

A turn is a tree. ``route.decided``, the first call of a model and the turn's end come from ``turn.started``; an answer
comes from its call, a tool from the answer that asked for it, its result from the tool, and the next call of a model
from the results. Whoever emits names no parents: they follow from what was emitted in the same turn before.

The one rule: a parent that is named explicitly wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.bus.types import Event, Payload

_START_TYPES: Final = (
    "tool.called",
    "tool.confirmation_requested",
    "tool.confirmation_resolved",
    "delegate.started",
    "eval.started",
)
_RESULT_TYPES: Final = ("tool.completed", "tool.failed", "tool_input_invalid", "delegate.completed", "delegate.failed")
_CALL_TYPES: Final = frozenset((*_START_TYPES[:-1], *_RESULT_TYPES, "tool.completed_late"))
SUBJECT_TYPES: Final = _CALL_TYPES | {
    "eval.completed",
    "eval.failed",
}  # those whose parent depends on what they are about


class EventParents:
    """What a turn has emitted so far, as far as it can be the parent of something."""

    def __init__(self) -> None:
        self._turn: str | None = None
        self._call: str | None = None
        self._answer: str | None = None
        self._step: str | None = None  # the newest result of a tool
        self._open_events: dict[str, str] = {}  # the newest event of a call or an evaluation that has no result yet

    def find_parent(self, event_type: str, subject: str = "") -> str | None:
        """The event that one of that type follows from; ``subject`` is the call or the evaluation that it is about."""
        match event_type:
            case "turn.started":
                return None
            case "llm.call_started":
                return self._step or self._turn
            case "llm.call_completed" | "llm.call_failed":
                return self._call or self._turn
            case "tool.called":
                return self._answer or self._turn  # also when somebody was asked in between
            case _ if event_type in _CALL_TYPES:
                return self._open_events.get(subject) or self._answer or self._turn
            case "eval.completed" | "eval.failed":
                return self._open_events.get(subject) or self._turn
            case _:
                return self._turn

    def record(self, event: Event) -> None:
        """Remember an event that was emitted."""
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
    """The call or the evaluation that an event is about; empty if it is about none."""
    for name in ("tool_use_id", "evaluation_id"):
        value = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
        if isinstance(value, str):
            return value
    return ""
