"""Writes events to the trace of a store.

    writer = TraceWriter(store)
    writer.listen(bus)
    …
    await writer.close()                    writes the queued events
    await write_events(store, payload)      writes events without a bus of the caller

Events are written in batches, in the background; no emitter waits for them. The store redacts secrets before it
writes. A failed write is retried three times and then logged: a turn never fails because of its trace. Once a day
events older than the retention are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from dragoman.bus.bus import Bus, Subscription
from dragoman.bus.event_types import AUDIT
from dragoman.bus.event_types.system_events import TraceSwept
from dragoman.bus.types import Event, Payload
from dragoman.errors import StorageError

if TYPE_CHECKING:
    from dragoman.redaction import Redactor
    from dragoman.store import Store

_log: Final = logging.getLogger("dragoman.bus")
_DAY_S: Final = 86_400.0
_RETRY_DELAYS_S: Final = (0.1, 0.5, 2.0)


class TraceWriter:
    """Writes the events of a bus to a store.

    ``retention=None`` keeps events without limit. ``max_delay_s`` is the time to collect events for one write.
    """

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
        """Subscribe to a bus."""
        subscription = bus.subscribe_batches("trace", self.write, max_delay_s=self._max_delay_s)
        self._source = bus, subscription
        return subscription

    async def flush(self) -> None:
        """Wait until every emitted event is written."""
        if self._source is not None:
            await self._source[0].drain()

    async def close(self) -> None:
        """Write the queued events and unsubscribe."""
        if self._source is not None:
            bus, subscription = self._source
            self._source = None
            await bus.unsubscribe(subscription)

    async def write(self, events: Sequence[Event]) -> None:
        """Write a batch of events."""
        for delay_s in (*_RETRY_DELAYS_S, None):
            try:
                await self._store.trace.append(events, self._redactor)
                break
            except StorageError as error:
                if delay_s is None:
                    raise
                _log.warning("%s events could not be written (%s); the write is retried", len(events), error)
                await asyncio.sleep(delay_s)
        await self._sweep()

    async def _sweep(self) -> None:
        """Delete events older than the retention, once a day."""
        now_s = self._clock_s()
        if self._retention is None or (self._swept_at_s is not None and now_s - self._swept_at_s < _DAY_S):
            return
        self._swept_at_s = now_s
        deleted = await self._store.trace.delete_old_events(self._retention, exempt=AUDIT)
        if deleted and self._source is not None:
            days = self._retention / timedelta(days=1)
            self._source[0].emit(TraceSwept(deleted=deleted, older_than_days=days))


async def write_events(store: Store, *payloads: Payload, **where: Any) -> None:
    """Write events to the trace of a store; ``where`` are the options of ``Bus.emit``."""
    async with Bus() as bus:
        writer = TraceWriter(store)
        writer.listen(bus)
        for payload in payloads:
            bus.emit(payload, **where)
        await writer.close()
