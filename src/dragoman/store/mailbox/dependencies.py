"""What became of tasks, and which letters wait for it.

A letter that needs other tasks is held until each of them has succeeded; ``task_needs`` has a row for every one that
has not. What is known of a task comes from the results that were sent. The one rule: no task waits for itself, however
long the way round; a letter that would close a circle is refused, and the error names the way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime

from dragoman.errors import ConflictError
from dragoman.letters.records import StoredLetter
from dragoman.store.batches import in_clause_chunks, insert_chunks, values_clause
from dragoman.store.mailbox.letters import LETTER_KEY, Key, Steps, lock_mailbox
from dragoman.store.message_rows import to_micros
from dragoman.store.operation import Rows, Statement

_STATES = {"success": "succeeded", "partial_success": "partial", "failed": "failed"}
_UPSERT_MANY = "INSERT INTO task_states (task_id, team_id, state, changed_at) VALUES {} ON CONFLICT (task_id, team_id)"
_UPSERT = _UPSERT_MANY.format("(?, ?, ?, ?)")
_UNLESS_SUCCEEDED = (  # what has succeeded once has
    "DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at WHERE task_states.state <> 'succeeded'"
)
_UPSERT_UNLESS_SUCCEEDED = f"{_UPSERT} {_UNLESS_SUCCEEDED}"


def add_dependencies(stored: StoredLetter, now: datetime) -> Generator[Statement, Rows, bool]:
    """Note what a letter needs; whether it has to wait for anything."""
    if not stored.needs:
        return False
    team, at = stored.team_id, to_micros(now)
    # One at a time: two letters that are sent at once may close a circle together.
    yield f"{_UPSERT} DO UPDATE SET changed_at = excluded.changed_at", ("", team, "", at)
    missing: list[str] = []
    for needed in sorted(set(stored.needs)):
        rows = yield f"{_UPSERT} DO UPDATE SET team_id = excluded.team_id RETURNING state", (needed, team, "", at)
        if rows[0][0] != "succeeded":
            missing.append(needed)
    path = yield from _find_path(missing, stored.task_id, team)
    if path:
        raise ConflictError(
            f"it would wait for itself: {' → '.join((stored.task_id, *path))}",
            where=f"letter {stored.letter_id}, context.depends_on",
            remedy="Take one of these out of the circle",
            code="dependency_cycle",
        )
    for needed in missing:
        yield (
            "INSERT INTO task_needs (task_id, team_id, needed_id, recipient_id, letter_id) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (task_id, team_id, needed_id, recipient_id, letter_id) DO NOTHING",
            (stored.task_id, team, needed, stored.recipient_id, stored.letter_id),
        )
    return bool(missing)


def _find_path(first: Sequence[str], last: str, team: str) -> Generator[Statement, Rows, tuple[str, ...]]:
    """The tasks on the way from one of some to another along what they need; nothing if there is none.

    Each task is looked at once, however many lead to it.
    """
    previous: dict[str, str] = dict.fromkeys(first, "")
    stack = list(reversed(first))
    while stack:
        task = stack.pop()
        if task == last:
            path = [task]
            while previous[path[0]]:
                path.insert(0, previous[path[0]])
            return tuple(path)
        rows = yield "SELECT DISTINCT needed_id FROM task_needs WHERE task_id = ? AND team_id = ?", (task, team)
        for (needed,) in rows:
            if needed not in previous:
                previous[needed] = task
                stack.append(needed)
    return ()


def is_result(stored: StoredLetter) -> bool:
    """Whether a letter says how its task ended."""
    return stored.status is not None and stored.type == "task_result"


def is_success(stored: StoredLetter) -> bool:
    """Whether a letter says that its task has succeeded."""
    return is_result(stored) and stored.status == "success"


def record_state(stored: StoredLetter, now: datetime) -> Statement:
    """Note what a result says of its task: before its mailbox is locked, and before it is asked who waits for it."""
    return _UPSERT_UNLESS_SUCCEEDED, (stored.task_id, stored.team_id, get_task_state(stored), to_micros(now))


def get_task_state(stored: StoredLetter) -> str:
    """What a result says of its task."""
    status = stored.status or ""
    return _STATES.get(status, status)


def record_states(letters: Sequence[StoredLetter], now: datetime) -> Steps:
    """The same for several."""
    states: dict[tuple[str, str], str] = {}
    for stored in letters:
        task = (stored.task_id, stored.team_id)
        if is_result(stored) and states.get(task) != "succeeded":
            states[task] = get_task_state(stored)
    rows = [(*task, states[task], to_micros(now)) for task in sorted(states)]  # in one order: nobody waits in a circle
    for group in insert_chunks(rows):
        statement = _UPSERT_MANY.format(values_clause(4, len(group)))
        yield f"{statement} {_UNLESS_SUCCEEDED}", [value for row in group for value in row]


def release_dependents(stored: StoredLetter) -> Steps:
    """Let go what was held for the task of a letter."""
    yield from _release_task(stored.task_id, stored.team_id)


def release_all_dependents(letters: Sequence[StoredLetter]) -> Steps:
    """Let go what was held for the tasks that letters say have succeeded."""
    succeeded: dict[str, set[str]] = {}
    for stored in letters:
        if is_success(stored):
            succeeded.setdefault(stored.team_id, set()).add(stored.task_id)
    for team, tasks in sorted(succeeded.items()):
        for marks, batch in in_clause_chunks(sorted(tasks)):
            needed = yield (
                f"SELECT DISTINCT needed_id FROM task_needs WHERE team_id = ? AND needed_id IN ({marks})",
                (team, *batch),
            )
            for (task_id,) in sorted(needed):
                yield from _release_task(task_id, team)


def _release_task(task: str, team: str) -> Steps:
    """Let go what was held for a task."""
    rows = yield (
        "DELETE FROM task_needs WHERE needed_id = ? AND team_id = ? RETURNING recipient_id, letter_id",
        (task, team),
    )
    for recipient_id, letter_id in sorted(set(rows)):
        yield from _release_letter(recipient_id, team, letter_id)


def _release_letter(recipient_id: str, team_id: str, letter_id: str) -> Steps:
    """Let a letter go that was held, if it needs nothing more."""
    key = (recipient_id, team_id, letter_id)
    if (yield f"SELECT 1 FROM task_needs WHERE {LETTER_KEY} LIMIT 1", key):
        return
    yield lock_mailbox(key)
    for table, is_open in (("inbox", " AND e.ended_at IS NULL"), ("outbox", "")):
        yield (
            f"UPDATE {table} SET state = CASE WHEN EXISTS (SELECT 1 FROM {table} AS e WHERE e.recipient_id ="
            f" {table}.recipient_id AND e.team_id = {table}.team_id AND e.task_id = {table}.task_id"
            f" AND e.number < {table}.number{is_open}) THEN 'behind' ELSE 'ready' END"
            f" WHERE {LETTER_KEY} AND state = 'held'",
            key,
        )


def delete_dependencies(key: Key) -> Steps:
    """A letter waits for nothing any more."""
    yield f"DELETE FROM task_needs WHERE {LETTER_KEY}", key
