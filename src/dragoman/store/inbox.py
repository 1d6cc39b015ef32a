"""Letters on their way to be handled: handed out for a while, done with, tried again, given up, or sent.

    hand_out(…)                         the next letters of a mailbox, for a while
    settle(…, effect)                   done with, in one transaction with whatever it led to
    fail(…)                             to be tried again later, or dead

A mailbox counts its letters, and they are handed out in that order; of one task, one at a time. A letter that stands
behind another one of its task is ``behind`` until that one is done or dead. ``available_at`` is when a letter may be
handed out, on the clock of leases (see ``lease_clock``), and 0 if it may: a lease is nothing else than a later time,
with a name that only its holder knows; ``wait_us`` is how long it was given for. What has come of age is set to 0 by
whoever looks next.

The one rule: the row of the inbox says that a letter is done in the same transaction in which its effect happens, and
only to the one who holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from dragoman.errors import ConflictError, DamagedError, UnknownLetterError
from dragoman.letters.kept import DeadLetter, Handed, Outcome, Posted, Receipt
from dragoman.letters.sensitive import REFERENCE
from dragoman.store import tasks
from dragoman.store.batches import in_groups, listed
from dragoman.store.lease_clock import length_us
from dragoman.store.letters import (
    KEYED,
    MAILBOX,
    Key,
    Steps,
    bury,
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
from dragoman.store.rows import micros
from dragoman.store.schema import LETTER
from dragoman.store.taking import busy_tasks, by_mailbox, into, posting, receipt_of, received, received_all

Effect = Generator[Statement, Rows, Any] | Operation[Any]  # steps, as an operation has them
_COLUMNS: Final = ", ".join(f"l.{name.strip()}" for name in LETTER.split(","))
_LEASED: Final = (
    f"UPDATE inbox SET lease = ?, available_at = lease_now() + ?, wait_us = ?, attempts = attempts + 1 WHERE {MAILBOX}"
)
# What has a time comes after it: a lease that is over, or another attempt. In these words, an index has all of it.
_IS_DUE: Final = (
    "recipient_id = ? AND team_id = ? AND state = 'ready' AND available_at > 0 AND available_at <= lease_now()"
)
_DUE: Final = f"SELECT 1 FROM inbox WHERE {_IS_DUE} LIMIT 1"
_FREED: Final = f"UPDATE inbox SET available_at = 0 WHERE {_IS_DUE}"
_IS_FREE: Final = "i.recipient_id = ? AND i.team_id = ? AND i.state = 'ready' AND i.available_at = 0"
_FREE: Final = (
    f"SELECT ({_DUE}), i.number, i.attempts, {_COLUMNS} FROM inbox AS i JOIN letters AS l"
    " ON l.recipient_id = i.recipient_id AND l.team_id = i.team_id AND l.letter_id = i.letter_id"
    f" WHERE {_IS_FREE}"
)
_NEXT: Final = f"{_FREE} ORDER BY i.number LIMIT ?{LOCKED}"
_NAMED: Final = f"{_FREE} AND i.letter_id = ? ORDER BY i.number LIMIT ?{LOCKED}"


# --- handing out -----------------------------------------------------------------------------------------------------


@operation
def has_any(recipient_id: str, team_id: str) -> Generator[Statement, Rows, bool]:
    """Whether there is something to be handed out."""
    mailbox = (recipient_id, team_id)
    free = yield f"SELECT 1 FROM inbox AS i WHERE {_IS_FREE} ORDER BY i.number LIMIT 1", mailbox
    return bool(free or (yield _DUE, mailbox))


def hand_out(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    lease_s: float,
    limit: int,
    letter_id: str | None = None,
) -> Passing[list[Handed]]:
    """The next letters of a mailbox, or one that is named, each held for so long by whoever knows the lease."""
    wanted = functools.partial(_handed, recipient_id, team_id, lease, now)
    return Passing(functools.partial(wanted, lease_s=lease_s, limit=limit, letter_id=letter_id))


def _handed(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    lease_s: float,
    limit: int,
    letter_id: str | None,
) -> Generator[Statement, Rows, list[Handed]]:
    mailbox = (recipient_id, team_id)
    wanted: Statement = _NEXT, (*mailbox, *mailbox, limit)
    if letter_id is not None:
        wanted = _NAMED, (*mailbox, *mailbox, letter_id, limit)
    rows = yield wanted
    if rows[0][0] if rows else (yield _DUE, mailbox):
        yield _FREED, mailbox
        rows = yield wanted
    until, length = now + timedelta(seconds=lease_s), length_us(lease_s)
    for marks, names in listed([row[5] for row in rows]):
        yield f"{_LEASED} AND letter_id IN ({marks})", (lease, length, length, *mailbox, *names)
    handed: list[Handed] = []
    for _, number, attempts, *row in rows:
        try:
            posted = posted_from(row)
        except DamagedError as error:
            key = (recipient_id, team_id, row[2])
            yield from _buried_unread(key, row, error, f"dead_{lease}_{number}", now)
            continue
        handed.append(Handed(posted=posted, number=number, attempts=attempts + 1, lease=lease, until=until))
    return handed


def _buried_unread(key: Key, row: Sequence[Any], error: DamagedError, dead_id: str, now: datetime) -> Steps:
    """A letter that is not what was written is not handed out, and keeps nobody behind it waiting."""
    yield locked(key)
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


def extend(key: Key, lease: str, lease_s: float) -> Passing[None]:
    """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
    return Passing(functools.partial(_extended, key, lease, length_us(lease_s)))


