"""The facet ``store.mail``: letters in a store, for every engine.

    await store.mail.post(stored)                       store a letter
    await store.mail.lease_letters("CA", …)             the next letters, leased
    await store.mail.acknowledge(leased, effect)        acknowledge a letter together with its effect
    await store.mail.find(task_id="TASK-7")             the letters of a task with their status

Secrets are encrypted before letters reach this module.

Invariant: a method returns after its changes have the ``durability`` of the store, except for leases and the state of
the outbox, which are volatile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

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
from dragoman.store.mailbox import delivery, inbox, letters, outbox
from dragoman.store.mailbox.dead_letters import find_dead_letters, make_dead_letter
from dragoman.store.mailbox.delivery import Effect
from dragoman.store.mailbox.letters import Key, get_key
from dragoman.store.mailbox.outbox import Claim
from dragoman.store.operation import Facet, Operation, from_micros, to_micros

RETENTION: Final = timedelta(days=90)


class LetterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A letter and its status."""

    letter: StoredLetter
    state: LetterState
    attempts: int = 0
    ended_at: datetime | None = None
    leased_until: datetime | None = None  # end of the lease; the letter is available after it
    retry_at: datetime | None = None  # time of the next attempt after a failure
    error_class: str | None = None  # of the last failure
    waits_for: tuple[str, ...] = ()  # open dependencies


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


def _drop_none(**fields: str | None) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value is not None}


