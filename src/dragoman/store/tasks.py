"""What became of tasks, and which letters wait for it.

A letter that needs other tasks is held until each of them has succeeded; ``task_needs`` has a row for every one that
has not. What is known of a task comes from the results that were sent. The one rule: no task waits for itself, however
long the way round; a letter that would close a circle is refused, and the error names the way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime

from dragoman.errors import ConflictError
from dragoman.letters.kept import Posted
from dragoman.store.batches import in_groups, listed, values
from dragoman.store.letters import KEYED, Key, Steps, locked
from dragoman.store.operation import Rows, Statement
from dragoman.store.rows import micros

_STATES = {"success": "succeeded", "partial_success": "partial", "failed": "failed"}
_NOTE_SEVERAL = "INSERT INTO task_states (task_id, team_id, state, changed_at) VALUES {} ON CONFLICT (task_id, team_id)"
_NOTE = _NOTE_SEVERAL.format("(?, ?, ?, ?)")
_UNLESS_DONE = (  # what has succeeded once has
    "DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at WHERE task_states.state <> 'succeeded'"
)
_NOTE_UNLESS_DONE = f"{_NOTE} {_UNLESS_DONE}"


def need(posted: Posted, now: datetime) -> Generator[Statement, Rows, bool]:
    """Note what a letter needs; whether it has to wait for anything."""
    if not posted.needs:
        return False
    team, at = posted.team_id, micros(now)
    # One at a time: two letters that are sent at once may close a circle together.
    yield f"{_NOTE} DO UPDATE SET changed_at = excluded.changed_at", ("", team, "", at)
    missing: list[str] = []
    for needed in sorted(set(posted.needs)):
        rows = yield f"{_NOTE} DO UPDATE SET team_id = excluded.team_id RETURNING state", (needed, team, "", at)
        if rows[0][0] != "succeeded":
            missing.append(needed)
    way = yield from _way(missing, posted.task_id, team)
    if way:
        raise ConflictError(
            f"it would wait for itself: {' → '.join((posted.task_id, *way))}",
            where=f"letter {posted.letter_id}, context.depends_on",
            remedy="Take one of these out of the circle",
            code="dependency_cycle",
        )
    for needed in missing:
        yield (
            "INSERT INTO task_needs (task_id, team_id, needed_id, recipient_id, letter_id) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (task_id, team_id, needed_id, recipient_id, letter_id) DO NOTHING",
            (posted.task_id, team, needed, posted.recipient_id, posted.letter_id),
        )
    return bool(missing)


def _way(first: Sequence[str], last: str, team: str) -> Generator[Statement, Rows, tuple[str, ...]]:
    """The tasks on the way from one of some to another along what they need; nothing if there is none.

    Each task is looked at once, however many lead to it.
    """
    before: dict[str, str] = dict.fromkeys(first, "")
    waiting = list(reversed(first))
    while waiting:
        task = waiting.pop()
        if task == last:
            way = [task]
            while before[way[0]]:
                way.insert(0, before[way[0]])
            return tuple(way)
        rows = yield "SELECT DISTINCT needed_id FROM task_needs WHERE task_id = ? AND team_id = ?", (task, team)
        for (needed,) in rows:
            if needed not in before:
                before[needed] = task
                waiting.append(needed)
    return ()


def is_result(posted: Posted) -> bool:
    """Whether a letter says how its task ended."""
    return posted.status is not None and posted.type == "task_result"


def is_success(posted: Posted) -> bool:
    """Whether a letter says that its task has succeeded."""
    return is_result(posted) and posted.status == "success"


def noted(posted: Posted, now: datetime) -> Statement:
    """Note what a result says of its task: before its mailbox is locked, and before it is asked who waits for it."""
    return _NOTE_UNLESS_DONE, (posted.task_id, posted.team_id, state_of(posted), micros(now))


def state_of(posted: Posted) -> str:
    """What a result says of its task."""
    said = posted.status or ""
    return _STATES.get(said, said)


def note_all(letters: Sequence[Posted], now: datetime) -> Steps:
    """The same for several."""
    states: dict[tuple[str, str], str] = {}
    for posted in letters:
        task = (posted.task_id, posted.team_id)
        if is_result(posted) and states.get(task) != "succeeded":
            states[task] = state_of(posted)
    rows = [(*task, states[task], micros(now)) for task in sorted(states)]  # in one order: nobody waits in a circle
    for group in in_groups(rows):
        said = _NOTE_SEVERAL.format(values(4, len(group)))
        yield f"{said} {_UNLESS_DONE}", [value for row in group for value in row]


def let_go(posted: Posted) -> Steps:
    """Let go what was held for the task of a letter."""
    yield from _succeeded(posted.task_id, posted.team_id)


def let_go_all(letters: Sequence[Posted]) -> Steps:
    """Let go what was held for the tasks that letters say have succeeded."""
    done: dict[str, set[str]] = {}
    for posted in letters:
        if is_success(posted):
            done.setdefault(posted.team_id, set()).add(posted.task_id)
    for team, tasks in sorted(done.items()):
        for marks, some in listed(sorted(tasks)):
            needed = yield (
                f"SELECT DISTINCT needed_id FROM task_needs WHERE team_id = ? AND needed_id IN ({marks})",
                (team, *some),
            )
            for (task_id,) in sorted(needed):
                yield from _succeeded(task_id, team)


def _succeeded(task: str, team: str) -> Steps:
    """Let go what was held for a task."""
    rows = yield (
        "DELETE FROM task_needs WHERE needed_id = ? AND team_id = ? RETURNING recipient_id, letter_id",
        (task, team),
    )
    for recipient_id, letter_id in sorted(set(rows)):
        yield from _let_go(recipient_id, team, letter_id)


def _let_go(recipient_id: str, team_id: str, letter_id: str) -> Steps:
    """Let a letter go that was held, if it needs nothing more."""
    key = (recipient_id, team_id, letter_id)
    if (yield f"SELECT 1 FROM task_needs WHERE {KEYED} LIMIT 1", key):
        return
    yield locked(key)
    for table, is_open in (("inbox", " AND e.ended_at IS NULL"), ("outbox", "")):
        yield (
            f"UPDATE {table} SET state = CASE WHEN EXISTS (SELECT 1 FROM {table} AS e WHERE e.recipient_id ="
            f" {table}.recipient_id AND e.team_id = {table}.team_id AND e.task_id = {table}.task_id"
            f" AND e.number < {table}.number{is_open}) THEN 'behind' ELSE 'ready' END"
            f" WHERE {KEYED} AND state = 'held'",
            key,
        )


def forget_needs(key: Key) -> Steps:
    """A letter waits for nothing any more."""
    yield f"DELETE FROM task_needs WHERE {KEYED}", key
