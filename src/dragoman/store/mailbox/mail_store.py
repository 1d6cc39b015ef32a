"""The mail of a store: what ``dragoman.mail`` asks of it, whatever engine is below.

    await store.mail.post(posted)                       taken, and safe
    await store.mail.lease_letters("CA", …)                  the next letters, for a while
    await store.mail.settle(handed, effect)             done with, together with its effect
    await store.mail.find(task_id="TASK-7")             the letters of a task, with where they stand

Letters come here with everything sensitive taken out or sealed. The one rule: a method returns only after what it
changed is as safe as the store's ``durability`` says, but for leases and for what is known of a transport, which matter
only while the machine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import ConflictError
from dragoman.letters.records import (
    DeadLetter,
    FailureOutcome,
    LeasedLetter,
    LetterState,
    MailboxCounts,
    Receipt,
    SealedValue,
    StoredLetter,
)
from dragoman.offload import run_off_loop
from dragoman.store.mailbox import arrivals, delivery, inbox, letters
from dragoman.store.mailbox.delivery import Effect
from dragoman.store.mailbox.letters import Key, get_key
from dragoman.store.message_rows import from_micros, to_micros
from dragoman.store.operation import Operation

if TYPE_CHECKING:
    from dragoman.store.store import Store

RETENTION: Final = timedelta(days=90)


class LetterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A letter, and where it stands."""

    letter: StoredLetter
    state: LetterState
    attempts: int = 0
    ended_at: datetime | None = None
    leased_until: datetime | None = None  # of one in somebody's hands; if that is over, it is free
    retry_at: datetime | None = None  # of one that failed, and is tried again then
    error_class: str | None = None  # of its last failure
    waits_for: tuple[str, ...] = ()  # tasks that have not succeeded


def _to_status(row: Sequence[Any], now: datetime) -> LetterStatus:
    time = now + timedelta(microseconds=row[18]) if row[15] == "ready" and row[18] is not None else None
    return LetterStatus(
        letter=letters.from_row(row[:15]),
        state=row[15] or "away",
        attempts=row[16] or 0,
        ended_at=None if row[17] is None else from_micros(row[17]),
        leased_until=time if row[19] is not None else None,
        retry_at=time if row[19] is None and row[20] is not None else None,
        error_class=row[20],
    )


