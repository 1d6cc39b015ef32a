"""The mail of a store: what ``dragoman.mail`` asks of it, whatever engine is below.

    await store.mail.post(posted)                       taken, and safe
    await store.mail.hand_out("CA", …)                  the next letters, for a while
    await store.mail.settle(handed, effect)             done with, together with its effect
    await store.mail.find(task_id="TASK-7")             the letters of a task, with where they stand

Letters come here with everything sensitive taken out or sealed. The one rule: a method returns only after what it
changed is as safe as the store's ``durability`` says, but for leases and for what is known of a transport, which matter
only while the machine runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import ConflictError
from dragoman.letters.kept import (
    DeadLetter,
    Handed,
    LetterState,
    MailboxCounts,
    Outcome,
    Posted,
    Receipt,
    SealedValue,
)
from dragoman.offload import off_loop
from dragoman.store import arrivals, at_once, inbox, letters, taking
from dragoman.store.inbox import Effect
from dragoman.store.letters import Key, key_of
from dragoman.store.operation import Operation
from dragoman.store.rows import micros, time_from

if TYPE_CHECKING:
    from dragoman.store.store import Store

RETENTION: Final = timedelta(days=90)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A letter, and where it stands."""

    posted: Posted
    state: LetterState
    attempts: int = 0
    ended_at: datetime | None = None
    leased_until: datetime | None = None  # of one in somebody's hands; if that is over, it is free
    retry_at: datetime | None = None  # of one that failed, and is tried again then
    error_class: str | None = None  # of its last failure
    waits_for: tuple[str, ...] = ()  # tasks that have not succeeded


def _standing(row: Sequence[Any], now: datetime) -> Standing:
    time = now + timedelta(microseconds=row[18]) if row[15] == "ready" and row[18] is not None else None
    return Standing(
        posted=letters.posted_from(row[:15]),
        state=row[15] or "away",
        attempts=row[16] or 0,
        ended_at=None if row[17] is None else time_from(row[17]),
        leased_until=time if row[19] is not None else None,
        retry_at=time if row[19] is None and row[20] is not None else None,
        error_class=row[20],
    )


