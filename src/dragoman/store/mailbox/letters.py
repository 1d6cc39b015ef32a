"""Rows of letters and task states, and the queries and maintenance of mail.

The row of a letter never changes, except for its links to a deleted session. The status of a letter is in other tables
(``inbox``, ``outbox``, ``dead_letters``).

Invariant: secrets are only in ``sealed_values`` and in encrypted bytes of ``dead_letters``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import ConflictError, CorruptDataError, UnknownLetterError
from dragoman.letters.records import MailboxCounts, SealedValue, StoredLetter, personal_team
from dragoman.store.engines.tables import LETTER_COLUMNS
from dragoman.store.operation import (
    FOR_UPDATE,
    Rows,
    Statement,
    Steps,
    from_micros,
    in_clause_chunks,
    insert_chunks,
    operation,
    to_micros,
    values_clause,
)

Key = tuple[str, str, str]  # recipient, team, letter
MailboxKey = tuple[str, str]  # recipient, team
MAILBOX: Final = "recipient_id = ? AND team_id = ?"
LETTER_KEY: Final = f"{MAILBOX} AND letter_id = ?"
COLUMNS: Final = ", ".join(f"l.{name.strip()}" for name in LETTER_COLUMNS.split(","))
LETTERS_OF: Final = (
    "letters AS l ON l.recipient_id = {0}.recipient_id AND l.team_id = {0}.team_id AND l.letter_id = {0}.letter_id"
)
STATUS_COLUMNS: Final = (  # of a row of the inbox; the fourth is the time until it is available
    "i.state, i.attempts, i.ended_at, CASE WHEN i.available_at > 0 THEN i.available_at - lease_now() END, i.lease,"
    " i.error_class"
)
INSERT_LETTER: Final = (
    f"INSERT INTO letters ({LETTER_COLUMNS}) VALUES ({', '.join('?' * 15)})"
    " ON CONFLICT (recipient_id, team_id, letter_id) DO NOTHING RETURNING 1"
)
OTHER_CONTENT: Final = "a letter with the same id and different content exists"
_PAGE: Final = 500
_encode: Final = msgspec.msgpack.Encoder().encode


# --- rows ------------------------------------------------------------------------------------------------------------


def to_row(stored: StoredLetter, now: datetime) -> tuple[Any, ...]:
    """Return the row of a letter."""
    row = (
        stored.recipient_id,
        stored.team_id,
        stored.letter_id,
        stored.sender_id,
        stored.task_id,
        stored.type,
        stored.trace_id,
        stored.session_id,
        stored.message_id,
        stored.turn_id,
        stored.user_id,
        to_micros(now),
        stored.fingerprint,
        stored.text,
    )
    return (*row, hash_row(row))


def hash_row(row: Sequence[Any]) -> bytes:
    """Return the SHA-256 of the values of a row."""
    return hashlib.sha256(_encode(tuple(row))).digest()


def from_row(row: Sequence[Any]) -> StoredLetter:
    """Return the letter of a row; ``CorruptDataError`` if its hash does not match."""
    if hash_row(row[:14]) != bytes(row[14]):
        raise CorruptDataError("its hash does not match its content", where=f"mailbox {row[0]}, letter {row[2]}")
    return StoredLetter(
        recipient_id=row[0],
        team_id=row[1],
        letter_id=row[2],
        sender_id=row[3],
        task_id=row[4],
        type=row[5],
        trace_id=row[6],
        session_id=row[7],
        message_id=row[8],
        turn_id=row[9],
        user_id=row[10],
        created_at=from_micros(row[11]),
        fingerprint=bytes(row[12]),
        text=row[13],
    )


def get_key(stored: StoredLetter) -> Key:
    """Return the primary key of a letter."""
    return stored.recipient_id, stored.team_id, stored.letter_id


def group_by_mailbox(keys: Iterable[Key]) -> list[tuple[MailboxKey, list[str]]]:
    """Return the letter ids of each mailbox, sorted, so that concurrent transactions lock rows in the same order."""
    mailboxes: dict[MailboxKey, list[str]] = {}
    for recipient_id, team_id, letter_id in keys:
        mailboxes.setdefault((recipient_id, team_id), []).append(letter_id)
    return [(mailbox, sorted(ids)) for mailbox, ids in sorted(mailboxes.items())]


def run_for_letters(
    mailbox: MailboxKey, letter_ids: Sequence[str], statement: str, arguments: Sequence[Any] = ()
) -> Steps[Rows]:
    """Run a statement for letters of one mailbox, in chunks; ``{}`` in the statement is the condition."""
    result: Rows = []
    for marks, chunk in in_clause_chunks(letter_ids):
        condition = f"{MAILBOX} AND letter_id IN ({marks})"
        result += yield statement.format(condition), (*arguments, *mailbox, *chunk)
    return result


def unknown_letter_error(key: Key) -> UnknownLetterError:
    """Return the error for a letter that does not exist."""
    return UnknownLetterError("the letter does not exist", where=f"letter {key[2]} to {key[0]}")


# --- insert ----------------------------------------------------------------------------------------------------------


def insert_letter(stored: StoredLetter, now: datetime) -> Steps[bool]:
    """Insert a letter; false if it exists, ``ConflictError`` if a different letter has its id."""
    if not (yield INSERT_LETTER, to_row(stored, now)):
        yield from require_same_content(stored)
        return False
    yield from insert_sealed_values(stored)
    return True


def insert_letters(letters: Sequence[StoredLetter], now: datetime) -> Steps[list[bool]]:
    """Insert letters and return which of them are new; ``ConflictError`` if a different letter has the same id."""
    new: set[Key] = set()
    for chunk in insert_chunks(letters):
        rows = yield (
            f"INSERT INTO letters ({LETTER_COLUMNS}) VALUES {values_clause(15, len(chunk))} ON CONFLICT (recipient_id,"
            " team_id, letter_id) DO NOTHING RETURNING recipient_id, team_id, letter_id",
            [value for stored in chunk for value in to_row(stored, now)],
        )
        new.update((recipient_id, team_id, letter_id) for recipient_id, team_id, letter_id in rows)
    are_new: list[bool] = []
    for stored in letters:
        is_new = get_key(stored) in new
        new.discard(get_key(stored))
        are_new.append(is_new)
        if is_new:
            yield from insert_sealed_values(stored)
        else:
            yield from require_same_content(stored)
    return are_new


def require_same_content(stored: StoredLetter) -> Steps[None]:
    """Raise ``ConflictError`` if the letter with this id has different content."""
    rows = yield f"SELECT fingerprint FROM letters WHERE {LETTER_KEY}", get_key(stored)
    if rows and bytes(rows[0][0]) != stored.fingerprint:
        raise ConflictError(
            OTHER_CONTENT,
            where=f"letter {stored.letter_id} to {stored.recipient_id}",
            remedy="Set a unique id in context.message_id",
            code="letter_conflict",
        )


def insert_sealed_values(stored: StoredLetter) -> Steps[None]:
    """Insert the sealed values of a letter."""
    for value in stored.sealed:
        yield (
            "INSERT INTO sealed_values (recipient_id, team_id, letter_id, input_id, key_id, sealed)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (recipient_id, team_id, letter_id, input_id) DO NOTHING",
            (*get_key(stored), value.input_id, value.key_id, value.box),
        )


# --- task states -----------------------------------------------------------------------------------------------------

_TASK_STATES: Final = {"success": "succeeded", "partial_success": "partial", "failed": "failed"}
UPSERT_TASKS: Final = (
    "INSERT INTO task_states (task_id, team_id, state, changed_at) VALUES {} ON CONFLICT (task_id, team_id)"
)
_UNLESS_SUCCEEDED: Final = (  # success is final
    "DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at WHERE task_states.state <> 'succeeded'"
)


def is_result(stored: StoredLetter) -> bool:
    """Whether a letter reports the result of its task."""
    return stored.status is not None and stored.type == "task_result"


def is_success(stored: StoredLetter) -> bool:
    """Whether a letter reports that its task succeeded."""
    return is_result(stored) and stored.status == "success"


def get_task_state(stored: StoredLetter) -> str:
    """Return the state of the task that a result reports."""
    status = stored.status or ""
    return _TASK_STATES.get(status, status)


def record_states(letters: Sequence[StoredLetter], now: datetime) -> Steps[None]:
    """Store the task states of results. It must run before the mailboxes are locked and dependents are released."""
    states: dict[tuple[str, str], str] = {}
    for stored in letters:
        task = (stored.task_id, stored.team_id)
        if is_result(stored) and states.get(task) != "succeeded":
            states[task] = get_task_state(stored)
    rows = [(*task, states[task], to_micros(now)) for task in sorted(states)]  # sorted: a common lock order
    for chunk in insert_chunks(rows):
        statement = UPSERT_TASKS.format(values_clause(4, len(chunk)))
        yield f"{statement} {_UNLESS_SUCCEEDED}", [value for row in chunk for value in row]


# --- queries ---------------------------------------------------------------------------------------------------------


@operation
def get(key: Key) -> Steps[StoredLetter | None]:
    """Return a letter with its sealed values."""
    rows = yield f"SELECT {LETTER_COLUMNS} FROM letters WHERE {LETTER_KEY}", key
    if not rows:
        return None
    return msgspec.structs.replace(from_row(rows[0]), sealed=(yield from get_sealed_values(key)))


@operation
def get_sealed_values(key: Key) -> Steps[tuple[SealedValue, ...]]:
    """Return the sealed values of a letter."""
    rows = yield f"SELECT input_id, key_id, sealed FROM sealed_values WHERE {LETTER_KEY} ORDER BY input_id", key
    return tuple(SealedValue(input_id, key_id, bytes(sealed)) for input_id, key_id, sealed in rows)


@operation
def find(filters: Mapping[str, str], after: tuple[int, str] | None, limit: int) -> Steps[Rows]:
    """Return rows of letters with their status, in the order of sending."""
    conditions = [f"l.{name} = ?" for name in filters]
    arguments: list[Any] = list(filters.values())
    if after is not None:
        conditions.append("(l.created_at, l.letter_id) > (?, ?)")
        arguments.extend(after)
    rows = yield (
        f"SELECT {COLUMNS}, {STATUS_COLUMNS} FROM letters AS l LEFT JOIN inbox AS i"
        " ON i.recipient_id = l.recipient_id AND i.team_id = l.team_id AND i.letter_id = l.letter_id"
        f" WHERE {' AND '.join(conditions) or '1 = 1'} ORDER BY l.created_at, l.letter_id LIMIT ?",
        (*arguments, limit),
    )
    return rows


_ARRIVALS: Final = (
    f"SELECT {COLUMNS}, {STATUS_COLUMNS}, i.number FROM inbox AS i JOIN {LETTERS_OF.format('i')}"
    " WHERE i.recipient_id = ? AND i.team_id = ?"
)


@operation
def letters_after(recipient_id: str, team_id: str, after: int, limit: int) -> Steps[Rows]:
    """Return the letters after a number of a mailbox, in order. Numbers grow in the order of arrival."""
    return (yield f"{_ARRIVALS} AND i.number > ? ORDER BY i.number LIMIT ?", (recipient_id, team_id, after, limit))


@operation
def newest(recipient_id: str, team_id: str, before: int | None, limit: int) -> Steps[Rows]:
    """Return the newest letters of a mailbox, or those before a number, newest first."""
    condition, number = ("", ()) if before is None else (" AND i.number < ?", (before,))
    arguments = (recipient_id, team_id, *number, limit)
    return (yield f"{_ARRIVALS}{condition} ORDER BY i.number DESC LIMIT ?", arguments)


@operation
def last_number(recipient_id: str, team_id: str) -> Steps[int]:
    """Return the number of the newest letter of a mailbox; 0 if there is none."""
    rows = yield f"SELECT last_number FROM mailboxes WHERE {MAILBOX}", (recipient_id, team_id)
    return int(rows[0][0]) if rows else 0


@operation
def get_dependencies(keys: Sequence[Key]) -> Steps[dict[Key, tuple[str, ...]]]:
    """Return the tasks that letters wait for."""
    dependencies: dict[Key, tuple[str, ...]] = {}
    for key in keys:
        rows = yield f"SELECT needed_id FROM task_needs WHERE {LETTER_KEY} ORDER BY needed_id", key
        dependencies[key] = tuple(row[0] for row in rows)
    return dependencies


@operation
def counts(team_id: str | None) -> Steps[list[MailboxCounts]]:
    """Return the counts of each mailbox."""
    condition, arguments = (" WHERE team_id = ?", (team_id,)) if team_id is not None else ("", ())
    rows = yield (
        "SELECT recipient_id, team_id,"
        " sum(CASE WHEN state = 'ready' AND available_at <= lease_now() THEN 1 ELSE 0 END),"
        " sum(CASE WHEN state = 'ready' AND available_at > lease_now() AND lease IS NOT NULL THEN 1 ELSE 0 END),"
        " sum(CASE WHEN state = 'ready' AND available_at > lease_now() AND lease IS NULL THEN 1 ELSE 0 END),"
        " sum(CASE WHEN state = 'behind' THEN 1 ELSE 0 END),"
        " sum(CASE WHEN state = 'held' THEN 1 ELSE 0 END),"
        " sum(CASE WHEN state = 'done' THEN 1 ELSE 0 END),"
        " sum(CASE WHEN attempts > 1 THEN attempts - 1 ELSE 0 END),"
        " min(CASE WHEN ended_at IS NULL THEN arrived_at END), max(arrived_at)"
        f" FROM inbox{condition} GROUP BY recipient_id, team_id",
        arguments,
    )
    away = yield (
        f"SELECT recipient_id, team_id, count(*) FROM outbox{condition} GROUP BY recipient_id, team_id",
        arguments,
    )
    dead = yield (
        "SELECT recipient_id, team_id, count(*) FROM dead_letters WHERE resent_at IS NULL"
        f"{' AND team_id = ?' if arguments else ''} GROUP BY recipient_id, team_id",
        arguments,
    )
    names = ("ready", "leased", "waiting", "behind", "held", "done", "retries")
    mailboxes: dict[MailboxKey, dict[str, Any]] = {}
    for recipient, team, *numbers, oldest, latest in rows:
        mailbox = mailboxes.setdefault((recipient, team), {})
        mailbox.update({name: int(number) for name, number in zip(names, numbers, strict=True)})
        mailbox["oldest_at"] = None if oldest is None else from_micros(oldest)
        mailbox["newest_at"] = from_micros(latest)
    for name, totals in (("away", away), ("dead", dead)):
        for recipient, team, number in totals:
            mailboxes.setdefault((recipient, team), {})[name] = int(number)
    return [MailboxCounts(recipient_id=key[0], team_id=key[1], **mailboxes[key]) for key in sorted(mailboxes)]


# --- order -----------------------------------------------------------------------------------------------------------


def lock_mailbox(key: Sequence[str]) -> Statement:
    """Lock a mailbox against concurrent inserts and removals until the transaction ends."""
    return f"SELECT last_number FROM mailboxes WHERE {MAILBOX}{FOR_UPDATE}", key[:2]


def promote_next(table: str, recipient_id: str, team_id: str, task_id: str) -> Steps[None]:
    """Make the first open letter of a task available."""
    first = yield select_first(table), (recipient_id, team_id, task_id)
    for letter_id, state in first:
        if state == "behind":
            yield f"UPDATE {table} SET state = 'ready' WHERE {LETTER_KEY}", (recipient_id, team_id, letter_id)


def select_first(table: str) -> str:
    """Return the query for the first open letter of a task. Its order matches an index."""
    is_open = " AND ended_at IS NULL" if table == "inbox" else ""
    return f"SELECT letter_id, state FROM {table} WHERE {MAILBOX} AND task_id = ?{is_open} ORDER BY number LIMIT 1"


# --- maintenance -----------------------------------------------------------------------------------------------------

_LETTER_TABLES: Final = ("inbox", "outbox", "sealed_values", "task_needs", "letters")
_TEAM_TABLES: Final = (
    *("letters", "mailboxes", "inbox", "outbox", "dead_letters", "sealed_values"),
    *("task_states", "task_needs"),
)


def unlink_session(session_id: str) -> Steps[None]:
    """Remove the links of letters to a deleted session."""
    rows = yield f"SELECT {LETTER_COLUMNS} FROM letters WHERE session_id = ?", (session_id,)
    for row in rows:
        values = (*row[:7], None, None, None, *row[10:14])
        is_intact = hash_row(row[:14]) == bytes(row[14])
        yield (
            f"UPDATE letters SET session_id = NULL, message_id = NULL, turn_id = NULL, hash = ? WHERE {LETTER_KEY}",
            (hash_row(values) if is_intact else row[14], *row[:3]),
        )


def erase_user(user_id: str) -> Steps[None]:
    """Delete every letter of a user."""
    yield from _delete_where("user_id", user_id)
    yield "DELETE FROM dead_letters WHERE user_id = ?", (user_id,)
    for table in _TEAM_TABLES:
        yield f"DELETE FROM {table} WHERE team_id = ?", (personal_team(user_id),)


def erase_session(session_id: str) -> Steps[None]:
    """Delete the letters of a session of an erased user."""
    yield from _delete_where("session_id", session_id)


def _delete_where(column: str, value: str) -> Steps[None]:
    rows = yield f"SELECT recipient_id, team_id, letter_id, task_id FROM letters WHERE {column} = ?", (value,)
    for recipient_id, team_id, letter_id, task_id in rows:
        key = (recipient_id, team_id, letter_id)
        yield lock_mailbox(key)
        for table in ("dead_letters", *_LETTER_TABLES):
            yield f"DELETE FROM {table} WHERE {LETTER_KEY}", key
        for table in ("inbox", "outbox"):
            yield from promote_next(table, recipient_id, team_id, task_id)


@operation
def sweep(before: datetime, limit: int = _PAGE) -> Steps[int]:
    """Delete up to ``limit`` letters that were acknowledged before a time; return their number.

    A letter to another store is deleted after its receipt. Dead letters stay.
    """
    rows = yield (
        "SELECT recipient_id, team_id, letter_id FROM inbox WHERE state = 'done' AND ended_at < ? LIMIT ?",
        (to_micros(before), limit),
    )
    if not rows:
        references = " OR ".join(
            f"EXISTS (SELECT 1 FROM {table} AS x WHERE x.recipient_id = l.recipient_id AND x.team_id = l.team_id"
            " AND x.letter_id = l.letter_id)"
            for table in ("inbox", "outbox", "dead_letters")
        )
        rows = yield (
            "SELECT recipient_id, team_id, letter_id FROM letters AS l WHERE created_at < ?"
            f" AND NOT ({references}) LIMIT ?",
            (to_micros(before), limit),
        )
    for row in rows:
        for table in ("inbox", "sealed_values", "letters"):
            yield f"DELETE FROM {table} WHERE {LETTER_KEY}", row[:3]
    return len(rows)


@operation
def reencrypt(key_id: str, encrypt: Callable[..., tuple[str, bytes]], limit: int = _PAGE) -> Steps[int]:
    """Encrypt up to ``limit`` values of other keys with the key ``key_id``; return their number."""
    rows = yield (
        "SELECT recipient_id, team_id, letter_id, input_id, key_id, sealed FROM sealed_values"
        " WHERE key_id <> ? LIMIT ?",
        (key_id, limit),
    )
    for *context, key, ciphertext in rows:
        yield (
            f"UPDATE sealed_values SET key_id = ?, sealed = ? WHERE {LETTER_KEY} AND input_id = ?",
            (*encrypt(key, bytes(ciphertext), *context), *context),
        )
    return len(rows)


@operation
def find_damage() -> Steps[list[str]]:
    """Return descriptions of damaged and missing letters."""
    problems: list[str] = []
    after: tuple[Any, ...] = ("", "", "")
    page = (
        f"SELECT {LETTER_COLUMNS} FROM letters WHERE (recipient_id, team_id, letter_id) > (?, ?, ?)"
        " ORDER BY recipient_id, team_id, letter_id LIMIT ?"
    )
    while rows := (yield page, (*after, _PAGE)):
        for row in rows:
            if hash_row(row[:14]) != bytes(row[14]):
                problems.append(f"letter {row[2]} to {row[0]}: its hash does not match its content")
        after = rows[-1][:3]
    for table in ("inbox", "outbox", "sealed_values"):
        rows = yield (
            f"SELECT x.recipient_id, x.letter_id FROM {table} AS x LEFT JOIN {LETTERS_OF.format('x')}"
            " WHERE l.letter_id IS NULL",
            (),
        )
        problems.extend(
            f"{table} refers to letter {letter} to {recipient}, which is missing" for recipient, letter in rows
        )
    return problems
