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
from dragoman.server.runs.agui_encoder import Event, make_interrupts
from dragoman.server.runs.agui_snapshot import make_snapshot
from dragoman.server.runs.framing import encode_event
from dragoman.server.runs.live import LiveRun
from dragoman.shield import run_to_completion
from dragoman.store import Store
from dragoman.store.runs import RunEnd
from dragoman.turn import TurnEnd

MAX_BATCH: Final = 256  # events in a batch
_RETRIES_S: Final = (0.2, 1.0, 3.0)  # after which the store is tried again
_log: Final = logging.getLogger("dragoman.server")


class RunLostError(Exception):
    """The run is not ours any more: somebody ended it, or its thread was deleted."""


class RunPublisher:
    """Tells one run."""

    def __init__(self, store: Store, live_run: LiveRun) -> None:
        self._store = store
        self._live_run = live_run

    async def publish(self) -> RunEnd:
        """Tell the run from its beginning to its end; ``RunLostError`` if somebody else has ended it."""
        live_run = self._live_run
        await self._store_and_publish(live_run.encoder.encode_start(live_run.start_event, self._now_ms()))
        pending: list[Event] = []  # which are not stored yet
        try:
            end_event = await self._publish_turn(pending)
            last, end = await self._encode_end(end_event)
        except DragomanError as error:
            last, end = self._encode_failure(error.code, error.what)
        except RunLostError:
            raise
        except Exception:
            _log.exception("a turn failed", extra={"session_id": live_run.run.session_id})
            last, end = self._encode_failure("internal_error", "Something failed here. The log has more.")
        await run_to_completion(self._store_and_publish([*pending, *last], end))
        return end

    async def _publish_turn(self, pending: list[Event]) -> TurnEnd | None:
        """Tell what happens in the turn; how it ended."""
        live_run, count, end_event = self._live_run, 0, None
        async for event in live_run.turn.follow():
            count += 1
            if isinstance(event, TurnEnd):
                end_event = event
            pending.extend(live_run.encoder.encode(event, self._now_ms()))
            if pending and (count == len(live_run.turn.events) or len(pending) >= MAX_BATCH):
                await self._store_and_publish(pending)
                pending.clear()
        return end_event

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _encode_end(self, end_event: TurnEnd | None) -> tuple[list[Event], RunEnd]:
        """The last events of a turn that raised nothing, and how it ended."""
        live_run, encoder, now_ms = self._live_run, self._live_run.encoder, self._now_ms()
        if end_event is None or end_event.stop_reason is StopReason.CANCELLED:
            if live_run.stop_reason == "server_stopping":
                return self._encode_failure("server_stopping", "The server was stopped. What had arrived is kept.")
            return encoder.encode_cancel(now_ms), RunEnd("cancelled")
        if interrupts := make_interrupts(end_event):
            session = await self._store.get_session(live_run.run.session_id)
            messages = await make_snapshot(self._store, session, is_modern=encoder.is_modern)
            events = encoder.encode_interrupt(end_event, messages, session.metadata.get("state"), now_ms)
            return events, RunEnd("interrupted", interrupts)
        return encoder.encode_end(end_event, now_ms), RunEnd("error" if end_event.fault is not None else "finished")

    def _encode_failure(self, code: str, message: str) -> tuple[list[Event], RunEnd]:
        return self._live_run.encoder.encode_error(code, message, self._now_ms()), RunEnd("error")

    # --- storing -----------------------------------------------------------------------------------------------------

    async def _store_and_publish(self, events: list[Event], end: RunEnd | None = None) -> None:
        """Store events, then show them."""
        live_run, texts = self._live_run, [encode_event(event) for event in events]
        if not await self._store_events(texts, end) and not await self._was_stored(len(texts)):
            raise RunLostError
        live_run.publish(texts, has_ended=end is not None)

    async def _store_events(self, texts: list[str], end: RunEnd | None) -> bool:
        run, after = self._live_run.run, self._live_run.last_number
        for wait_s in _RETRIES_S:
            try:
                return await self._store.runs.append(run.session_id, run.run_id, after, texts, end=end)
            except StoreError as error:  # which does not say that nothing was stored
                _log.warning("run %s could not be told: %s", run.run_id, error)
                await asyncio.sleep(wait_s)
        return await self._store.runs.append(run.session_id, run.run_id, after, texts, end=end)

    async def _was_stored(self, count: int) -> bool:
        """Whether events were stored although the store had failed when it was asked to."""
        run = await self._store.runs.get(self._live_run.run.session_id, self._live_run.run.run_id)
        return count > 0 and run is not None and run.last_number == self._live_run.last_number + count

    def _now_ms(self) -> int:
        return int(self._store.clock().timestamp() * 1000)
