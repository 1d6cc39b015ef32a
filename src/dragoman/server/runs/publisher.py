"""Publish one run: encode the events of its turn as AG-UI events, store them in batches, then show them to followers.

    publisher = RunPublisher(store, run, encoder, turn, start_event)
    end = await publisher.publish()             until the run ends
    publisher.events_after(number)              for followers
    await publisher.wait_for_change(seconds)
    publisher.stop("cancelled")

A batch holds the events that the turn emitted while the previous batch was stored: a fast turn needs few writes, and a
slow one is streamed token by token. Invariant: an event is committed before it is sent to any client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from dragoman.errors import DragomanError, StoreError
from dragoman.exchange import StopReason
from dragoman.server.http.responses import encode_event
from dragoman.server.runs.agui_encoder import AguiEncoder, Event, make_interrupts
from dragoman.server.runs.agui_snapshot import make_snapshot
from dragoman.shield import run_to_completion
from dragoman.store import Store
from dragoman.store.runs import Run, RunEnd, RunEvent
from dragoman.turn import TurnEnd, TurnStart, TurnTask

MAX_BATCH: Final = 256  # events
_RETRIES_S: Final = (0.2, 1.0, 3.0)  # delays before the store is tried again
_log: Final = logging.getLogger("dragoman.server")


class RunLostError(Exception):
    """Another process ended the run, or its thread was deleted."""


class RunPublisher:
    """An active run of this process: its turn, the events published so far, and the followers to wake."""

    def __init__(self, store: Store, run: Run, encoder: AguiEncoder, turn: TurnTask, start_event: TurnStart) -> None:
        self.run = run
        self.events: list[RunEvent] = []  # all of them are stored
        self.has_ended = False
        self._store = store
        self._encoder = encoder
        self._turn = turn
        self._start_event = start_event
        self._stop_reason: str | None = None
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- following ---------------------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The number of the newest published event."""
        return self.run.first_number - 1 + len(self.events)

    def events_after(self, number: int) -> list[RunEvent]:
        """The published events with a higher number."""
        return self.events[max(0, number - self.run.first_number + 1) :]

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait for new events or the end; false after a time-out."""
        done, _ = await asyncio.wait([self._change], timeout=seconds)
        return bool(done)

    def end(self) -> None:
        """Wake the followers: there are no more events."""
        self._notify((), has_ended=True)

    def _notify(self, texts: Sequence[str], *, has_ended: bool) -> None:
        first = self.last_number + 1
        self.events.extend(RunEvent(first + at, self.run.run_id, text) for at, text in enumerate(texts))
        self.has_ended = self.has_ended or has_ended
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        change.set_result(None)

    def stop(self, reason: str) -> None:
        """Cancel the turn. Only the first reason counts. A turn that has ended is not affected."""
        self._stop_reason = self._stop_reason or reason
        self._turn.cancel()

    # --- publishing --------------------------------------------------------------------------------------------------

    async def publish(self) -> RunEnd:
        """Publish the run from its first event to its last; ``RunLostError`` if another process ended it."""
        await self._commit(self._encoder.encode_start(self._start_event, self._now_ms()))
        pending: list[Event] = []  # not stored yet
        try:
            last, end = await self._encode_end(await self._publish_turn(pending))
        except DragomanError as error:
            last, end = self._encode_failure(error.code, error.what)
        except RunLostError:
            raise
        except Exception:
            _log.exception("a turn failed", extra={"session_id": self.run.session_id})
            last, end = self._encode_failure("internal_error", "An unexpected error occurred. The log has details.")
        await run_to_completion(self._commit([*pending, *last], end))
        return end

    async def _publish_turn(self, pending: list[Event]) -> TurnEnd | None:
        """Publish the events of the turn; its last event, or ``None`` if it was cancelled before it started."""
        count, end_event = 0, None
        async for event in self._turn.follow():
            count += 1
            if isinstance(event, TurnEnd):
                end_event = event
            pending.extend(self._encoder.encode(event, self._now_ms()))
            if pending and (count == len(self._turn.events) or len(pending) >= MAX_BATCH):
                await self._commit(pending)
                pending.clear()
        return end_event

    async def _encode_end(self, end_event: TurnEnd | None) -> tuple[list[Event], RunEnd]:
        """The last events and the status of a turn that raised no error."""
        encoder, now_ms = self._encoder, self._now_ms()
        if end_event is None or end_event.stop_reason is StopReason.CANCELLED:
            if self._stop_reason == "server_stopping":
                return self._encode_failure("server_stopping", "The server stopped. The partial answer is stored.")
            return encoder.encode_cancel(now_ms), RunEnd("cancelled")
        if interrupts := make_interrupts(end_event):
            session = await self._store.get_session(self.run.session_id)
            messages = await make_snapshot(self._store, session, is_modern=encoder.is_modern)
            events = encoder.encode_interrupt(end_event, messages, session.metadata.get("state"), now_ms)
            return events, RunEnd("interrupted", interrupts)
        return encoder.encode_end(end_event, now_ms), RunEnd("error" if end_event.fault is not None else "finished")

    def _encode_failure(self, code: str, message: str) -> tuple[list[Event], RunEnd]:
        return self._encoder.encode_error(code, message, self._now_ms()), RunEnd("error")

    async def _commit(self, events: list[Event], end: RunEnd | None = None) -> None:
        """Store events, then show them to followers."""
        texts = [encode_event(event) for event in events]
        if not await self._store_events(texts, end) and not await self._was_stored(len(texts)):
            raise RunLostError
        self._notify(texts, has_ended=end is not None)

    async def _store_events(self, texts: list[str], end: RunEnd | None) -> bool:
        run, after = self.run, self.last_number
        for wait_s in _RETRIES_S:
            try:
                return await self._store.runs.append(run.session_id, run.run_id, after, texts, end=end)
            except StoreError as error:  # the events may be stored nevertheless, see _was_stored
                _log.warning("events of run %s were not stored: %s", run.run_id, error)
                await asyncio.sleep(wait_s)
        return await self._store.runs.append(run.session_id, run.run_id, after, texts, end=end)

    async def _was_stored(self, count: int) -> bool:
        """Whether a write that reported an error did store its events."""
        run = await self._store.runs.get(self.run.session_id, self.run.run_id)
        return count > 0 and run is not None and run.last_number == self.last_number + count

    def _now_ms(self) -> int:
        return int(self._store.clock().timestamp() * 1000)
