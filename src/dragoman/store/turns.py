"""Turns of a session: the lease that lets one process run a turn, and what a turn reads and writes in one step.

    snapshot = await store.turns.open(session_id)           session, history and tool ids, in one read
    async with store.turns.lease(session_id).until_end() as lease:
        await store.turns.start(lease, session, rows)       lease and first messages, in one transaction
        lease.check()                                       raises if the lease is lost
        await store.turns.finish_answer(session_id, …)      answer, tool ids, entries and release, in one transaction

A turn without messages of its own acquires the lease first: ``async with store.turns.lease(session_id)``. A lease is
renewed in the background and released at the end of its block.

Invariants: one owner holds the lease of a session at a time, until it is released, has expired or its process has died.
A cancelled caller holds no lease afterwards.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from dragoman.errors import ConflictError, StorageError
from dragoman.message import Message
from dragoman.shield import run_to_completion
from dragoman.store import entries as entry_store
from dragoman.store.liveness import is_dead, make_owner
from dragoman.store.message_reader import SMALL_PAGE, MessageCache, MessageRow, read_page_in_segments
from dragoman.store.message_writer import (
    Draft,
    SessionEnd,
    append_messages,
    are_after,
    create_with_messages,
    drafts_from,
    make_drafts,
    quick_if_small,
    update_message,
)
from dragoman.store.operation import (
    Facet,
    Operation,
    Part,
    Steps,
    VolatileOperation,
    length_us,
    operation,
    quick,
    volatile,
)
from dragoman.store.rule_check import reject_violations
from dragoman.store.sessions import Segment, create_session, get_session, lineage, unknown_session
from dragoman.store.tool_call_rows import insert_tool_ids, tool_ids_in_segments
from dragoman.store.types import Lease, Row, Session

if TYPE_CHECKING:
    from dragoman.store.store import Store

LEASE_S: Final = 8.0
IS_HELD: Final = "leases.expires_at > lease_now()"
_FEW_ENTRIES: Final = 16
_LARGE_PAGE: Final = 500  # messages per read after the first page
_log: Final = logging.getLogger("dragoman.store")

ToolId = tuple[str, str, str]


class TurnSnapshot(msgspec.Struct, frozen=True):
    """A session as a turn finds it: its history, and the ids that providers use for its tool calls."""

    session: Session
    rows: list[Row]
    tool_ids: tuple[ToolId, ...]


class TurnStore(Facet):
    """Leases, snapshots and answers of turns: ``store.turns``."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._unreleased: dict[str, str] = {}  # owners whose release failed, for example on a full disk, by session

    async def acquire(self, session_id: str, owner: str, seconds: float = LEASE_S) -> Lease:
        """Acquire or renew the lease of a session; ``ConflictError`` (``turn_in_flight``) if another owner holds it.

        Its length is measured on the lease clock (see ``lease_clock``), independent of the wall clock. Other processes
        see it immediately. It need not survive a power cut, which ends the turn as well.
        """
        store = self._store
        stale = self.stale_owner(session_id)
        acquisition = functools.partial(_acquire, session_id, owner, length_us(seconds), stale)
        await store._write(quick(VolatileOperation(acquisition)))
        self._unreleased.pop(session_id, None)
        return Lease(session_id=session_id, owner=owner, expires_at=store.clock() + timedelta(seconds=seconds))

    def stale_owner(self, session_id: str) -> str | None:
        """The owner whose release of a lease failed in this store."""
        return self._unreleased.get(session_id)

    async def release(self, session_id: str, owner: str) -> None:
        """Release the lease of a session. If this fails, the next ``acquire`` of this store releases it."""
        try:
            await self._store._write(quick(VolatileOperation(functools.partial(_release, session_id, owner))))
        except StorageError:
            self._unreleased[session_id] = owner
            raise

    def lease(self, session_id: str, seconds: float = LEASE_S) -> SessionLease:
        """Hold the lease of a session during an ``async with`` block. After a crash it expires."""
        return SessionLease(self, session_id, make_owner(self._store.new_id()), seconds)

    async def open(self, session_id: str) -> TurnSnapshot:
        """Return a session with its history and tool ids; ``UnknownSessionError`` if it does not exist."""
        store = self._store
        session, items, ids = await store._read(_read_snapshot(session_id, store._message_cache))
        rows = page = await store._to_rows(items)
        size = SMALL_PAGE
        while len(page) == size:
            size = _LARGE_PAGE
            page = await store.read(session_id, rows[-1].seq, size)
            rows = [*rows, *page]
        return TurnSnapshot(session, rows, tuple(ids))

    def place(self, session: Session, messages: Iterable[Message]) -> list[Row]:
        """Return messages as they will be stored directly after the last message of a session."""
        own_messages = [self._store._adopt(session.id, message) for message in messages]
        return [Row(seq, message) for seq, message in enumerate(own_messages, session.last_seq + 1)]

    async def start(
        self,
        lease: SessionLease,
        session: Session,
        rows: Sequence[Row],
        *,
        is_new: bool = False,
        part: Part[Any] | None = None,
    ) -> Awaitable[Any]:
        """Acquire the lease of a session and append the rows of ``place``; with ``is_new`` create the session first.

        Return when this is committed. Await the result before you report it: until then a power cut may undo it.

        ``part`` is a part of the same transaction. ``ConflictError`` if the session has other messages by now
        (``seq_conflict``) or another turn runs (``turn_in_flight``); then nothing is stored.
        """
        store, messages = self._store, [row.message for row in rows]
        if store.strict and messages:
            await reject_violations(store, session.id, messages, is_new=is_new)
        drafts = await make_drafts(messages)
        end = (0, "") if is_new else store._ends.get(session.id)
        now = store.clock()
        lease.expect()

        def make_operation(drafts: Sequence[Draft]) -> Operation[SessionEnd | None]:
            start = _start(session, drafts, lease.acquisition, now=now, end=end, part=part, is_new=is_new)
            return quick_if_small(start, drafts)

        new_end, synced = await store._commit_messages(drafts, make_operation)
        lease.confirm()
        if is_new:
            store.mark.note_session(session.id, session.last_seq)
        if new_end is not None:
            store._acknowledge(session.id, new_end, messages[-1].id)
        return synced

    async def save_partial(self, session_id: str, message: Message) -> None:
        """Save the content of a partial message so far. A power cut may lose it, a crash of the process does not."""
        store = self._store
        now = store.clock()
        await store._store_messages(
            await make_drafts([message]),
            lambda drafts: quick_if_small(volatile(update_message(session_id, drafts[0], now)), drafts),
        )

    async def add_placeholder(self, session_id: str, message: Message) -> Row:
        """Append an empty partial message for the next answer. A power cut may lose it, with the turn."""
        store = self._store
        (draft,) = drafts_from([store._adopt(session_id, message)])
        now, end = store.clock(), store._ends.get(session_id)
        places = await store._write(quick(volatile(append_messages(session_id, [draft], now=now, end=end))))
        assert places.end is not None  # its id is new
        store._acknowledge(session_id, places.end, draft.message.id)
        return Row(places.seqs[0], draft.message)

    async def finish_answer(
        self,
        session_id: str,
        message: Message,
        *,
        tool_ids: Sequence[ToolId] = (),
        entries: Sequence[Mapping[str, Any]] = (),
        agent_key: str | None = None,
        owner: str | None = None,
        part: Part[Any] | None = None,
    ) -> Row:
        """End a partial message; in the same transaction store its tool ids and entries, and release a lease.

        ``part`` is a further part of the transaction.
        """
        store = self._store
        own_message = store._adopt(session_id, message)
        drafts = [entry_store.draft_from(entry, agent_key, index) for index, entry in enumerate(entries)]
        extras: list[Operation[Any]] = []
        if tool_ids:
            extras.append(insert_tool_ids(session_id, tool_ids))
        if drafts:
            extras.append(Operation(lambda: entry_store.insert_entries(session_id, drafts)))
        if owner is not None:
            extras.append(Operation(functools.partial(_release, session_id, owner)))
        if part is not None:
            extras.append(part)
        now = store.clock()

        def make_operation(messages: Sequence[Draft]) -> Operation[int]:
            finish = _finish_answer(session_id, messages[0], now, extras)
            return quick_if_small(finish, messages) if len(drafts) <= _FEW_ENTRIES else finish

        seq = await store._store_messages(await make_drafts([own_message]), make_operation)
        store.search_index.schedule()
        return Row(seq, own_message)


