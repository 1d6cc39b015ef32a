"""A turn in a task of its own: it goes on whether or not somebody follows it, and can be stopped from outside.

Everything that it tells is kept until it is over, so that whoever comes late, or comes back, misses nothing. The one
rule: to stop following a turn does not stop the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from dragoman.exchange import StopReason
from dragoman.turn.tally import Tally
from dragoman.turn.values import Asked, TurnEnded, TurnEvent


class RunningTurn:
    """A turn that was begun."""

    def __init__(self, asked: Asked, events: AsyncGenerator[TurnEvent, None], tally: Tally) -> None:
        self.asked = asked
        self.turn_id = tally.turn_id
        self._tally = tally
        self.told: list[TurnEvent] = []
        self._events = events
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"dragoman-turn-{asked.session_id}")
        self.task.add_done_callback(lambda _: self._news.set())

    async def _run(self) -> None:
        try:
            async with contextlib.aclosing(self._events):
                async for event in self._events:
                    self._tell(event)
        except asyncio.CancelledError:
            self._tell(self._tally.over or self._tally.ended(StopReason.CANCELLED))

    def _tell(self, event: TurnEvent) -> None:
        self.told.append(event)
        self._news.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be told."""
        return self.task.done()

    async def follow(self, after: int = 0) -> AsyncIterator[TurnEvent]:
        """What was told from that place on, and what will be, to its end; then whatever error it ended in."""
        while True:
            while after < len(self.told):
                yield self.told[after]
                after += 1
            if self.task.done():
                break
            self._news.clear()
            if not self.task.done() and after == len(self.told):
                await self._news.wait()
        if not self.task.cancelled():  # before it could begin
            self.task.result()

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self.follow()

    def cancel(self) -> None:
        """Stop it. What has arrived stays. A second time does nothing."""
        self.task.cancel()

    async def cancelled(self) -> None:
        """Stop it, and wait until what has arrived is stored."""
        self.cancel()
        await asyncio.wait([self.task])

    async def ended(self) -> TurnEnded | None:
        """Wait until it is over: how it ended, or nothing if it was cancelled before it began."""
        async for event in self.follow():
            if isinstance(event, TurnEnded):
                return event
        return None
