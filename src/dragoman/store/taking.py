"""Letters on their way in: kept, and put at the end of a mailbox, or into the outbox if a transport carries them.

    post(posted, now, away=False)       it is in the recipient's inbox, or in the outbox
    post_all(letters, now, …)           the same for several, all or none
    arrive(letters, now, …)             a transport has brought them: in the inbox, and out of the outbox if it is ours

Several letters take a few statements and not a few each; what one of them does alone, it does among others. The one
rule: a letter is kept and has its place in one transaction, and whoever has the row of the mailbox gives the places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from dragoman.letters.kept import DeadLetter, LetterState, Posted, Receipt
from dragoman.store import tasks
from dragoman.store.batches import in_groups, listed, values
from dragoman.store.letters import (
    KEPT,
    KEYED,
    MAILBOX,
    OTHER_CONTENT,
    Key,
    Steps,
    bury,
    compared,
    keep_all,
    keep_sealed,
    key_of,
    locked,
    promoted,
    row_of,
)
from dragoman.store.operation import Operation, Rows, Statement, bindable, operation
from dragoman.store.rows import micros

_COUNTED: Final = (
    "INSERT INTO mailboxes (recipient_id, team_id, last_number) VALUES (?, ?, ?)"
    " ON CONFLICT (recipient_id, team_id) DO UPDATE SET last_number = mailboxes.last_number + excluded.last_number"
    " RETURNING last_number"
)
_COUNTED_AND_NEEDED: Final = (
    f"{_COUNTED}, (SELECT 1 FROM task_needs AS n WHERE n.needed_id = ? AND n.team_id = ? LIMIT 1)"
)
_OPEN: Final = {"inbox": " AND e.ended_at IS NULL", "outbox": ""}
_INTO: Final = {
    table: f"INSERT INTO {table} (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts,"
    f" {when}) VALUES"
    for table, when in (("inbox", "arrived_at"), ("outbox", "put_at"))
}
_AVAILABLE: Final = {"inbox": "0", "outbox": "lease_now()"}  # at once, and as the last one that is to be sent
_PLACED: Final = {  # in that order, an index has it
    table: f"{into} (?, ?, ?, ?, ?, CASE WHEN (SELECT e.number FROM {table} AS e WHERE e.recipient_id = ?"
    f" AND e.team_id = ? AND e.task_id = ?{_OPEN[table]} ORDER BY e.number LIMIT 1) IS NULL"
    f" THEN 'ready' ELSE 'behind' END, {_AVAILABLE[table]}, 0, ?) RETURNING state"
    for table, into in _INTO.items()
}
_HELD: Final = {table: f"{into} (?, ?, ?, ?, ?, 'held', {_AVAILABLE[table]}, 0, ?)" for table, into in _INTO.items()}
_MANY: Final = 2  # from here on, several at a time are quicker


# --- one -------------------------------------------------------------------------------------------------------------


def post(posted: Posted, now: datetime, *, away: bool) -> Operation[Receipt]:
    """Take a letter; the same again changes nothing."""
    return Operation(lambda: posting(posted, now, away=away))


def only_row(posted: Posted, now: datetime) -> tuple[Any, ...] | None:
    """The row of a letter and what it says of its task, if that is all that there is to be written of it."""
    if posted.needs or posted.sealed:
        return None
    return (*bindable(row_of(posted, now)), tasks.state_of(posted) if tasks.is_result(posted) else None)


def posting(posted: Posted, now: datetime, *, away: bool) -> Generator[Statement, Rows, Receipt]:
    """The steps of taking a letter."""
    if not (yield KEPT, row_of(posted, now)):
        yield from compared(posted)
        return receipt_of(posted, (yield from _state(key_of(posted))), is_new=False)
    if posted.sealed:
        yield from keep_sealed(posted)
    is_held = bool(posted.needs) and (yield from tasks.need(posted, now))
    if tasks.is_result(posted):
        yield tasks.noted(posted, now)
    state, is_needed = yield from _into("outbox" if away else "inbox", posted, now, is_held=is_held)
    if is_needed and tasks.is_success(posted):
        yield from tasks.let_go(posted)
    return receipt_of(posted, "away" if away else state, is_new=True)


def receipt_of(posted: Posted, state: LetterState, *, is_new: bool) -> Receipt:
    """That a letter was taken."""
    return Receipt(letter_id=posted.letter_id, recipient_id=posted.recipient_id, is_new=is_new, state=state)


def _state(key: Key) -> Generator[Statement, Rows, LetterState]:
    rows = yield f"SELECT state FROM inbox WHERE {KEYED}", key
    state: LetterState = rows[0][0] if rows else "away"
    return state


def into(table: str, posted: Posted, now: datetime, *, is_held: bool) -> Generator[Statement, Rows, LetterState]:
    """Put a letter at the end of a mailbox."""
    return (yield from _into(table, posted, now, is_held=is_held))[0]


def _into(
    table: str, posted: Posted, now: datetime, *, is_held: bool
) -> Generator[Statement, Rows, tuple[LetterState, bool]]:
    """The same, and whether something waits for the letter's task."""
    recipient, team, task, at = posted.recipient_id, posted.team_id, posted.task_id, micros(now)
    ((number, is_needed),) = yield _COUNTED_AND_NEEDED, (recipient, team, 1, task, team)
    begin = (recipient, team, posted.letter_id, number, task)
    if is_held:
        yield _HELD[table], (*begin, at)
        return "held", is_needed is not None
    ((state,),) = yield _PLACED[table], (*begin, recipient, team, task, at)
    return state, is_needed is not None


