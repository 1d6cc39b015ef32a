"""Run the turn of one run, store its events, then show them to followers.

    publisher = RunPublisher(state, run, encoder, session_change)
    await publisher.publish(agent, fields)      until the run ends; ``started`` is set with the first event
    publisher.events_after(number)              for followers
    await publisher.wait_for_change(seconds)
    publisher.stop("cancelled")

The first event is stored in the transaction of the question, the last ones in the transaction of the answer. Deltas in
between are collected: the first one of an answer is stored at once, later ones at most ``FLUSH_S`` after they arrived,
and neighbouring deltas of a block become one event. Invariant: an event is committed before it is sent to any client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from dragoman.errors import DragomanError, StoreError
from dragoman.event import BlockComplete, TextDelta, ThinkingDelta, ToolUseStart, merge_deltas
from dragoman.exchange import StopReason
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.agui_encoder import AguiEncoder, Event, make_interrupts
from dragoman.server.runs.agui_snapshot import make_snapshot
from dragoman.server.runs.stream_encoder import encode_event
from dragoman.shield import run_to_completion
from dragoman.store import Session, Store
from dragoman.store.operation import Part
from dragoman.store.runs import Run, RunEnd, RunEvent
from dragoman.turn import Agent, AnswerEnd, AnswerStart, TurnEnd, TurnEvent, TurnRequest, TurnStart
from dragoman.turn.state import TurnUsage
from dragoman.turn.turn import run as run_turn

FLUSH_S: Final = 0.05  # how long deltas are collected
_CONTENT: Final = (TextDelta, ThinkingDelta, ToolUseStart, BlockComplete)
_RETRIES_S: Final = (0.2, 1.0, 3.0)  # delays before the store is tried again
_log: Final = logging.getLogger("dragoman.server")


class RunLostError(Exception):
    """Another process ended the run, or its thread was deleted."""


class SessionChange(msgspec.Struct, frozen=True):
    """The changes of the thread that are stored with the question."""

    new_session: Session | None = None  # created
    fields: dict[str, Any] = {}  # of the thread that exists


class _RunClose(msgspec.Struct):
    """The end of a run that is stored with the last answer."""

    part: Part[bool]
    texts: list[str]
    end: RunEnd
    undo: Callable[[], None]


class RunPublisher:
    """An active run of this process: its turn, the events published so far, and the followers to wake."""

    def __init__(
        self,
        store: Store,
        run: Run,
        encoder: AguiEncoder,
        *,
        change: SessionChange,
        alive_s: float,
        on_start: Callable[[RunPublisher], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.run = run
        self.events: list[RunEvent] = []  # all of them are stored
        self.is_started = False
        self.has_ended = False
        self.started: asyncio.Future[None] = loop.create_future()
        self._store = store
        self._encoder = encoder
        self._session_change = change
        self._alive_s = alive_s
        self._on_start = on_start  # called when the run is stored
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._stop_reason: str | None = None
        self._waiters: set[asyncio.Future[bool]] = set()  # of followers
        self._idle_timer: asyncio.TimerHandle | None = None  # of all followers
        self._pending: list[TurnEvent] = []  # not encoded yet
        self._unstored: list[str] = []  # encoded events
        self._opening: Part[Run] | None = None
        self._closing: _RunClose | None = None  # submitted with the last answer
        self._end: RunEnd | None = None  # as it is stored
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._next_flush = 0.0
        self._has_content = False  # of the current answer, published
        self._error: Exception | None = None  # by which a flush failed

    # --- following ---------------------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The number of the newest published event."""
        return self.run.first_number - 1 + len(self.events)

    def events_after(self, number: int) -> list[RunEvent]:
        """The published events with a higher number."""
        return self.events[max(0, number - self.run.first_number + 1) :]

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait for new events or the end; false after a time-out, which the followers share."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiters.add(waiter)
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(seconds, self._wake_idle)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake_idle(self) -> None:
        self._idle_timer = None
        self._wake(False)

    def _wake(self, has_changed: bool) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(has_changed)
        self._waiters.clear()

    def end(self) -> None:
        """Wake the followers: there are no more events."""
        self._cancel_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._notify(0, has_ended=True)

    def _notify(self, count: int, *, has_ended: bool = False) -> None:
        """Show events that are stored now."""
        run_id = self.run.run_id
        self.events += [
            RunEvent(number, run_id, text) for number, text in enumerate(self._unstored[:count], self.last_number + 1)
        ]
        del self._unstored[:count]
        self.has_ended = self.has_ended or has_ended
        self._wake(True)

    def stop(self, reason: str) -> None:
        """Cancel the turn. Only the first reason counts. A turn that has ended is not affected."""
        self._stop_reason = self._stop_reason or reason
        if self._task is not None:
            self._task.cancel()

    # --- the turn ----------------------------------------------------------------------------------------------------

    async def publish(self, agent: Agent, fields: Mapping[str, Any]) -> RunEnd:
        """Run the turn and publish its events; ``RunLostError`` if another process ended the run.

        An error before the first event is raised: there is no run then.
        """
        self._task = asyncio.current_task()
        usage = TurnUsage(self.run.run_id)
        try:
            end_event = await self._follow_turn(agent, fields, usage)
            end = self._end  # stored with the last answer
            return end if end is not None else await run_to_completion(self._finish(end_event))
        except RunLostError:
            raise
        except Exception as error:
            if not self.is_started:
                raise
            return await run_to_completion(self._fail(error))

    async def _follow_turn(self, agent: Agent, fields: Mapping[str, Any], usage: TurnUsage) -> TurnEnd | None:
        """Add the events of the turn; its last event, or ``None`` if it was cancelled."""
        request = TurnRequest(session_id=self.run.session_id, **fields)
        turn = run_turn(agent.services, agent.config, request, usage, journal=self)
        try:
            async with aclosing(turn):
                async for event in turn:
                    self._add(event)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if not self.is_started:
                raise ApiError(409, "cancelled", "The run was cancelled before it started.") from None
        return usage.end

    def _add(self, event: TurnEvent) -> None:
        """Take an event of the turn."""
        if self._end is not None or type(event) is TurnStart:
            return  # stored already
        self._drop_closing()  # the answer was stored without the end of the run
        if type(event) is AnswerStart:
            self._has_content = False
        is_first = not self._has_content and isinstance(event, _CONTENT)
        self._has_content = self._has_content or is_first
        self._pending.append(event)
        self._schedule_flush(is_urgent=is_first)

    # --- the transactions of the turn --------------------------------------------------------------------------------

    def open(self, start: TurnStart) -> Part[Run]:
        """The run with its first events, for the transaction of the question."""
        now_ms = self._now_ms()
        self._unstored = _to_texts([*self._encoder.encode_start(start, now_ms), *self._encoder.encode(start, now_ms)])
        self._opening = self._store.runs.open_part(
            self.run,
            self._unstored,
            alive_s=self._alive_s,
            changes=self._session_change.fields,
            is_new_session=self._session_change.new_session is not None,
        )
        return self._opening

    def confirm_open(self) -> None:
        """Publish the first events."""
        assert self._opening is not None
        self.run = self._opening.result
        self._notify(len(self._unstored))
        self._store.runs.announce(self.run.session_id)
        self._next_flush = self._loop.time() + FLUSH_S
        self.is_started = True
        self._on_start(self)
        self.started.set_result(None)

    async def close(self, answer: AnswerEnd, end: TurnEnd) -> Part[bool] | None:
        """The last events of the run, for the transaction of the answer; ``None`` if the run is lost."""
        await self._wait_for_flush()
        if self._error is not None:
            return None
        self._encode_pending()
        undo = self._encoder.checkpoint()
        now_ms = self._now_ms()
        events = self._encoder.encode(answer, now_ms)
        last, run_end = self._encode_outcome(end)
        texts = _to_texts([*events, *last])
        part = self._store.runs.close_part(self.run, self.last_number, [*self._unstored, *texts], run_end)
        self._closing = _RunClose(part, texts, run_end, undo)
        return part

    def confirm_close(self) -> None:
        """Publish the last events."""
        closing = self._closing
        if closing is not None and closing.part.result:
            self._closing, self._end = None, closing.end
            self._unstored.extend(closing.texts)
            self._notify(len(self._unstored), has_ended=True)
            self._store.runs.announce(self.run.session_id)

    def _drop_closing(self) -> None:
        """Forget an end that was encoded and not stored."""
        if self._closing is not None:
            self._closing.undo()
            self._closing = None

    # --- deltas ------------------------------------------------------------------------------------------------------

    def _schedule_flush(self, *, is_urgent: bool = False) -> None:
        if self._flush_task is not None or self._error is not None:
            return
        if is_urgent or self._loop.time() >= self._next_flush:
            self._start_flush()
        elif self._flush_timer is None:
            self._flush_timer = self._loop.call_at(self._next_flush, self._start_flush)

    def _start_flush(self) -> None:
        self._cancel_timer()
        if self._flush_task is None and self._closing is None and self._end is None:
            self._next_flush = self._loop.time() + FLUSH_S
            self._flush_task = asyncio.create_task(self._flush(), name="dragoman-run-events")

    def _cancel_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    async def _flush(self) -> None:
        try:
            await self._commit()
        except Exception as error:
            self._error = error
            self.stop("lost")
        self._flush_task = None
        if self._pending:
            self._schedule_flush()

    async def _wait_for_flush(self) -> None:
        """Wait until no events are being stored."""
        self._cancel_timer()
        while self._flush_task is not None:  # a flush may start the next one
            await asyncio.wait([self._flush_task])
        self._cancel_timer()

    def _encode_pending(self) -> None:
        """Encode the events of the turn so far; neighbouring deltas of a block are one event."""
        now_ms = self._now_ms()
        events, self._pending = merge_deltas(self._pending), []
        self._unstored.extend(_to_texts(output for event in events for output in self._encoder.encode(event, now_ms)))

    async def _commit(self, end: RunEnd | None = None) -> None:
        """Store the events so far, then show them to followers."""
        self._encode_pending()
        texts = tuple(self._unstored)
        if not texts and end is None:
            return
        if not await self._store_events(texts, end) and not await self._was_stored(len(texts)):
            raise RunLostError
        self._notify(len(texts), has_ended=end is not None)

    async def _store_events(self, texts: Sequence[str], end: RunEnd | None) -> bool:
        for wait_s in (*_RETRIES_S, None):
            try:
                if end is None:
                    return await self._store.runs.append(self.run, self.last_number, texts)
                return await self._store.runs.end(self.run, self.last_number, texts, end)
            except StoreError as error:  # the events may be stored nevertheless, see _was_stored
                if wait_s is None:
                    raise
                _log.warning("events of run %s were not stored: %s", self.run.run_id, error)
                await asyncio.sleep(wait_s)
        raise AssertionError("unreachable")

    async def _was_stored(self, count: int) -> bool:
        """Whether a write that reported an error did store its events."""
        run = await self._store.runs.get(self.run.session_id, self.run.run_id)
        return count > 0 and run is not None and run.last_number == self.last_number + count

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _finish(self, end_event: TurnEnd | None) -> RunEnd:
        """Store the last events."""
        await self._wait_for_flush()
        if self._error is not None:
            raise self._error
        self._drop_closing()
        self._encode_pending()
        if end_event is not None and make_interrupts(end_event):
            last, end = await self._encode_interrupt(end_event)
        else:
            last, end = self._encode_outcome(end_event)
        return await self._store_end(last, end)

    async def _fail(self, error: Exception) -> RunEnd:
        """End the run with an error."""
        if isinstance(error, DragomanError):
            code, message = error.code, error.what
        else:
            _log.error("a turn failed", exc_info=error, extra={"session_id": self.run.session_id})
            code, message = "internal_error", "An unexpected error occurred. The log has details."
        await self._wait_for_flush()
        if self._error is not None:
            raise self._error
        self._drop_closing()
        self._encode_pending()
        return await self._store_end(*self._encode_failure(code, message))

    async def _store_end(self, last: list[Event], end: RunEnd) -> RunEnd:
        self._unstored.extend(_to_texts(last))
        await self._commit(end)
        self._end = end
        return end

    def _encode_outcome(self, end_event: TurnEnd | None) -> tuple[list[Event], RunEnd]:
        """The last events and the status of a turn without interrupts that raised no error."""
        encoder, now_ms = self._encoder, self._now_ms()
        if end_event is None or end_event.stop_reason is StopReason.CANCELLED:
            if self._stop_reason == "server_stopping":
                return self._encode_failure("server_stopping", "The server stopped. The partial answer is stored.")
            return encoder.encode_cancel(now_ms), RunEnd("cancelled")
        return encoder.encode_end(end_event, now_ms), RunEnd("error" if end_event.fault is not None else "finished")

    async def _encode_interrupt(self, end_event: TurnEnd) -> tuple[list[Event], RunEnd]:
        session = await self._store.get_session(self.run.session_id)
        messages = await make_snapshot(self._store, session, is_modern=self._encoder.is_modern)
        events = self._encoder.encode_interrupt(end_event, messages, session.metadata.get("state"), self._now_ms())
        return events, RunEnd("interrupted", make_interrupts(end_event))

    def _encode_failure(self, code: str, message: str) -> tuple[list[Event], RunEnd]:
        return self._encoder.encode_error(code, message, self._now_ms()), RunEnd("error")

    def _now_ms(self) -> int:
        return int(self._store.clock().timestamp() * 1000)


def _to_texts(events: Iterable[Event]) -> list[str]:
    return [encode_event(event) for event in events]
