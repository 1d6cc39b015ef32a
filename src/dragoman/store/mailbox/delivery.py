"""Delivery of letters: lease, extend, release, acknowledge, fail, and send again.

    lease_letters(…)                    the next letters of a mailbox
    acknowledge(…, effect)              acknowledge a letter in one transaction with its effect
    fail(…)                             retry a letter later, or make it a dead letter

A mailbox numbers its letters and delivers them in that order, one per task at a time. A letter after another open
letter of its task is ``behind``. ``available_at`` is the time at which a letter can be leased, on the lease clock (see
``lease_clock``), and 0 if it is available now. A lease sets it to a later time, with a secret that only the holder has;
``wait_us`` is the length of the lease. The next reader sets an expired time to 0.

Invariant: a letter is acknowledged in the same transaction as its effect, and only by the holder of its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from dragoman.errors import ConflictError, CorruptDataError
from dragoman.letters.records import DeadLetter, FailureOutcome, LeasedLetter, Receipt, StoredLetter
from dragoman.store.mailbox.dead_letters import insert_dead_letter, mark_resent
from dragoman.store.mailbox.dependencies import delete_dependencies
from dragoman.store.mailbox.inbox import enqueue, make_receipt, post
from dragoman.store.mailbox.letters import (
    COLUMNS,
    LETTER_KEY,
    LETTERS_OF,
    Key,
    from_row,
    get,
    get_key,
    group_by_mailbox,
    insert_letter,
    lock_mailbox,
    promote_next,
    run_for_letters,
    unknown_letter_error,
)
from dragoman.store.mailbox.outbox import find_busy_tasks, remove_from_outbox
from dragoman.store.operation import (
    FOR_UPDATE,
    Operation,
    Rows,
    Statement,
    Steps,
    length_us,
    operation,
    to_micros,
    volatile_operation,
)

Effect = Steps[Any] | Operation[Any]
# An index covers these conditions in exactly this form.
_IS_DUE: Final = (
    "recipient_id = ? AND team_id = ? AND state = 'ready' AND available_at > 0 AND available_at <= lease_now()"
)
_SELECT_DUE: Final = f"SELECT 1 FROM inbox WHERE {_IS_DUE} LIMIT 1"
_FREE_DUE: Final = f"UPDATE inbox SET available_at = 0 WHERE {_IS_DUE}"
_IS_FREE: Final = "i.recipient_id = ? AND i.team_id = ? AND i.state = 'ready' AND i.available_at = 0"
_SELECT_FREE: Final = (
    f"SELECT ({_SELECT_DUE}), i.number, i.attempts, {COLUMNS} FROM inbox AS i JOIN {LETTERS_OF.format('i')}"
    f" WHERE {_IS_FREE}"
)
_SELECT_NEXT: Final = f"{_SELECT_FREE} ORDER BY i.number LIMIT ?{FOR_UPDATE}"
_SELECT_BY_ID: Final = f"{_SELECT_FREE} AND i.letter_id = ? ORDER BY i.number LIMIT ?{FOR_UPDATE}"
_LEASE: Final = (
    "UPDATE inbox SET lease = ?, available_at = lease_now() + ?, wait_us = ?, attempts = attempts + 1 WHERE {}"
)


# --- lease -----------------------------------------------------------------------------------------------------------


@operation
def has_ready(recipient_id: str, team_id: str) -> Steps[bool]:
    """Whether a mailbox has an available letter."""
    mailbox = (recipient_id, team_id)
    free = yield f"SELECT 1 FROM inbox AS i WHERE {_IS_FREE} ORDER BY i.number LIMIT 1", mailbox
    return bool(free or (yield _SELECT_DUE, mailbox))


@volatile_operation
def lease_letters(
    recipient_id: str,
    team_id: str,
    lease: str,
    now: datetime,
    *,
    lease_s: float,
    limit: int,
    letter_id: str | None = None,
) -> Steps[list[LeasedLetter]]:
    """Lease the next letters of a mailbox, or the letter ``letter_id``."""
    mailbox = (recipient_id, team_id)
    query: Statement = _SELECT_NEXT, (*mailbox, *mailbox, limit)
    if letter_id is not None:
        query = _SELECT_BY_ID, (*mailbox, *mailbox, letter_id, limit)
    rows = yield query
    if rows[0][0] if rows else (yield _SELECT_DUE, mailbox):
        yield _FREE_DUE, mailbox
        rows = yield query
    until, length = now + timedelta(seconds=lease_s), length_us(lease_s)
    yield from run_for_letters(mailbox, [row[5] for row in rows], _LEASE, (lease, length, length))
    letters: list[LeasedLetter] = []
    for _, number, attempts, *row in rows:
        try:
            stored = from_row(row)
        except CorruptDataError as error:
            yield from _reject_damaged(row, error, f"dead_{lease}_{number}", now)
            continue
        letters.append(LeasedLetter(letter=stored, number=number, attempts=attempts + 1, lease=lease, until=until))
    return letters


def _reject_damaged(row: Sequence[Any], error: CorruptDataError, dead_id: str, now: datetime) -> Steps[None]:
    """Make a damaged letter a dead letter, so that it does not block the letters behind it."""
    key = (row[0], row[1], row[2])
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


@volatile_operation
def extend(key: Key, lease: str, lease_s: float) -> Steps[None]:
    """Extend a lease; ``ConflictError`` (``lease_lost``) if the letter was leased again."""
    length = length_us(lease_s)
    rows = yield (
        f"UPDATE inbox SET available_at = lease_now() + ?, wait_us = ? WHERE {LETTER_KEY} AND lease = ?"
        " AND ended_at IS NULL RETURNING 1",
        (length, length, *key, lease),
    )
    if not rows:
        raise _lease_lost_error(key)


@operation
def require_lease(key: Key, lease: str) -> Steps[None]:
    """Raise ``ConflictError`` (``lease_lost``) unless this lease holds the letter."""
    rows = yield f"SELECT 1 FROM inbox WHERE {LETTER_KEY} AND lease = ? AND ended_at IS NULL", (*key, lease)
    if not rows:
        raise _lease_lost_error(key)


@operation
def release(key: Key, lease: str) -> Steps[None]:
    """End a lease without counting the delivery."""
    yield (
        f"UPDATE inbox SET lease = NULL, available_at = 0, attempts = attempts - 1 WHERE {LETTER_KEY} AND lease = ?"
        " AND ended_at IS NULL",
        (*key, lease),
    )


def _lease_lost_error(key: Key) -> ConflictError:
    return ConflictError(
        "the lease expired and the letter was leased again",
        where=f"letter {key[2]} to {key[0]}",
        remedy="Discard the letter; extend leases in time",
        code="lease_lost",
    )


# --- acknowledge -----------------------------------------------------------------------------------------------------

_SELECT_HELD: Final = f"SELECT state, lease, task_id, attempts FROM inbox WHERE {LETTER_KEY}{FOR_UPDATE}"
_SELECT_HELD_LOCKED: Final = (  # also locks the mailbox
    "SELECT i.state, i.lease, i.task_id, i.attempts FROM inbox AS i JOIN mailboxes"
    " ON mailboxes.recipient_id = i.recipient_id AND mailboxes.team_id = i.team_id"
    f" WHERE i.recipient_id = ? AND i.team_id = ? AND i.letter_id = ?{FOR_UPDATE}"
)
_FINISH: Final = (
    "UPDATE inbox SET state = ?, lease = NULL, ended_at = ?, error_class = coalesce(?, error_class)"
    f" WHERE {LETTER_KEY} RETURNING (SELECT e.state FROM inbox AS e WHERE e.recipient_id = ? AND e.team_id = ?"
    " AND e.task_id = ? AND e.ended_at IS NULL AND e.letter_id <> ? ORDER BY e.number LIMIT 1)"
)


@operation
def acknowledge(key: Key, lease: str, effect: Callable[[], Effect] | None, now: datetime) -> Steps[tuple[bool, Any]]:
    """Acknowledge a letter together with its effect: true and its result; false if it was acknowledged before."""
    held = _check_lease(lease, key, (yield _SELECT_HELD_LOCKED if effect is None else _SELECT_HELD, key))
    if held is None:
        return False, None
    result = None
    if effect is not None:
        result = yield from iter(effect())
        yield lock_mailbox(key)  # after the effect, so that effects of several letters run concurrently
    yield from _finish(key, held[2], "done", None, now)
    return True, result


def _check_lease(lease: str, key: Key, rows: Rows) -> tuple[Any, ...] | None:
    """Return the row of a leased letter; none if it is finished, ``ConflictError`` if it was leased again."""
    if not rows:
        raise unknown_letter_error(key)
    if rows[0][0] in ("done", "dead"):
        return None
    if rows[0][1] != lease:
        raise _lease_lost_error(key)
    return rows[0]


@operation
def acknowledge_all(leases: Sequence[tuple[Key, str]], now: datetime) -> Steps[list[bool | ConflictError]]:
    """Acknowledge letters independently: whether each was the first time, or the error of a lost lease."""
    rows_by_key: dict[Key, Any] = {}
    query = f"SELECT letter_id, state, lease, task_id FROM inbox WHERE {{}}{FOR_UPDATE}"
    for mailbox, ids in group_by_mailbox(key for key, _ in leases):
        for letter_id, *row in (yield from run_for_letters(mailbox, ids, query)):
            rows_by_key[(*mailbox, letter_id)] = row
    results: list[bool | ConflictError] = []
    task_ids: dict[Key, str] = {}
    for key, own_lease in leases:
        if key not in rows_by_key:
            raise unknown_letter_error(key)
        state, lease, task_id = rows_by_key[key]
        is_first = state not in ("done", "dead") and key not in task_ids
        results.append(is_first if lease == own_lease or not is_first else _lease_lost_error(key))
        if results[-1] is True:
            task_ids[key] = task_id
    yield from _finish_all(task_ids, now)
    return results


def _finish_all(task_ids: Mapping[Key, str], now: datetime) -> Steps[None]:
    """Acknowledge letters, each with its task, and promote the next letters of their tasks."""
    update = "UPDATE inbox SET state = 'done', lease = NULL, ended_at = ? WHERE {}"
    for mailbox, ids in group_by_mailbox(task_ids):
        yield lock_mailbox(mailbox)
        yield from run_for_letters(mailbox, ids, update, (to_micros(now),))
        busy = yield from find_busy_tasks("inbox", mailbox, {task_ids[(*mailbox, letter_id)] for letter_id in ids})
        for task_id in sorted(busy):
            yield from promote_next("inbox", *mailbox, task_id)


def _finish(key: Key, task_id: str, state: str, error_class: str | None, now: datetime) -> Steps[None]:
    """Finish a letter and promote the next letter of its task. The mailbox must be locked."""
    recipient, team, letter_id = key
    rows = yield _FINISH, (state, to_micros(now), error_class, *key, recipient, team, task_id, letter_id)
    if rows[0][0] == "behind":
        yield from promote_next("inbox", recipient, team, task_id)


# --- fail ------------------------------------------------------------------------------------------------------------


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
) -> Steps[FailureOutcome | None]:
    """Retry a letter at the time that ``retry_at`` returns for its attempts, or make it a dead letter.

    ``make_notices`` returns the letters that report the failure. None if the letter was acknowledged before.
    """
    held = _check_lease(lease, key, (yield _SELECT_HELD, key))
    if held is None:
        return None
    attempts: int = held[3]
    retry_time = retry_at(attempts)
    if retry_time is not None:
        delay = length_us((retry_time - now).total_seconds())
        yield (
            "UPDATE inbox SET lease = NULL, available_at = lease_now() + ?, wait_us = ?, error_class = ?"
            f" WHERE {LETTER_KEY}",
            (delay, delay, error_class, *key),
        )
    else:
        yield lock_mailbox(key)
        yield from _finish(key, held[2], "dead", error_class, now)
        yield from insert_dead_letter(dead)
    yield from _post_notices(make_notices(attempts, retry_time is None), now, via_transport=via_transport)
    dead_letter_id = None if retry_time is not None else dead.id
    return FailureOutcome(retry_at=retry_time, attempts=attempts, dead_letter_id=dead_letter_id)


def _post_notices(notices: Sequence[StoredLetter], now: datetime, *, via_transport: bool) -> Steps[None]:
    for notice in notices:
        yield from post(notice, now, via_transport=via_transport)


@operation
def store_dead_letter(dead: DeadLetter, notices: Sequence[StoredLetter], *, via_transport: bool) -> Steps[None]:
    """Insert a dead letter and its notices."""
    yield from insert_dead_letter(dead)
    yield from _post_notices(notices, dead.died_at, via_transport=via_transport)


@operation
def mark_undeliverable(dead: DeadLetter, stored: StoredLetter) -> Steps[None]:
    """Make a letter that no transport can send a dead letter. The letter is kept, so that it can be sent again."""
    key = get_key(stored)
    yield from insert_letter(stored, dead.died_at)
    yield from remove_from_outbox([key])
    yield from delete_dependencies(key)
    yield from insert_dead_letter(dead)


@operation
def resend(dead: DeadLetter, stored: StoredLetter | None, now: datetime, *, via_transport: bool) -> Steps[Receipt]:
    """Send a dead letter again: the stored original, or ``stored``, which was parsed from its bytes."""
    if stored is not None:
        receipt: Receipt = yield from post(stored, now, via_transport=via_transport)
        yield from mark_resent(dead, now)
        return receipt
    key = (dead.recipient_id, dead.team_id, dead.letter_id or "")
    original = yield from get(key)
    if original is None:
        raise unknown_letter_error(key)
    rows = yield f"SELECT state FROM inbox WHERE {LETTER_KEY}{FOR_UPDATE}", key
    if rows and rows[0][0] != "dead":
        yield from mark_resent(dead, now)  # it was sent again before
        return make_receipt(original, rows[0][0], is_new=False)
    yield f"DELETE FROM inbox WHERE {LETTER_KEY}", key
    yield f"DELETE FROM outbox WHERE {LETTER_KEY}", key
    table = "outbox" if via_transport and not rows else "inbox"  # a letter that arrived once is not sent again
    state = yield from enqueue(table, original, now)
    yield from mark_resent(dead, now)
    return make_receipt(original, "away" if table == "outbox" else state, is_new=True)
