"""What has arrived in a mailbox, by its place there. Places grow in the order in which letters were taken, so whoever
knows the last one that they have seen misses none. The one rule: looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator

from dragoman.store.engines.tables import LETTER_COLUMNS
from dragoman.store.mailbox.letters import STATUS_COLUMNS
from dragoman.store.operation import Rows, Statement, operation

_COLUMNS = ", ".join(f"l.{name.strip()}" for name in LETTER_COLUMNS.split(","))
_SELECT = (
    f"SELECT {_COLUMNS}, {STATUS_COLUMNS}, i.number FROM inbox AS i JOIN letters AS l"
    " ON l.recipient_id = i.recipient_id AND l.team_id = i.team_id AND l.letter_id = i.letter_id"
    " WHERE i.recipient_id = ? AND i.team_id = ?"
)


@operation
def letters_after(recipient_id: str, team_id: str, after: int, limit: int) -> Generator[Statement, Rows, Rows]:
    """What has arrived behind a place, in order."""
    return (yield f"{_SELECT} AND i.number > ? ORDER BY i.number LIMIT ?", (recipient_id, team_id, after, limit))


@operation
def newest(recipient_id: str, team_id: str, before: int | None, limit: int) -> Generator[Statement, Rows, Rows]:
    """What has arrived last, or before a place, the newest first."""
    condition, parameters = ("", ()) if before is None else (" AND i.number < ?", (before,))
    return (yield f"{_SELECT}{condition} ORDER BY i.number DESC LIMIT ?", (recipient_id, team_id, *parameters, limit))


@operation
def last_number(recipient_id: str, team_id: str) -> Generator[Statement, Rows, int]:
    """The place of what has arrived last; 0 if there is nothing."""
    rows = yield "SELECT last_number FROM mailboxes WHERE recipient_id = ? AND team_id = ?", (recipient_id, team_id)
    return int(rows[0][0]) if rows else 0
