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
from dragoman.server.principal import find_thread
from dragoman.server.refusing import Refusal
from dragoman.server.runs.live import Live
from dragoman.server.runs.preparing import Prepared, Preparing
from dragoman.server.runs.recovering import ended_if_dead
from dragoman.server.runs.telling import Telling
from dragoman.store import Session
from dragoman.store.runs import Begun, Run
from dragoman.turn import RunningTurn, TurnBegan

if TYPE_CHECKING:
    from dragoman.server.principal import Principal
    from dragoman.server.runs.given import Given
    from dragoman.server.state import Doors


class Wanted(msgspec.Struct, frozen=True):
    """Who asks for what."""

    principal: Principal
    given: Given
    request_hash: bytes
    idempotency_key: str | None = None


class Started(msgspec.Struct, frozen=True):
    """The run that was asked for."""

    run: Run
    live: Live | None = None  # if it has just begun here
    is_new_thread: bool = False


class Beginning:
    """How runs begin at one worker."""

    def __init__(self, doors: Doors, owner: str, alive_s: float) -> None:
        self._doors = doors
        self._store = doors.store
        self._owner = owner
        self._alive_s = alive_s

    async def before(self, wanted: Wanted) -> tuple[Session | None, Run | None]:
        """The thread and the run, as far as they are there: the same request was made before."""
        given = wanted.given
        session = await find_thread(self._store, wanted.principal, given.thread_id)
        run = None if session is None else await self._store.get_run(session.id, given.run_id)
        if run is None or wanted.idempotency_key not in (None, run.idempotency_key):
            return session, None  # the store looks again, for the key as well
        if run.request_hash != wanted.request_hash:
            what = f"Something else was asked for as run {given.run_id} before."
            raise Refusal(422, "idempotency_key_reused", what)
        return session, run

    async def begun(self, wanted: Wanted, session: Session | None) -> Started:
        """Prepare, claim the thread, begin the turn."""
        newest = None if session is None else await self._store.newest_run(session.id)
        preparing = Preparing(self._doors, wanted.principal, session, wanted.given)
        is_kept = False
        try:
            prepared = await preparing.prepared(newest)
            started = await self._in_thread(wanted, session, prepared)
            is_kept = started.live is not None
            return started
        finally:
            if not is_kept:
                await preparing.undo()

    async def _in_thread(self, wanted: Wanted, session: Session | None, prepared: Prepared) -> Started:
        thread, is_new = await self._thread(wanted, session, prepared)
        try:
            claimed = await self._claimed(wanted, thread)
            live = await self._live(wanted, thread, prepared, claimed.run) if claimed.is_new else None
        except BaseException:
            if is_new:
                with contextlib.suppress(StoreError, UnknownSessionError):
                    await self._store.delete_session(thread.id)
            raise
        return Started(claimed.run, live, is_new)

    async def _thread(self, wanted: Wanted, session: Session | None, prepared: Prepared) -> tuple[Session, bool]:
        """The thread, made if there is none, and whether it was; with the state that the client sent."""
        state = wanted.given.state
        if session is None:
            session, is_new = await self._made(wanted, prepared)
            if is_new:
                return session, True
        if state is not None and session.metadata.get("state") != state:
            session = await self._store.change_session(session.id, metadata={**session.metadata, "state": state})
        if session.title is None and prepared.title is not None:
            session = await self._store.rename_session(session.id, prepared.title)
        return session, False

    async def _made(self, wanted: Wanted, prepared: Prepared) -> tuple[Session, bool]:
        """A new thread; or the caller's, if another request has just made it."""
        principal, thread_id, state = wanted.principal, wanted.given.thread_id, wanted.given.state
        for session_id in principal.session_ids(thread_id):
            try:
                made = await self._store.create_session(
                    session_id,
                    title=prepared.title,
                    user_id=principal.user_id,
                    team_id=principal.team_id,
                    metadata=None if state is None else {"state": state},
                )
                return made, True
            except ConflictError:
                found = await find_thread(self._store, principal, thread_id)
                if found is not None:
                    return found, False
        raise in_progress()  # it was made and deleted in between

    async def _claimed(self, wanted: Wanted, session: Session) -> Begun:
        """The right to tell events in a thread. Where the last one who had it died, its run is ended first."""
        for is_last_try in (False, True):
            try:
                return await self._store.begin_run(
                    session.id,
                    wanted.given.run_id,
                    wanted.request_hash,
                    owner=self._owner,
                    alive_s=self._alive_s,
                    user_id=wanted.principal.user_id,
                    idempotency_key=wanted.idempotency_key,
                )
            except ConflictError as error:
                if error.code != "run_in_progress":
                    raise
                newest = await self._store.newest_run(session.id)
                if is_last_try or newest is None or not await ended_if_dead(self._doors, newest):
                    raise in_progress() from None
        raise AssertionError("it was tried twice")

    async def _live(self, wanted: Wanted, session: Session, prepared: Prepared, run: Run) -> Live:
        """Begin the turn, and wait until it has begun."""
        given = wanted.given
        telling = Telling(
            name_from_id(session.id), given.run_id, version=given.version, parent_run_id=given.parent_run_id
        )
        try:
            if prepared.imported:
                await self._store.append(session.id, prepared.imported, idempotency_key=f"run:{given.run_id}")
            turn = self._doors.agent.begin(session.id, **prepared.terms)
            return Live(run, telling, turn, await _first_of(turn))
        except BaseException as error:
            await self._store.withdraw_run(session.id, run.run_id)
            if isinstance(error, ConflictError) and error.code == "turn_in_flight":
                raise in_progress() from None
            raise


async def _first_of(turn: RunningTurn) -> TurnBegan:
    """The first thing that a turn tells; what it was refused for is raised."""
    async with aclosing(turn.follow()) as events:  # type: ignore[type-var]
        async for event in events:
            assert isinstance(event, TurnBegan)
            return event
    raise Refusal(409, "cancelled", "The run was cancelled before it began.")


def in_progress() -> Refusal:
    """A thread has one run at a time."""
    what = "A run is running in this thread. Wait for it, or cancel it."
    return Refusal(409, "run_in_progress", what, headers={"retry-after": "1"})
