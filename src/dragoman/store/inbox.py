"""Letters on their way to be handled: taken, handed out for a while, done with, tried again, given up.

    post(posted, now, away=False)       it is in the recipient's inbox, or in the outbox if a transport carries it
    arrive(posted, now)                 a transport has brought it: in the inbox, and out of the outbox if it is ours
    hand_out(…)                         the next letters of a mailbox, for a while
    settle(…, effect)                   done with, in one transaction with whatever it led to
    fail(…)                             to be tried again later, or dead

A mailbox counts its letters, and they are handed out in that order; of one task, one at a time. A letter that stands
behind another one of its task is ``behind`` until that one is done or dead. ``available_at`` is when a letter may be
handed out: a lease is nothing else than a later time, with a name that only its holder knows.

The one rule: the row of the inbox says that a letter is done in the same transaction in which its effect happens, and
only to the one who holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import ConflictError, DamagedError, UnknownLetterError
from dragoman.letters.kept import DeadLetter, Handed, LetterState, Outcome, Posted, Receipt
from dragoman.letters.sensitive import REFERENCE
from dragoman.store import tasks
from dragoman.store.letters import (
    KEYED,
    LETTER,
    Key,
    Steps,
    bury,
    first_of,
    get,
    keep,
    key_of,
    locked,
    mark_resent,
    posted_from,
    promoted,
    sealed_of,
)
from dragoman.store.operation import LOCKED, Operation, Passing, Rows, Statement, operation
from dragoman.store.rows import micros, time_from

Effect = Generator[Statement, Rows, Any] | Operation[Any]  # steps, as an operation has them
_MAILBOX: Final = "recipient_id = ? AND team_id = ?"
_COLUMNS: Final = ", ".join(f"l.{name.strip()}" for name in LETTER.split(","))
_LEASED: Final = f"UPDATE inbox SET lease = ?, available_at = ?, attempts = attempts + 1 WHERE {KEYED}"
_OF_ONE: Final = (
    f"SELECT i.attempts, {_COLUMNS} FROM inbox AS i JOIN letters AS l ON l.recipient_id = i.recipient_id"
    " AND l.team_id = i.team_id AND l.letter_id = i.letter_id"
    " WHERE i.recipient_id = ? AND i.team_id = ? AND i.letter_id = ?"
)


# --- taking ----------------------------------------------------------------------------------------------------------


@operation
def post(posted: Posted, now: datetime, *, away: bool) -> Generator[Statement, Rows, Receipt]:
    """Take a letter; the same again changes nothing."""
    return (yield from posting(posted, now, away=away))


@operation
def post_all(letters: Sequence[Posted], now: datetime, *, away: bool) -> Generator[Statement, Rows, list[Receipt]]:
    """Take letters, all or none."""
    receipts: list[Receipt] = []
    for posted in letters:
        receipts.append((yield from posting(posted, now, away=away)))
    return receipts


def posting(posted: Posted, now: datetime, *, away: bool) -> Generator[Statement, Rows, Receipt]:
    """The steps of taking a letter."""
    if not (yield from keep(posted, now)):
        return _receipt(posted, (yield from _state(key_of(posted))), is_new=False)
    is_held = yield from tasks.need(posted, now)
    state = yield from _into("outbox" if away else "inbox", posted, now, is_held=is_held)
    yield from tasks.note(posted, now)
    return _receipt(posted, "away" if away else state, is_new=True)


def _receipt(posted: Posted, state: LetterState, *, is_new: bool) -> Receipt:
    return Receipt(letter_id=posted.letter_id, recipient_id=posted.recipient_id, is_new=is_new, state=state)


def _state(key: Key) -> Generator[Statement, Rows, LetterState]:
    rows = yield f"SELECT state FROM inbox WHERE {KEYED}", key
    state: LetterState = rows[0][0] if rows else "away"
    return state


def _into(table: str, posted: Posted, now: datetime, *, is_held: bool) -> Generator[Statement, Rows, LetterState]:
    """Put a letter at the end of a mailbox."""
    mailbox = (posted.recipient_id, posted.team_id)
    numbers = yield (
        "INSERT INTO mailboxes (recipient_id, team_id, last_number) VALUES (?, ?, 1)"
        " ON CONFLICT (recipient_id, team_id) DO UPDATE SET last_number = mailboxes.last_number + 1"
        " RETURNING last_number",
        mailbox,
    )
    state: LetterState = "held"
    if not is_held:
        state = "behind" if (yield first_of(table), (*mailbox, posted.task_id)) else "ready"
    at = micros(now)
    yield _PLACED[table], (*key_of(posted), numbers[0][0], posted.task_id, state, at, at)
    return state


_PLACED: Final = {
    table: f"INSERT INTO {table} (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts,"
    f" {when}) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)"
    for table, when in (("inbox", "arrived_at"), ("outbox", "put_at"))
}


@operation
def arrive(
    letters: Sequence[Posted], now: datetime, id_of: Callable[[], str], elsewhere: Collection[Key] = ()
) -> Generator[Statement, Rows, list[Receipt]]:
    """Take letters that a transport has brought. What is there already changes nothing; a false one is dead.

    ``elsewhere`` are those that another store has in its outbox, and this one has not.
    """
    taken: list[Receipt] = []
    for posted in letters:
        taken.append((yield from _arrived(posted, now, id_of)))
        if key_of(posted) not in elsewhere:
            yield from received(key_of(posted))
    return taken


def _arrived(posted: Posted, now: datetime, id_of: Callable[[], str]) -> Generator[Statement, Rows, Receipt]:
    state = yield f"SELECT state FROM inbox WHERE {KEYED}", key_of(posted)
    if state:
        return _receipt(posted, state[0][0], is_new=False)
    try:
        is_from_elsewhere = yield from keep(posted, now)
    except ConflictError as error:
        yield from bury(buried(posted, "letter_conflict", error.what, now, id_of()))
        return _receipt(posted, "dead", is_new=False)
    placed = yield from _into("inbox", posted, now, is_held=False)  # whoever sent it has held it
    if is_from_elsewhere:
        yield from tasks.note(posted, now)
    return _receipt(posted, placed, is_new=True)


def buried(posted: Posted, reason: str, error: str, now: datetime, dead_id: str) -> DeadLetter:
    """A letter that is given up."""
    return DeadLetter(
        id=dead_id,
        recipient_id=posted.recipient_id,
        team_id=posted.team_id,
        letter_id=posted.letter_id,
        sender_id=posted.sender_id,
        task_id=posted.task_id,
        reason=reason,
        error=error,
        user_id=posted.user_id,
        died_at=now,
        raw=posted.text.encode(),
    )


def received(key: Key) -> Steps:
    """The recipient has a letter: it need not be sent again, and the next one of its task may be."""
    yield locked(key)
    gone = yield f"DELETE FROM outbox WHERE {KEYED} RETURNING task_id", key
    for (task_id,) in gone:
        yield from promoted("outbox", key[0], key[1], task_id)


# --- handing out -----------------------------------------------------------------------------------------------------


@operation
def has_any(recipient_id: str, team_id: str, now: datetime) -> Generator[Statement, Rows, bool]:
    """Whether there is something to be handed out."""
    rows = yield (
        f"SELECT 1 FROM inbox WHERE {_MAILBOX} AND state = 'ready' AND available_at <= ? ORDER BY number LIMIT 1",
        (recipient_id, team_id, micros(now)),
    )
    return bool(rows)


def hand_out(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    until: datetime,
    limit: int,
    letter_id: str | None = None,
) -> Passing[list[Handed]]:
    """The next letters of a mailbox, or one that is named, each in the hands of whoever knows the lease, until then."""
    wanted = functools.partial(_handed, recipient_id, team_id, lease, now)
    return Passing(functools.partial(wanted, until=until, limit=limit, letter_id=letter_id))


def _handed(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    until: datetime,
    limit: int,
    letter_id: str | None,
) -> Generator[Statement, Rows, list[Handed]]:
    named, name = (" AND letter_id = ?", (letter_id,)) if letter_id is not None else ("", ())
    found = yield (  # in this order, an index has everything that is asked for
        f"SELECT letter_id, number FROM inbox WHERE {_MAILBOX} AND state = 'ready' AND available_at <= ?{named}"
        f" ORDER BY number LIMIT ?{LOCKED}",
        (recipient_id, team_id, micros(now), *name, limit),
    )
    handed: list[Handed] = []
    for one, number in found:
        key = (recipient_id, team_id, one)
        yield _LEASED, (lease, micros(until), *key)
        ((attempts, *row),) = yield _OF_ONE, key
        try:
            posted = posted_from(row)
        except DamagedError as error:
            yield from _buried_unread(key, row, error, f"dead_{lease}_{number}", now)
            continue
        handed.append(Handed(posted=posted, number=number, attempts=attempts, lease=lease, until=until))
    return handed


def _buried_unread(key: Key, row: Sequence[Any], error: DamagedError, dead_id: str, now: datetime) -> Steps:
    """A letter that is not what was written is not handed out, and keeps nobody behind it waiting."""
    yield from _ended(key, row[4], "dead", "damaged", now)
    yield from bury(
        DeadLetter(
            id=dead_id,
            recipient_id=key[0],
            team_id=key[1],
            letter_id=key[2],
            sender_id=row[3],
            task_id=row[4],
            reason="damaged",
            error=error.what,
            user_id=row[10],
            died_at=now,
            raw=str(row[13]).encode(),
        )
    )


def extend(key: Key, lease: str, until: datetime) -> Passing[None]:
    """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
    return Passing(functools.partial(_extended, key, lease, until))


