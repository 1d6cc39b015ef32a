"""Audit events of the server, limited in number.

Audit events stay as long as the store. A client that sends invalid keys must not fill it, so at most ``MAX_EVENTS``
events are emitted in ``WINDOW_S`` seconds. The log has the number of dropped events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dragoman.bus import Bus, Payload

MAX_EVENTS: Final = 60
WINDOW_S: Final = 60.0
_log: Final = logging.getLogger("dragoman.server")


class AuditLog:
    """Emits audit events on a bus, within a limit."""

    def __init__(self, bus: Bus, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock_s = clock_s
        self._window_start_s = clock_s()
        self._emitted_count = 0
        self._dropped_count = 0

    def emit(self, payload: Payload) -> None:
        """Emit an event, unless the limit is reached."""
        now_s = self._clock_s()
        if now_s - self._window_start_s >= WINDOW_S:
            if self._dropped_count:
                _log.warning("%s audit events were dropped within %s s", self._dropped_count, WINDOW_S)
            self._window_start_s, self._emitted_count, self._dropped_count = now_s, 0, 0
        if self._emitted_count < MAX_EVENTS:
            self._emitted_count += 1
            self._bus.try_emit(payload)
        else:
            self._dropped_count += 1
