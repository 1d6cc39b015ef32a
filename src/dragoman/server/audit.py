"""Audit events of the server, in numbers that an attacker cannot drive up.

Audit events are kept for as long as the store. A stranger who sends bad keys must not fill it, so at most ``MOST``
events are emitted within ``WITHIN_S`` seconds. What is left out is counted in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dragoman.bus import Bus, Payload
from dragoman.turn.telling import tell

MOST: Final = 60
WITHIN_S: Final = 60.0
_log: Final = logging.getLogger("dragoman.server")


class Audit:
    """Emits audit events on a bus, within a limit."""

    def __init__(self, bus: Bus, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock_s = clock_s
        self._since_s = clock_s()
        self._emitted = 0
        self._left_out = 0

    def tell(self, what: Payload) -> None:
        """Emit an event, unless there were too many lately."""
        now_s = self._clock_s()
        if now_s - self._since_s >= WITHIN_S:
            if self._left_out:
                _log.warning("%s audit events were left out within %s s", self._left_out, WITHIN_S)
            self._since_s, self._emitted, self._left_out = now_s, 0, 0
        if self._emitted < MOST:
            self._emitted += 1
            tell(self._bus, what)
        else:
            self._left_out += 1
