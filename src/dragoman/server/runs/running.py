"""Runs that go on, whoever follows them: begun once, told through the store, ended by their end or by somebody.

    started = await runs.begin(wanted)                            a run, new or the same as before
    async for events in runs.follow(session_id, after): …         what was told behind a number, as it is told
    await runs.cancel(session_id, run_id)                         also if another worker runs it
    await runs.close(grace_s)                                     when the server stops

Followers in this process are woken when something was told; those of another worker's run look at the store. A worker
says every few seconds that its runs live; those of one that does not are ended by whoever notices. The one rule: a run
goes on when its client has gone, until it is over or somebody cancels it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from dragoman.bus.catalogue import GatewayQuotaExceeded
from dragoman.errors import DragomanError
from dragoman.server.refusing import Refusal
from dragoman.server.runs.beginning import Beginning, Started, Wanted
from dragoman.server.runs.live import Live
from dragoman.server.runs.narrating import Narrator, NotOursError
from dragoman.server.runs.recovering import end_lost, ended_if_dead
from dragoman.store import Session
from dragoman.store.runs import Run, ToldEvent
from dragoman.store.unbroken import unbroken

if TYPE_CHECKING:
    from dragoman.server.state import Doors

ALIVE_S: Final = 20.0  # how long a run counts as alive without a word of its worker
BEAT_S: Final = 5.0
LOOK_S: Final = 0.5  # how soon a cancel through another worker is seen
SWEEP_S: Final = 3600.0
QUIET_S: Final = 15.0  # after which a follower is told that there is nothing
POLL_S: Final = (0.05, 0.5)  # how often a run of another worker is looked at: at first, and at last
_log: Final = logging.getLogger("dragoman.server")


class Runs:
    """The runs of one worker."""

    def __init__(self, doors: Doors, *, alive_s: float = ALIVE_S) -> None:
        self._doors = doors
        self._store = doors.store
        self._owner = doors.store.new_id()
        self._alive_s = alive_s
        self._keep_events = timedelta(days=doors.options.keep_run_events_days)
        self._beginning = Beginning(doors, self._owner, alive_s)
        self._about_to_begin: list[str] = []  # whose
        self._here: dict[str, Live] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost: list[Run] = []  # which could not be told to their end
        self._looking: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to look after runs: those of this worker, and those that others have left."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_after(), name="dragoman-runs")

    async def begin(self, wanted: Wanted) -> Started:
        """The run that is asked for; the same one, if the same was asked for before."""
        if self._is_stopping.is_set():
            raise Refusal(503, "server_stopping", "The server is stopping.", headers={"retry-after": "5"})
        session, run = await self._beginning.before(wanted)
        if run is not None:
            return Started(run)
        with self._among_pending(wanted.principal.user_id):
            return await unbroken(self._begun(wanted, session))

    async def _begun(self, wanted: Wanted, session: Session | None) -> Started:
        started = await self._beginning.begun(wanted, session)
        if started.live is not None:
            self._here[started.run.session_id] = started.live
            task = asyncio.create_task(self._told(started.live), name=f"dragoman-run-{started.run.session_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return started

    @contextlib.contextmanager
    def _among_pending(self, user_id: str) -> Iterator[None]:
        """Count a run that is about to begin, and refuse one too many of a user."""
        pending = sum(live.run.user_id == user_id for live in self._here.values()) + self._about_to_begin.count(user_id)
        if pending >= self._doors.options.max_pending_runs:
            self._doors.audit.tell(GatewayQuotaExceeded(scope="user", user_id=user_id))
            what = f"There are {pending} runs already. Wait for one of them."
            raise Refusal(429, "too_many_runs", what, headers={"retry-after": "1"})
        self._about_to_begin.append(user_id)
        try:
            yield
        finally:
            self._about_to_begin.remove(user_id)

    async def _told(self, live: Live) -> None:
        """Tell a run to its end."""
        end = "error"
        self._doors.counters.begin_run()
        try:
            end = (await Narrator(self._store, live).narrate()).status
        except NotOursError:
            _log.warning("run %s was ended by somebody else", live.run.run_id)
            self._lost.append(live.run)  # if it was not
        except Exception:
            _log.exception("run %s could not be told", live.run.run_id)
            self._lost.append(live.run)
        finally:
            self._doors.counters.end_run(end)
            live.stop("lost")  # which does nothing to a turn that is over
            del self._here[live.run.session_id]
            live.show((), is_over=True)

    # --- following ---------------------------------------------------------------------------------------------------

    async def follow(
        self, session_id: str, after: int = 0, *, run_id: str | None = None
    ) -> AsyncIterator[list[ToldEvent]]:
        """What was told behind a number, and what is being told, until nothing runs; of one run only, if named.

        Nothing at all, as an empty list, is told from time to time as long as nothing happens.
        """
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
            if session_id in self._here or await ended_if_dead(self._doors, run):
                continue
            await self._pause(wait_s)
            wait_s, quiet_s = min(wait_s * 1.5, POLL_S[1]), quiet_s + wait_s
            if quiet_s >= QUIET_S:
                quiet_s = 0.0
                yield []

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the server works."""
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
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        while self._tasks or self._about_to_begin:
            for live in list(self._here.values()):
                live.stop("server_stopping")
            await asyncio.wait(self._tasks, timeout=LOOK_S) if self._tasks else await asyncio.sleep(0.01)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    # --- looking after -----------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Say that the runs of this worker live, see who is to be stopped, and end what others have left."""
        now = asyncio.get_running_loop().time
        next_beat = next_sweep = 0.0
        while True:
            try:
                if now() >= next_beat:
                    next_beat = now() + min(BEAT_S, self._alive_s / 4)
                    await self._beat()
                if now() >= next_sweep:
                    next_sweep = now() + SWEEP_S
                    await self._store.sweep_run_events(self._keep_events)
                self._doors.counters.note_process()
                if self._here:
                    await self._stop_cancelled()
            except DragomanError as error:
                _log.warning("runs could not be looked after: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _beat(self) -> None:
        if self._here:
            await self._store.beat(self._owner, self._alive_s)
        for run in await self._store.dead_runs():
            await ended_if_dead(self._doors, run)
        while self._lost:
            await end_lost(self._store, self._lost[0])
            self._lost.pop(0)

    async def _stop_cancelled(self) -> None:
        for session_id, run_id in await self._store.cancelled_runs(self._owner):
            live = self._here.get(session_id)
            if live is not None and live.run.run_id == run_id:
                live.stop("cancelled")