class SessionLease:
    """The lease of a session, renewed in the background while it is held."""

    def __init__(self, turns: TurnStore, session_id: str, owner: str, seconds: float) -> None:
        self.session_id = session_id
        self.owner = owner
        self._turns = turns
        self._seconds = seconds
        self._renewal: asyncio.Task[None] | None = None
        self._renewal_timer: asyncio.TimerHandle | None = None  # most turns end before the first renewal
        self._is_expected = False  # a transaction that acquires it was submitted
        self._is_released = False

    async def __aenter__(self) -> Self:
        try:
            await self._turns.acquire(self.session_id, self.owner, self._seconds)
        except asyncio.CancelledError:  # the lease may have been acquired nevertheless
            await run_to_completion(self._turns.release(self.session_id, self.owner))
            raise
        self.confirm()
        return self

    def until_end(self) -> _LeaseBlock:
        """A block in which ``store.turns.start`` acquires the lease. It is released at the end of the block."""
        return _LeaseBlock(self)

    async def _end(self) -> None:
        if self._renewal_timer is not None:
            await self.__aexit__()
        elif self._is_expected:  # the transaction failed, or its outcome is unknown
            await run_to_completion(self._turns.release(self.session_id, self.owner))

    def acquisition(self) -> Steps[None]:
        """The steps that acquire the lease within a transaction."""
        return _acquire(self.session_id, self.owner, length_us(self._seconds), self._turns.stale_owner(self.session_id))

    def expect(self) -> None:
        """Note that a transaction which acquires the lease is submitted."""
        self._is_expected = True

    def confirm(self) -> None:
        """Note that the lease is acquired. From now on it is renewed."""
        self._renewal_timer = asyncio.get_running_loop().call_later(self._seconds / 3, self._start_renewal)

    def _start_renewal(self) -> None:
        self._renewal = asyncio.create_task(self._renew(), name=f"dragoman-lease-{self.session_id}")

    async def __aexit__(self, *_: object) -> None:
        if self._renewal_timer is not None and self._is_released and self._renewal is None:
            self._renewal_timer.cancel()
        else:
            await run_to_completion(self._release())

    def confirm_release(self) -> None:
        """Note that the transaction of the turn's last message has released the lease."""
        self._is_released = True

    def check(self) -> None:
        """Raise the error that ended the lease: ``ConflictError`` or ``UnknownSessionError``."""
        if self._renewal is not None and self._renewal.done():
            self._renewal.result()

    async def _release(self) -> None:
        assert self._renewal_timer is not None
        self._renewal_timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
            if not self._renewal.cancelled():
                self._renewal.exception()  # marks it as retrieved
        if not self._is_released or self._renewal is not None:  # a renewal may have acquired it again
            await self._turns.release(self.session_id, self.owner)

    async def _renew(self) -> None:
        while True:
            try:  # to completion: a cancelled statement could still be committed after the release
                await run_to_completion(self._turns.acquire(self.session_id, self.owner, self._seconds))
            except StorageError as error:  # the next attempt may still be in time
                _log.warning("the lease of session %s could not be renewed: %s", self.session_id, error)
            await asyncio.sleep(self._seconds / 3)