def _extended(key: Key, lease: str, until: datetime) -> Steps:
    rows = yield (
        f"UPDATE inbox SET available_at = ? WHERE {KEYED} AND lease = ? AND ended_at IS NULL RETURNING 1",
        (micros(until), *key, lease),
    )
    if not rows:
        raise lost(key)


@operation
def give_back(key: Key, lease: str, now: datetime) -> Steps:
    """Let somebody else have a letter, as if it had not been handed out."""
    yield (
        f"UPDATE inbox SET lease = NULL, available_at = ?, attempts = attempts - 1 WHERE {KEYED} AND lease = ?"
        " AND ended_at IS NULL",
        (micros(now), *key, lease),
    )


def lost(key: Key) -> ConflictError:
    """Somebody else has a letter, or had it and is done."""
    return ConflictError(
        "it is in other hands: the time was over, and it was handed out again",
        where=f"letter {key[2]} to {key[0]}",
        remedy="Do nothing with it; extend the lease in time",
        code="lease_lost",
    )


# --- ending ----------------------------------------------------------------------------------------------------------


def _held(key: Key, lease: str) -> Generator[Statement, Rows, tuple[Any, ...] | None]:
    """The row of a letter that somebody holds; nothing if it is done, ``ConflictError`` if it is in other hands."""
    rows = yield f"SELECT state, lease, task_id, attempts FROM inbox WHERE {KEYED}{LOCKED}", key
    if not rows:
        raise unknown(key)
    if rows[0][0] in ("done", "dead"):
        return None
    if rows[0][1] != lease:
        raise lost(key)
    return rows[0]


