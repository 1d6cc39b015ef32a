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

from dragoman.errors import ConflictError, DamagedError
from dragoman.letters.kept import DeadLetter, MailboxCounts, Posted, SealedValue, own_team
from dragoman.store.batches import in_groups, values
from dragoman.store.operation import LOCKED, Rows, Statement, operation
from dragoman.store.rows import micros, time_from
from dragoman.store.schema import LETTER

Steps = Generator[Statement, Rows, None]
Key = tuple[str, str, str]  # recipient, team, letter
MAILBOX: Final = "recipient_id = ? AND team_id = ?"
KEYED: Final = f"{MAILBOX} AND letter_id = ?"
STANDING: Final = (  # of a row of the inbox; what is to come of its time, if it has one
    "i.state, i.attempts, i.ended_at, CASE WHEN i.available_at > 0 THEN i.available_at - lease_now() END, i.lease,"
    " i.error_class"
)
KEPT: Final = (
    f"INSERT INTO letters ({LETTER}) VALUES ({', '.join('?' * 15)})"
    " ON CONFLICT (recipient_id, team_id, letter_id) DO NOTHING RETURNING 1"
)
_DEAD: Final = (
    "id, recipient_id, team_id, letter_id, sender_id, task_id, reason, error, user_id, died_at, resent_at, key_id, raw"
)
_PAGE: Final = 500
OTHER_CONTENT: Final = "another letter of that id was sent before, with other content"
_packed: Final = msgspec.msgpack.Encoder().encode


# --- rows ------------------------------------------------------------------------------------------------------------


def row_of(posted: Posted, now: datetime) -> tuple[Any, ...]:
    """A letter as a row of the table."""
    row = (
        posted.recipient_id,
        posted.team_id,
        posted.letter_id,
        posted.sender_id,
        posted.task_id,
        posted.type,
        posted.trace_id,
        posted.session_id,
        posted.message_id,
        posted.turn_id,
        posted.user_id,
        micros(now),
        posted.fingerprint,
        posted.text,
    )
    return (*row, hash_of(row))


def hash_of(row: Sequence[Any]) -> bytes:
    """SHA-256 over everything that a row says."""
    return hashlib.sha256(_packed(tuple(row))).digest()


def posted_from(row: Sequence[Any]) -> Posted:
    """The letter of a row; ``DamagedError`` if it is not what was written."""
    if hash_of(row[:14]) != bytes(row[14]):
        raise DamagedError("its hash does not fit its content", where=f"mailbox {row[0]}, letter {row[2]}")
    return Posted(
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
        created_at=time_from(row[11]),
        fingerprint=bytes(row[12]),
        text=row[13],
    )


def key_of(posted: Posted) -> Key:
    """What a letter is found by."""
    return posted.recipient_id, posted.team_id, posted.letter_id


# --- keeping ---------------------------------------------------------------------------------------------------------


def keep(posted: Posted, now: datetime) -> Generator[Statement, Rows, bool]:
    """Keep a letter; false if the same is there already, ``ConflictError`` if another one of that id is."""
    if not (yield KEPT, row_of(posted, now)):
        yield from compared(posted)
        return False
    if posted.sealed:
        yield from keep_sealed(posted)
    return True


def keep_all(letters: Sequence[Posted], now: datetime) -> Generator[Statement, Rows, list[bool]]:
    """Keep letters: which of them are new. ``ConflictError`` if another one of an id is there, or among them."""
    new: set[Key] = set()
    for group in in_groups(letters):
        rows = yield (
            f"INSERT INTO letters ({LETTER}) VALUES {values(15, len(group))} ON CONFLICT (recipient_id, team_id,"
            " letter_id) DO NOTHING RETURNING recipient_id, team_id, letter_id",
            [value for posted in group for value in row_of(posted, now)],
        )
        new.update((recipient_id, team_id, letter_id) for recipient_id, team_id, letter_id in rows)
    are_new: list[bool] = []
    for posted in letters:
        is_new = key_of(posted) in new
        new.discard(key_of(posted))
        are_new.append(is_new)
        if not is_new:
            yield from compared(posted)
        elif posted.sealed:
            yield from keep_sealed(posted)
    return are_new


