"""A turn told to its end: put into AG-UI's words, stored in batches of what has gathered, and then shown.

A batch is what the turn has told while the last one was being stored, so a quick turn takes few writes and a slow one
is told word by word. The one rule: nobody sees an event that a restart could lose.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dragoman.errors import DragomanError, StoreError
from dragoman.exchange import StopReason
from dragoman.server.runs.framing import text_of
from dragoman.server.runs.live import Live
from dragoman.server.runs.snapshot import snapshot_of
from dragoman.server.runs.telling import Event, interrupts_of
from dragoman.store import Store
from dragoman.store.runs import RunEnd
from dragoman.store.unbroken import unbroken
from dragoman.turn import TurnEnded

MOST_AT_ONCE: Final = 256  # events in a batch
_RETRIES_S: Final = (0.2, 1.0, 3.0)  # after which the store is tried again
_log: Final = logging.getLogger("dragoman.server")


class NotOursError(Exception):
    """The run is not ours any more: somebody ended it, or its thread was deleted."""


class Narrator:
    """Tells one run."""

    def __init__(self, store: Store, live: Live) -> None:
        self._store = store
        self._live = live

    async def narrate(self) -> RunEnd:
        """Tell the run from its beginning to its end; ``NotOursError`` if somebody else has ended it."""
        live = self._live
        await self._tell(live.telling.started(live.began, self._now_ms()))
        gathered: list[Event] = []  # which are not stored yet
        try:
            ended = await self._tell_turn(gathered)
            last, end = await self._ending(ended)
        except DragomanError as error:
            last, end = self._failure(error.code, error.what)
        except NotOursError:
            raise
        except Exception:
            _log.exception("a turn failed", extra={"session_id": live.run.session_id})
            last, end = self._failure("internal_error", "Something failed here. The log has more.")
        await unbroken(self._tell([*gathered, *last], end))
        return end

    async def _tell_turn(self, gathered: list[Event]) -> TurnEnded | None:
        """Tell what happens in the turn; how it ended."""
        live, taken, ended = self._live, 0, None
        async for event in live.turn.follow():
            taken += 1
            if isinstance(event, TurnEnded):
                ended = event
            gathered.extend(live.telling.take(event, self._now_ms()))
            if gathered and (taken == len(live.turn.told) or len(gathered) >= MOST_AT_ONCE):
                await self._tell(gathered)
                gathered.clear()
        return ended

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _ending(self, ended: TurnEnded | None) -> tuple[list[Event], RunEnd]:
        """The last events of a turn that raised nothing, and how it ended."""
        live, telling, now_ms = self._live, self._live.telling, self._now_ms()
        if ended is None or ended.stop_reason is StopReason.CANCELLED:
            if live.stopped_by == "server_stopping":
                return self._failure("server_stopping", "The server was stopped. What had arrived is kept.")
            return telling.cancelled(now_ms), RunEnd("cancelled")
        if interrupts := interrupts_of(ended):
            session = await self._store.get_session(live.run.session_id)
            messages = await snapshot_of(self._store, session, is_modern=telling.is_modern)
            told = telling.interrupted(ended, messages, session.metadata.get("state"), now_ms)
            return told, RunEnd("interrupted", interrupts)
        return telling.ended(ended, now_ms), RunEnd("error" if ended.fault is not None else "finished")

    def _failure(self, code: str, message: str) -> tuple[list[Event], RunEnd]:
        return self._live.telling.failed(code, message, self._now_ms()), RunEnd("error")

    # --- storing -----------------------------------------------------------------------------------------------------

    async def _tell(self, events: list[Event], end: RunEnd | None = None) -> None:
        """Store events, then show them."""
        live, texts = self._live, [text_of(event) for event in events]
        if not await self._stored(texts, end) and not await self._is_stored(len(texts)):
            raise NotOursError
        live.show(texts, is_over=end is not None)

    async def _stored(self, texts: list[str], end: RunEnd | None) -> bool:
        run, after = self._live.run, self._live.last_number
        for wait_s in _RETRIES_S:
            try:
                return await self._store.tell_run(run.session_id, run.run_id, after, texts, end=end)
            except StoreError as error:  # which does not say that nothing was stored
                _log.warning("run %s could not be told: %s", run.run_id, error)
                await asyncio.sleep(wait_s)
        return await self._store.tell_run(run.session_id, run.run_id, after, texts, end=end)

    async def _is_stored(self, count: int) -> bool:
        """Whether events were stored although the store had failed when it was asked to."""
        run = await self._store.get_run(self._live.run.session_id, self._live.run.run_id)
        return count > 0 and run is not None and run.last_number == self._live.last_number + count

    def _now_ms(self) -> int:
        return int(self._store.clock().timestamp() * 1000)
