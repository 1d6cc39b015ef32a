"""Dead letters: letters that failed, cannot be sent, or are invalid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dragoman.letters.records import DeadLetter, StoredLetter
from dragoman.store.mailbox.letters import MAILBOX
from dragoman.store.operation import Steps, from_micros, operation, to_micros

_COLUMNS: Final = (
    "id, recipient_id, team_id, letter_id, sender_id, task_id, reason, error, user_id, died_at, resent_at, key_id, raw"
)


def make_dead_letter(stored: StoredLetter, reason: str, error: str, now: datetime, dead_id: str) -> DeadLetter:
    """Return the dead letter of a letter."""
    return DeadLetter(
        id=dead_id,
        recipient_id=stored.recipient_id,
        team_id=stored.team_id,
        letter_id=stored.letter_id,
        sender_id=stored.sender_id,
        task_id=stored.task_id,
        reason=reason,
        error=error,
        user_id=stored.user_id,
        died_at=now,
        raw=stored.text.encode(),
    )


def insert_dead_letter(dead: DeadLetter) -> Steps[None]:
    """Insert a dead letter; an existing id changes nothing."""
    yield (
        f"INSERT INTO dead_letters ({_COLUMNS}) VALUES ({', '.join('?' * 13)}) ON CONFLICT DO NOTHING",
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


@operation
def find_dead_letters(filters: Mapping[str, str], limit: int, *, include_resent: bool) -> Steps[list[DeadLetter]]:
    """Return dead letters, newest first."""
    conditions = [f"{name} = ?" for name in filters] + ([] if include_resent else ["resent_at IS NULL"])
    rows = yield (
        f"SELECT {_COLUMNS} FROM dead_letters WHERE {' AND '.join(conditions) or '1 = 1'} ORDER BY id DESC LIMIT ?",
        (*filters.values(), limit),
    )
    return [_from_row(row) for row in rows]


def _from_row(row: Sequence[Any]) -> DeadLetter:
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


def mark_resent(dead: DeadLetter, now: datetime) -> Steps[None]:
    """Store that a dead letter was sent again."""
    yield (
        f"UPDATE dead_letters SET resent_at = ? WHERE {MAILBOX} AND id = ?",
        (to_micros(now), dead.recipient_id, dead.team_id, dead.id),
    )