# --- several ---------------------------------------------------------------------------------------------------------


@operation
def post_all(letters: Sequence[Posted], now: datetime, *, away: bool) -> Generator[Statement, Rows, list[Receipt]]:
    """Take letters, all or none, in this order."""
    receipts: list[Receipt] = []
    if len(letters) < _MANY or any(posted.needs for posted in letters):  # what waits may wait for one of the others
        for posted in letters:
            receipts.append((yield from posting(posted, now, away=away)))
        return receipts
    are_new = yield from keep_all(letters, now)
    new = [posted for posted, is_new in zip(letters, are_new, strict=True) if is_new]
    yield from tasks.note_all(new, now)
    placed = yield from _into_all("outbox" if away else "inbox", new, now)
    yield from tasks.let_go_all(new)
    for posted, is_new in zip(letters, are_new, strict=True):
        if is_new:
            state = "away" if away else placed[key_of(posted)]
            receipts.append(receipt_of(posted, state, is_new=True))
        else:
            receipts.append(receipt_of(posted, (yield from _state(key_of(posted))), is_new=False))
    return receipts


def _into_all(
    table: str, letters: Sequence[Posted], now: datetime
) -> Generator[Statement, Rows, dict[Key, LetterState]]:
    """Put letters at the ends of their mailboxes, in this order; none of them is held."""
    boxes: dict[tuple[str, str], list[Posted]] = {}
    for posted in letters:
        boxes.setdefault((posted.recipient_id, posted.team_id), []).append(posted)
    states: dict[Key, LetterState] = {}
    rows: list[tuple[Any, ...]] = []
    at = micros(now)
    for mailbox, some in sorted(boxes.items()):  # in one order, so that nobody waits for somebody who waits
        ((last,),) = yield _COUNTED, (*mailbox, len(some))
        busy = yield from busy_tasks(table, mailbox, {posted.task_id for posted in some})
        for number, posted in enumerate(some, last - len(some) + 1):
            key, task = key_of(posted), posted.task_id
            states[key] = "behind" if task in busy else "ready"
            busy.add(task)
            rows.append((*key, number, task, states[key], at))
    row = f"(?, ?, ?, ?, ?, ?, {_AVAILABLE[table]}, 0, ?)"
    for group in in_groups(rows):
        yield f"{_INTO[table]} {', '.join([row] * len(group))}", [value for row in group for value in row]
    return states


def busy_tasks(table: str, mailbox: tuple[str, str], wanted: Iterable[str]) -> Generator[Statement, Rows, set[str]]:
    """Which of these tasks have a letter in a mailbox that is not done. However many it has, one is looked at."""
    found: set[str] = set()
    for some in in_groups(sorted(wanted)):
        rows = yield (
            f"SELECT t.column1 FROM (VALUES {values(1, len(some))}) AS t WHERE (SELECT e.number FROM {table} AS e"
            f" WHERE e.recipient_id = ? AND e.team_id = ? AND e.task_id = t.column1{_OPEN[table]}"
            " ORDER BY e.number LIMIT 1) IS NOT NULL",
            (*some, *mailbox),
        )
        found.update(task for (task,) in rows)
    return found


# --- arriving --------------------------------------------------------------------------------------------------------