def unknown(key: Key) -> UnknownLetterError:
    """There is no such letter."""
    return UnknownLetterError("there is no such letter", where=f"letter {key[2]} to {key[0]}")


@operation
def settle(
    key: Key, lease: str, effect: Callable[[], Effect] | None, now: datetime
) -> Generator[Statement, Rows, tuple[bool, Any]]:
    """A letter is done, together with its effect: true, and what the effect gave; false if it had been done before."""
    held = yield from _held(key, lease)
    if held is None:
        return False, None
    result = (yield from iter(effect())) if effect is not None else None
    yield from _ended(key, held[2], "done", None, now)
    return True, result


@operation
def settle_all(
    held: Sequence[tuple[Key, str]], now: datetime
) -> Generator[Statement, Rows, list[bool | ConflictError]]:
    """Letters are done, each as by itself: whether that was the first time, or in whose hands it is."""
    ended: list[bool | ConflictError] = []
    for key, lease in held:
        try:
            ended.append((yield from settle(key, lease, None, now))[0])
        except ConflictError as error:
            ended.append(error)
    return ended


def _ended(key: Key, task_id: str, state: str, error_class: str | None, now: datetime) -> Steps:
    yield locked(key)
    yield (
        f"UPDATE inbox SET state = ?, lease = NULL, ended_at = ?, error_class = coalesce(?, error_class) WHERE {KEYED}",
        (state, micros(now), error_class, *key),
    )
    yield from promoted("inbox", key[0], key[1], task_id)


