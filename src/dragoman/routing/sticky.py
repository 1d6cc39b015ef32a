"""The model that a session keeps to: set by ``/model NAME``, cleared by ``/model -``, and by nothing else.

While it is set, no rule is asked. A change in the middle of a turn waits for the next one, and of several the last one
counts. The one rule: a turn that has begun keeps its model to its end.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dragoman.errors import UnknownModelError
from dragoman.routing.model_registry import Registry

CLEAR: Final = "-"


class Sticky(msgspec.Struct, frozen=True):
    """The model of a session, and the one that it gets with its next turn."""

    model: str | None = None
    queued: str | None = None  # the id of a model, or CLEAR; none if nothing waits

    def asked(self, name: str, registry: Registry, *, in_turn: bool) -> Sticky:
        """After ``/model NAME``, or ``/model -``."""
        if name != CLEAR:
            model = registry.find(name)
            if model is None:
                raise UnknownModelError(f"no model is called {name!r}", remedy="See the names with dragoman models")
            name = model.id
        return Sticky(self.model, name) if in_turn else Sticky(_set(name))

    def at_turn_start(self) -> Sticky:
        """As it holds for the turn that begins now."""
        return self if self.queued is None else Sticky(_set(self.queued))


def _set(name: str) -> str | None:
    return None if name == CLEAR else name
