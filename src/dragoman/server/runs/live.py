"""A run of this worker, as long as it runs: what it has told, and who is to be woken when it tells more.

The one rule: what stands here is stored already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.server.runs.agui_encoder import AguiEncoder
from dragoman.store.runs import Run, RunEvent
from dragoman.turn import TurnStart, TurnTask


class LiveRun:
    """A run that has begun."""

    def __init__(self, run: Run, encoder: AguiEncoder, turn: TurnTask, start_event: TurnStart) -> None:
        self.run = run
        self.encoder = encoder
        self.turn = turn
        self.start_event = start_event
        self.events: list[RunEvent] = []
        self.has_ended = False
        self.stop_reason: str | None = None
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def last_number(self) -> int:
        """Of what it has told."""
        return self.run.first_number - 1 + len(self.events)

    def events_after(self, after: int) -> list[RunEvent]:
        """What was told behind a number."""
        return self.events[max(0, after - self.run.first_number + 1) :]

    def publish(self, texts: Sequence[str], *, has_ended: bool = False) -> None:
        """Let followers see events, and that there will be no more."""
        first = self.last_number + 1
        self.events.extend(RunEvent(first + at, self.run.run_id, text) for at, text in enumerate(texts))
        self.has_ended = self.has_ended or has_ended
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        change.set_result(None)

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait until there is something new; false if there is nothing for so long."""
        done, _ = await asyncio.wait([self._change], timeout=seconds)
        return bool(done)

    def stop(self, reason: str) -> None:
        """End it. The first reason is the one that is told."""
        self.stop_reason = self.stop_reason or reason
        self.turn.cancel()
