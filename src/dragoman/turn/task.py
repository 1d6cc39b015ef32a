"""A turn in a task of its own, which runs whether or not a reader follows it, and which can be cancelled.

All events are kept until the turn is over, so a reader can start at any event. Invariant: a reader that stops does not
stop the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from dragoman.exchange import StopReason
from dragoman.turn.state import TurnUsage
from dragoman.turn.types import TurnEnd, TurnEvent, TurnRequest


class TurnTask:
    """A turn that was started with ``Agent.begin``."""

    def __init__(self, request: TurnRequest, source: AsyncGenerator[TurnEvent, None], usage: TurnUsage) -> None:
        self.request = request
        self.turn_id = usage.turn_id
        self.events: list[TurnEvent] = []
        self._usage = usage
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
        """Whether no more events follow."""
        return self.task.done()

    async def follow(self, after: int = 0) -> AsyncIterator[TurnEvent]:
        """The events from an index on, to the end of the turn; then raise the error of the turn, if there is one."""
        while True:
            while after < len(self.events):
                yield self.events[after]
                after += 1
            if self.task.done():
                break
            self._changed.clear()
            if not self.task.done() and after == len(self.events):
                await self._changed.wait()
        if not self.task.cancelled():  # before it started
            self.task.result()

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self.follow()

    def cancel(self) -> None:
        """Cancel the turn. The content that arrived stays. A second call does nothing."""
        self.task.cancel()

    async def cancel_and_wait(self) -> None:
        """Cancel the turn and wait until its content is stored."""
        self.cancel()
        await asyncio.wait([self.task])

    async def wait(self) -> TurnEnd | None:
        """Wait for the end of the turn; none if it was cancelled before it started."""
        async for event in self.follow():
            if isinstance(event, TurnEnd):
                return event
        return None