def compared(posted: Posted) -> Steps:
    """``ConflictError`` if the letter that has an id says something else."""
    there = yield f"SELECT fingerprint FROM letters WHERE {KEYED}", key_of(posted)
    if there and bytes(there[0][0]) != posted.fingerprint:
        raise ConflictError(
            OTHER_CONTENT,
            where=f"letter {posted.letter_id} to {posted.recipient_id}",
            remedy="Give it an id of its own in context.message_id",
            code="letter_conflict",
        )


def keep_sealed(posted: Posted) -> Steps:
    """Keep the sealed values of a letter."""
    for value in posted.sealed:
        yield (
            "INSERT INTO sealed_values (recipient_id, team_id, letter_id, input_id, key_id, sealed)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (recipient_id, team_id, letter_id, input_id) DO NOTHING",
            (*key_of(posted), value.input_id, value.key_id, value.box),
        )


# --- finding ---------------------------------------------------------------------------------------------------------


@operation
def get(key: Key) -> Generator[Statement, Rows, Posted | None]:
    """The letter of a key, with its sealed values."""
    rows = yield f"SELECT {LETTER} FROM letters WHERE {KEYED}", key
    if not rows:
        return None
    return msgspec.structs.replace(posted_from(rows[0]), sealed=(yield from sealed_of(key)))


def sealed_of(key: Key) -> Generator[Statement, Rows, tuple[SealedValue, ...]]:
    """The sealed values of a letter."""
    rows = yield f"SELECT input_id, key_id, sealed FROM sealed_values WHERE {KEYED} ORDER BY input_id", key
    return tuple(SealedValue(input_id, key_id, bytes(box)) for input_id, key_id, box in rows)


@operation
def find(wanted: Mapping[str, str], after: tuple[int, str] | None, limit: int) -> Generator[Statement, Rows, Rows]:
    """Letters that fit, with where they stand, in the order in which they were taken."""
    columns = ", ".join(f"l.{name.strip()}" for name in LETTER.split(","))
    conditions = [f"l.{name} = ?" for name in wanted]
    arguments: list[Any] = list(wanted.values())
    if after is not None:
        conditions.append("(l.created_at, l.letter_id) > (?, ?)")
        arguments.extend(after)
    rows = yield (
        f"SELECT {columns}, {STANDING} FROM letters AS l LEFT JOIN inbox AS i"
        " ON i.recipient_id = l.recipient_id AND i.team_id = l.team_id AND i.letter_id = l.letter_id"
        f" WHERE {' AND '.join(conditions) or '1 = 1'} ORDER BY l.created_at, l.letter_id LIMIT ?",
        (*arguments, limit),
    )
    return rows


@operation
def needed(keys: Sequence[Key]) -> Generator[Statement, Rows, dict[Key, tuple[str, ...]]]:
    """The tasks that letters wait for, and that have not succeeded."""
    found: dict[Key, tuple[str, ...]] = {}
    for key in keys:
        rows = yield f"SELECT needed_id FROM task_needs WHERE {KEYED} ORDER BY needed_id", key
        found[key] = tuple(row[0] for row in rows)
    return found


@operation
def counts(team_id: str | None) -> Generator[Statement, Rows, list[MailboxCounts]]:
    """How much is in each mailbox."""
    whose, who = (" WHERE team_id = ?", (team_id,)) if team_id is not None else ("", ())
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
        f" FROM inbox{whose} GROUP BY recipient_id, team_id",
        who,
    )
    away = yield f"SELECT recipient_id, team_id, count(*) FROM outbox{whose} GROUP BY recipient_id, team_id", who
    dead = yield (
        "SELECT recipient_id, team_id, count(*) FROM dead_letters WHERE resent_at IS NULL"
        f"{' AND team_id = ?' if who else ''} GROUP BY recipient_id, team_id",
        who,
    )
    names = ("ready", "leased", "waiting", "behind", "held", "done", "retries")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for recipient, team, *numbers, oldest, newest in rows:
        mine = found.setdefault((recipient, team), {})
        mine.update({name: int(number) for name, number in zip(names, numbers, strict=True)})
        mine["oldest_at"] = None if oldest is None else time_from(oldest)
        mine["newest_at"] = time_from(newest)
    for name, counted in (("away", away), ("dead", dead)):
        for recipient, team, number in counted:
            found.setdefault((recipient, team), {})[name] = int(number)
    return [MailboxCounts(recipient_id=key[0], team_id=key[1], **found[key]) for key in sorted(found)]


