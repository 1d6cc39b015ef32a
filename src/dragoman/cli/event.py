"""Events of commands, which have no bus of their own to emit them on."""

from __future__ import annotations

from typing import Any

from dragoman.bus import Bus, Payload
from dragoman.bus.trace import TraceWriter
from dragoman.store import Store


async def write_event(store: Store, *what: Payload, **where: Any) -> None:
    """Write events of this command into the trace of a store."""
    async with Bus() as bus:
        writer = TraceWriter(store)
        writer.listen(bus)
        for one in what:
            bus.emit(one, **where)
        await writer.close()
