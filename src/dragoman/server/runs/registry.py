"""The runs of one worker process: start, follow and cancel them, and end the runs of workers that died.

    result = await registry.start_run(request)                      a new run, or the existing one of the same request
    async for events in registry.follow(session_id, after): …       stored events after a number, then new ones
    await registry.cancel(session_id, run_id)                       also if another worker runs it
    await registry.close(grace_s)                                   at shutdown

Followers of a run of this process wait for its publisher; followers of another worker's run poll the store. A worker
sends a heartbeat for its runs every few seconds. Any worker ends a run without a heartbeat. Invariants: a run continues
without its client until it ends or is cancelled; a rejected request leaves no thread, no file and no run behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from dragoman.bus.event_types.system_events import GatewayQuotaExceeded
from dragoman.errors import ConflictError, DragomanError, StoreError, UnknownSessionError
from dragoman.ids import name_from_id
from dragoman.server.auth.principal import Principal, find_thread
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.agui_encoder import AguiEncoder
from dragoman.server.runs.publisher import RunLostError, RunPublisher
from dragoman.server.runs.recovery import end_expired_run, end_lost_run
from dragoman.server.runs.run_input import RunInput
from dragoman.server.runs.turn_request import PreparedTurn, TurnPreparation
from dragoman.shield import run_to_completion
from dragoman.store import Session
from dragoman.store.runs import Run, RunEvent, StartedRun
from dragoman.turn import TurnStart, TurnTask

if TYPE_CHECKING:
    from dragoman.server.state import AppState

ALIVE_S: Final = 20.0  # how long a run counts as alive after a heartbeat
HEARTBEAT_S: Final = 5.0
CANCEL_POLL_S: Final = 0.5  # how soon a cancel that another worker accepted takes effect
CLEANUP_S: Final = 3600.0
KEEP_ALIVE_S: Final = 15.0  # a follower without events gets an empty list
POLL_S: Final = (0.05, 0.5)  # first and longest interval for polling a run of another worker
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
    publisher: RunPublisher | None = None  # if this request started it
    is_new_thread: bool = False


class RunRegistry:
    """The runs of one worker."""

    def __init__(self, state: AppState, *, alive_s: float = ALIVE_S) -> None:
        self._state = state
        self._store = state.store
        self._owner = state.store.new_id()
        self._alive_s = alive_s
        self._keep_events = timedelta(days=state.config.keep_run_events_days)
        self._starting_users: list[str] = []  # one item for each run that is starting
        self._publishers: dict[str, RunPublisher] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost_runs: list[Run] = []  # not published to their end
        self._maintenance_task: asyncio.Task[None] | None = None
        self._stop_event = asyncio.Event()

    def start(self) -> None:
        """Start the maintenance task: heartbeats, cancels, and recovery of other workers' runs."""
        if self._maintenance_task is None:
            self._maintenance_task = asyncio.create_task(self._maintain(), name="dragoman-runs")

    # --- starting ----------------------------------------------------------------------------------------------------

    async def start_run(self, request: RunRequest) -> StartResult:
        """Start a run, or find the existing run of the same request."""
        if self._stop_event.is_set():
            raise ApiError(503, "server_stopping", "The server is stopping.", headers={"retry-after": "5"})
        session, run = await self._find_existing(request)
        if run is not None:
            return StartResult(run)
        with self._count_pending(request.principal.user_id):
            return await run_to_completion(self._start_new(request, session))

    async def _find_existing(self, request: RunRequest) -> tuple[Session | None, Run | None]:
        """The thread, and the run of the same request, as far as they exist."""
        run_input = request.run_input
        session = await find_thread(self._store, request.principal, run_input.thread_id)
        run = None if session is None else await self._store.runs.get(session.id, run_input.run_id)
        if run is None or request.idempotency_key not in (None, run.idempotency_key):
            return session, None  # the store compares again when the run starts, also the key
        if run.request_hash != request.request_hash:
            message = f"Run {run_input.run_id} exists with another request. Send a new runId."
            raise ApiError(422, "idempotency_key_reused", message)
        return session, run

    @contextlib.contextmanager
    def _count_pending(self, user_id: str) -> Iterator[None]:
        """Count a run that is starting; 429 if the user has too many."""
        active = sum(publisher.run.user_id == user_id for publisher in self._publishers.values())
        pending = active + self._starting_users.count(user_id)
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
        """Prepare the turn, claim the thread, start the turn and its publisher."""
        latest = None if session is None else await self._store.runs.latest(session.id)
        preparation = TurnPreparation(self._state, request.principal, session, request.run_input)
        publisher: RunPublisher | None = None
        try:
            prepared = await preparation.prepare(latest)
            result = await self._start_in_thread(request, session, prepared)
            publisher = result.publisher
        finally:
            if publisher is None:
                await preparation.undo()
        if publisher is not None:
            self._publishers[result.run.session_id] = publisher
            task = asyncio.create_task(self._publish(publisher), name=f"dragoman-run-{result.run.session_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return result

    async def _start_in_thread(
        self, request: RunRequest, session: Session | None, prepared: PreparedTurn
    ) -> StartResult:
        thread, is_new = await self._prepare_thread(request, session, prepared)
        try:
            claim = await self._claim_thread(request, thread)
            publisher = await self._start_turn(request, thread, prepared, claim.run) if claim.is_new else None
        except BaseException:
            if is_new:
                with contextlib.suppress(StoreError, UnknownSessionError):
                    await self._store.delete_session(thread.id)
            raise
        return StartResult(claim.run, publisher, is_new)

    async def _prepare_thread(
        self, request: RunRequest, session: Session | None, prepared: PreparedTurn
    ) -> tuple[Session, bool]:
        """The thread with the client's state, and whether it was created."""
        state = request.run_input.state
        if session is None:
            session, is_new = await self._create_thread(request, prepared)
            if is_new:
                return session, True
        if state is not None and session.metadata.get("state") != state:
            session = await self._store.change_session(session.id, metadata={**session.metadata, "state": state})
        if session.title is None and prepared.title is not None:
            session = await self._store.rename_session(session.id, prepared.title)
        return session, False

    async def _create_thread(self, request: RunRequest, prepared: PreparedTurn) -> tuple[Session, bool]:
        """A new thread, or the caller's if another request has just created it."""
        principal, thread_id, state = request.principal, request.run_input.thread_id, request.run_input.state
        for session_id in principal.session_ids(thread_id):
            try:
                session = await self._store.create_session(
                    session_id,
                    title=prepared.title,
                    user_id=principal.user_id,
                    team_id=principal.team_id,
                    metadata=None if state is None else {"state": state},
                )
                return session, True
            except ConflictError:
                existing = await find_thread(self._store, principal, thread_id)
                if existing is not None:
                    return existing, False
        raise run_in_progress_error()  # it was created and deleted meanwhile

    async def _claim_thread(self, request: RunRequest, session: Session) -> StartedRun:
        """Acquire the right to publish in a thread. An expired run of the thread is ended first.

        The claim is made in the store, so of two identical requests, at any worker, one starts the run and both get it.
        """
        for is_last_try in (False, True):
            try:
                return await self._store.runs.start(
                    session.id,
                    request.run_input.run_id,
                    request.request_hash,
                    owner=self._owner,
                    alive_s=self._alive_s,
                    user_id=request.principal.user_id,
                    idempotency_key=request.idempotency_key,
                )
            except ConflictError as error:
                if error.code != "run_in_progress":
                    raise
                latest = await self._store.runs.latest(session.id)
                if is_last_try or latest is None or not await end_expired_run(self._state, latest):
                    raise run_in_progress_error() from None
        raise AssertionError("unreachable")

    async def _start_turn(
        self, request: RunRequest, session: Session, prepared: PreparedTurn, run: Run
    ) -> RunPublisher:
        """Start the turn and wait for its first event, so that an error is the response instead of a stream."""
        run_input = request.run_input
        encoder = AguiEncoder(
            name_from_id(session.id), run_input.run_id, version=run_input.version, parent_run_id=run_input.parent_run_id
        )
        try:
            if prepared.imported:
                await self._store.append(session.id, prepared.imported, idempotency_key=f"run:{run_input.run_id}")
            turn = self._state.agent.begin(session.id, **prepared.fields)
            return RunPublisher(self._store, run, encoder, turn, await _wait_for_start(turn))
        except BaseException as error:
            await self._store.runs.discard(session.id, run.run_id)
            if isinstance(error, ConflictError) and error.code == "turn_in_flight":
                raise run_in_progress_error() from None
            raise

    async def _publish(self, publisher: RunPublisher) -> None:
        status, run = "error", publisher.run
        self._state.counters.begin_run()
        try:
            status = (await publisher.publish()).status
        except RunLostError:
            _log.warning("run %s was ended by another process", run.run_id)
            self._lost_runs.append(run)  # ended again if that is not so
        except Exception:
            _log.exception("run %s could not be published", run.run_id)
            self._lost_runs.append(run)
        finally:
            self._state.counters.end_run(status)
            publisher.stop("lost")
            del self._publishers[run.session_id]
            publisher.end()

    # --- following ---------------------------------------------------------------------------------------------------

    async def follow(
        self, session_id: str, after: int = 0, *, run_id: str | None = None
    ) -> AsyncIterator[list[RunEvent]]:
        """Stored events after a number, then new ones, until no run is active; of one run only, if named.

        An empty list is yielded after every ``KEEP_ALIVE_S`` without events.
        """
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
            await self._wait(wait_s)
            wait_s, quiet_s = min(wait_s * 1.5, POLL_S[1]), quiet_s + wait_s
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield []

    async def _wait(self, seconds: float) -> None:
        """Wait, at most until shutdown."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_event.wait(), seconds)

    @property
    def is_stopping(self) -> bool:
        """Whether the server is shutting down, so that endless streams must end."""
        return self._stop_event.is_set()

    # --- ending ------------------------------------------------------------------------------------------------------

    async def cancel(self, session_id: str, run_id: str | None = None) -> Run | None:
        """Cancel a run, or the active one; that run, or ``None`` if no run is active."""
        run = await self._store.runs.cancel(session_id, run_id)
        if run is not None:
            self._stop(session_id, run.run_id)
        return run

    def _stop(self, session_id: str, run_id: str) -> None:
        """Cancel a run of this worker."""
        publisher = self._publishers.get(session_id)
        if publisher is not None and publisher.run.run_id == run_id:
            publisher.stop("cancelled")

    async def close(self, grace_s: float = 0.0) -> None:
        """Start no more runs, wait for the active ones for a time, then cancel the rest."""
        self._stop_event.set()
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
                if now() >= next_heartbeat:
                    next_heartbeat = now() + min(HEARTBEAT_S, self._alive_s / 4)
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
            await asyncio.sleep(CANCEL_POLL_S)

    async def _send_heartbeat(self) -> None:
        """Keep the runs of this worker alive, and end those of dead workers."""
        if self._publishers:
            await self._store.runs.heartbeat(self._owner, self._alive_s)
        for run in await self._store.runs.expired():
            await end_expired_run(self._state, run)
        while self._lost_runs:
            await end_lost_run(self._store, self._lost_runs[0])
            self._lost_runs.pop(0)


def _is_followable(run: Run, after: int, run_id: str | None) -> bool:
    """Whether a publisher has every event of the request; older ones are only in the store."""
    return after >= run.first_number - 1 and run_id in (None, run.run_id)


async def _wait_for_start(turn: TurnTask) -> TurnStart:
    """The first event of a turn; an error of its start is raised."""
    async with aclosing(turn.follow()) as events:  # type: ignore[type-var]
        async for event in events:
            assert isinstance(event, TurnStart)
            return event
    raise ApiError(409, "cancelled", "The run was cancelled before it started.")


def run_in_progress_error() -> ApiError:
    """A thread has one run at a time."""
    message = "A run is active in this thread. Wait for it, or cancel it."
    return ApiError(409, "run_in_progress", message, headers={"retry-after": "1"})
