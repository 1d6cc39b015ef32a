"""The beginning of a run: the thread, the right to tell events in it, and the turn.

    begun = await Beginning(doors, owner, alive_s).begun(principal, given, request_hash, key)

The thread is claimed in the store before anything is done, so that of two who ask for the same run, here or at another
worker, one begins it and both are told it. The turn has begun when this returns: whatever it is refused for, whoever
asked is told instead of a stream. The one rule: a run that is refused leaves nothing behind, no thread, no file and no
trace of itself.
"""

from __future__ import annotations

import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dragoman.errors import ConflictError, StoreError, UnknownSessionError
from dragoman.ids import name_from_id
from dragoman.server.auth.principal import find_thread
from dragoman.server.http.http_errors import ApiError
from dragoman.server.runs.agui_encoder import AguiEncoder
from dragoman.server.runs.live import LiveRun
from dragoman.server.runs.recovery import end_expired_run
from dragoman.server.runs.turn_request import PreparedTurn, TurnPreparation
from dragoman.store import Session
from dragoman.store.runs import Run, StartedRun
from dragoman.turn import TurnStart, TurnTask

if TYPE_CHECKING:
    from dragoman.server.auth.principal import Principal
    from dragoman.server.runs.run_input import RunInput
    from dragoman.server.state import AppState


class RunRequest(msgspec.Struct, frozen=True):
    """Who asks for what."""

    principal: Principal
    run_input: RunInput
    request_hash: bytes
    idempotency_key: str | None = None


class StartResult(msgspec.Struct, frozen=True):
    """The run that was asked for."""

    run: Run
    live_run: LiveRun | None = None  # if it has just begun here
    is_new_thread: bool = False


class RunStarter:
    """How runs begin at one worker."""

    def __init__(self, state: AppState, owner: str, alive_s: float) -> None:
        self._state = state
        self._store = state.store
        self._owner = owner
        self._alive_s = alive_s

    async def find_existing(self, request: RunRequest) -> tuple[Session | None, Run | None]:
        """The thread and the run, as far as they are there: the same request was made before."""
        run_input = request.run_input
        session = await find_thread(self._store, request.principal, run_input.thread_id)
        run = None if session is None else await self._store.runs.get(session.id, run_input.run_id)
        if run is None or request.idempotency_key not in (None, run.idempotency_key):
            return session, None  # the store looks again, for the key as well
        if run.request_hash != request.request_hash:
            message = f"Something else was asked for as run {run_input.run_id} before."
            raise ApiError(422, "idempotency_key_reused", message)
        return session, run

    async def start(self, request: RunRequest, session: Session | None) -> StartResult:
        """Prepare, claim the thread, begin the turn."""
        latest = None if session is None else await self._store.runs.latest(session.id)
        preparation = TurnPreparation(self._state, request.principal, session, request.run_input)
        has_started = False
        try:
            prepared = await preparation.prepare(latest)
            result = await self._start_in_thread(request, session, prepared)
            has_started = result.live_run is not None
            return result
        finally:
            if not has_started:
                await preparation.undo()

    async def _start_in_thread(
        self, request: RunRequest, session: Session | None, prepared: PreparedTurn
    ) -> StartResult:
        thread, is_new = await self._prepare_thread(request, session, prepared)
        try:
            claim = await self._claim_run(request, thread)
            live_run = await self._start_turn(request, thread, prepared, claim.run) if claim.is_new else None
        except BaseException:
            if is_new:
                with contextlib.suppress(StoreError, UnknownSessionError):
                    await self._store.delete_session(thread.id)
            raise
        return StartResult(claim.run, live_run, is_new)

    async def _prepare_thread(
        self, request: RunRequest, session: Session | None, prepared: PreparedTurn
    ) -> tuple[Session, bool]:
        """The thread, made if there is none, and whether it was; with the state that the client sent."""
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
        """A new thread; or the caller's, if another request has just made it."""
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
        raise run_in_progress_error()  # it was made and deleted in between

    async def _claim_run(self, request: RunRequest, session: Session) -> StartedRun:
        """The right to tell events in a thread. Where the last one who had it died, its run is ended first."""
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
        raise AssertionError("it was tried twice")

    async def _start_turn(self, request: RunRequest, session: Session, prepared: PreparedTurn, run: Run) -> LiveRun:
        """Begin the turn, and wait until it has begun."""
        run_input = request.run_input
        encoder = AguiEncoder(
            name_from_id(session.id), run_input.run_id, version=run_input.version, parent_run_id=run_input.parent_run_id
        )
        try:
            if prepared.imported:
                await self._store.append(session.id, prepared.imported, idempotency_key=f"run:{run_input.run_id}")
            turn = self._state.agent.begin(session.id, **prepared.fields)
            return LiveRun(run, encoder, turn, await _wait_for_start(turn))
        except BaseException as error:
            await self._store.runs.discard(session.id, run.run_id)
            if isinstance(error, ConflictError) and error.code == "turn_in_flight":
                raise run_in_progress_error() from None
            raise


async def _wait_for_start(turn: TurnTask) -> TurnStart:
    """The first thing that a turn tells; what it was refused for is raised."""
    async with aclosing(turn.follow()) as events:  # type: ignore[type-var]
        async for event in events:
            assert isinstance(event, TurnStart)
            return event
    raise ApiError(409, "cancelled", "The run was cancelled before it began.")


def run_in_progress_error() -> ApiError:
    """A thread has one run at a time."""
    message = "A run is running in this thread. Wait for it, or cancel it."
    return ApiError(409, "run_in_progress", message, headers={"retry-after": "1"})
