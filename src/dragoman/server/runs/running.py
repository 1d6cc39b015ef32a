"""Runs that go on, whoever follows them: begun once, told through the store, ended by their end or by somebody.

    begun = await runs.begin(principal, given, request_hash, key)     a run, new or the same as before
    async for events in runs.follow(session_id, after): …             what was told behind a number, as it is told
    await runs.cancel(session_id, run_id)                             also if another worker runs it
    await runs.close(grace_s)                                         when the server stops

What a turn tells is translated, stored in batches of what has gathered since the last one, and only then shown: to
followers in this process at once, to those of other workers when they look. A worker says every few seconds that its
runs live; those of one that does not are ended by whoever notices, after the session was put in order. The one rule:
nobody sees an event that a restart could lose.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import ConflictError, DragomanError, StoreError, UnknownSessionError
from dragoman.exchange import StopReason
from dragoman.message import MessageStatus
from dragoman.server.refusing import Refusal, not_found
from dragoman.server.runs.framing import text_of
from dragoman.server.runs.preparing import Prepared, Preparing
from dragoman.server.runs.seen import with_what_was_seen
from dragoman.server.runs.snapshot import snapshot_of
from dragoman.server.runs.telling import Event, Telling, interrupts_of, run_error
from dragoman.store import Session
from dragoman.store.runs import RETENTION, Run, RunEnd, ToldEvent
from dragoman.store.unbroken import unbroken
from dragoman.turn import RunningTurn, TurnBegan, TurnEnded

if TYPE_CHECKING:
    from dragoman.server.principal import Principal
    from dragoman.server.runs.given import Given
    from dragoman.server.state import Doors

ALIVE_S: Final = 20.0  # how long a run counts as alive without a word of its worker
BEAT_S: Final = 5.0
LOOK_S: Final = 0.5  # how soon a cancel through another worker is seen
SWEEP_S: Final = 3600.0
QUIET_S: Final = 15.0  # after which a follower is told that there is nothing
POLL_S: Final = (0.05, 0.5)  # how often a run of another worker is looked at: at first, and at last
MOST_AT_ONCE: Final = 256  # events in a batch
_LAST: Final = 10  # messages among which an answer is that broke off
_RETRIES_S: Final = (0.2, 1.0, 3.0)  # after which the store is tried again
_log: Final = logging.getLogger("dragoman.server")


class Started(msgspec.Struct, frozen=True):
    """A run that was asked for."""

    run: Run
    is_new: bool
    is_new_thread: bool = False


class Live:
    """A run of this worker."""

    def __init__(self, run: Run, telling: Telling) -> None:
        self.run = run
        self.telling = telling
        self.turn: RunningTurn | None = None
        self.task: asyncio.Task[None] | None = None
        self.told: list[ToldEvent] = []  # that are stored
        self.is_over = False
        self.stopped_by: str | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def last_number(self) -> int:
        return self.run.first_number - 1 + len(self.told)

    def behind(self, after: int) -> list[ToldEvent]:
        """What was told behind a number."""
        return self.told[max(0, after - self.run.first_number + 1) :]

    def show(self, texts: Sequence[str], *, is_over: bool = False) -> None:
        """Let followers see events that are stored."""
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
        if self.turn is not None:
            self.turn.cancel()


class Runs:
    """The runs of one worker."""

    def __init__(self, doors: Doors, *, alive_s: float = ALIVE_S, keep_events: timedelta = RETENTION) -> None:
        self._doors = doors
        self._store = doors.store
        self._owner = doors.store.new_id()
        self._alive_s = alive_s
        self._keep_events = keep_events
        self._here: dict[str, Live] = {}  # by session
        self._beginning: dict[str, int] = {}  # how many of each user are about to begin
        self._lost: list[Run] = []  # which could not be told to their end
        self._looking: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to look after runs: of this worker, and of those that died."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_after(), name="dragoman-runs")

    # --- beginning ---------------------------------------------------------------------------------------------------

    async def begin(
        self, principal: Principal, given: Given, request_hash: bytes, idempotency_key: str | None = None
    ) -> Started:
        """The run that is asked for; the same one, if the same was asked for before."""
        self.start()
        if self._is_stopping.is_set():
            raise Refusal(503, "server_stopping", "The server is stopping.", headers={"retry-after": "5"})
        session = await self._session(principal, given.thread_id)
        before = None if session is None else await self._asked_before(session, given, request_hash, idempotency_key)
        if before is not None:
            return Started(before, is_new=False)
        with self._among_pending(principal.user_id):
            return await unbroken(self._begun(principal, session, given, request_hash, idempotency_key))

    async def _session(self, principal: Principal, thread_id: str) -> Session | None:
        """The thread, if there is one and it is the caller's; none if it is to be made."""
        try:
            session = await self._store.get_session(thread_id)
        except UnknownSessionError:
            return None
        if not principal.owns(session):
            raise not_found()
        return session

    async def _asked_before(self, session: Session, given: Given, request_hash: bytes, key: str | None) -> Run | None:
        """The run of that id, if the same request began it."""
        found = await self._store.get_run(session.id, given.run_id)
        if found is None or (key is not None and found.idempotency_key != key):
            return None  # the store looks again, for the key as well
        if found.request_hash != request_hash:
            raise Refusal(422, "idempotency_key_reused", f"Something else was asked for as run {given.run_id} before.")
        return found

    @contextlib.contextmanager
    def _among_pending(self, user_id: str) -> Any:
        """Count a run of a user that is about to begin, and refuse one too many."""
        pending = sum(live.run.user_id == user_id for live in self._here.values()) + self._beginning.get(user_id, 0)
        if pending >= self._doors.options.max_pending_runs:
            what = f"There are {pending} runs already. Wait for one of them."
            raise Refusal(429, "too_many_runs", what, headers={"retry-after": "1"})
        self._beginning[user_id] = self._beginning.get(user_id, 0) + 1
        try:
            yield
        finally:
            self._beginning[user_id] -= 1
            if not self._beginning[user_id]:
                del self._beginning[user_id]

    async def _begun(
        self, principal: Principal, session: Session | None, given: Given, request_hash: bytes, key: str | None
    ) -> Started:
        """Prepare, claim the thread, begin the turn. Whatever is refused leaves nothing behind."""
        newest = None if session is None else await self._store.newest_run(session.id)
        preparing = Preparing(self._doors, principal, session, given)
        try:
            prepared = await preparing.prepared(newest)
            thread, is_new_thread = await self._thread(principal, session, given, prepared)
            try:
                begun = await self._claimed(thread, given, request_hash, key, principal.user_id)
                if begun.is_new:
                    await self._started(thread, given, prepared, begun.run)
                else:
                    await preparing.undo()
            except BaseException:
                if is_new_thread:
                    await self._forget_thread(thread.id)
                raise
        except BaseException:
            await preparing.undo()
            raise
        return Started(begun.run, begun.is_new, is_new_thread)

    async def _thread(
        self, principal: Principal, session: Session | None, given: Given, prepared: Prepared
    ) -> tuple[Session, bool]:
        """The thread, made if there is none, and whether it was; with the state that the client sent."""
        if session is None:
            try:
                made = await self._store.create_session(
                    given.thread_id,
                    title=prepared.title,
                    user_id=principal.user_id,
                    team_id=principal.team_id,
                    metadata=None if given.state is None else {"state": given.state},
                )
                return made, True
            except ConflictError:  # somebody else has just made it
                session = await self._session(principal, given.thread_id)
                assert session is not None
        if given.state is not None and session.metadata.get("state") != given.state:
            metadata = {**session.metadata, "state": given.state}
            session = await self._store.change_session(session.id, metadata=metadata)
        if session.title is None and prepared.title is not None:
            session = await self._store.rename_session(session.id, prepared.title)
        return session, False

    async def _forget_thread(self, session_id: str) -> None:
        with contextlib.suppress(StoreError, UnknownSessionError):
            await self._store.delete_session(session_id)

    async def _claimed(
        self, session: Session, given: Given, request_hash: bytes, key: str | None, user_id: str
    ) -> Started:
        """The right to tell events in a thread. Where the last one who had it died, its run is ended first."""
        for is_last_try in (False, True):
            try:
                begun = await self._store.begin_run(
                    session.id,
                    given.run_id,
                    request_hash,
                    owner=self._owner,
                    alive_s=self._alive_s,
                    user_id=user_id,
                    idempotency_key=key,
                )
                return Started(begun.run, begun.is_new)
            except ConflictError as error:
                if error.code != "run_in_progress":
                    raise
                newest = await self._store.newest_run(session.id)
                if is_last_try or newest is None or not await self._ended_if_dead(newest):
                    raise in_progress() from None
        raise AssertionError("it was tried twice")

    async def _started(self, session: Session, given: Given, prepared: Prepared, run: Run) -> None:
        """Begin the turn, and wait until it has begun: what is refused is refused to whoever asked."""
        telling = Telling(session.id, given.run_id, version=given.version, parent_run_id=given.parent_run_id)
        live = self._here[session.id] = Live(run, telling)
        try:
            if prepared.imported:
                await self._store.append(
                    session.id, prepared.imported, idempotency_key=f"run:{given.run_id}", expected_seq=None
                )
            live.turn = self._doors.agent.begin(session.id, **prepared.terms)
            began = await _first_of(live.turn)
        except BaseException as error:
            del self._here[session.id]
            live.show((), is_over=True)
            await self._store.withdraw_run(session.id, run.run_id)
            if isinstance(error, ConflictError) and error.code == "turn_in_flight":
                raise in_progress() from None
            raise
        live.task = asyncio.create_task(self._tell(live, began), name=f"dragoman-run-{session.id}")

    # --- telling -----------------------------------------------------------------------------------------------------

    async def _tell(self, live: Live, began: TurnBegan) -> None:
        """Tell a turn to its end."""
        assert live.turn is not None
        try:
            await self._told(live, live.telling.started(began, self._now_ms()))
            await self._tell_turn(live, live.turn)
        except _GoneError:
            _log.warning("run %s was ended by somebody else", live.run.run_id)
        except Exception:
            _log.exception("run %s could not be told", live.run.run_id)
            self._lost.append(live.run)
        finally:
            live.stop("lost")  # which does nothing to a turn that is over
            del self._here[live.run.session_id]
            live.show((), is_over=True)

    async def _tell_turn(self, live: Live, turn: RunningTurn) -> None:
        ended: TurnEnded | None = None
        gathered: list[Event] = []
        taken = 0
        try:
            async for event in turn.follow():
                taken += 1
                if isinstance(event, TurnEnded):
                    ended = event
                gathered.extend(live.telling.take(event, self._now_ms()))
                if gathered and (taken == len(turn.told) or len(gathered) >= MOST_AT_ONCE):
                    await self._told(live, gathered)
                    gathered = []
        except DragomanError as error:
            await self._end(live, gathered, *self._failure(live, error.code, error.what))
        except Exception:
            _log.exception("a turn failed", extra={"session_id": live.run.session_id})
            await self._end(live, gathered, *self._failure(live, "internal_error", "Something failed here."))
        else:
            await self._end(live, gathered, *await self._ending(live, ended))

    def _failure(self, live: Live, code: str, message: str) -> tuple[list[Event], RunEnd]:
        return live.telling.failed(code, message, self._now_ms()), RunEnd("error")

    async def _ending(self, live: Live, ended: TurnEnded | None) -> tuple[list[Event], RunEnd]:
        """The last events of a turn that raised nothing."""
        telling, now = live.telling, self._now_ms()
        if live.stopped_by == "server_stopping" and (ended is None or ended.stop_reason is StopReason.CANCELLED):
            return self._failure(live, "server_stopping", "The server was stopped. What had arrived is kept.")
        if ended is None or ended.stop_reason is StopReason.CANCELLED:
            return telling.cancelled(now), RunEnd("cancelled")
        interrupts = interrupts_of(ended)
        if interrupts:
            session = await self._store.get_session(live.run.session_id)
            messages = await snapshot_of(self._store, session, is_modern=telling.is_modern)
            state = session.metadata.get("state")
            return telling.interrupted(ended, messages, state, now), RunEnd("interrupted", interrupts)
        return telling.ended(ended, now), RunEnd("error" if ended.fault is not None else "finished")

    async def _end(self, live: Live, gathered: list[Event], last: list[Event], end: RunEnd) -> None:
        await unbroken(self._told(live, [*gathered, *last], end))

    async def _told(self, live: Live, events: list[Event], end: RunEnd | None = None) -> None:
        """Store events, then show them."""
        texts = [text_of(event) for event in events]
        run = live.run
        for wait_s in (*_RETRIES_S, None):
            try:
                is_told = await self._store.tell_run(run.session_id, run.run_id, live.last_number, texts, end=end)
                break
            except StoreError:  # which does not say that nothing was stored
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
        if not is_told and not await self._is_stored(live, len(texts)):
            raise _GoneError
        live.show(texts, is_over=end is not None)

    async def _is_stored(self, live: Live, count: int) -> bool:
        """Whether events were stored although the store had failed when it was asked to."""
        run = await self._store.get_run(live.run.session_id, live.run.run_id)
        return count > 0 and run is not None and run.last_number == live.last_number + count

    def _now_ms(self) -> int:
        return int(self._store.clock().timestamp() * 1000)

    # --- following ---------------------------------------------------------------------------------------------------

    async def follow(
        self, session_id: str, after: int = 0, *, run_id: str | None = None
    ) -> AsyncIterator[list[ToldEvent]]:
        """What was told behind a number, and what is being told, until nothing runs; of one run only, if named.

        Nothing at all, as an empty list, is told from time to time as long as nothing happens.
        """
        self.start()
        wait_s, quiet_s = POLL_S[0], 0.0
        while True:
            live = self._here.get(session_id)
            if live is not None and after >= live.run.first_number - 1 and run_id in (None, live.run.run_id):
                if events := live.behind(after):
                    after = events[-1].number
                    yield events
                elif live.is_over:
                    return
                elif not await live.news(QUIET_S):
                    yield []
                continue
            told = await self._store.run_events(session_id, after)
            run = told.newest if run_id is None else await self._store.get_run(session_id, run_id)
            if events := [event for event in told.events if run_id in (None, event.run_id)]:
                after, wait_s, quiet_s = events[-1].number, POLL_S[0], 0.0
                yield events
                continue
            if run is None or not run.is_running or self._is_stopping.is_set():
                return
            if session_id in self._here or await self._ended_if_dead(run):
                continue
            await self._pause(wait_s)
            wait_s, quiet_s = min(wait_s * 1.5, POLL_S[1]), quiet_s + wait_s
            if quiet_s >= QUIET_S:
                quiet_s = 0.0
                yield []

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), seconds)

    @property
    def is_stopping(self) -> bool:
        """Whether the server was told to stop: what never ends by itself ends now."""
        return self._is_stopping.is_set()

    # --- ending ------------------------------------------------------------------------------------------------------

    async def cancel(self, session_id: str, run_id: str | None = None) -> Run | None:
        """Ask for the end of a run, or of the one that is running; that run, or nothing if none is."""
        found = await self._store.cancel_run(session_id, run_id)
        live = self._here.get(session_id)
        if found is not None and live is not None and live.run.run_id == found.run_id:
            live.stop("cancelled")
        return found

    async def close(self, grace_s: float = 0.0) -> None:
        """Begin nothing more, let what runs end for so long, and stop the rest."""
        self._is_stopping.set()
        running = [live.task for live in self._here.values() if live.task is not None]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        for live in list(self._here.values()):
            live.stop("server_stopping")
        if running:
            await asyncio.wait(running)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look_after(self) -> None:
        """Say that the runs of this worker live, see who is to be stopped, and end what others have left."""
        loop = asyncio.get_running_loop()
        next_beat = next_sweep = 0.0
        while True:
            try:
                if loop.time() >= next_beat:
                    next_beat = loop.time() + min(BEAT_S, self._alive_s / 4)
                    await self._beat()
                if loop.time() >= next_sweep:
                    next_sweep = loop.time() + SWEEP_S
                    await self._store.sweep_run_events(self._keep_events)
                if self._here:
                    await self._stop_cancelled()
            except DragomanError as error:
                _log.warning("runs could not be looked after: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _beat(self) -> None:
        if self._here:
            await self._store.beat(self._owner, self._alive_s)
        for run in await self._store.dead_runs():
            await self._ended_if_dead(run)
        while self._lost:
            lost = await self._store.get_run(self._lost[0].session_id, self._lost[0].run_id)
            if lost is not None and lost.is_running:
                await self._store.tell_run(
                    lost.session_id, lost.run_id, lost.last_number, [self._interrupted()], end=RunEnd("error")
                )
            self._lost.pop(0)

    def _interrupted(self) -> str:
        what = "The server could not go on with it. What had arrived is kept."
        return text_of(run_error("interrupted", what, self._now_ms()))

    async def _stop_cancelled(self) -> None:
        for session_id, run_id in await self._store.cancelled_runs(self._owner):
            live = self._here.get(session_id)
            if live is not None and live.run.run_id == run_id:
                live.stop("cancelled")

    async def _ended_if_dead(self, run: Run) -> bool:
        """End a run whose worker has died, once its session is in order; whether it is over now."""
        if not run.is_running:
            return True
        if run.alive_until >= self._store.clock():
            return False
        try:
            await self._keep_what_was_seen(run)
            await self._doors.agent.recover(run.session_id)
        except ConflictError:  # the right to run a turn there has not expired yet
            return False
        except UnknownSessionError:
            return True
        await self._store.end_dead_run(run, self._interrupted())
        return True

    async def _keep_what_was_seen(self, run: Run) -> None:
        """Put into the history what a run that broke off has told of its last answer."""
        async with self._store.turn(run.session_id):
            for row in await self._store.tail(run.session_id, _LAST):
                metadata = row.message.metadata
                if metadata.status is MessageStatus.PARTIAL and metadata.run_id == run.run_id:
                    whole = with_what_was_seen(row.message, await self._events_of(run))
                    if whole != row.message:
                        await self._store.update(run.session_id, whole)

    async def _events_of(self, run: Run) -> list[Event]:
        """Everything that a run has told."""
        after, found = run.first_number - 1, list[Event]()
        while events := (await self._store.run_events(run.session_id, after)).events:
            found.extend(msgspec.json.decode(event.json) for event in events if event.run_id == run.run_id)
            after = events[-1].number
        return found


class _GoneError(Exception):
    """The run is not ours any more: somebody ended it, or its thread was deleted."""


async def _first_of(turn: RunningTurn) -> TurnBegan:
    """The first thing that a turn tells; what it was refused for is raised."""
    events = turn.follow()
    try:
        async for event in events:
            assert isinstance(event, TurnBegan)
            return event
    finally:
        await events.aclose()  # type: ignore[attr-defined]
    raise Refusal(409, "cancelled", "The run was cancelled before it began.")


def in_progress() -> Refusal:
    """A thread has one run at a time."""
    what = "A run is running in this thread. Wait for it, or cancel it."
    return Refusal(409, "run_in_progress", what, headers={"retry-after": "1"})
