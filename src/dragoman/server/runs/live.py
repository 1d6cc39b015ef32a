"""A run of this worker, as long as it runs: what it has told, and who is to be woken when it tells more.

The one rule: what stands here is stored already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.server.runs.telling import Telling
from dragoman.store.runs import Run, ToldEvent
from dragoman.turn import RunningTurn, TurnBegan


class Live:
    """A run that has begun."""

    def __init__(self, run: Run, telling: Telling, turn: RunningTurn, began: TurnBegan) -> None:
        self.run = run
        self.telling = telling
        self.turn = turn
        self.began = began
        self.told: list[ToldEvent] = []
        self.is_over = False
        self.stopped_by: str | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def last_number(self) -> int:
        """Of what it has told."""
        return self.run.first_number - 1 + len(self.told)

    def behind(self, after: int) -> list[ToldEvent]:
        """What was told behind a number."""
        return self.told[max(0, after - self.run.first_number + 1) :]

    def show(self, texts: Sequence[str], *, is_over: bool = False) -> None:
        """Let followers see events, and that there will be no more."""
        first = self.last_number + 1
        self.told.extend(ToldEvent(first + at, self.run.run_id, text) for at, text in enumerate(texts))
        self.is_over = self.is_over or is_over
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    async def news(self, seconds: float) -> bool:
        """Wait until there is something new; false if there is nothing for so long."""
        done, _ = await asyncio.wait([self._news], timeout=seconds)
        return bool(done)

    def stop(self, why: str) -> None:
        """End it. The first reason is the one that is told."""
        self.stopped_by = self.stopped_by or why
        self.turn.cancel()
