"""Letters on their way to be handled: handed out for a while, done with, tried again, given up, or sent.

    lease_letters(…)                         the next letters of a mailbox, for a while
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

from dragoman.errors import ConflictError, CorruptDataError, UnknownLetterError
from dragoman.letters.records import DeadLetter, FailureOutcome, LeasedLetter, Receipt, StoredLetter
from dragoman.letters.secret_values import REFERENCE
from dragoman.store.batches import in_clause_chunks, insert_chunks
from dragoman.store.engines.tables import LETTER_COLUMNS
from dragoman.store.lease_clock import length_us
from dragoman.store.mailbox import dependencies
from dragoman.store.mailbox.inbox import (
    enqueue,
    find_busy_tasks,
    group_by_mailbox,
    make_receipt,
    post_letter,
    remove_all_from_outbox,
    remove_from_outbox,
)
from dragoman.store.mailbox.letters import (
    LETTER_KEY,
    MAILBOX,
    Key,
    Steps,
    from_row,
    get,
    get_key,
    get_sealed_values,
    insert_dead_letter,
    insert_letter,
    lock_mailbox,
    mark_resent,
    promote_next,
)
from dragoman.store.message_rows import to_micros
from dragoman.store.operation import FOR_UPDATE, Operation, Rows, Statement, VolatileOperation, operation

Effect = Generator[Statement, Rows, Any] | Operation[Any]  # steps, as an operation has them
_COLUMNS: Final = ", ".join(f"l.{name.strip()}" for name in LETTER_COLUMNS.split(","))
_LEASE: Final = (
    f"UPDATE inbox SET lease = ?, available_at = lease_now() + ?, wait_us = ?, attempts = attempts + 1 WHERE {MAILBOX}"
)
# What has a time comes after it: a lease that is over, or another attempt. In these words, an index has all of it.
_IS_DUE: Final = (
    "recipient_id = ? AND team_id = ? AND state = 'ready' AND available_at > 0 AND available_at <= lease_now()"
)
_SELECT_DUE: Final = f"SELECT 1 FROM inbox WHERE {_IS_DUE} LIMIT 1"
_FREE_DUE: Final = f"UPDATE inbox SET available_at = 0 WHERE {_IS_DUE}"
_IS_FREE: Final = "i.recipient_id = ? AND i.team_id = ? AND i.state = 'ready' AND i.available_at = 0"
_SELECT_FREE: Final = (
    f"SELECT ({_SELECT_DUE}), i.number, i.attempts, {_COLUMNS} FROM inbox AS i JOIN letters AS l"
    " ON l.recipient_id = i.recipient_id AND l.team_id = i.team_id AND l.letter_id = i.letter_id"
    f" WHERE {_IS_FREE}"
)
_SELECT_NEXT: Final = f"{_SELECT_FREE} ORDER BY i.number LIMIT ?{FOR_UPDATE}"
_SELECT_BY_ID: Final = f"{_SELECT_FREE} AND i.letter_id = ? ORDER BY i.number LIMIT ?{FOR_UPDATE}"


# --- handing out -----------------------------------------------------------------------------------------------------


@operation
def has_ready(recipient_id: str, team_id: str) -> Generator[Statement, Rows, bool]:
    """Whether there is something to be handed out."""
    mailbox = (recipient_id, team_id)
    free = yield f"SELECT 1 FROM inbox AS i WHERE {_IS_FREE} ORDER BY i.number LIMIT 1", mailbox
    return bool(free or (yield _SELECT_DUE, mailbox))


def lease_letters(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    lease_s: float,
    limit: int,
    letter_id: str | None = None,
) -> VolatileOperation[list[LeasedLetter]]:
    """The next letters of a mailbox, or one that is named, each held for so long by whoever knows the lease."""
    lease_steps = functools.partial(_lease_steps, recipient_id, team_id, lease, now)
    return VolatileOperation(functools.partial(lease_steps, lease_s=lease_s, limit=limit, letter_id=letter_id))


def _lease_steps(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    lease_s: float,
    limit: int,
    letter_id: str | None,
) -> Generator[Statement, Rows, list[LeasedLetter]]:
    mailbox = (recipient_id, team_id)
    query: Statement = _SELECT_NEXT, (*mailbox, *mailbox, limit)
    if letter_id is not None:
        query = _SELECT_BY_ID, (*mailbox, *mailbox, letter_id, limit)
    rows = yield query
    if rows[0][0] if rows else (yield _SELECT_DUE, mailbox):
        yield _FREE_DUE, mailbox
        rows = yield query
    until, length = now + timedelta(seconds=lease_s), length_us(lease_s)
    for marks, names in in_clause_chunks([row[5] for row in rows]):
        yield f"{_LEASE} AND letter_id IN ({marks})", (lease, length, length, *mailbox, *names)
    leased: list[LeasedLetter] = []
    for _, number, attempts, *row in rows:
        try:
            stored = from_row(row)
        except CorruptDataError as error:
            key = (recipient_id, team_id, row[2])
            yield from _reject_damaged(key, row, error, f"dead_{lease}_{number}", now)
            continue
        leased.append(LeasedLetter(letter=stored, number=number, attempts=attempts + 1, lease=lease, until=until))
    return leased


def _reject_damaged(key: Key, row: Sequence[Any], error: CorruptDataError, dead_id: str, now: datetime) -> Steps:
    """A letter that is not what was written is not handed out, and keeps nobody behind it waiting."""
    yield lock_mailbox(key)
    yield from _finish(key, row[4], "dead", "damaged", now)
    yield from insert_dead_letter(
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


def extend(key: Key, lease: str, lease_s: float) -> VolatileOperation[None]:
    """Keep a letter for longer; ``ConflictError`` (``lease_lost``) if somebody else has it."""
    return VolatileOperation(functools.partial(_extend, key, lease, length_us(lease_s)))


def _extend(key: Key, lease: str, length: int) -> Steps:
    rows = yield (
        f"UPDATE inbox SET available_at = lease_now() + ?, wait_us = ? WHERE {LETTER_KEY} AND lease = ?"
        " AND ended_at IS NULL RETURNING 1",
        (length, length, *key, lease),
    )
    if not rows:
        raise lease_lost_error(key)


@operation
def require_lease(key: Key, lease: str) -> Steps:
    """Raise ``ConflictError`` (``lease_lost``) unless a letter is in the hands of whoever knows the lease."""
    rows = yield f"SELECT 1 FROM inbox WHERE {LETTER_KEY} AND lease = ? AND ended_at IS NULL", (*key, lease)
    if not rows:
        raise lease_lost_error(key)


@operation
def release(key: Key, lease: str) -> Steps:
    """Let somebody else have a letter, as if it had not been handed out."""
    yield (
        f"UPDATE inbox SET lease = NULL, available_at = 0, attempts = attempts - 1 WHERE {LETTER_KEY} AND lease = ?"
        " AND ended_at IS NULL",
        (*key, lease),
    )


def lease_lost_error(key: Key) -> ConflictError:
    """Somebody else has a letter, or had it and is done."""
    return ConflictError(
        "it is in other hands: the time was over, and it was handed out again",
        where=f"letter {key[2]} to {key[0]}",
        remedy="Do nothing with it; extend the lease in time",
        code="lease_lost",
    )


# --- ending ----------------------------------------------------------------------------------------------------------


_SELECT_HELD: Final = f"SELECT state, lease, task_id, attempts FROM inbox WHERE {LETTER_KEY}{FOR_UPDATE}"
_SELECT_HELD_LOCKED: Final = (  # whoever puts a letter into the mailbox, or takes one out, waits as well
    "SELECT i.state, i.lease, i.task_id, i.attempts FROM inbox AS i JOIN mailboxes"
    " ON mailboxes.recipient_id = i.recipient_id AND mailboxes.team_id = i.team_id"
    f" WHERE i.recipient_id = ? AND i.team_id = ? AND i.letter_id = ?{FOR_UPDATE}"
)


def _get_held(key: Key, lease: str) -> Generator[Statement, Rows, tuple[Any, ...] | None]:
    """The row of a letter that somebody holds; nothing if it is done, ``ConflictError`` if it is in other hands."""
    return _check_lease(lease, key, (yield _SELECT_HELD, key))


def _check_lease(lease: str, key: Key, rows: Rows) -> tuple[Any, ...] | None:
    if not rows:
        raise unknown_letter_error(key)
    if rows[0][0] in ("done", "dead"):
        return None
    if rows[0][1] != lease:
        raise lease_lost_error(key)
    return rows[0]


def unknown_letter_error(key: Key) -> UnknownLetterError:
    """There is no such letter."""
    return UnknownLetterError("there is no such letter", where=f"letter {key[2]} to {key[0]}")


def acknowledge(
    key: Key, lease: str, effect: Callable[[], Effect] | None, now: datetime
) -> Operation[tuple[bool, Any]]:
    """A letter is done, together with its effect: true, and what the effect gave; false if it had been done before."""
    if effect is None:
        return Operation(lambda: _acknowledge(key, lease, now))
    return Operation(lambda: _acknowledge_with_effect(key, lease, effect, now))


def _acknowledge(key: Key, lease: str, now: datetime) -> Generator[Statement, Rows, tuple[bool, Any]]:
    rows = yield _SELECT_HELD_LOCKED, key
    held = _check_lease(lease, key, rows)
    if held is None:
        return False, None
    yield from _finish(key, held[2], "done", None, now)
    return True, None


def _acknowledge_with_effect(
    key: Key, lease: str, effect: Callable[[], Effect], now: datetime
) -> Generator[Statement, Rows, tuple[bool, Any]]:
    held = yield from _get_held(key, lease)
    if held is None:
        return False, None
    result = yield from iter(effect())
    yield lock_mailbox(key)  # only now, so that effects of several letters do not wait for each other
    yield from _finish(key, held[2], "done", None, now)
    return True, result


@operation
def acknowledge_all(
    leases: Sequence[tuple[Key, str]], now: datetime
) -> Generator[Statement, Rows, list[bool | ConflictError]]:
    """Letters are done, each as by itself: whether that was the first time, or in whose hands it is."""
    mailboxes = group_by_mailbox(key for key, _ in leases)
    rows_by_key: dict[Key, Any] = {}
    for mailbox, names in mailboxes:
        for marks, batch in in_clause_chunks(names):
            rows = yield (
                f"SELECT letter_id, state, lease, task_id FROM inbox WHERE {MAILBOX}"
                f" AND letter_id IN ({marks}){FOR_UPDATE}",
                (*mailbox, *batch),
            )
            rows_by_key.update(((*mailbox, name), row) for name, *row in rows)
    results: list[bool | ConflictError] = []
    task_ids: dict[Key, str] = {}  # of what ends now
    for key, own_lease in leases:
        if key not in rows_by_key:
            raise unknown_letter_error(key)
        state, lease, task_id = rows_by_key[key]
        is_first = state not in ("done", "dead") and key not in task_ids
        results.append(is_first if lease == own_lease or not is_first else lease_lost_error(key))
        if results[-1] is True:
            task_ids[key] = task_id
    yield from _finish_all(task_ids, now)
    return results


def _finish_all(task_ids: Mapping[Key, str], now: datetime) -> Steps:
    """Letters are done, each with the task that it is of; the next ones of their tasks come forward."""
    for mailbox, names in group_by_mailbox(task_ids):
        yield lock_mailbox((*mailbox, ""))
        for marks, batch in in_clause_chunks(names):
            yield (
                f"UPDATE inbox SET state = 'done', lease = NULL, ended_at = ? WHERE {MAILBOX}"
                f" AND letter_id IN ({marks})",
                (to_micros(now), *mailbox, *batch),
            )
        busy = yield from find_busy_tasks("inbox", mailbox, {task_ids[(*mailbox, name)] for name in names})
        for task_id in sorted(busy):
            yield from promote_next("inbox", *mailbox, task_id)


_FINISH: Final = (
    "UPDATE inbox SET state = ?, lease = NULL, ended_at = ?, error_class = coalesce(?, error_class)"
    f" WHERE {LETTER_KEY} RETURNING (SELECT e.state FROM inbox AS e WHERE e.recipient_id = ? AND e.team_id = ?"
    f" AND e.task_id = ? AND e.ended_at IS NULL AND e.letter_id <> ? ORDER BY e.number LIMIT 1)"
)


def _finish(key: Key, task_id: str, state: str, error_class: str | None, now: datetime) -> Steps:
    """A letter is done or dead, and the next one of its task comes forward. The mailbox is locked."""
    recipient, team, letter_id = key
    rows = yield _FINISH, (state, to_micros(now), error_class, *key, recipient, team, task_id, letter_id)
    if rows[0][0] == "behind":
        yield from promote_next("inbox", recipient, team, task_id)


@operation
def fail(
    key: Key,
    lease: str,
    *,
    error_class: str,
    retry_at: Callable[[int], datetime | None],
    dead: DeadLetter,
    make_notices: Callable[[int, bool], Sequence[StoredLetter]],
    now: datetime,
    via_transport: bool,
) -> Generator[Statement, Rows, FailureOutcome | None]:
    """A letter could not be handled: it is tried again at the time that is said for so many attempts, or it is dead.

    ``told`` gives the letters that tell others of it. Nothing if it had been done before.
    """
    held = yield from _get_held(key, lease)
    if held is None:
        return None
    attempts: int = held[3]
    retry_time = retry_at(attempts)
    if retry_time is not None:
        pause = length_us((retry_time - now).total_seconds())
        yield (
            "UPDATE inbox SET lease = NULL, available_at = lease_now() + ?, wait_us = ?, error_class = ?"
            f" WHERE {LETTER_KEY}",
            (pause, pause, error_class, *key),
        )
    else:
        yield lock_mailbox(key)
        yield from _finish(key, held[2], "dead", error_class, now)
        yield from insert_dead_letter(dead)
    for stored in make_notices(attempts, retry_time is None):
        yield from post_letter(stored, now, via_transport=via_transport)
    return FailureOutcome(
        retry_at=retry_time, attempts=attempts, dead_letter_id=None if retry_time is not None else dead.id
    )


@operation
def store_dead_letter(
    dead: DeadLetter, notices: Sequence[StoredLetter], now: datetime, *, via_transport: bool
) -> Steps:
    """Keep what cannot be delivered, and tell others of it."""
    yield from insert_dead_letter(dead)
    for stored in notices:
        yield from post_letter(stored, now, via_transport=via_transport)


@operation
def mark_undeliverable(
    dead: DeadLetter, stored: StoredLetter, notices: Sequence[StoredLetter], now: datetime, *, via_transport: bool
) -> Steps:
    """A letter that no transport can carry is dead. It is kept, so that it can be sent again another way."""
    key = get_key(stored)
    yield from insert_letter(stored, now)
    yield from remove_from_outbox(key)
    yield from dependencies.delete_dependencies(key)
    yield from insert_dead_letter(dead)
    for notice in notices:
        yield from post_letter(notice, now, via_transport=via_transport)


@operation
def resend(
    dead: DeadLetter, stored: StoredLetter | None, now: datetime, *, via_transport: bool
) -> Generator[Statement, Rows, Receipt]:
    """Send a dead letter again: the one that is kept, or one that was made of its bytes."""
    if stored is not None:
        receipt: Receipt = yield from post_letter(stored, now, via_transport=via_transport)
        yield from mark_resent(dead, now)
        return receipt
    key = (dead.recipient_id, dead.team_id, dead.letter_id or "")
    original = yield from get(key)
    if original is None:
        raise unknown_letter_error(key)
    rows = yield f"SELECT state FROM inbox WHERE {LETTER_KEY}{FOR_UPDATE}", key
    if rows and rows[0][0] != "dead":
        yield from mark_resent(dead, now)  # it has gone its way already
        return make_receipt(original, rows[0][0], is_new=False)
    yield f"DELETE FROM inbox WHERE {LETTER_KEY}", key
    yield f"DELETE FROM outbox WHERE {LETTER_KEY}", key
    table = "outbox" if via_transport and not rows else "inbox"  # what had arrived need not travel again
    state = yield from enqueue(table, original, now, is_held=False)
    yield from mark_resent(dead, now)
    return make_receipt(original, "away" if table == "outbox" else state, is_new=True)


# --- the outbox ------------------------------------------------------------------------------------------------------


def claim(retry_s: float, limit: int) -> VolatileOperation[list[tuple[StoredLetter, int, int | None]]]:
    """Letters that are to be sent, or sent again, how often they were, and where the broker had them.

    Nobody else sends them for so long.
    """
    return VolatileOperation(functools.partial(_claim, length_us(retry_s), limit))


def _claim(pause: int, limit: int) -> Generator[Statement, Rows, list[tuple[StoredLetter, int, int | None]]]:
    rows = yield (
        f"SELECT o.attempts, o.broker_seq, {_COLUMNS} FROM outbox AS o JOIN letters AS l"
        " ON l.recipient_id = o.recipient_id AND l.team_id = o.team_id AND l.letter_id = o.letter_id"
        " WHERE o.state = 'ready' AND o.available_at <= lease_now()"
        f" ORDER BY o.available_at, o.number LIMIT ?{FOR_UPDATE}",
        (limit,),
    )
    for mailbox, names in group_by_mailbox((row[2], row[3], row[4]) for row in rows):
        for marks, batch in in_clause_chunks(names):
            yield (
                f"UPDATE outbox SET available_at = lease_now() + ?, attempts = attempts + 1 WHERE {MAILBOX}"
                f" AND letter_id IN ({marks})",
                (pause, *mailbox, *batch),
            )
    claims: list[tuple[StoredLetter, int, int | None]] = []
    for attempts, broker_seq, *row in rows:
        stored = from_row(row)
        if REFERENCE in stored.text:
            stored = msgspec.structs.replace(stored, sealed=(yield from get_sealed_values(get_key(stored))))
        claims.append((stored, attempts, broker_seq))
    return claims


_MARK_PUBLISHED: Final = (
    "UPDATE outbox SET published_at = ?, available_at = lease_now() + ?, broker_seq = v.column4 FROM (VALUES {}) AS v"
    " WHERE outbox.recipient_id = v.column1 AND outbox.team_id = v.column2 AND outbox.letter_id = v.column3"
)


@functools.cache
def _format_rows(count: int) -> str:
    return ", ".join(["(?, ?, ?, CAST(? AS BIGINT))"] * count)


def mark_published(places: Sequence[tuple[Key, int]], now: datetime, retry_s: float) -> VolatileOperation[None]:
    """The transport has these, and where; they are looked for after so long, unless a receipt comes first."""
    return VolatileOperation(functools.partial(_mark_published, places, now, length_us(retry_s)))


def _mark_published(places: Sequence[tuple[Key, int]], now: datetime, pause: int) -> Steps:
    when = (to_micros(now), pause)
    for group in insert_chunks(places):
        yield (
            _MARK_PUBLISHED.format(_format_rows(len(group))),
            (*when, *(value for key, place in group for value in (*key, place))),
        )


def postpone(keys: Sequence[Key], retry_s: float) -> VolatileOperation[None]:
    """The transport did not take these; they are sent after so long."""
    return VolatileOperation(functools.partial(_postpone, keys, length_us(retry_s)))


def _postpone(keys: Sequence[Key], pause: int) -> Steps:
    for key in keys:
        yield f"UPDATE outbox SET available_at = lease_now() + ? WHERE {LETTER_KEY}", (pause, *key)


@operation
def confirm(keys: Sequence[Key]) -> Steps:
    """The recipients have these letters."""
    yield from remove_all_from_outbox(keys)


@operation
def resend_unconfirmed() -> Steps:
    """Send everything again now that was sent and has no receipt."""
    yield (
        "UPDATE outbox SET available_at = lease_now() WHERE state = 'ready' AND published_at IS NOT NULL"
        " AND available_at > lease_now()",
        (),
    )


@operation
def has_unsent() -> Generator[Statement, Rows, bool]:
    """Whether a letter is to be sent now, or sent again."""
    return bool((yield "SELECT 1 FROM outbox WHERE state = 'ready' AND available_at <= lease_now() LIMIT 1", ()))


@operation
def get_origin(new_id: str) -> Generator[Statement, Rows, str]:
    """What other stores know this one by."""
    yield "INSERT INTO mail_origins (number, id) VALUES (1, ?) ON CONFLICT (number) DO NOTHING", (new_id,)
    rows = yield "SELECT id FROM mail_origins WHERE number = 1", ()
    name: str = rows[0][0]
    return name