class MailStore:
    """What a store can do with letters."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- delivering --------------------------------------------------------------------------------------------------

    async def post(self, stored: StoredLetter, *, via_transport: bool = False) -> Receipt:
        """Take a letter. The same again changes nothing; another of the same id is a ``ConflictError``."""
        return await self._store._write(inbox.post(stored, self._store.clock(), via_transport=via_transport))

    def post_operation(self, stored: StoredLetter, *, via_transport: bool = False) -> Operation[Receipt]:
        """The same as an operation, to be the effect of another letter."""
        return inbox.post(stored, self._store.clock(), via_transport=via_transport)

    async def post_all(self, letters: Sequence[StoredLetter], *, via_transport: bool = False) -> list[Receipt]:
        """Take letters, all or none."""
        return await self._store._write(inbox.post_all(letters, self._store.clock(), via_transport=via_transport))

    async def receive(self, letters: Sequence[StoredLetter], foreign: Collection[Key] = ()) -> list[Receipt]:
        """Take letters that a transport has brought, all in one transaction; see ``taking.arrive``."""
        return await self._store._write(inbox.receive(letters, self._store.clock(), self._dead_id, foreign))

    async def has_ready(self, recipient_id: str, team_id: str = "") -> bool:
        """Whether there is something to be handed out."""
        return await self._store._read(delivery.has_ready(recipient_id, team_id))

    def lease_letters(
        self, recipient_id: str, team_id: str = "", *, lease_s: float = 60, limit: int = 1, letter_id: str | None = None
    ) -> Coroutine[Any, Any, list[LeasedLetter]]:
        """The next letters of a mailbox, in their order; nobody else gets them until the lease is over.

        ``letter_id`` asks for one of them, if it may be handed out.
        """
        return self._store._write(
            delivery.lease_letters(
                recipient_id,
                team_id,
                self._store.new_id(),
                self._store.clock(),
                lease_s=lease_s,
                limit=limit,
                letter_id=letter_id,
            )
        )

    async def acknowledge(self, leased: LeasedLetter, effect: Callable[[], Effect] | None = None) -> tuple[bool, Any]:
        """A letter is done, together with its effect: true and what that gave; false if it had been done before."""
        key, now = get_key(leased.letter), self._store.clock()
        return await self._store._write(delivery.acknowledge(key, leased.lease, effect, now))

    async def acknowledge_all(self, leased: Sequence[LeasedLetter]) -> list[bool | ConflictError]:
        """Letters are done, in one transaction: whether each was for the first time, or in whose hands it is."""
        leases = [(get_key(one.letter), one.lease) for one in leased]
        return await self._store._write(delivery.acknowledge_all(leases, self._store.clock()))

    async def fail(
        self,
        leased: LeasedLetter,
        *,
        error_class: str,
        reason: str,
        error: str,
        retry_at: Callable[[int], datetime | None],
        make_notices: Callable[[int, bool], Sequence[StoredLetter]],
        via_transport: bool = False,
    ) -> FailureOutcome | None:
        """A letter could not be handled: see ``inbox.fail``."""
        now = self._store.clock()
        dead = inbox.make_dead_letter(leased.letter, reason, error, now, self._dead_id())
        return await self._store._write(
            delivery.fail(
                get_key(leased.letter),
                leased.lease,
                error_class=error_class,
                retry_at=retry_at,
                dead=dead,
                make_notices=make_notices,
                now=now,
                via_transport=via_transport,
            )
        )

    async def release(self, leased: LeasedLetter) -> None:
        """Let somebody else have a letter, as if it had not been handed out."""
        await self._store._write(delivery.release(get_key(leased.letter), leased.lease))

    async def extend(self, leased: LeasedLetter, lease_s: float) -> datetime:
        """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
        await self._store._write(delivery.extend(get_key(leased.letter), leased.lease, lease_s))
        return self._store.clock() + timedelta(seconds=lease_s)

    async def require_lease(self, leased: LeasedLetter) -> None:
        """Raise ``ConflictError`` (``lease_lost``) if a letter is in other hands, or done."""
        await self._store._read(delivery.require_lease(get_key(leased.letter), leased.lease))

    # --- finding -----------------------------------------------------------------------------------------------------

    async def get(self, recipient_id: str, letter_id: str, team_id: str = "") -> StoredLetter | None:
        """A letter with its sealed values, or nothing."""
        return await self._store._read(letters.get((recipient_id, team_id, letter_id)))

    async def find(
        self,
        *,
        recipient_id: str | None = None,
        sender_id: str | None = None,
        task_id: str | None = None,
        letter_id: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        team_id: str | None = None,
        after: StoredLetter | tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[LetterStatus]:
        """Letters that fit, with where they stand, in the order in which they were taken.

        ``after`` is the last letter of the page before, or when that was taken, in microseconds, and its id.
        """
        fields = {
            "recipient_id": recipient_id,
            "sender_id": sender_id,
            "task_id": task_id,
            "letter_id": letter_id,
            "session_id": session_id,
            "user_id": user_id,
            "team_id": team_id,
        }
        filters = {name: value for name, value in fields.items() if value is not None}
        position = after if isinstance(after, tuple) else None
        if isinstance(after, StoredLetter) and after.created_at is not None:
            position = to_micros(after.created_at), after.letter_id
        return await self._to_statuses(await self._store._read(letters.find(filters, position, limit)))

    async def letters_after(
        self, recipient_id: str, team_id: str = "", after: int = 0, limit: int = 100
    ) -> list[tuple[int, LetterStatus]]:
        """What has arrived in a mailbox behind a place, each with its own, in order."""
        if await self.last_number(recipient_id, team_id) <= after:
            return []  # to look is cheap, and clients that wait do it often
        return await self._with_numbers(
            await self._store._read(arrivals.letters_after(recipient_id, team_id, after, limit))
        )

    async def newest(
        self, recipient_id: str, team_id: str = "", limit: int = 50, *, before: int | None = None
    ) -> list[tuple[int, LetterStatus]]:
        """What has arrived in a mailbox last, or before a place, each with its own, the newest first."""
        return await self._with_numbers(await self._store._read(arrivals.newest(recipient_id, team_id, before, limit)))

    async def _with_numbers(self, rows: Sequence[Sequence[Any]]) -> list[tuple[int, LetterStatus]]:
        return [(int(row[-1]), standing) for row, standing in zip(rows, await self._to_statuses(rows), strict=True)]

    async def _to_statuses(self, rows: Sequence[Sequence[Any]]) -> list[LetterStatus]:
        """Letters with where they stand, and what they wait for."""
        now = self._store.clock()
        size = sum(len(row[13]) for row in rows)
        statuses = await run_off_loop(size, lambda: [_to_status(row, now) for row in rows])
        blocked_keys = [get_key(one.letter) for one in statuses if one.state in ("held", "away")]
        if not blocked_keys:
            return statuses
        dependencies = await self._store._read(letters.get_dependencies(blocked_keys))
        return [msgspec.structs.replace(one, waits_for=dependencies.get(get_key(one.letter), ())) for one in statuses]

    async def last_number(self, recipient_id: str, team_id: str = "") -> int:
        """The place of what has arrived in a mailbox last; 0 if there is nothing."""
        return await self._store._read(arrivals.last_number(recipient_id, team_id))

    async def sealed_values(self, stored: StoredLetter) -> tuple[SealedValue, ...]:
        """The sealed values of a letter."""
        return await self._store._read(letters.get_sealed_values(get_key(stored)))

    async def counts(self, team_id: str | None = None) -> list[MailboxCounts]:
        """How much is in each mailbox, of a team if one is named."""
        return await self._store._read(letters.counts(team_id))

    # --- the dead ----------------------------------------------------------------------------------------------------

    def _dead_id(self) -> str:
        return f"dead_{self._store.new_id()}"

    async def insert_dead_letter(
        self,
        *,
        reason: str,
        error: str,
        recipient_id: str = "",
        team_id: str = "",
        letter_id: str | None = None,
        sender_id: str | None = None,
        task_id: str | None = None,
        user_id: str | None = None,
        key_id: str | None = None,
        raw: bytes | None = None,
        notices: Sequence[StoredLetter] = (),
        via_transport: bool = False,
        dead_id: str | None = None,
    ) -> DeadLetter:
        """Keep what is no letter, or none that can be delivered, and tell others of it. The same id is kept once."""
        now = self._store.clock()
        dead = DeadLetter(
            id=dead_id or self._dead_id(),
            recipient_id=recipient_id,
            team_id=team_id,
            letter_id=letter_id,
            sender_id=sender_id,
            task_id=task_id,
            reason=reason,
            error=error,
            user_id=user_id,
            died_at=now,
            key_id=key_id,
            raw=raw,
        )
        await self._store._write(delivery.store_dead_letter(dead, notices, now, via_transport=via_transport))
        return dead

    async def mark_undeliverable(
        self,
        stored: StoredLetter,
        *,
        reason: str,
        error: str,
        notices: Sequence[StoredLetter] = (),
        via_transport: bool = False,
    ) -> DeadLetter:
        """No transport can carry a letter: it is dead, and out of the outbox."""
        now = self._store.clock()
        dead = inbox.make_dead_letter(stored, reason, error, now, self._dead_id())
        await self._store._write(delivery.mark_undeliverable(dead, stored, notices, now, via_transport=via_transport))
        return dead

    async def dead_letters(
        self,
        *,
        dead_id: str | None = None,
        recipient_id: str | None = None,
        sender_id: str | None = None,
        user_id: str | None = None,
        team_id: str | None = None,
        limit: int = 100,
        include_resent: bool = False,
    ) -> list[DeadLetter]:
        """Dead letters, the newest first."""
        fields = {
            "id": dead_id,
            "recipient_id": recipient_id,
            "sender_id": sender_id,
            "user_id": user_id,
            "team_id": team_id,
        }
        filters = {name: value for name, value in fields.items() if value is not None}
        return await self._store._read(letters.dead_letters(filters, limit, include_resent=include_resent))

    async def resend(
        self, dead: DeadLetter, stored: StoredLetter | None = None, *, via_transport: bool = False
    ) -> Receipt:
        """Send a dead letter again: the one that is kept, or ``posted``, which was made of its bytes."""
        return await self._store._write(delivery.resend(dead, stored, self._store.clock(), via_transport=via_transport))

    # --- the outbox --------------------------------------------------------------------------------------------------

    async def origin(self) -> str:
        """What other stores know this one by."""
        return await self._store._write(delivery.get_origin(self._store.new_id()))

    async def claim(self, retry_s: float, limit: int) -> list[tuple[StoredLetter, int, int | None]]:
        """Letters that are to be sent, how often they were, and where the broker had them; nobody else sends them
        for so long."""
        return await self._store._write(delivery.claim(retry_s, limit))

    async def mark_published(self, places: Sequence[tuple[Key, int]], retry_s: float) -> None:
        """The transport has these, and where; they are looked for after so long, unless a receipt comes first."""
        await self._store._write(delivery.mark_published(places, self._store.clock(), retry_s))

    async def postpone(self, keys: Sequence[Key], retry_s: float) -> None:
        """The transport did not take these."""
        await self._store._write(delivery.postpone(keys, retry_s))

    async def confirm(self, keys: Sequence[Key]) -> None:
        """The recipients have these letters, and they need not be sent again."""
        await self._store._write(delivery.confirm(keys))

    async def resend_unconfirmed(self) -> None:
        """Send everything again now that was sent and has no receipt."""
        await self._store._write(delivery.resend_unconfirmed())

    async def has_unsent(self) -> bool:
        """Whether a letter is to be sent now, or sent again."""
        return await self._store._read(delivery.has_unsent())

    # --- care --------------------------------------------------------------------------------------------------------

    async def reencrypt(self, key_id: str, encrypt: Callable[..., tuple[str, bytes]]) -> int:
        """Have every value that another key has sealed sealed with this one; how many that were."""
        count = 0
        while changed := await self._store._write(letters.reencrypt(key_id, encrypt)):
            count += changed
        return count

    async def sweep(self, older_than: timedelta = RETENTION) -> int:
        """Delete letters that were done with so long ago; how many. One of them, sent again, would be new."""
        before = self._store.clock() - older_than
        count = 0
        while deleted := await self._store._write(letters.sweep(before)):
            count += deleted
        return count
