"""Writes what happens into a store: everything that the bus says, in batches, away from the turn.

    writer = TraceWriter(store)
    writer.listen(bus)
    …
    await writer.close()            which writes what waits

The store takes secrets out before it writes. What it cannot write is tried again a few times and then given up with a
line in the log: a trace is never a reason for a turn to fail. Once a day events that are older than the retention are
deleted. The one rule: nobody waits for this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from dragoman.bus.bus import Bus, Subscription
from dragoman.bus.catalogue import AUDIT, TraceSwept
from dragoman.bus.types import Event
from dragoman.errors import StorageError

if TYPE_CHECKING:
    from dragoman.redaction import Redactor
    from dragoman.store import Store

_log: Final = logging.getLogger("dragoman.bus")
_DAY_S: Final = 86_400.0
_PAUSES_S: Final = (0.1, 0.5, 2.0)  # before a batch is tried again


class TraceWriter:
    """Keeps events in a store. ``retention`` of ``None`` keeps them for ever; ``max_delay_s`` is how long events are
    gathered before they are written together."""

    def __init__(
        self,
        store: Store,
        *,
        redactor: Redactor | None = None,
        retention: timedelta | None = timedelta(days=90),
        max_delay_s: float = 0.2,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._retention = retention
        self._max_delay_s = max_delay_s
        self._clock_s = clock_s
        self._swept_at_s: float | None = None
        self._source: tuple[Bus, Subscription] | None = None

    def listen(self, bus: Bus) -> Subscription:
        """Write what this bus says."""
        subscription = bus.subscribe_batches("trace", self.write, max_delay_s=self._max_delay_s)
        self._source = bus, subscription
        return subscription

    async def flush(self) -> None:
        """Wait until everything that was emitted is written."""
        if self._source is not None:
            await self._source[0].drain()

    async def close(self) -> None:
        """Write what waits, and listen no longer."""
        if self._source is not None:
            bus, subscription = self._source
            self._source = None
            await bus.unsubscribe(subscription)

    async def write(self, events: Sequence[Event]) -> None:
        """Write a batch."""
        for pause_s in (*_PAUSES_S, None):
            try:
                await self._store.append_events(events, self._redactor)
                break
            except StorageError as error:
                if pause_s is None:
                    raise
                _log.warning("%s events could not be written (%s); they are tried again", len(events), error)
                await asyncio.sleep(pause_s)
        await self._sweep()

    async def _sweep(self) -> None:
        """Delete what is older than the retention, once a day."""
        now_s = self._clock_s()
        if self._retention is None or (self._swept_at_s is not None and now_s - self._swept_at_s < _DAY_S):
            return
        self._swept_at_s = now_s
        deleted = await self._store.sweep_events(self._retention, exempt=AUDIT)
        if deleted and self._source is not None:
            days = self._retention / timedelta(days=1)
            self._source[0].emit(TraceSwept(deleted=deleted, older_than_days=days))
