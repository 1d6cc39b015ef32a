"""The outbox: letters that a transport sends to other stores.

A letter stays in the outbox until its receipt arrives. ``available_at`` is the next time to send
it, on the lease clock.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from dragoman.letters.records import StoredLetter
from dragoman.letters.secret_values import REFERENCE
from dragoman.store.mailbox.letters import (
    COLUMNS,
    LETTER_KEY,
    LETTERS_OF,
    Key,
    MailboxKey,
    from_row,
    get_key,
    get_sealed_values,
    group_by_mailbox,
    lock_mailbox,
    promote_next,
    run_for_letters,
)
from dragoman.store.operation import (
    FOR_UPDATE,
    Steps,
    insert_chunks,
    length_us,
    operation,
    to_micros,
    values_clause,
    volatile_operation,
)

OPEN_CONDITION: Final = {"inbox": " AND e.ended_at IS NULL", "outbox": ""}  # of a letter that is not finished
Claim = tuple[StoredLetter, int, int | None]  # letter, earlier attempts, sequence on the broker
_CLAIM: Final = (
    f"SELECT o.attempts, o.broker_seq, {COLUMNS} FROM outbox AS o JOIN {LETTERS_OF.format('o')}"
    " WHERE o.state = 'ready' AND o.available_at <= lease_now()"
    f" ORDER BY o.available_at, o.number LIMIT ?{FOR_UPDATE}"
)
_MARK_PUBLISHED: Final = (
    "UPDATE outbox SET published_at = ?, available_at = lease_now() + ?, broker_seq = v.column4 FROM (VALUES {}) AS v"
    " WHERE outbox.recipient_id = v.column1 AND outbox.team_id = v.column2 AND outbox.letter_id = v.column3"
)


def find_busy_tasks(table: str, mailbox: MailboxKey, task_ids: Iterable[str]) -> Steps[set[str]]:
    """Return the tasks with an open letter in a mailbox. One row per task is read, however many letters it has."""
    busy: set[str] = set()
    for chunk in insert_chunks(sorted(task_ids)):
        rows = yield (
            f"SELECT t.column1 FROM (VALUES {values_clause(1, len(chunk))}) AS t WHERE (SELECT e.number"
            f" FROM {table} AS e WHERE e.recipient_id = ? AND e.team_id = ? AND e.task_id = t.column1"
            f"{OPEN_CONDITION[table]} ORDER BY e.number LIMIT 1) IS NOT NULL",
            (*chunk, *mailbox),
        )
        busy.update(task for (task,) in rows)
    return busy


@volatile_operation
def claim(retry_s: float, limit: int) -> Steps[list[Claim]]:
    """Return letters to send. Other processes do not send them for ``retry_s`` seconds."""
    rows = yield _CLAIM, (limit,)
    for mailbox, ids in group_by_mailbox((row[2], row[3], row[4]) for row in rows):
        update = "UPDATE outbox SET available_at = lease_now() + ?, attempts = attempts + 1 WHERE {}"
        yield from run_for_letters(mailbox, ids, update, (length_us(retry_s),))
    claims: list[Claim] = []
    for attempts, broker_seq, *row in rows:
        stored = from_row(row)
        if REFERENCE in stored.text:
            stored = msgspec.structs.replace(stored, sealed=(yield from get_sealed_values(get_key(stored))))
        claims.append((stored, attempts, broker_seq))
    return claims


@volatile_operation
def mark_published(places: Sequence[tuple[Key, int]], now: datetime, retry_s: float) -> Steps[None]:
    """Store the broker sequences of letters; without a receipt they are checked after ``retry_s`` seconds."""
    times = (to_micros(now), length_us(retry_s))
    for chunk in insert_chunks(places):
        values = [value for key, broker_seq in chunk for value in (*key, broker_seq)]
        yield _MARK_PUBLISHED.format(_format_rows(len(chunk))), (*times, *values)


@functools.cache
def _format_rows(count: int) -> str:
    return ", ".join(["(?, ?, ?, CAST(? AS BIGINT))"] * count)


@volatile_operation
def postpone(keys: Sequence[Key], retry_s: float) -> Steps[None]:
    """Send letters again after ``retry_s`` seconds."""
    for key in keys:
        yield f"UPDATE outbox SET available_at = lease_now() + ? WHERE {LETTER_KEY}", (length_us(retry_s), *key)


@operation
def remove_from_outbox(keys: Sequence[Key]) -> Steps[None]:
    """Remove letters that their recipients have; the next letters of their tasks can be sent."""
    for mailbox, ids in group_by_mailbox(keys):
        yield lock_mailbox(mailbox)
        rows = yield from run_for_letters(mailbox, ids, "DELETE FROM outbox WHERE {} RETURNING task_id")
        for task_id in (yield from find_busy_tasks("outbox", mailbox, {task_id for (task_id,) in rows})):
            yield from promote_next("outbox", *mailbox, task_id)


@operation
def resend_unconfirmed() -> Steps[None]:
    """Send published letters without a receipt again now."""
    yield (
        "UPDATE outbox SET available_at = lease_now() WHERE state = 'ready' AND published_at IS NOT NULL"
        " AND available_at > lease_now()",
        (),
    )


@operation
def has_unsent() -> Steps[bool]:
    """Whether a letter is due to be sent."""
    return bool((yield "SELECT 1 FROM outbox WHERE state = 'ready' AND available_at <= lease_now() LIMIT 1", ()))


@operation
def get_origin(new_id: str) -> Steps[str]:
    """Return the id of this store for other stores; create it on first use."""
    yield "INSERT INTO mail_origins (number, id) VALUES (1, ?) ON CONFLICT (number) DO NOTHING", (new_id,)
    rows = yield "SELECT id FROM mail_origins WHERE number = 1", ()
    origin: str = rows[0][0]
    return origin
