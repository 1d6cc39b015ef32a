"""Letters in tables: the row of a letter, what is found by it, and the care of everything that mail keeps.

A letter is a row that never changes, but for its links to a session that was deleted. Where it stands (``inbox``,
``outbox``, ``dead_letters``) is kept beside it. The one rule: what is sensitive is only in ``sealed_values`` and in
sealed bytes of ``dead_letters``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.errors import ConflictError, CorruptDataError
from dragoman.letters.records import DeadLetter, MailboxCounts, SealedValue, StoredLetter, personal_team
from dragoman.store.batches import insert_chunks, values_clause
from dragoman.store.engines.tables import LETTER_COLUMNS
from dragoman.store.message_rows import from_micros, to_micros
from dragoman.store.operation import FOR_UPDATE, Rows, Statement, operation

Steps = Generator[Statement, Rows, None]
Key = tuple[str, str, str]  # recipient, team, letter
MAILBOX: Final = "recipient_id = ? AND team_id = ?"
LETTER_KEY: Final = f"{MAILBOX} AND letter_id = ?"
STATUS_COLUMNS: Final = (  # of a row of the inbox; what is to come of its time, if it has one
    "i.state, i.attempts, i.ended_at, CASE WHEN i.available_at > 0 THEN i.available_at - lease_now() END, i.lease,"
    " i.error_class"
)
INSERT_LETTER: Final = (
    f"INSERT INTO letters ({LETTER_COLUMNS}) VALUES ({', '.join('?' * 15)})"
    " ON CONFLICT (recipient_id, team_id, letter_id) DO NOTHING RETURNING 1"
)
_DEAD_COLUMNS: Final = (
    "id, recipient_id, team_id, letter_id, sender_id, task_id, reason, error, user_id, died_at, resent_at, key_id, raw"
)
_PAGE: Final = 500
OTHER_CONTENT: Final = "another letter of that id was sent before, with other content"
_encode: Final = msgspec.msgpack.Encoder().encode


# --- rows ------------------------------------------------------------------------------------------------------------


def to_row(stored: StoredLetter, now: datetime) -> tuple[Any, ...]:
    """A letter as a row of the table."""
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
    """SHA-256 over everything that a row says."""
    return hashlib.sha256(_encode(tuple(row))).digest()


def from_row(row: Sequence[Any]) -> StoredLetter:
    """The letter of a row; ``CorruptDataError`` if it is not what was written."""
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
    """What a letter is found by."""
    return stored.recipient_id, stored.team_id, stored.letter_id


# --- keeping ---------------------------------------------------------------------------------------------------------


def insert_letter(stored: StoredLetter, now: datetime) -> Generator[Statement, Rows, bool]:
    """Keep a letter; false if the same is there already, ``ConflictError`` if another one of that id is."""
    if not (yield INSERT_LETTER, to_row(stored, now)):
        yield from require_same_content(stored)
        return False
    if stored.sealed:
        yield from insert_sealed_values(stored)
    return True


def insert_letters(letters: Sequence[StoredLetter], now: datetime) -> Generator[Statement, Rows, list[bool]]:
    """Keep letters: which of them are new. ``ConflictError`` if another one of an id is there, or among them."""
    new: set[Key] = set()
    for group in insert_chunks(letters):
        rows = yield (
            f"INSERT INTO letters ({LETTER_COLUMNS}) VALUES {values_clause(15, len(group))}"
            " ON CONFLICT (recipient_id, team_id,"
            " letter_id) DO NOTHING RETURNING recipient_id, team_id, letter_id",
            [value for stored in group for value in to_row(stored, now)],
        )
        new.update((recipient_id, team_id, letter_id) for recipient_id, team_id, letter_id in rows)
    are_new: list[bool] = []
    for stored in letters:
        is_new = get_key(stored) in new
        new.discard(get_key(stored))
        are_new.append(is_new)
        if not is_new:
            yield from require_same_content(stored)
        elif stored.sealed:
            yield from insert_sealed_values(stored)
    return are_new


def require_same_content(stored: StoredLetter) -> Steps:
    """``ConflictError`` if the letter that has an id says something else."""
    rows = yield f"SELECT fingerprint FROM letters WHERE {LETTER_KEY}", get_key(stored)
    if rows and bytes(rows[0][0]) != stored.fingerprint:
        raise ConflictError(
            OTHER_CONTENT,
            where=f"letter {stored.letter_id} to {stored.recipient_id}",
            remedy="Give it an id of its own in context.message_id",
            code="letter_conflict",
        )


def insert_sealed_values(stored: StoredLetter) -> Steps:
    """Keep the sealed values of a letter."""
    for value in stored.sealed:
        yield (
            "INSERT INTO sealed_values (recipient_id, team_id, letter_id, input_id, key_id, sealed)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (recipient_id, team_id, letter_id, input_id) DO NOTHING",
            (*get_key(stored), value.input_id, value.key_id, value.box),
        )


# --- finding ---------------------------------------------------------------------------------------------------------


@operation
def get(key: Key) -> Generator[Statement, Rows, StoredLetter | None]:
    """The letter of a key, with its sealed values."""
    rows = yield f"SELECT {LETTER_COLUMNS} FROM letters WHERE {LETTER_KEY}", key
    if not rows:
        return None
    return msgspec.structs.replace(from_row(rows[0]), sealed=(yield from get_sealed_values(key)))


def get_sealed_values(key: Key) -> Generator[Statement, Rows, tuple[SealedValue, ...]]:
    """The sealed values of a letter."""
    rows = yield f"SELECT input_id, key_id, sealed FROM sealed_values WHERE {LETTER_KEY} ORDER BY input_id", key
    return tuple(SealedValue(input_id, key_id, bytes(box)) for input_id, key_id, box in rows)


@operation
def find(filters: Mapping[str, str], after: tuple[int, str] | None, limit: int) -> Generator[Statement, Rows, Rows]:
    """Letters that fit, with where they stand, in the order in which they were taken."""
    columns = ", ".join(f"l.{name.strip()}" for name in LETTER_COLUMNS.split(","))
    conditions = [f"l.{name} = ?" for name in filters]
    arguments: list[Any] = list(filters.values())
    if after is not None:
        conditions.append("(l.created_at, l.letter_id) > (?, ?)")
        arguments.extend(after)
    rows = yield (
        f"SELECT {columns}, {STATUS_COLUMNS} FROM letters AS l LEFT JOIN inbox AS i"
        " ON i.recipient_id = l.recipient_id AND i.team_id = l.team_id AND i.letter_id = l.letter_id"
        f" WHERE {' AND '.join(conditions) or '1 = 1'} ORDER BY l.created_at, l.letter_id LIMIT ?",
        (*arguments, limit),
    )
    return rows


@operation
def get_dependencies(keys: Sequence[Key]) -> Generator[Statement, Rows, dict[Key, tuple[str, ...]]]:
    """The tasks that letters wait for, and that have not succeeded."""
    dependencies: dict[Key, tuple[str, ...]] = {}
    for key in keys:
        rows = yield f"SELECT needed_id FROM task_needs WHERE {LETTER_KEY} ORDER BY needed_id", key
        dependencies[key] = tuple(row[0] for row in rows)
    return dependencies


@operation
def counts(team_id: str | None) -> Generator[Statement, Rows, list[MailboxCounts]]:
    """How much is in each mailbox."""
    condition, parameters = (" WHERE team_id = ?", (team_id,)) if team_id is not None else ("", ())
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
        parameters,
    )
    away = yield (
        f"SELECT recipient_id, team_id, count(*) FROM outbox{condition} GROUP BY recipient_id, team_id",
        parameters,
    )
    dead = yield (
        "SELECT recipient_id, team_id, count(*) FROM dead_letters WHERE resent_at IS NULL"
        f"{' AND team_id = ?' if parameters else ''} GROUP BY recipient_id, team_id",
        parameters,
    )
    names = ("ready", "leased", "waiting", "behind", "held", "done", "retries")
    mailboxes: dict[tuple[str, str], dict[str, Any]] = {}
    for recipient, team, *numbers, oldest, newest in rows:
        mailbox = mailboxes.setdefault((recipient, team), {})
        mailbox.update({name: int(number) for name, number in zip(names, numbers, strict=True)})
        mailbox["oldest_at"] = None if oldest is None else from_micros(oldest)
        mailbox["newest_at"] = from_micros(newest)
    for name, totals in (("away", away), ("dead", dead)):
        for recipient, team, number in totals:
            mailboxes.setdefault((recipient, team), {})[name] = int(number)
    return [MailboxCounts(recipient_id=key[0], team_id=key[1], **mailboxes[key]) for key in sorted(mailboxes)]


# --- the dead --------------------------------------------------------------------------------------------------------


def insert_dead_letter(dead: DeadLetter) -> Steps:
    """Keep what nobody will get. The same id again changes nothing."""
    yield (
        f"INSERT INTO dead_letters ({_DEAD_COLUMNS}) VALUES ({', '.join('?' * 13)}) ON CONFLICT DO NOTHING",
        (
            dead.id,
            dead.recipient_id,
            dead.team_id,
            dead.letter_id,
            dead.sender_id,
            dead.task_id,
            dead.reason,
            dead.error,
            dead.user_id,
            to_micros(dead.died_at),
            None,
            dead.key_id,
            dead.raw,
        ),
    )


def dead_letter_from_row(row: Sequence[Any]) -> DeadLetter:
    """The dead letter of a row."""
    return DeadLetter(
        id=row[0],
        recipient_id=row[1],
        team_id=row[2],
        letter_id=row[3],
        sender_id=row[4],
        task_id=row[5],
        reason=row[6],
        error=row[7],
        user_id=row[8],
        died_at=from_micros(row[9]),
        resent_at=None if row[10] is None else from_micros(row[10]),
        key_id=row[11],
        raw=None if row[12] is None else bytes(row[12]),
    )


@operation
def dead_letters(
    filters: Mapping[str, str], limit: int, *, include_resent: bool
) -> Generator[Statement, Rows, list[DeadLetter]]:
    """Dead letters that fit, the newest first."""
    conditions = [f"{name} = ?" for name in filters] + ([] if include_resent else ["resent_at IS NULL"])
    rows = yield (
        f"SELECT {_DEAD_COLUMNS} FROM dead_letters WHERE {' AND '.join(conditions) or '1 = 1'}"
        " ORDER BY id DESC LIMIT ?",
        (*filters.values(), limit),
    )
    return [dead_letter_from_row(row) for row in rows]


def mark_resent(dead: DeadLetter, now: datetime) -> Steps:
    """Note that a dead letter was sent again."""
    yield (
        "UPDATE dead_letters SET resent_at = ? WHERE recipient_id = ? AND team_id = ? AND id = ?",
        (to_micros(now), dead.recipient_id, dead.team_id, dead.id),
    )


# --- care ------------------------------------------------------------------------------------------------------------

_LETTER_TABLES: Final = ("inbox", "outbox", "sealed_values", "task_needs", "letters")


def delete_letter(key: Key) -> Steps:
    """Delete a letter and everything that is kept about it."""
    yield f"DELETE FROM dead_letters WHERE {LETTER_KEY}", key
    for table in _LETTER_TABLES:
        yield f"DELETE FROM {table} WHERE {LETTER_KEY}", key


def unlink_session(session_id: str) -> Steps:
    """Letters outlive the session that they came from, and know it no more."""
    rows = yield f"SELECT {LETTER_COLUMNS} FROM letters WHERE session_id = ?", (session_id,)
    for row in rows:
        values = (*row[:7], None, None, None, *row[10:14])
        is_sound = hash_row(row[:14]) == bytes(row[14])
        yield (
            f"UPDATE letters SET session_id = NULL, message_id = NULL, turn_id = NULL, hash = ? WHERE {LETTER_KEY}",
            (hash_row(values) if is_sound else row[14], *row[:3]),
        )


def erase_user(user_id: str) -> Steps:
    """Delete every letter of a person, wherever it stands."""
    rows = yield "SELECT recipient_id, team_id, letter_id FROM letters WHERE user_id = ?", (user_id,)
    for recipient_id, team_id, letter_id in rows:
        yield from delete_and_promote((recipient_id, team_id, letter_id))
    yield "DELETE FROM dead_letters WHERE user_id = ?", (user_id,)
    for table in _TEAM_TABLES:
        yield f"DELETE FROM {table} WHERE team_id = ?", (personal_team(user_id),)


_MAIL_TABLES: Final = ("letters", "mailboxes", "inbox", "outbox", "dead_letters", "sealed_values")
_TEAM_TABLES: Final = (*_MAIL_TABLES, "task_states", "task_needs")


def erase_session(session_id: str) -> Steps:
    """Delete the letters that came from a session of a person who is erased."""
    rows = yield "SELECT recipient_id, team_id, letter_id FROM letters WHERE session_id = ?", (session_id,)
    for recipient_id, team_id, letter_id in rows:
        yield from delete_and_promote((recipient_id, team_id, letter_id))


def delete_and_promote(key: Key) -> Steps:
    """Delete a letter, and let the next one of its task come forward."""
    rows = yield f"SELECT task_id FROM letters WHERE {LETTER_KEY}", key
    yield lock_mailbox(key)
    yield from delete_letter(key)
    for (task_id,) in rows:
        for table in ("inbox", "outbox"):
            yield from promote_next(table, key[0], key[1], task_id)


def lock_mailbox(key: Key) -> Statement:
    """Keep everybody else from putting a letter into a mailbox, or taking one out, until we are done."""
    return f"SELECT last_number FROM mailboxes WHERE recipient_id = ? AND team_id = ?{FOR_UPDATE}", key[:2]


def promote_next(table: str, recipient_id: str, team_id: str, task_id: str) -> Steps:
    """Let the first letter of a task that is not done be handed out, or sent."""
    first = yield select_first(table), (recipient_id, team_id, task_id)
    for letter_id, state in first:
        if state == "behind":
            yield f"UPDATE {table} SET state = 'ready' WHERE {LETTER_KEY}", (recipient_id, team_id, letter_id)


def select_first(table: str) -> str:
    """The statement that finds the first letter of a task that is not done. In this order, an index has it."""
    is_open = " AND ended_at IS NULL" if table == "inbox" else ""
    return (
        f"SELECT letter_id, state FROM {table} WHERE recipient_id = ? AND team_id = ? AND task_id = ?{is_open}"
        " ORDER BY number LIMIT 1"
    )


@operation
def sweep(before: datetime, limit: int = _PAGE) -> Generator[Statement, Rows, int]:
    """Delete some letters that were done with before then; how many. The same letter again would be new.

    One that went to another store is done with when its receipt has come. The dead stay, to be sent again.
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
            "SELECT recipient_id, team_id, letter_id FROM letters AS l"
            f" WHERE created_at < ? AND NOT ({references}) LIMIT ?",
            (to_micros(before), limit),
        )
    for row in rows:
        key = (row[0], row[1], row[2])
        for table in ("inbox", "sealed_values", "letters"):
            yield f"DELETE FROM {table} WHERE {LETTER_KEY}", key
    return len(rows)


@operation
def reencrypt(
    key_id: str, encrypt: Callable[..., tuple[str, bytes]], limit: int = _PAGE
) -> Generator[Statement, Rows, int]:
    """Have some values that another key has sealed sealed with this one; how many."""
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
def find_damage() -> Generator[Statement, Rows, list[str]]:
    """What is wrong with letters, in words."""
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
            f"SELECT x.recipient_id, x.letter_id FROM {table} AS x LEFT JOIN letters AS l ON l.recipient_id ="
            " x.recipient_id AND l.team_id = x.team_id AND l.letter_id = x.letter_id WHERE l.letter_id IS NULL",
            (),
        )
        problems.extend(f"{table} names letter {letter} to {recipient}, which is gone" for recipient, letter in rows)
    return problems