class MailStore(Facet):
    """Letters of a store."""

    # --- post and deliver --------------------------------------------------------------------------------------------

    async def post(self, stored: StoredLetter, *, via_transport: bool = False) -> Receipt:
        """Store a letter. The same letter changes nothing; a different letter with its id raises ``ConflictError``."""
        return await self._store._write(inbox.post(stored, self._store.clock(), via_transport=via_transport))

    def post_operation(self, stored: StoredLetter, *, via_transport: bool = False) -> Operation[Receipt]:
        """Return ``post`` as an operation, to be the effect of another letter."""
        return inbox.post(stored, self._store.clock(), via_transport=via_transport)

    async def post_all(self, batch: Sequence[StoredLetter], *, via_transport: bool = False) -> list[Receipt]:
        """Store letters, all or none."""
        return await self._store._write(inbox.post_all(batch, self._store.clock(), via_transport=via_transport))

    async def receive(self, batch: Sequence[StoredLetter], foreign: Collection[Key] = ()) -> list[Receipt]:
        """Store letters from a transport in one transaction; see ``inbox.receive``."""
        return await self._store._write(inbox.receive(batch, self._store.clock(), self.new_dead_id, foreign))

    async def has_ready(self, recipient_id: str, team_id: str = "") -> bool:
        """Whether a mailbox has an available letter."""
        return await self._store._read(delivery.has_ready(recipient_id, team_id))

    def lease_letters(
        self, recipient_id: str, team_id: str = "", *, lease_s: float = 60, limit: int = 1, letter_id: str | None = None
    ) -> Coroutine[Any, Any, list[LeasedLetter]]:
        """Lease the next letters of a mailbox in their order, or the letter ``letter_id``."""
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
        """Acknowledge a letter together with its effect: true and its result; false if it was acknowledged before."""
        key, now = get_key(leased.letter), self._store.clock()
        return await self._store._write(delivery.acknowledge(key, leased.lease, effect, now))

    async def acknowledge_all(self, batch: Sequence[LeasedLetter]) -> list[bool | ConflictError]:
        """Acknowledge letters in one transaction: whether each was the first time, or the error of a lost lease."""
        leases = [(get_key(leased.letter), leased.lease) for leased in batch]
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
        """Retry a letter later or make it a dead letter: see ``delivery.fail``."""
        now = self._store.clock()
        dead = make_dead_letter(leased.letter, reason, error, now, self.new_dead_id())
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
        """End a lease without counting the delivery."""
        await self._store._write(delivery.release(get_key(leased.letter), leased.lease))

    async def extend(self, leased: LeasedLetter, lease_s: float) -> datetime:
        """Extend a lease; ``ConflictError`` (``lease_lost``) if the letter was leased again."""
        await self._store._write(delivery.extend(get_key(leased.letter), leased.lease, lease_s))
        return self._store.clock() + timedelta(seconds=lease_s)

    async def require_lease(self, leased: LeasedLetter) -> None:
        """Raise ``ConflictError`` (``lease_lost``) if the letter was leased again or is finished."""
        await self._store._read(delivery.require_lease(get_key(leased.letter), leased.lease))

    # --- find --------------------------------------------------------------------------------------------------------

    async def get(self, recipient_id: str, letter_id: str, team_id: str = "") -> StoredLetter | None:
        """Return a letter with its sealed values."""
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
        """Return letters with their status, in the order of sending.

        ``after`` is the last letter of the page before, or its time in microseconds and its id.
        """
        filters = _drop_none(
            recipient_id=recipient_id,
            sender_id=sender_id,
            task_id=task_id,
            letter_id=letter_id,
            session_id=session_id,
            user_id=user_id,
            team_id=team_id,
        )
        position = after if isinstance(after, tuple) else None
        if isinstance(after, StoredLetter) and after.created_at is not None:
            position = to_micros(after.created_at), after.letter_id
        return await self._to_statuses(await self._store._read(letters.find(filters, position, limit)))

    async def letters_after(
        self, recipient_id: str, team_id: str = "", after: int = 0, limit: int = 100
    ) -> list[tuple[int, LetterStatus]]:
        """Return the letters after a number of a mailbox, each with its number, in order."""
        if await self.last_number(recipient_id, team_id) <= after:
            return []  # this query is cheap, and waiting clients repeat it often
        rows = await self._store._read(letters.letters_after(recipient_id, team_id, after, limit))
        return await self._with_numbers(rows)

    async def newest(
        self, recipient_id: str, team_id: str = "", limit: int = 50, *, before: int | None = None
    ) -> list[tuple[int, LetterStatus]]:
        """Return the newest letters of a mailbox, or those before a number, each with its number, newest first."""
        return await self._with_numbers(await self._store._read(letters.newest(recipient_id, team_id, before, limit)))

    async def _with_numbers(self, rows: Sequence[Sequence[Any]]) -> list[tuple[int, LetterStatus]]:
        return [(int(row[-1]), status) for row, status in zip(rows, await self._to_statuses(rows), strict=True)]

    async def _to_statuses(self, rows: Sequence[Sequence[Any]]) -> list[LetterStatus]:
        now = self._store.clock()
        size = sum(len(row[13]) for row in rows)
        statuses = await run_off_loop(size, lambda: [_to_status(row, now) for row in rows])
        blocked_keys = [get_key(status.letter) for status in statuses if status.state in ("held", "away")]
        if not blocked_keys:
            return statuses
        dependencies = await self._store._read(letters.get_dependencies(blocked_keys))
        return [
            msgspec.structs.replace(status, waits_for=dependencies.get(get_key(status.letter), ()))
            for status in statuses
        ]

    async def last_number(self, recipient_id: str, team_id: str = "") -> int:
        """Return the number of the newest letter of a mailbox; 0 if there is none."""
        return await self._store._read(letters.last_number(recipient_id, team_id))

    async def sealed_values(self, stored: StoredLetter) -> tuple[SealedValue, ...]:
        """Return the sealed values of a letter."""
        return await self._store._read(letters.get_sealed_values(get_key(stored)))

    async def counts(self, team_id: str | None = None) -> list[MailboxCounts]:
        """Return the counts of each mailbox, of all teams or of one."""
        return await self._store._read(letters.counts(team_id))

    # --- dead letters ------------------------------------------------------------------------------------------------

    def new_dead_id(self) -> str:
        """Return the id of a new dead letter."""
        return f"dead_{self._store.new_id()}"

    async def insert_dead_letter(
        self, dead: DeadLetter, notices: Sequence[StoredLetter] = (), *, via_transport: bool = False
    ) -> None:
        """Store a dead letter and its notices. An existing id changes nothing."""
        await self._store._write(delivery.store_dead_letter(dead, notices, via_transport=via_transport))

    async def mark_undeliverable(self, stored: StoredLetter, *, reason: str, error: str) -> DeadLetter:
        """Make a letter that no transport can send a dead letter, and remove it from the outbox."""
        dead = make_dead_letter(stored, reason, error, self._store.clock(), self.new_dead_id())
        await self._store._write(delivery.mark_undeliverable(dead, stored))
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
        """Return dead letters, newest first."""
        filters = _drop_none(
            id=dead_id, recipient_id=recipient_id, sender_id=sender_id, user_id=user_id, team_id=team_id
        )
        return await self._store._read(find_dead_letters(filters, limit, include_resent=include_resent))

    async def resend(
        self, dead: DeadLetter, stored: StoredLetter | None = None, *, via_transport: bool = False
    ) -> Receipt:
        """Send a dead letter again: the stored original, or ``stored``, which was parsed from its bytes."""
        return await self._store._write(delivery.resend(dead, stored, self._store.clock(), via_transport=via_transport))

    # --- outbox ------------------------------------------------------------------------------------------------------

    async def origin(self) -> str:
        """Return the id of this store for other stores."""
        return await self._store._write(outbox.get_origin(self._store.new_id()))

    async def claim(self, retry_s: float, limit: int) -> list[Claim]:
        """Return letters to send, with earlier attempts and broker sequence; others do not send them meanwhile."""
        return await self._store._write(outbox.claim(retry_s, limit))

    async def mark_published(self, places: Sequence[tuple[Key, int]], retry_s: float) -> None:
        """Store the broker sequences of letters; without a receipt they are checked after ``retry_s`` seconds."""
        await self._store._write(outbox.mark_published(places, self._store.clock(), retry_s))

    async def postpone(self, keys: Sequence[Key], retry_s: float) -> None:
        """Send letters again after ``retry_s`` seconds."""
        await self._store._write(outbox.postpone(keys, retry_s))

    async def confirm(self, keys: Sequence[Key]) -> None:
        """Remove letters that their recipients have from the outbox."""
        await self._store._write(outbox.remove_from_outbox(keys))

    async def resend_unconfirmed(self) -> None:
        """Send published letters without a receipt again now."""
        await self._store._write(outbox.resend_unconfirmed())

    async def has_unsent(self) -> bool:
        """Whether a letter is due to be sent."""
        return await self._store._read(outbox.has_unsent())

    # --- maintenance -------------------------------------------------------------------------------------------------

    async def reencrypt(self, key_id: str, encrypt: Callable[..., tuple[str, bytes]]) -> int:
        """Encrypt the values of other keys with the key ``key_id``; return their number."""
        count = 0
        while changed := await self._store._write(letters.reencrypt(key_id, encrypt)):
            count += changed
        return count

    async def sweep(self, older_than: timedelta = RETENTION) -> int:
        """Delete letters acknowledged before that age; return their number. A deleted letter could be sent again."""
        before = self._store.clock() - older_than
        count = 0
        while deleted := await self._store._write(letters.sweep(before)):
            count += deleted
        return count