@operation
def fail(
    key: Key,
    lease: str,
    *,
    error_class: str,
    retry_at: Callable[[int], datetime | None],
    dead: DeadLetter,
    told: Callable[[int, bool], Sequence[Posted]],
    now: datetime,
    away: bool,
) -> Generator[Statement, Rows, Outcome | None]:
    """A letter could not be handled: it is tried again at the time that is said for so many attempts, or it is dead.

    ``told`` gives the letters that tell others of it. Nothing if it had been done before.
    """
    held = yield from _held(key, lease)
    if held is None:
        return None
    attempts: int = held[3]
    again = retry_at(attempts)
    if again is not None:
        yield (
            f"UPDATE inbox SET lease = NULL, available_at = ?, error_class = ? WHERE {KEYED}",
            (micros(again), error_class, *key),
        )
    else:
        yield from _ended(key, held[2], "dead", error_class, now)
        yield from bury(dead)
    for posted in told(attempts, again is None):
        yield from posting(posted, now, away=away)
    return Outcome(retry_at=again, attempts=attempts, dead_letter_id=None if again is not None else dead.id)


@operation
def keep_dead(dead: DeadLetter, told: Sequence[Posted], now: datetime, *, away: bool) -> Steps:
    """Keep what cannot be delivered, and tell others of it."""
    yield from bury(dead)
    for posted in told:
        yield from posting(posted, now, away=away)


@operation
def give_up_sending(dead: DeadLetter, posted: Posted, told: Sequence[Posted], now: datetime, *, away: bool) -> Steps:
    """A letter that no transport can carry is dead. It is kept, so that it can be sent again another way."""
    key = key_of(posted)
    yield from keep(posted, now)
    yield from received(key)
    yield from tasks.forget_needs(key)
    yield from bury(dead)
    for one in told:
        yield from posting(one, now, away=away)


@operation
def resend(
    dead: DeadLetter, posted: Posted | None, now: datetime, *, away: bool
) -> Generator[Statement, Rows, Receipt]:
    """Send a dead letter again: the one that is kept, or one that was made of its bytes."""
    if posted is not None:
        receipt: Receipt = yield from posting(posted, now, away=away)
        yield from mark_resent(dead, now)
        return receipt
    key = (dead.recipient_id, dead.team_id, dead.letter_id or "")
    kept = yield from get(key)
    if kept is None:
        raise unknown(key)
    rows = yield f"SELECT state FROM inbox WHERE {KEYED}{LOCKED}", key
    if rows and rows[0][0] != "dead":
        yield from mark_resent(dead, now)  # it has gone its way already
        return _receipt(kept, rows[0][0], is_new=False)
    yield f"DELETE FROM inbox WHERE {KEYED}", key
    yield f"DELETE FROM outbox WHERE {KEYED}", key
    table = "outbox" if away and not rows else "inbox"  # what had arrived need not travel again
    state = yield from _into(table, kept, now, is_held=False)
    yield from mark_resent(dead, now)
    return _receipt(kept, "away" if table == "outbox" else state, is_new=True)