# --- the dead --------------------------------------------------------------------------------------------------------


def bury(dead: DeadLetter) -> Steps:
    """Keep what nobody will get. The same id again changes nothing."""
    yield (
        f"INSERT INTO dead_letters ({_DEAD}) VALUES ({', '.join('?' * 13)}) ON CONFLICT DO NOTHING",
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
            micros(dead.died_at),
            None,
            dead.key_id,
            dead.raw,
        ),
    )


def dead_from(row: Sequence[Any]) -> DeadLetter:
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
        died_at=time_from(row[9]),
        resent_at=None if row[10] is None else time_from(row[10]),
        key_id=row[11],
        raw=None if row[12] is None else bytes(row[12]),
    )


@operation
def dead_letters(
    wanted: Mapping[str, str], limit: int, *, all_of_them: bool
) -> Generator[Statement, Rows, list[DeadLetter]]:
    """Dead letters that fit, the newest first."""
    conditions = [f"{name} = ?" for name in wanted] + ([] if all_of_them else ["resent_at IS NULL"])
    rows = yield (
        f"SELECT {_DEAD} FROM dead_letters WHERE {' AND '.join(conditions) or '1 = 1'} ORDER BY id DESC LIMIT ?",
        (*wanted.values(), limit),
    )
    return [dead_from(row) for row in rows]


def mark_resent(dead: DeadLetter, now: datetime) -> Steps:
    """Note that a dead letter was sent again."""
    yield (
        "UPDATE dead_letters SET resent_at = ? WHERE recipient_id = ? AND team_id = ? AND id = ?",
        (micros(now), dead.recipient_id, dead.team_id, dead.id),
    )


# --- care ------------------------------------------------------------------------------------------------------------

_OF_A_LETTER: Final = ("inbox", "outbox", "sealed_values", "task_needs", "letters")


def forget(key: Key) -> Steps:
    """Delete a letter and everything that is kept about it."""
    yield f"DELETE FROM dead_letters WHERE {KEYED}", key
    for table in _OF_A_LETTER:
        yield f"DELETE FROM {table} WHERE {KEYED}", key


def unlink(session_id: str) -> Steps:
    """Letters outlive the session that they came from, and know it no more."""
    rows = yield f"SELECT {LETTER} FROM letters WHERE session_id = ?", (session_id,)
    for row in rows:
        made = (*row[:7], None, None, None, *row[10:14])
        is_sound = hash_of(row[:14]) == bytes(row[14])
        yield (
            f"UPDATE letters SET session_id = NULL, message_id = NULL, turn_id = NULL, hash = ? WHERE {KEYED}",
            (hash_of(made) if is_sound else row[14], *row[:3]),
        )


def erase(user_id: str) -> Steps:
    """Delete every letter of a person, wherever it stands."""
    rows = yield "SELECT recipient_id, team_id, letter_id FROM letters WHERE user_id = ?", (user_id,)
    for recipient_id, team_id, letter_id in rows:
        yield from promoted_after((recipient_id, team_id, letter_id))
    yield "DELETE FROM dead_letters WHERE user_id = ?", (user_id,)
    for table in _OF_TEAMS:
        yield f"DELETE FROM {table} WHERE team_id = ?", (own_team(user_id),)


_MAIL: Final = ("letters", "mailboxes", "inbox", "outbox", "dead_letters", "sealed_values")
_OF_TEAMS: Final = (*_MAIL, "task_states", "task_needs")


