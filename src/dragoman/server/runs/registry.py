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

from dragoman.bus.event_types.system_events import GatewayQuotaExceeded
from dragoman.errors import DragomanError
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.beginning import RunRequest, RunStarter, StartResult
from dragoman.server.runs.live import LiveRun
from dragoman.server.runs.publisher import RunLostError, RunPublisher
from dragoman.server.runs.recovery import end_expired_run, end_lost_run
from dragoman.shield import run_to_completion
from dragoman.store import Session
from dragoman.store.runs import Run, RunEvent

if TYPE_CHECKING:
    from dragoman.server.state import AppState

ALIVE_S: Final = 20.0  # how long a run counts as alive without a word of its worker
HEARTBEAT_S: Final = 5.0
CANCEL_POLL_S: Final = 0.5  # how soon a cancel through another worker is seen
CLEANUP_S: Final = 3600.0
KEEP_ALIVE_S: Final = 15.0  # after which a follower is told that there is nothing
POLL_S: Final = (0.05, 0.5)  # how often a run of another worker is looked at: at first, and at last
_log: Final = logging.getLogger("dragoman.server")


class RunRegistry:
    """The runs of one worker."""

    def __init__(self, state: AppState, *, alive_s: float = ALIVE_S) -> None:
        self._state = state
        self._store = state.store
        self._owner = state.store.new_id()
        self._alive_s = alive_s
        self._keep_events = timedelta(days=state.config.keep_run_events_days)
        self._starter = RunStarter(state, self._owner, alive_s)
        self._starting_users: list[str] = []  # whose
        self._live_runs: dict[str, LiveRun] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost_runs: list[Run] = []  # which could not be told to their end
        self._maintenance_task: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to look after runs: those of this worker, and those that others have left."""
        if self._maintenance_task is None:
            self._maintenance_task = asyncio.create_task(self._maintain(), name="dragoman-runs")

    async def start_run(self, request: RunRequest) -> StartResult:
        """The run that is asked for; the same one, if the same was asked for before."""
        if self._is_stopping.is_set():
            raise ApiError(503, "server_stopping", "The server is stopping.", headers={"retry-after": "5"})
        session, run = await self._starter.find_existing(request)
        if run is not None:
            return StartResult(run)
        with self._count_pending(request.principal.user_id):
            return await run_to_completion(self._start_new(request, session))

    async def _start_new(self, request: RunRequest, session: Session | None) -> StartResult:
        result = await self._starter.start(request, session)
        if result.live_run is not None:
            self._live_runs[result.run.session_id] = result.live_run
            task = asyncio.create_task(self._publish(result.live_run), name=f"dragoman-run-{result.run.session_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return result

    @contextlib.contextmanager
    def _count_pending(self, user_id: str) -> Iterator[None]:
        """Count a run that is about to begin, and refuse one too many of a user."""
        pending = sum(
            live_run.run.user_id == user_id for live_run in self._live_runs.values()
        ) + self._starting_users.count(user_id)
        if pending >= self._state.config.max_pending_runs:
            self._state.audit.emit(GatewayQuotaExceeded(scope="user", user_id=user_id))
            message = f"There are {pending} runs already. Wait for one of them."
            raise ApiError(429, "too_many_runs", message, headers={"retry-after": "1"})
        self._starting_users.append(user_id)
        try:
            yield
        finally:
            self._starting_users.remove(user_id)

    async def _publish(self, live_run: LiveRun) -> None:
        """Tell a run to its end."""
        status = "error"
        self._state.counters.begin_run()
        try:
            status = (await RunPublisher(self._store, live_run).publish()).status
        except RunLostError:
            _log.warning("run %s was ended by somebody else", live_run.run.run_id)
            self._lost_runs.append(live_run.run)  # if it was not
        except Exception:
            _log.exception("run %s could not be told", live_run.run.run_id)
            self._lost_runs.append(live_run.run)
        finally:
            self._state.counters.end_run(status)
            live_run.stop("lost")  # which does nothing to a turn that is over
            del self._live_runs[live_run.run.session_id]
            live_run.publish((), has_ended=True)

    # --- following ---------------------------------------------------------------------------------------------------

    async def follow(
        self, session_id: str, after: int = 0, *, run_id: str | None = None
    ) -> AsyncIterator[list[RunEvent]]:
        """What was told behind a number, and what is being told, until nothing runs; of one run only, if named.

        Nothing at all, as an empty list, is told from time to time as long as nothing happens.
        """
        wait_s, quiet_s = POLL_S[0], 0.0
        while True:
            live_run = self._live_runs.get(session_id)
            if (
                live_run is not None
                and after >= live_run.run.first_number - 1
                and run_id in (None, live_run.run.run_id)
            ):
                if events := live_run.events_after(after):
                    after = events[-1].number
                    yield events
                elif live_run.has_ended:
                    return
                elif not await live_run.wait_for_change(KEEP_ALIVE_S):
                    yield []
                continue
            page = await self._store.runs.events(session_id, after)
            run = page.latest if run_id is None else await self._store.runs.get(session_id, run_id)
            if events := [event for event in page.events if run_id in (None, event.run_id)]:
                after, wait_s, quiet_s = events[-1].number, POLL_S[0], 0.0
                yield events
                continue
            if run is None or not run.is_running or self._is_stopping.is_set():
                return
            if session_id in self._live_runs or await end_expired_run(self._state, run):
                continue
            await self._wait(wait_s)
            wait_s, quiet_s = min(wait_s * 1.5, POLL_S[1]), quiet_s + wait_s
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield []

    async def _wait(self, seconds: float) -> None:
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
        run = await self._store.runs.cancel(session_id, run_id)
        live_run = self._live_runs.get(session_id)
        if run is not None and live_run is not None and live_run.run.run_id == run.run_id:
            live_run.stop("cancelled")
        return run

    async def close(self, grace_s: float = 0.0) -> None:
        """Begin nothing more, let what runs end for so long, and stop the rest."""
        self._is_stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        while self._tasks or self._starting_users:
            for live_run in list(self._live_runs.values()):
                live_run.stop("server_stopping")
            await asyncio.wait(self._tasks, timeout=CANCEL_POLL_S) if self._tasks else await asyncio.sleep(0.01)
        if self._maintenance_task is not None:
            self._maintenance_task.cancel()
            await asyncio.wait([self._maintenance_task])

    # --- looking after -----------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        """Say that the runs of this worker live, see who is to be stopped, and end what others have left."""
        now = asyncio.get_running_loop().time
        next_heartbeat = next_cleanup = 0.0
        while True:
            try:
                if now() >= next_heartbeat:
                    next_heartbeat = now() + min(HEARTBEAT_S, self._alive_s / 4)
                    await self._send_heartbeat()
                if now() >= next_cleanup:
                    next_cleanup = now() + CLEANUP_S
                    await self._store.runs.delete_old_events(self._keep_events)
                self._state.counters.record_process()
                if self._live_runs:
                    await self._stop_cancelled()
            except DragomanError as error:
                _log.warning("runs could not be looked after: %s", error)
            await asyncio.sleep(CANCEL_POLL_S)

    async def _send_heartbeat(self) -> None:
        if self._live_runs:
            await self._store.runs.heartbeat(self._owner, self._alive_s)
        for run in await self._store.runs.expired():
            await end_expired_run(self._state, run)
        while self._lost_runs:
            await end_lost_run(self._store, self._lost_runs[0])
            self._lost_runs.pop(0)

    async def _stop_cancelled(self) -> None:
        for session_id, run_id in await self._store.runs.cancelled(self._owner):
            live_run = self._live_runs.get(session_id)
            if live_run is not None and live_run.run.run_id == run_id:
                live_run.stop("cancelled")