@operation
def arrive(
    letters: Sequence[Posted], now: datetime, id_of: Callable[[], str], elsewhere: Collection[Key] = ()
) -> Generator[Statement, Rows, list[Receipt]]:
    """Take letters that a transport has brought. What is there already changes nothing; a false one is dead.

    ``elsewhere`` are those that another store has in its outbox, and this one has not. A false letter has the id of
    another one and other content. Invariant: it takes nothing out of the outbox.
    """
    known = yield from _states(letters)
    first: dict[Key, Posted] = {}
    for posted in letters:
        first.setdefault(key_of(posted), posted)
    kept = yield from _fingerprints(first)
    content = {**{key: posted.fingerprint for key, posted in first.items()}, **kept}
    fresh = {key: posted for key, posted in first.items() if key not in known}
    new = [posted for key, posted in fresh.items() if key not in kept]  # the others were sent from here, or are false
    true = [posted for key, posted in fresh.items() if content[key] == posted.fingerprint]
    yield from keep_all(new, now)
    yield from tasks.note_all(new, now)
    placed = yield from _into_all("inbox", true, now)  # whoever sent them has held them
    yield from tasks.let_go_all(new)
    states = {**known, **placed}
    receipts: list[Receipt] = []
    arrived: list[Key] = []
    for posted in letters:
        key = key_of(posted)
        if content[key] != posted.fingerprint:
            yield from bury(buried(posted, "letter_conflict", OTHER_CONTENT, now, id_of()))
            receipts.append(receipt_of(posted, "dead", is_new=False))
            continue
        arrived.append(key)
        receipts.append(receipt_of(posted, states[key], is_new=placed.pop(key, None) is not None))
    yield from received_all([key for key in arrived if key not in elsewhere])
    return receipts


def _states(letters: Sequence[Posted]) -> Generator[Statement, Rows, dict[Key, LetterState]]:
    """Where letters stand that are in an inbox already."""
    found: dict[Key, LetterState] = {}
    for mailbox, names in by_mailbox(map(key_of, letters)):
        for marks, some in listed(names):
            rows = yield (
                f"SELECT letter_id, state FROM inbox WHERE {MAILBOX} AND letter_id IN ({marks})",
                (*mailbox, *some),
            )
            found.update(((*mailbox, name), state) for name, state in rows)
    return found


def _fingerprints(keys: Iterable[Key]) -> Generator[Statement, Rows, dict[Key, bytes]]:
    """What makes each letter that is kept this one and no other."""
    found: dict[Key, bytes] = {}
    for mailbox, names in by_mailbox(keys):
        for marks, some in listed(names):
            rows = yield (
                f"SELECT letter_id, fingerprint FROM letters WHERE {MAILBOX} AND letter_id IN ({marks})",
                (*mailbox, *some),
            )
            found.update(((*mailbox, name), bytes(fingerprint)) for name, fingerprint in rows)
    return found


def by_mailbox(keys: Iterable[Key]) -> list[tuple[tuple[str, str], list[str]]]:
    """The letters of each mailbox. All in one order, so that nobody waits for somebody who waits."""
    boxes: dict[tuple[str, str], list[str]] = {}
    for recipient_id, team_id, letter_id in keys:
        boxes.setdefault((recipient_id, team_id), []).append(letter_id)
    return [(mailbox, sorted(names)) for mailbox, names in sorted(boxes.items())]


def buried(posted: Posted, reason: str, error: str, now: datetime, dead_id: str) -> DeadLetter:
    """A letter that is given up."""
    return DeadLetter(
        id=dead_id,
        recipient_id=posted.recipient_id,
        team_id=posted.team_id,
        letter_id=posted.letter_id,
        sender_id=posted.sender_id,
        task_id=posted.task_id,
        reason=reason,
        error=error,
        user_id=posted.user_id,
        died_at=now,
        raw=posted.text.encode(),
    )


def received(key: Key) -> Steps:
    """The recipient has a letter: it need not be sent again, and the next one of its task may be."""
    yield from received_all([key])


def received_all(keys: Sequence[Key]) -> Steps:
    """The same for several."""
    for mailbox, names in by_mailbox(keys):
        yield locked((*mailbox, ""))
        for marks, some in listed(names):
            gone = yield (
                f"DELETE FROM outbox WHERE {MAILBOX} AND letter_id IN ({marks}) RETURNING task_id",
                (*mailbox, *some),
            )
            for task_id in (yield from busy_tasks("outbox", mailbox, {task_id for (task_id,) in gone})):
                yield from promoted("outbox", *mailbox, task_id)