def _extended(key: Key, lease: str, length: int) -> Steps:
    rows = yield (
        f"UPDATE inbox SET available_at = lease_now() + ?, wait_us = ? WHERE {KEYED} AND lease = ?"
        " AND ended_at IS NULL RETURNING 1",
        (length, length, *key, lease),
    )
    if not rows:
        raise lost(key)


@operation
def check_held(key: Key, lease: str) -> Steps:
    """Raise ``ConflictError`` (``lease_lost``) unless a letter is in the hands of whoever knows the lease."""
    rows = yield f"SELECT 1 FROM inbox WHERE {KEYED} AND lease = ? AND ended_at IS NULL", (*key, lease)
    if not rows:
        raise lost(key)


@operation
def give_back(key: Key, lease: str) -> Steps:
    """Let somebody else have a letter, as if it had not been handed out."""
    yield (
        f"UPDATE inbox SET lease = NULL, available_at = 0, attempts = attempts - 1 WHERE {KEYED} AND lease = ?"
        " AND ended_at IS NULL",
        (*key, lease),
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


_HELD: Final = f"SELECT state, lease, task_id, attempts FROM inbox WHERE {KEYED}{LOCKED}"
_HELD_IN_LOCKED: Final = (  # whoever puts a letter into the mailbox, or takes one out, waits as well
    "SELECT i.state, i.lease, i.task_id, i.attempts FROM inbox AS i JOIN mailboxes"
    " ON mailboxes.recipient_id = i.recipient_id AND mailboxes.team_id = i.team_id"
    f" WHERE i.recipient_id = ? AND i.team_id = ? AND i.letter_id = ?{LOCKED}"
)


DONE: Final = (  # for whoever holds it, if no other one of its task is open
    f"UPDATE inbox SET state = 'done', lease = NULL, ended_at = ? WHERE {KEYED} AND lease = ? AND ended_at IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM inbox AS e WHERE e.recipient_id = inbox.recipient_id AND e.team_id = inbox.team_id"
    " AND e.task_id = inbox.task_id AND e.ended_at IS NULL AND e.letter_id <> inbox.letter_id) RETURNING 1"
)


def _held(key: Key, lease: str) -> Generator[Statement, Rows, tuple[Any, ...] | None]:
    """The row of a letter that somebody holds; nothing if it is done, ``ConflictError`` if it is in other hands."""
    return _held_by(lease, key, (yield _HELD, key))


def _held_by(lease: str, key: Key, rows: Rows) -> tuple[Any, ...] | None:
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


def settle(key: Key, lease: str, effect: Callable[[], Effect] | None, now: datetime) -> Operation[tuple[bool, Any]]:
    """A letter is done, together with its effect: true, and what the effect gave; false if it had been done before."""
    if effect is None:
        return Operation(lambda: _settled(key, lease, now))
    return Operation(lambda: _settled_with(key, lease, effect, now))


def _settled(key: Key, lease: str, now: datetime) -> Generator[Statement, Rows, tuple[bool, Any]]:
    rows = yield _HELD_IN_LOCKED, key
    held = _held_by(lease, key, rows)
    if held is None:
        return False, None
    yield from _ended(key, held[2], "done", None, now)
    return True, None


def _settled_with(
    key: Key, lease: str, effect: Callable[[], Effect], now: datetime
) -> Generator[Statement, Rows, tuple[bool, Any]]:
    held = yield from _held(key, lease)
    if held is None:
        return False, None
    result = yield from iter(effect())
    yield locked(key)  # only now, so that effects of several letters do not wait for each other
    yield from _ended(key, held[2], "done", None, now)
    return True, result


@operation
def settle_all(
    held: Sequence[tuple[Key, str]], now: datetime
) -> Generator[Statement, Rows, list[bool | ConflictError]]:
    """Letters are done, each as by itself: whether that was the first time, or in whose hands it is."""
    boxes = by_mailbox(key for key, _ in held)
    found: dict[Key, Any] = {}
    for mailbox, names in boxes:
        for marks, some in listed(names):
            rows = yield (
                f"SELECT letter_id, state, lease, task_id FROM inbox WHERE {MAILBOX}"
                f" AND letter_id IN ({marks}){LOCKED}",
                (*mailbox, *some),
            )
            found.update(((*mailbox, name), row) for name, *row in rows)
    told: list[bool | ConflictError] = []
    tasks_of: dict[Key, str] = {}  # of what ends now
    for key, mine in held:
        if key not in found:
            raise unknown(key)
        state, lease, task_id = found[key]
        is_first = state not in ("done", "dead") and key not in tasks_of
        told.append(is_first if lease == mine or not is_first else lost(key))
        if told[-1] is True:
            tasks_of[key] = task_id
    yield from _ended_all(tasks_of, now)
    return told


def _ended_all(tasks_of: Mapping[Key, str], now: datetime) -> Steps:
    """Letters are done, each with the task that it is of; the next ones of their tasks come forward."""
    for mailbox, names in by_mailbox(tasks_of):
        yield locked((*mailbox, ""))
        for marks, some in listed(names):
            yield (
                f"UPDATE inbox SET state = 'done', lease = NULL, ended_at = ? WHERE {MAILBOX}"
                f" AND letter_id IN ({marks})",
                (micros(now), *mailbox, *some),
            )
        waiting = yield from busy_tasks("inbox", mailbox, {tasks_of[(*mailbox, name)] for name in names})
        for task_id in sorted(waiting):
            yield from promoted("inbox", *mailbox, task_id)


_END: Final = (
    "UPDATE inbox SET state = ?, lease = NULL, ended_at = ?, error_class = coalesce(?, error_class)"
    f" WHERE {KEYED} RETURNING (SELECT e.state FROM inbox AS e WHERE e.recipient_id = ? AND e.team_id = ?"
    f" AND e.task_id = ? AND e.ended_at IS NULL AND e.letter_id <> ? ORDER BY e.number LIMIT 1)"
)


def _ended(key: Key, task_id: str, state: str, error_class: str | None, now: datetime) -> Steps:
    """A letter is done or dead, and the next one of its task comes forward. The mailbox is locked."""
    recipient, team, letter_id = key
    rows = yield _END, (state, micros(now), error_class, *key, recipient, team, task_id, letter_id)
    if rows[0][0] == "behind":
        yield from promoted("inbox", recipient, team, task_id)


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
        pause = length_us((again - now).total_seconds())
        yield (
            "UPDATE inbox SET lease = NULL, available_at = lease_now() + ?, wait_us = ?, error_class = ?"
            f" WHERE {KEYED}",
            (pause, pause, error_class, *key),
        )
    else:
        yield locked(key)
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
        return receipt_of(kept, rows[0][0], is_new=False)
    yield f"DELETE FROM inbox WHERE {KEYED}", key
    yield f"DELETE FROM outbox WHERE {KEYED}", key
    table = "outbox" if away and not rows else "inbox"  # what had arrived need not travel again
    state = yield from into(table, kept, now, is_held=False)
    yield from mark_resent(dead, now)
    return receipt_of(kept, "away" if table == "outbox" else state, is_new=True)


# --- the outbox ------------------------------------------------------------------------------------------------------


def claim(again_s: float, limit: int) -> Passing[list[tuple[Posted, int, int | None]]]:
    """Letters that are to be sent, or sent again, how often they were, and where the broker had them.

    Nobody else sends them for so long.
    """
    return Passing(functools.partial(_claimed, length_us(again_s), limit))


def _claimed(pause: int, limit: int) -> Generator[Statement, Rows, list[tuple[Posted, int, int | None]]]:
    rows = yield (
        f"SELECT o.attempts, o.broker_seq, {_COLUMNS} FROM outbox AS o JOIN letters AS l"
        " ON l.recipient_id = o.recipient_id AND l.team_id = o.team_id AND l.letter_id = o.letter_id"
        " WHERE o.state = 'ready' AND o.available_at <= lease_now()"
        f" ORDER BY o.available_at, o.number LIMIT ?{LOCKED}",
        (limit,),
    )
    for mailbox, names in by_mailbox((row[2], row[3], row[4]) for row in rows):
        for marks, some in listed(names):
            yield (
                f"UPDATE outbox SET available_at = lease_now() + ?, attempts = attempts + 1 WHERE {MAILBOX}"
                f" AND letter_id IN ({marks})",
                (pause, *mailbox, *some),
            )
    claimed: list[tuple[Posted, int, int | None]] = []
    for attempts, place, *row in rows:
        posted = posted_from(row)
        if REFERENCE in posted.text:
            posted = msgspec.structs.replace(posted, sealed=(yield from sealed_of(key_of(posted))))
        claimed.append((posted, attempts, place))
    return claimed


_SENT: Final = (
    "UPDATE outbox SET published_at = ?, available_at = lease_now() + ?, broker_seq = v.column4 FROM (VALUES {}) AS v"
    " WHERE outbox.recipient_id = v.column1 AND outbox.team_id = v.column2 AND outbox.letter_id = v.column3"
)


@functools.cache
def _sent(count: int) -> str:
    return ", ".join(["(?, ?, ?, CAST(? AS BIGINT))"] * count)


def published(places: Sequence[tuple[Key, int]], now: datetime, again_s: float) -> Passing[None]:
    """The transport has these, and where; they are looked for after so long, unless a receipt comes first."""
    return Passing(functools.partial(_published, places, now, length_us(again_s)))


def _published(places: Sequence[tuple[Key, int]], now: datetime, pause: int) -> Steps:
    when = (micros(now), pause)
    for group in in_groups(places):
        yield _SENT.format(_sent(len(group))), (*when, *(value for key, place in group for value in (*key, place)))


def put_off(keys: Sequence[Key], again_s: float) -> Passing[None]:
    """The transport did not take these; they are sent after so long."""
    return Passing(functools.partial(_put_off, keys, length_us(again_s)))


def _put_off(keys: Sequence[Key], pause: int) -> Steps:
    for key in keys:
        yield f"UPDATE outbox SET available_at = lease_now() + ? WHERE {KEYED}", (pause, *key)


@operation
def receipts(keys: Sequence[Key]) -> Steps:
    """The recipients have these letters."""
    yield from received_all(keys)


@operation
def hurry() -> Steps:
    """Send everything again now that was sent and has no receipt."""
    yield (
        "UPDATE outbox SET available_at = lease_now() WHERE state = 'ready' AND published_at IS NOT NULL"
        " AND available_at > lease_now()",
        (),
    )


@operation
def is_any_to_send() -> Generator[Statement, Rows, bool]:
    """Whether a letter is to be sent now, or sent again."""
    return bool((yield "SELECT 1 FROM outbox WHERE state = 'ready' AND available_at <= lease_now() LIMIT 1", ()))


@operation
def origin(made: str) -> Generator[Statement, Rows, str]:
    """What other stores know this one by."""
    yield "INSERT INTO mail_origins (number, id) VALUES (1, ?) ON CONFLICT (number) DO NOTHING", (made,)
    rows = yield "SELECT id FROM mail_origins WHERE number = 1", ()
    name: str = rows[0][0]
    return name