# --- the outbox ------------------------------------------------------------------------------------------------------


def claim(now: datetime, until: datetime, limit: int) -> Passing[list[tuple[Posted, int, int | None]]]:
    """Letters that are to be sent, or sent again, how often they were, and where the broker had them.

    Nobody else sends them until then.
    """
    return Passing(functools.partial(_claimed, now, until, limit))


def _claimed(
    now: datetime, until: datetime, limit: int
) -> Generator[Statement, Rows, list[tuple[Posted, int, int | None]]]:
    rows = yield (
        f"SELECT o.attempts, o.broker_seq, {_COLUMNS} FROM outbox AS o JOIN letters AS l"
        " ON l.recipient_id = o.recipient_id AND l.team_id = o.team_id AND l.letter_id = o.letter_id"
        " WHERE o.state = 'ready' AND o.available_at <= ?"
        f" ORDER BY o.available_at, o.number LIMIT ?{LOCKED}",
        (micros(now), limit),
    )
    claimed: list[tuple[Posted, int, int | None]] = []
    for attempts, place, *row in rows:
        posted = posted_from(row)
        yield (
            f"UPDATE outbox SET available_at = ?, attempts = attempts + 1 WHERE {KEYED}",
            (micros(until), *key_of(posted)),
        )
        if REFERENCE in posted.text:
            posted = msgspec.structs.replace(posted, sealed=(yield from sealed_of(key_of(posted))))
        claimed.append((posted, attempts, place))
    return claimed


def published(places: Sequence[tuple[Key, int]], now: datetime, again_at: datetime) -> Passing[None]:
    """The transport has these, and where; they are looked for again then, unless a receipt comes first."""
    return Passing(functools.partial(_published, places, now, again_at))


def _published(places: Sequence[tuple[Key, int]], now: datetime, again_at: datetime) -> Steps:
    for key, place in places:
        yield (
            f"UPDATE outbox SET published_at = ?, available_at = ?, broker_seq = ? WHERE {KEYED}",
            (micros(now), micros(again_at), place, *key),
        )


def put_off(keys: Sequence[Key], until: datetime) -> Passing[None]:
    """The transport did not take these; they are sent then."""
    return Passing(functools.partial(_put_off, keys, until))


def _put_off(keys: Sequence[Key], until: datetime) -> Steps:
    for key in keys:
        yield f"UPDATE outbox SET available_at = ? WHERE {KEYED}", (micros(until), *key)


@operation
def receipts(keys: Sequence[Key]) -> Steps:
    """The recipients have these letters."""
    for key in sorted(keys):  # in one order, so that nobody waits for somebody who waits
        yield from received(key)


@operation
def hurry(now: datetime) -> Steps:
    """Send everything again now that was sent and has no receipt."""
    yield (
        "UPDATE outbox SET available_at = ? WHERE state = 'ready' AND published_at IS NOT NULL AND available_at > ?",
        (micros(now), micros(now)),
    )


@operation
def next_to_send() -> Generator[Statement, Rows, datetime | None]:
    """When a letter is to be sent, or sent again."""
    rows = yield "SELECT min(available_at) FROM outbox WHERE state = 'ready'", ()
    return None if rows[0][0] is None else time_from(rows[0][0])


@operation
def origin(made: str) -> Generator[Statement, Rows, str]:
    """What other stores know this one by."""
    yield "INSERT INTO mail_origins (number, id) VALUES (1, ?) ON CONFLICT (number) DO NOTHING", (made,)
    rows = yield "SELECT id FROM mail_origins WHERE number = 1", ()
    name: str = rows[0][0]
    return name