class MailRoom:
    """What a store can do with letters."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- delivering --------------------------------------------------------------------------------------------------

    async def post(self, posted: Posted, *, away: bool = False) -> Receipt:
        """Take a letter. The same again changes nothing; another of the same id is a ``ConflictError``."""
        store, now = self._store, self._store.clock()
        if store._are_others_due():
            await asyncio.sleep(0)
        if not away and store._may_write_at_once():
            row = taking.only_row(posted, now)
            if row is not None and store._write_at_once(at_once.POST, row) is not None:
                return taking.receipt_of(posted, "ready", is_new=True)
        return await store._write(taking.post(posted, now, away=away))

    def posting(self, posted: Posted, *, away: bool = False) -> Operation[Receipt]:
        """The same as an operation, to be the effect of another letter."""
        return taking.post(posted, self._store.clock(), away=away)

    async def post_all(self, letters: Sequence[Posted], *, away: bool = False) -> list[Receipt]:
        """Take letters, all or none."""
        return await self._store._write(taking.post_all(letters, self._store.clock(), away=away))

    async def arrive(self, posted: Sequence[Posted], elsewhere: Collection[Key] = ()) -> list[Receipt]:
        """Take letters that a transport has brought, all in one transaction; see ``taking.arrive``."""
        return await self._store._write(taking.arrive(posted, self._store.clock(), self._dead_id, elsewhere))

    async def has_any(self, recipient_id: str, team_id: str = "") -> bool:
        """Whether there is something to be handed out."""
        return await self._store._read_little(inbox.has_any(recipient_id, team_id))

    def hand_out(
        self, recipient_id: str, team_id: str = "", *, lease_s: float = 60, limit: int = 1, letter_id: str | None = None
    ) -> Coroutine[Any, Any, list[Handed]]:
        """The next letters of a mailbox, in their order; nobody else gets them until the lease is over.

        ``letter_id`` asks for one of them, if it may be handed out.
        """
        return self._store._write(
            inbox.hand_out(
                recipient_id,
                team_id,
                self._store.new_id(),
                self._store.clock(),
                lease_s=lease_s,
                limit=limit,
                letter_id=letter_id,
            )
        )

    async def settle(self, handed: Handed, effect: Callable[[], Effect] | None = None) -> tuple[bool, Any]:
        """A letter is done, together with its effect: true and what that gave; false if it had been done before."""
        store, key, now = self._store, key_of(handed.posted), self._store.clock()
        held = (micros(now), *key, handed.lease)
        if store._are_others_due():
            await asyncio.sleep(0)
        if effect is None and store._may_write_at_once() and store._write_at_once(inbox.DONE, held):
            return True, None
        return await store._write(inbox.settle(key, handed.lease, effect, now))

    async def settle_all(self, handed: Sequence[Handed]) -> list[bool | ConflictError]:
        """Letters are done, in one transaction: whether each was for the first time, or in whose hands it is."""
        held = [(key_of(one.posted), one.lease) for one in handed]
        return await self._store._write(inbox.settle_all(held, self._store.clock()))

    async def fail(
        self,
        handed: Handed,
        *,
        error_class: str,
        reason: str,
        error: str,
        retry_at: Callable[[int], datetime | None],
        told: Callable[[int, bool], Sequence[Posted]],
        away: bool = False,
    ) -> Outcome | None:
        """A letter could not be handled: see ``inbox.fail``."""
        now = self._store.clock()
        dead = taking.buried(handed.posted, reason, error, now, self._dead_id())
        return await self._store._write(
            inbox.fail(
                key_of(handed.posted),
                handed.lease,
                error_class=error_class,
                retry_at=retry_at,
                dead=dead,
                told=told,
                now=now,
                away=away,
            )
        )

    async def give_back(self, handed: Handed) -> None:
        """Let somebody else have a letter, as if it had not been handed out."""
        await self._store._write(inbox.give_back(key_of(handed.posted), handed.lease))

    async def extend(self, handed: Handed, lease_s: float) -> datetime:
        """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
        await self._store._write(inbox.extend(key_of(handed.posted), handed.lease, lease_s))
        return self._store.clock() + timedelta(seconds=lease_s)

    async def check_held(self, handed: Handed) -> None:
        """Raise ``ConflictError`` (``lease_lost``) if a letter is in other hands, or done."""
        await self._store._read_little(inbox.check_held(key_of(handed.posted), handed.lease))

    # --- finding -----------------------------------------------------------------------------------------------------

    async def get(self, recipient_id: str, letter_id: str, team_id: str = "") -> Posted | None:
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
        after: Posted | tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Standing]:
        """Letters that fit, with where they stand, in the order in which they were taken.

        ``after`` is the last letter of the page before, or when that was taken, in microseconds, and its id.
        """
        given = {
            "recipient_id": recipient_id,
            "sender_id": sender_id,
            "task_id": task_id,
            "letter_id": letter_id,
            "session_id": session_id,
            "user_id": user_id,
            "team_id": team_id,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        place = after if isinstance(after, tuple) else None
        if isinstance(after, Posted) and after.created_at is not None:
            place = micros(after.created_at), after.letter_id
        return await self._waiting(await self._store._read(letters.find(wanted, place, limit)))

    async def arrivals(
        self, recipient_id: str, team_id: str = "", after: int = 0, limit: int = 100
    ) -> list[tuple[int, Standing]]:
        """What has arrived in a mailbox behind a place, each with its own, in order."""
        if await self.last_number(recipient_id, team_id) <= after:
            return []  # to look is cheap, and clients that wait do it often
        return await self._numbered(await self._store._read(arrivals.behind(recipient_id, team_id, after, limit)))

    async def newest(
        self, recipient_id: str, team_id: str = "", limit: int = 50, *, before: int | None = None
    ) -> list[tuple[int, Standing]]:
        """What has arrived in a mailbox last, or before a place, each with its own, the newest first."""
        return await self._numbered(await self._store._read(arrivals.newest(recipient_id, team_id, before, limit)))

    async def _numbered(self, rows: Sequence[Sequence[Any]]) -> list[tuple[int, Standing]]:
        return [(int(row[-1]), standing) for row, standing in zip(rows, await self._waiting(rows), strict=True)]

    async def _waiting(self, rows: Sequence[Sequence[Any]]) -> list[Standing]:
        """Letters with where they stand, and what they wait for."""
        now = self._store.clock()
        size = sum(len(row[13]) for row in rows)
        found = await off_loop(size, lambda: [_standing(row, now) for row in rows])
        held = [key_of(one.posted) for one in found if one.state in ("held", "away")]
        if not held:
            return found
        needs = await self._store._read(letters.needed(held))
        return [msgspec.structs.replace(one, waits_for=needs.get(key_of(one.posted), ())) for one in found]

    async def last_number(self, recipient_id: str, team_id: str = "") -> int:
        """The place of what has arrived in a mailbox last; 0 if there is nothing."""
        return await self._store._read_little(arrivals.last_number(recipient_id, team_id))

    async def sealed(self, posted: Posted) -> tuple[SealedValue, ...]:
        """The sealed values of a letter."""
        return await self._store._read(letters.sealed_of(key_of(posted)))

    async def counts(self, team_id: str | None = None) -> list[MailboxCounts]:
        """How much is in each mailbox, of a team if one is named."""
        return await self._store._read(letters.counts(team_id))

    # --- the dead ----------------------------------------------------------------------------------------------------

    def _dead_id(self) -> str:
        return f"dead_{self._store.new_id()}"

    async def bury(
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
        told: Sequence[Posted] = (),
        away: bool = False,
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
        await self._store._write(inbox.keep_dead(dead, told, now, away=away))
        return dead

    async def give_up_sending(
        self, posted: Posted, *, reason: str, error: str, told: Sequence[Posted] = (), away: bool = False
    ) -> DeadLetter:
        """No transport can carry a letter: it is dead, and out of the outbox."""
        now = self._store.clock()
        dead = taking.buried(posted, reason, error, now, self._dead_id())
        await self._store._write(inbox.give_up_sending(dead, posted, told, now, away=away))
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
        resent_too: bool = False,
    ) -> list[DeadLetter]:
        """Dead letters, the newest first."""
        given = {
            "id": dead_id,
            "recipient_id": recipient_id,
            "sender_id": sender_id,
            "user_id": user_id,
            "team_id": team_id,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        return await self._store._read(letters.dead_letters(wanted, limit, all_of_them=resent_too))

    async def resend(self, dead: DeadLetter, posted: Posted | None = None, *, away: bool = False) -> Receipt:
        """Send a dead letter again: the one that is kept, or ``posted``, which was made of its bytes."""
        return await self._store._write(inbox.resend(dead, posted, self._store.clock(), away=away))

    # --- the outbox --------------------------------------------------------------------------------------------------

    async def origin(self) -> str:
        """What other stores know this one by."""
        return await self._store._write(inbox.origin(self._store.new_id()))

    async def claim(self, again_s: float, limit: int) -> list[tuple[Posted, int, int | None]]:
        """Letters that are to be sent, how often they were, and where the broker had them; nobody else sends them
        for so long."""
        return await self._store._write(inbox.claim(again_s, limit))

    async def published(self, places: Sequence[tuple[Key, int]], again_s: float) -> None:
        """The transport has these, and where; they are looked for after so long, unless a receipt comes first."""
        await self._store._write(inbox.published(places, self._store.clock(), again_s))

    async def put_off(self, keys: Sequence[Key], again_s: float) -> None:
        """The transport did not take these."""
        await self._store._write(inbox.put_off(keys, again_s))

    async def receipts(self, keys: Sequence[Key]) -> None:
        """The recipients have these letters, and they need not be sent again."""
        await self._store._write(inbox.receipts(keys))

    async def hurry(self) -> None:
        """Send everything again now that was sent and has no receipt."""
        await self._store._write(inbox.hurry())

    async def is_any_to_send(self) -> bool:
        """Whether a letter is to be sent now, or sent again."""
        return await self._store._read_little(inbox.is_any_to_send())

    # --- care --------------------------------------------------------------------------------------------------------

    async def reseal(self, key_id: str, resealed: Callable[..., tuple[str, bytes]]) -> int:
        """Have every value that another key has sealed sealed with this one; how many that were."""
        count = 0
        while changed := await self._store._write(letters.reseal(key_id, resealed)):
            count += changed
        return count

    async def sweep(self, older_than: timedelta = RETENTION) -> int:
        """Delete letters that were done with so long ago; how many. One of them, sent again, would be new."""
        before = self._store.clock() - older_than
        swept = 0
        while gone := await self._store._write(letters.sweep(before)):
            swept += gone
        return swept
