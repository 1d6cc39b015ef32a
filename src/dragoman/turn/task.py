"""A turn in a task of its own: it goes on whether or not somebody follows it, and can be stopped from outside.

Everything that it tells is kept until it is over, so that whoever comes late, or comes back, misses nothing. The one
rule: to stop following a turn does not stop the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from dragoman.exchange import StopReason
from dragoman.turn.tally import TurnUsage
from dragoman.turn.types import TurnEnd, TurnEvent, TurnRequest


class TurnTask:
    """A turn that was begun."""

    def __init__(self, request: TurnRequest, source: AsyncGenerator[TurnEvent, None], usage: TurnUsage) -> None:
        self.request = request
        self.turn_id = usage.turn_id
        self._usage = usage
        self.events: list[TurnEvent] = []
        self._source = source
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"dragoman-turn-{request.session_id}")
        self.task.add_done_callback(lambda _: self._changed.set())

    async def _run(self) -> None:
        try:
            async with contextlib.aclosing(self._source):
                async for event in self._source:
                    self._add(event)
        except asyncio.CancelledError:
            self._add(self._usage.end or self._usage.make_end(StopReason.CANCELLED))

    def _add(self, event: TurnEvent) -> None:
        self.events.append(event)
        self._changed.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be told."""
        return self.task.done()

    async def follow(self, after: int = 0) -> AsyncIterator[TurnEvent]:
        """What was told from that place on, and what will be, to its end; then whatever error it ended in."""
        while True:
            while after < len(self.events):
                yield self.events[after]
                after += 1
            if self.task.done():
                break
            self._changed.clear()
            if not self.task.done() and after == len(self.events):
                await self._changed.wait()
        if not self.task.cancelled():  # before it could begin
            self.task.result()

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self.follow()

    def cancel(self) -> None:
        """Stop it. What has arrived stays. A second time does nothing."""
        self.task.cancel()

    async def cancel_and_wait(self) -> None:
        """Stop it, and wait until what has arrived is stored."""
        self.cancel()
        await asyncio.wait([self.task])

    async def wait(self) -> TurnEnd | None:
        """Wait until it is over: how it ended, or nothing if it was cancelled before it began."""
        async for event in self.follow():
            if isinstance(event, TurnEnd):
                return event
        return None
