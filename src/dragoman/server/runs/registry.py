"""The runs of one worker process: start, follow and cancel them, and end the runs of workers that died.

    result = await registry.start_run(request)                      a new run, or the existing one of the same request
    async for events in registry.follow(session_id, after): …       stored events after a number, then new ones
    await registry.cancel(session_id, run_id)                       also if another worker runs it
    await registry.close(grace_s)                                   at shutdown

Followers of a run of this process wait for its publisher; followers of another worker's run wait for signals of the
store, and poll it. A worker sends a heartbeat for its runs every two seconds. Any worker ends a run whose worker has
died: on the same machine at once, because the supervisor reports the death and processes are looked up; on others after
eight seconds without a heartbeat. Invariants: a run continues without its client until it ends or is cancelled; a
rejected request leaves no thread, no file and no run behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.bus.event_types.system_events import GatewayQuotaExceeded
from dragoman.errors import ConflictError, DragomanError, StorageError
from dragoman.ids import name_from_id
from dragoman.server.auth.principal import Principal, find_thread
from dragoman.server.chat.settings import find_default_settings
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.agui_encoder import AguiEncoder
from dragoman.server.runs.publisher import RunLostError, RunPublisher, SessionChange
from dragoman.server.runs.recovery import end_expired_run, end_lost_run
from dragoman.server.runs.run_input import RunInput
from dragoman.server.runs.turn_request import PreparedTurn, TurnPreparation
from dragoman.shield import run_to_completion
from dragoman.signals import CANCEL, RUN
from dragoman.store import Session
from dragoman.store.liveness import make_owner
from dragoman.store.runs import Run, RunEvent, RunExistsError
from dragoman.turn.session_settings import with_settings

if TYPE_CHECKING:
    from dragoman.server.state import AppState

ALIVE_S: Final = 8.0  # how long a run counts as alive after a heartbeat
HEARTBEAT_S: Final = 2.0
CANCEL_POLL_S: Final = 0.5  # how soon a cancel that another worker accepted takes effect, without its signal
CLEANUP_S: Final = 3600.0
KEEP_ALIVE_S: Final = 15.0  # a follower without events gets an empty list
POLL_S: Final = (0.05, 0.5)  # first and longest interval for polling a run of another worker
SIGNAL_POLL_S: Final = 1.0  # the same if the store delivers the signals of other workers
_log: Final = logging.getLogger("dragoman.server")


class RunRequest(msgspec.Struct, frozen=True):
    """A request to start a run."""

    principal: Principal
    run_input: RunInput
    request_hash: bytes
    idempotency_key: str | None = None


class StartResult(msgspec.Struct, frozen=True):
    """The run of a request."""

    run: Run
    is_started: bool = False  # by this request
    is_new_thread: bool = False


class RunRegistry:
    """The runs of one worker."""

    def __init__(self, state: AppState, *, alive_s: float = ALIVE_S) -> None:
        self._state = state
        self._store = state.store
        self._owner = make_owner(state.store.new_id())
        self._alive_s = alive_s
        self._heartbeat_s = min(HEARTBEAT_S, alive_s / 4)
        self._keep_events = timedelta(days=state.config.keep_run_events_days)
        self._starting_users: list[str] = []  # one item for each run that is starting
        self._publishers: dict[str, RunPublisher] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost_runs: list[Run] = []  # not published to their end
        self._maintenance_task: asyncio.Task[None] | None = None
        self._stop_event = asyncio.Event()
        self._has_death = False  # of another worker
        self._wake_event = asyncio.Event()  # ends the pause of the maintenance task

    def start(self) -> None:
        """Start the maintenance task: heartbeats, cancels, and recovery of other workers' runs."""
        if self._maintenance_task is None:
            self._store.signals.call(CANCEL, self._owner, self._wake_event.set)
            self._maintenance_task = asyncio.create_task(self._maintain(), name="dragoman-runs")

    # --- starting ----------------------------------------------------------------------------------------------------

    async def start_run(self, request: RunRequest) -> StartResult:
        """Start a run, or find the existing run of the same request."""
        if self._stop_event.is_set():
            raise ApiError(503, "server_stopping", "The server is stopping.", headers={"retry-after": "5"})
        session, run = await self._find_existing(request)
        if run is not None:
            return StartResult(run)
        with self.count_pending(request.principal.user_id):
            return await run_to_completion(self._start_new(request, session))

    async def _find_existing(self, request: RunRequest) -> tuple[Session | None, Run | None]:
        """The thread, and the run of the same request, as far as they exist."""
        session = await find_thread(self._store, request.principal, request.run_input.thread_id)
        run = None if session is None else await self._store.runs.find_same(self._new_run(request, session.id))
        return session, run

    def _new_run(self, request: RunRequest, session_id: str) -> Run:
        return self._store.runs.new(
            session_id,
            request.run_input.run_id,
            request.request_hash,
            owner=self._owner,
            user_id=request.principal.user_id,
            idempotency_key=request.idempotency_key,
        )

    @contextlib.contextmanager
    def count_pending(self, user_id: str) -> Iterator[None]:
        """Count a run that is starting; 429 if the user has too many."""
        active = [item for item in self._publishers.values() if item.run.user_id == user_id and not item.has_ended]
        pending = len(active) + self._starting_users.count(user_id)
        if pending >= self._state.config.max_pending_runs:
            self._state.audit.emit(GatewayQuotaExceeded(scope="user", user_id=user_id))
            message = f"You have {pending} active runs. Wait until one of them ends."
            raise ApiError(429, "too_many_runs", message, headers={"retry-after": "1"})
        self._starting_users.append(user_id)
        try:
            yield
        finally:
            self._starting_users.remove(user_id)

    async def _start_new(self, request: RunRequest, session: Session | None) -> StartResult:
        """Prepare the turn and start it in the thread, which is created if it does not exist."""
        latest = None if session is None else await self._store.runs.latest(session.id)
        if latest is not None and not await end_expired_run(self._state, latest):
            raise run_in_progress_error(await self._retry_after_s(latest))
        preparation = TurnPreparation(self._state, request.principal, session, request.run_input)
        is_started = False
        try:
            prepared = await preparation.prepare(latest)
            if session is None:
                result = await self._start_in_new_thread(request, prepared)
            else:
                result = await self._start_in_thread(request, prepared, session)
            is_started = result.is_started
        finally:
            if not is_started:
                await preparation.undo()
        return result

    async def _start_in_thread(self, request: RunRequest, prepared: PreparedTurn, session: Session) -> StartResult:
        state, changes = request.run_input.state, dict[str, Any]()
        if state is not None and session.metadata.get("state") != state:
            changes["metadata"] = {**session.metadata, "state": state}
        if session.title is None and prepared.title is not None:
            changes["title"] = prepared.title
        return await self._start_turn(request, prepared, session.id, SessionChange(fields=changes))

    async def _start_in_new_thread(self, request: RunRequest, prepared: PreparedTurn) -> StartResult:
        """Start the run with the transaction that creates its thread, or in the thread of another request."""
        principal, run_input, now = request.principal, request.run_input, self._store.clock()
        metadata = await self._initial_metadata(principal, run_input)
        for session_id in principal.session_ids(run_input.thread_id):
            session = Session(
                id=session_id,
                title=prepared.title,
                user_id=principal.user_id,
                team_id=principal.team_id,
                metadata=metadata,
                created_at=now,
                updated_at=now,
            )
            try:
                return await self._start_turn(request, prepared, session_id, SessionChange(session))
            except ConflictError as error:
                if error.code != "session_exists":
                    raise
            existing, run = await self._find_existing(request)
            if run is not None:
                return StartResult(run)
            if existing is not None:  # another request has just created it
                return await self._start_in_thread(request, prepared, existing)
        raise run_in_progress_error()  # it was created and deleted meanwhile

    async def _initial_metadata(self, principal: Principal, run_input: RunInput) -> dict[str, Any]:
        """The metadata of a new thread: its state and its settings."""
        metadata = {} if run_input.state is None else {"state": run_input.state}
        settings = run_input.settings
        if settings == "default":
            settings = await find_default_settings(self._store, principal)
        return metadata if settings is None else with_settings(metadata, settings)

    async def _start_turn(
        self, request: RunRequest, prepared: PreparedTurn, session_id: str, change: SessionChange
    ) -> StartResult:
        """Start the turn and wait for its first event, so that an error is the response instead of a stream."""
        run_input, run = request.run_input, self._new_run(request, session_id)
        encoder = AguiEncoder(
            name_from_id(session_id), run_input.run_id, version=run_input.version, parent_run_id=run_input.parent_run_id
        )
        publisher = RunPublisher(
            self._store, run, encoder, change=change, alive_s=self._alive_s, on_start=self._register
        )
        fields = {**prepared.fields, "imported": prepared.imported, "new_session": change.new_session}
        task = asyncio.create_task(self._publish(publisher, fields), name=f"dragoman-run-{session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await publisher.started
        except RunExistsError as error:
            return StartResult(error.run)
        except ConflictError as error:
            if error.code not in ("turn_in_flight", "run_in_progress"):
                raise
            existing = await self._store.runs.find_same(run)  # of the same request, at the same time
            if existing is None:
                raise run_in_progress_error() from None
            return StartResult(existing)
        return StartResult(publisher.run, is_started=True, is_new_thread=change.new_session is not None)

    async def _retry_after_s(self, run: Run) -> int:
        """When to ask again: soon if the worker of a run sends heartbeats, else when the run expires."""
        left_s = await self._store.runs.expires_in_s(run)
        return 1 if left_s > self._alive_s - 2 * self._heartbeat_s else max(1, math.ceil(left_s))

    def _register(self, publisher: RunPublisher) -> None:
        self._publishers[publisher.run.session_id] = publisher
        self._state.counters.begin_run()

    async def _publish(self, publisher: RunPublisher, fields: Mapping[str, Any]) -> None:
        """Run a turn to its end. An error before its first event is raised where the start is awaited."""
        status = "error"
        try:
            status = (await publisher.publish(self._state.agent, fields)).status
        except RunLostError:
            _log.warning("run %s was ended by another process", publisher.run.run_id)
            self._lost_runs.append(publisher.run)  # ended again if that is not so
        except Exception as error:
            if not publisher.is_started:
                publisher.started.set_exception(error)
                if isinstance(error, StorageError):  # the run may be stored nevertheless
                    self._lost_runs.append(publisher.run)
                return
            _log.exception("run %s could not be published", publisher.run.run_id)
            self._lost_runs.append(publisher.run)
        finally:
            if publisher.is_started:
                self._state.counters.end_run(status)
                if self._publishers.get(publisher.run.session_id) is publisher:
                    del self._publishers[publisher.run.session_id]
                publisher.end()

    # --- following ---------------------------------------------------------------------------------------------------

    async def follow(
        self, session_id: str, after: int = 0, *, run_id: str | None = None
    ) -> AsyncGenerator[list[RunEvent], None]:
        """Stored events after a number, then new ones, until no run is active; of one run only, if named.

        An empty list is yielded after every ``KEEP_ALIVE_S`` without events.
        """
        changes = self._store.signals.subscribe(RUN, session_id)
        try:
            wait_s, quiet_s = POLL_S[0], 0.0
            while True:
                publisher = self._publishers.get(session_id)
                if publisher is not None and _is_followable(publisher.run, after, run_id):
                    if events := publisher.events_after(after):
                        after = events[-1].number
                        yield events
                    elif publisher.has_ended:
                        return
                    elif not await publisher.wait_for_change(KEEP_ALIVE_S):
                        yield []
                    continue
                changes.open()
                page = await self._store.runs.events(session_id, after)
                run = page.latest if run_id is None else await self._store.runs.get(session_id, run_id)
                if events := [event for event in page.events if run_id in (None, event.run_id)]:
                    after, wait_s, quiet_s = events[-1].number, POLL_S[0], 0.0
                    yield events
                    continue
                if run is None or not run.is_running or self._stop_event.is_set():
                    return
                if session_id in self._publishers or await end_expired_run(self._state, run):
                    continue
                wait_s = SIGNAL_POLL_S if self._store.signals.is_shared else min(wait_s * 1.5, POLL_S[1])
                if not await changes.wait(wait_s):
                    quiet_s += wait_s
                if quiet_s >= KEEP_ALIVE_S:
                    quiet_s = 0.0
                    yield []
        finally:
            changes.close()

    @property
    def active_count(self) -> int:
        """The number of runs in this process that have not ended."""
        return sum(1 for publisher in self._publishers.values() if not publisher.has_ended)

    @property
    def is_stopping(self) -> bool:
        """Whether the server is shutting down, so that endless streams must end."""
        return self._stop_event.is_set()

    # --- ending ------------------------------------------------------------------------------------------------------

    async def cancel(self, session_id: str, run_id: str | None = None) -> Run | None:
        """Cancel a run, or the active one; that run, or ``None`` if no run is active. A run of a dead worker ends."""
        run = await self._store.runs.cancel(session_id, run_id)
        if run is not None:
            self._stop(session_id, run.run_id)
            if run.is_expired:
                await end_expired_run(self._state, run)
        return run

    def _stop(self, session_id: str, run_id: str) -> None:
        """Cancel a run of this worker."""
        publisher = self._publishers.get(session_id)
        if publisher is not None and publisher.run.run_id == run_id:
            publisher.stop("cancelled")

    async def close(self, grace_s: float = 0.0) -> None:
        """Start no more runs, wait for the active ones for a time, then cancel the rest."""
        self._stop_event.set()
        self._store.signals.deliver_all()  # followers end
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        while self._tasks or self._starting_users:
            for publisher in list(self._publishers.values()):
                publisher.stop("server_stopping")
            await asyncio.wait(self._tasks, timeout=CANCEL_POLL_S) if self._tasks else await asyncio.sleep(0.01)
        if self._maintenance_task is not None:
            self._maintenance_task.cancel()
            await asyncio.wait([self._maintenance_task])

    # --- maintenance -------------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        now = asyncio.get_running_loop().time
        next_heartbeat = next_cleanup = 0.0
        while True:
            try:
                if now() >= next_heartbeat or self._has_death:
                    next_heartbeat = now() + self._heartbeat_s
                    await self._send_heartbeat()
                if now() >= next_cleanup:
                    next_cleanup = now() + CLEANUP_S
                    await self._store.runs.delete_old_events(self._keep_events)
                self._state.counters.record_process()
                if self._publishers:
                    for session_id, run_id in await self._store.runs.to_cancel(self._owner):
                        self._stop(session_id, run_id)
            except DragomanError as error:
                _log.warning("maintenance of runs failed: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_POLL_S):
                    await self._wake_event.wait()
            self._wake_event.clear()

    def report_death(self) -> None:
        """End the runs of a worker that has just died, without waiting for the next heartbeat."""
        self._has_death = True
        self._wake_event.set()

    async def _send_heartbeat(self) -> None:
        """Keep the runs of this worker alive, and end those of dead workers."""
        if self._publishers:
            await self._store.runs.heartbeat(self._owner, self._alive_s)
        self._has_death = False
        for run in await self._store.runs.expired():
            await end_expired_run(self._state, run)
        while self._lost_runs:
            await end_lost_run(self._store, self._lost_runs[0])
            self._lost_runs.pop(0)


def _is_followable(run: Run, after: int, run_id: str | None) -> bool:
    """Whether a publisher has every event of the request; older ones are only in the store."""
    return after >= run.first_number - 1 and run_id in (None, run.run_id)


def run_in_progress_error(retry_after_s: int = 1) -> ApiError:
    """A thread has one run at a time."""
    message = "A run is active in this thread. Wait for it, or cancel it."
    return ApiError(409, "run_in_progress", message, headers={"retry-after": str(retry_after_s)})
