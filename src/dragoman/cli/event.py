"""Events of commands, which have no bus of their own to emit them on."""

from __future__ import annotations

from typing import Any

from dragoman.bus import Bus, Payload
from dragoman.bus.trace_writer import TraceWriter
from dragoman.store import Store


async def write_events(store: Store, *payloads: Payload, **scope: Any) -> None:
    """Write events of this command into the trace of a store."""
    async with Bus() as bus:
        writer = TraceWriter(store)
        writer.listen(bus)
        for payload in payloads:
            bus.emit(payload, **scope)
        await writer.close()