def erase_of_session(session_id: str) -> Steps:
    """Delete the letters that came from a session of a person who is erased."""
    rows = yield "SELECT recipient_id, team_id, letter_id FROM letters WHERE session_id = ?", (session_id,)
    for recipient_id, team_id, letter_id in rows:
        yield from promoted_after((recipient_id, team_id, letter_id))


def promoted_after(key: Key) -> Steps:
    """Delete a letter, and let the next one of its task come forward."""
    rows = yield f"SELECT task_id FROM letters WHERE {KEYED}", key
    yield locked(key)
    yield from forget(key)
    for (task_id,) in rows:
        for table in ("inbox", "outbox"):
            yield from promoted(table, key[0], key[1], task_id)


def locked(key: Key) -> Statement:
    """Keep everybody else from putting a letter into a mailbox, or taking one out, until we are done."""
    return f"SELECT last_number FROM mailboxes WHERE recipient_id = ? AND team_id = ?{LOCKED}", key[:2]


def promoted(table: str, recipient_id: str, team_id: str, task_id: str) -> Steps:
    """Let the first letter of a task that is not done be handed out, or sent."""
    first = yield first_of(table), (recipient_id, team_id, task_id)
    for letter_id, state in first:
        if state == "behind":
            yield f"UPDATE {table} SET state = 'ready' WHERE {KEYED}", (recipient_id, team_id, letter_id)


def first_of(table: str) -> str:
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
        (micros(before), limit),
    )
    if not rows:
        there = " OR ".join(
            f"EXISTS (SELECT 1 FROM {table} AS x WHERE x.recipient_id = l.recipient_id AND x.team_id = l.team_id"
            " AND x.letter_id = l.letter_id)"
            for table in ("inbox", "outbox", "dead_letters")
        )
        rows = yield (
            f"SELECT recipient_id, team_id, letter_id FROM letters AS l WHERE created_at < ? AND NOT ({there}) LIMIT ?",
            (micros(before), limit),
        )
    for row in rows:
        key = (row[0], row[1], row[2])
        for table in ("inbox", "sealed_values", "letters"):
            yield f"DELETE FROM {table} WHERE {KEYED}", key
    return len(rows)


@operation
def reseal(
    key_id: str, resealed: Callable[..., tuple[str, bytes]], limit: int = _PAGE
) -> Generator[Statement, Rows, int]:
    """Have some values that another key has sealed sealed with this one; how many."""
    rows = yield (
        "SELECT recipient_id, team_id, letter_id, input_id, key_id, sealed FROM sealed_values"
        " WHERE key_id <> ? LIMIT ?",
        (key_id, limit),
    )
    for *about, key, box in rows:
        yield (
            f"UPDATE sealed_values SET key_id = ?, sealed = ? WHERE {KEYED} AND input_id = ?",
            (*resealed(key, bytes(box), *about), *about),
        )
    return len(rows)


@operation
def look() -> Generator[Statement, Rows, list[str]]:
    """What is wrong with letters, in words."""
    wrong: list[str] = []
    after: tuple[Any, ...] = ("", "", "")
    page = (
        f"SELECT {LETTER} FROM letters WHERE (recipient_id, team_id, letter_id) > (?, ?, ?)"
        " ORDER BY recipient_id, team_id, letter_id LIMIT ?"
    )
    while rows := (yield page, (*after, _PAGE)):
        for row in rows:
            if hash_of(row[:14]) != bytes(row[14]):
                wrong.append(f"letter {row[2]} to {row[0]}: its hash does not fit its content")
        after = rows[-1][:3]
    for table in ("inbox", "outbox", "sealed_values"):
        rows = yield (
            f"SELECT x.recipient_id, x.letter_id FROM {table} AS x LEFT JOIN letters AS l ON l.recipient_id ="
            " x.recipient_id AND l.team_id = x.team_id AND l.letter_id = x.letter_id WHERE l.letter_id IS NULL",
            (),
        )
        wrong.extend(f"{table} names letter {letter} to {recipient}, which is gone" for recipient, letter in rows)
    return wrong