class _LeaseBlock:
    """See ``SessionLease.until_end``."""

    def __init__(self, lease: SessionLease) -> None:
        self._lease = lease

    async def __aenter__(self) -> SessionLease:
        return self._lease

    async def __aexit__(self, *_: object) -> None:
        await self._lease._end()


# --- operations ------------------------------------------------------------------------------------------------------


def _acquire(session_id: str, owner: str, length: int, stale_owner: str | None = None) -> Steps[None]:
    if stale_owner is not None:
        yield from _release(session_id, stale_owner)
    rows = yield (
        "INSERT INTO leases (session_id, owner, length_us, expires_at) SELECT id, ?, ?, lease_now() + ? FROM sessions"
        " WHERE id = ? ON CONFLICT (session_id) DO UPDATE"
        " SET owner = excluded.owner, length_us = excluded.length_us, expires_at = excluded.expires_at"
        f" WHERE leases.owner = excluded.owner OR NOT {IS_HELD} RETURNING owner",
        (owner, length, length, session_id),
    )
    if rows:
        return
    lease_rows = yield "SELECT expires_at - lease_now(), owner FROM leases WHERE session_id = ?", (session_id,)
    if not lease_rows:
        raise unknown_session(session_id)
    remaining_us, holder = lease_rows[0]
    if is_dead(holder):
        yield from _acquire(session_id, owner, length, holder)
        return
    remaining_s = max(1, -(-remaining_us // 1_000_000))
    raise ConflictError(
        f"a turn is running; if its process has died, the session is free in {remaining_s} s",
        where=f"session {session_id}",
        remedy="Wait for it, or cancel it",
        code="turn_in_flight",
    )


def _release(session_id: str, owner: str) -> Steps[None]:
    yield "DELETE FROM leases WHERE session_id = ? AND owner = ?", (session_id, owner)


@operation
def _read_snapshot(session_id: str, cache: MessageCache) -> Steps[tuple[Session, list[MessageRow | Row], list[ToolId]]]:
    session = yield from get_session(session_id)
    if not session.last_seq:  # a session without messages has no tool ids
        return session, [], []
    is_alone = session.parent_session_id is None and not session.parent_seq
    segments = [Segment(session_id, 1, session.last_seq)] if is_alone else (yield from lineage(session_id))
    rows = yield from read_page_in_segments(segments, 0, SMALL_PAGE, cache)
    return session, rows, (yield from tool_ids_in_segments(segments))


@operation
def _start(
    session: Session,
    drafts: Sequence[Draft],
    acquisition: Callable[[], Steps[None]],
    *,
    now: datetime,
    end: SessionEnd | None,
    part: Part[Any] | None,
    is_new: bool,
) -> Steps[SessionEnd | None]:
    new_end = None
    if is_new:
        new_end = yield from _create(session, drafts, now)
    if part is not None:
        yield from part
    yield from acquisition()
    if new_end is not None or not drafts:
        return new_end
    appended = append_messages(session.id, drafts, now=now, expected_seq=session.last_seq, end=end)
    return (yield from appended).end


def _create(session: Session, drafts: Sequence[Draft], now: datetime) -> Steps[SessionEnd | None]:
    """Create a session, with its messages if their ids increase; its end, or ``None`` if they are to be appended."""
    if not drafts or not are_after(drafts, ""):
        yield from create_session(session)
        return None
    changed = msgspec.structs.replace(session, updated_at=max(session.updated_at, now))
    return (yield from create_with_messages(changed, drafts)).end


@operation
def _finish_answer(session_id: str, draft: Draft, now: datetime, extras: Sequence[Operation[Any]]) -> Steps[int]:
    seq = yield from update_message(session_id, draft, now)
    for extra in extras:
        yield from extra
    return seq
