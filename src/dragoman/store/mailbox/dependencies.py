"""Dependencies of letters on tasks.

A letter with dependencies is held until each task has succeeded; ``task_needs`` has a row for every task that has not.
Results in this store determine the state of a task.

Invariant: the dependencies have no cycle; a letter that would close one is rejected with its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dragoman.errors import ConflictError
from dragoman.letters.records import StoredLetter
from dragoman.store.mailbox.letters import LETTER_KEY, UPSERT_TASKS, Key, is_success, lock_mailbox
from dragoman.store.mailbox.outbox import OPEN_CONDITION
from dragoman.store.operation import Steps, in_clause_chunks, to_micros

_UPSERT_TASK = UPSERT_TASKS.format("(?, ?, ?, ?)")


def add_dependencies(stored: StoredLetter, now: datetime) -> Steps[bool]:
    """Insert the open dependencies of a letter; return whether it has any."""
    team, at = stored.team_id, to_micros(now)
    # One row locks all dependencies of a team: two concurrent letters could close a cycle together.
    yield f"{_UPSERT_TASK} DO UPDATE SET changed_at = excluded.changed_at", ("", team, "", at)
    missing: list[str] = []
    for needed in sorted(set(stored.needs)):
        rows = yield f"{_UPSERT_TASK} DO UPDATE SET team_id = excluded.team_id RETURNING state", (needed, team, "", at)
        if rows[0][0] != "succeeded":
            missing.append(needed)
    path = yield from _find_path(missing, stored.task_id, team)
    if path:
        raise ConflictError(
            f"dependency cycle: {' → '.join((stored.task_id, *path))}",
            where=f"letter {stored.letter_id}, context.depends_on",
            remedy="Remove one of these dependencies",
            code="dependency_cycle",
        )
    for needed in missing:
        yield (
            "INSERT INTO task_needs (task_id, team_id, needed_id, recipient_id, letter_id) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (task_id, team_id, needed_id, recipient_id, letter_id) DO NOTHING",
            (stored.task_id, team, needed, stored.recipient_id, stored.letter_id),
        )
    return bool(missing)


def _find_path(first: Sequence[str], last: str, team: str) -> Steps[tuple[str, ...]]:
    """Return the path along dependencies from one of the first tasks to the last; each task is visited once."""
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


def release_dependents(letters: Sequence[StoredLetter]) -> Steps[None]:
    """Release the letters that wait for tasks that succeeded according to these letters."""
    succeeded: dict[str, set[str]] = {}
    for stored in letters:
        if is_success(stored):
            succeeded.setdefault(stored.team_id, set()).add(stored.task_id)
    for team, tasks in sorted(succeeded.items()):
        for marks, chunk in in_clause_chunks(sorted(tasks)):
            needed = yield (
                f"SELECT DISTINCT needed_id FROM task_needs WHERE team_id = ? AND needed_id IN ({marks})",
                (team, *chunk),
            )
            for (task_id,) in sorted(needed):
                yield from release_task(task_id, team)


def release_task(task: str, team: str) -> Steps[None]:
    """Release the letters that wait for a task."""
    rows = yield (
        "DELETE FROM task_needs WHERE needed_id = ? AND team_id = ? RETURNING recipient_id, letter_id",
        (task, team),
    )
    for recipient_id, letter_id in sorted(set(rows)):
        yield from _release_letter((recipient_id, team, letter_id))


def _release_letter(key: Key) -> Steps[None]:
    """Release a held letter if it has no further dependencies."""
    if (yield f"SELECT 1 FROM task_needs WHERE {LETTER_KEY} LIMIT 1", key):
        return
    yield lock_mailbox(key)
    for table, is_open in OPEN_CONDITION.items():
        yield (
            f"UPDATE {table} SET state = CASE WHEN EXISTS (SELECT 1 FROM {table} AS e WHERE e.recipient_id ="
            f" {table}.recipient_id AND e.team_id = {table}.team_id AND e.task_id = {table}.task_id"
            f" AND e.number < {table}.number{is_open}) THEN 'behind' ELSE 'ready' END"
            f" WHERE {LETTER_KEY} AND state = 'held'",
            key,
        )


def delete_dependencies(key: Key) -> Steps[None]:
    """Delete the dependencies of a letter."""
    yield f"DELETE FROM task_needs WHERE {LETTER_KEY}", key
