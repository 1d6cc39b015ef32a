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

from dragoman.letters.records import DeadLetter, LetterState, Receipt, StoredLetter
from dragoman.store.batches import in_clause_chunks, insert_chunks, values_clause
from dragoman.store.mailbox import dependencies
from dragoman.store.mailbox.letters import (
    INSERT_LETTER,
    LETTER_KEY,
    MAILBOX,
    OTHER_CONTENT,
    Key,
    Steps,
    get_key,
    insert_dead_letter,
    insert_letters,
    insert_sealed_values,
    lock_mailbox,
    promote_next,
    require_same_content,
    to_row,
)
from dragoman.store.message_rows import to_micros
from dragoman.store.operation import Operation, Rows, Statement, operation

_NEXT_NUMBER: Final = (
    "INSERT INTO mailboxes (recipient_id, team_id, last_number) VALUES (?, ?, ?)"
    " ON CONFLICT (recipient_id, team_id) DO UPDATE SET last_number = mailboxes.last_number + excluded.last_number"
    " RETURNING last_number"
)
_NEXT_NUMBER_AND_NEED: Final = (
    f"{_NEXT_NUMBER}, (SELECT 1 FROM task_needs AS n WHERE n.needed_id = ? AND n.team_id = ? LIMIT 1)"
)
_OPEN_CONDITION: Final = {"inbox": " AND e.ended_at IS NULL", "outbox": ""}
_INSERT: Final = {
    table: f"INSERT INTO {table} (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts,"
    f" {when}) VALUES"
    for table, when in (("inbox", "arrived_at"), ("outbox", "put_at"))
}
_AVAILABLE_AT: Final = {"inbox": "0", "outbox": "lease_now()"}  # at once, and as the last one that is to be sent
_INSERT_NEXT: Final = {  # in that order, an index has it
    table: f"{into} (?, ?, ?, ?, ?, CASE WHEN (SELECT e.number FROM {table} AS e WHERE e.recipient_id = ?"
    f" AND e.team_id = ? AND e.task_id = ?{_OPEN_CONDITION[table]} ORDER BY e.number LIMIT 1) IS NULL"
    f" THEN 'ready' ELSE 'behind' END, {_AVAILABLE_AT[table]}, 0, ?) RETURNING state"
    for table, into in _INSERT.items()
}
_INSERT_HELD: Final = {
    table: f"{into} (?, ?, ?, ?, ?, 'held', {_AVAILABLE_AT[table]}, 0, ?)" for table, into in _INSERT.items()
}
_BATCH_FROM: Final = 2  # from here on, several at a time are quicker


# --- one -------------------------------------------------------------------------------------------------------------


def post(stored: StoredLetter, now: datetime, *, via_transport: bool) -> Operation[Receipt]:
    """Take a letter; the same again changes nothing."""
    return Operation(lambda: post_letter(stored, now, via_transport=via_transport))


def post_letter(stored: StoredLetter, now: datetime, *, via_transport: bool) -> Generator[Statement, Rows, Receipt]:
    """The steps of taking a letter."""
    if not (yield INSERT_LETTER, to_row(stored, now)):
        yield from require_same_content(stored)
        return make_receipt(stored, (yield from _get_state(get_key(stored))), is_new=False)
    if stored.sealed:
        yield from insert_sealed_values(stored)
    is_held = bool(stored.needs) and (yield from dependencies.add_dependencies(stored, now))
    if dependencies.is_result(stored):
        yield dependencies.record_state(stored, now)
    state, is_needed = yield from _enqueue("outbox" if via_transport else "inbox", stored, now, is_held=is_held)
    if is_needed and dependencies.is_success(stored):
        yield from dependencies.release_dependents(stored)
    return make_receipt(stored, "away" if via_transport else state, is_new=True)


def make_receipt(stored: StoredLetter, state: LetterState, *, is_new: bool) -> Receipt:
    """That a letter was taken."""
    return Receipt(letter_id=stored.letter_id, recipient_id=stored.recipient_id, is_new=is_new, state=state)


def _get_state(key: Key) -> Generator[Statement, Rows, LetterState]:
    rows = yield f"SELECT state FROM inbox WHERE {LETTER_KEY}", key
    state: LetterState = rows[0][0] if rows else "away"
    return state


def enqueue(
    table: str, stored: StoredLetter, now: datetime, *, is_held: bool
) -> Generator[Statement, Rows, LetterState]:
    """Put a letter at the end of a mailbox."""
    return (yield from _enqueue(table, stored, now, is_held=is_held))[0]


def _enqueue(
    table: str, stored: StoredLetter, now: datetime, *, is_held: bool
) -> Generator[Statement, Rows, tuple[LetterState, bool]]:
    """The same, and whether something waits for the letter's task."""
    recipient, team, task, at = stored.recipient_id, stored.team_id, stored.task_id, to_micros(now)
    ((number, is_needed),) = yield _NEXT_NUMBER_AND_NEED, (recipient, team, 1, task, team)
    columns = (recipient, team, stored.letter_id, number, task)
    if is_held:
        yield _INSERT_HELD[table], (*columns, at)
        return "held", is_needed is not None
    ((state,),) = yield _INSERT_NEXT[table], (*columns, recipient, team, task, at)
    return state, is_needed is not None


# --- several ---------------------------------------------------------------------------------------------------------


@operation
def post_all(
    letters: Sequence[StoredLetter], now: datetime, *, via_transport: bool
) -> Generator[Statement, Rows, list[Receipt]]:
    """Take letters, all or none, in this order."""
    receipts: list[Receipt] = []
    if len(letters) < _BATCH_FROM or any(
        stored.needs for stored in letters
    ):  # what waits may wait for one of the others
        for stored in letters:
            receipts.append((yield from post_letter(stored, now, via_transport=via_transport)))
        return receipts
    are_new = yield from insert_letters(letters, now)
    new = [stored for stored, is_new in zip(letters, are_new, strict=True) if is_new]
    yield from dependencies.record_states(new, now)
    states = yield from _enqueue_all("outbox" if via_transport else "inbox", new, now)
    yield from dependencies.release_all_dependents(new)
    for stored, is_new in zip(letters, are_new, strict=True):
        if is_new:
            state = "away" if via_transport else states[get_key(stored)]
            receipts.append(make_receipt(stored, state, is_new=True))
        else:
            receipts.append(make_receipt(stored, (yield from _get_state(get_key(stored))), is_new=False))
    return receipts


def _enqueue_all(
    table: str, letters: Sequence[StoredLetter], now: datetime
) -> Generator[Statement, Rows, dict[Key, LetterState]]:
    """Put letters at the ends of their mailboxes, in this order; none of them is held."""
    boxes: dict[tuple[str, str], list[StoredLetter]] = {}
    for stored in letters:
        boxes.setdefault((stored.recipient_id, stored.team_id), []).append(stored)
    states: dict[Key, LetterState] = {}
    rows: list[tuple[Any, ...]] = []
    at = to_micros(now)
    for mailbox, group in sorted(boxes.items()):  # in one order, so that nobody waits for somebody who waits
        ((last,),) = yield _NEXT_NUMBER, (*mailbox, len(group))
        busy = yield from find_busy_tasks(table, mailbox, {stored.task_id for stored in group})
        for number, stored in enumerate(group, last - len(group) + 1):
            key, task = get_key(stored), stored.task_id
            states[key] = "behind" if task in busy else "ready"
            busy.add(task)
            rows.append((*key, number, task, states[key], at))
    row = f"(?, ?, ?, ?, ?, ?, {_AVAILABLE_AT[table]}, 0, ?)"
    for batch in insert_chunks(rows):
        yield f"{_INSERT[table]} {', '.join([row] * len(batch))}", [value for row in batch for value in row]
    return states


def find_busy_tasks(
    table: str, mailbox: tuple[str, str], task_ids: Iterable[str]
) -> Generator[Statement, Rows, set[str]]:
    """Which of these tasks have a letter in a mailbox that is not done. However many it has, one is looked at."""
    busy: set[str] = set()
    for batch in insert_chunks(sorted(task_ids)):
        rows = yield (
            f"SELECT t.column1 FROM (VALUES {values_clause(1, len(batch))}) AS t"
            f" WHERE (SELECT e.number FROM {table} AS e"
            f" WHERE e.recipient_id = ? AND e.team_id = ? AND e.task_id = t.column1{_OPEN_CONDITION[table]}"
            " ORDER BY e.number LIMIT 1) IS NOT NULL",
            (*batch, *mailbox),
        )
        busy.update(task for (task,) in rows)
    return busy


# --- arriving --------------------------------------------------------------------------------------------------------


@operation
def receive(
    letters: Sequence[StoredLetter], now: datetime, new_id: Callable[[], str], foreign: Collection[Key] = ()
) -> Generator[Statement, Rows, list[Receipt]]:
    """Take letters that a transport has brought. What is there already changes nothing; a false one is dead.

    ``elsewhere`` are those that another store has in its outbox, and this one has not. A false letter has the id of
    another one and other content. Invariant: it takes nothing out of the outbox.
    """
    known_states = yield from _get_states(letters)
    first: dict[Key, StoredLetter] = {}
    for stored in letters:
        first.setdefault(get_key(stored), stored)
    fingerprints = yield from _get_fingerprints(first)
    content = {**{key: stored.fingerprint for key, stored in first.items()}, **fingerprints}
    fresh = {key: stored for key, stored in first.items() if key not in known_states}
    new = [
        stored for key, stored in fresh.items() if key not in fingerprints
    ]  # the others were sent from here, or are false
    genuine = [stored for key, stored in fresh.items() if content[key] == stored.fingerprint]
    yield from insert_letters(new, now)
    yield from dependencies.record_states(new, now)
    new_states = yield from _enqueue_all("inbox", genuine, now)  # whoever sent them has held them
    yield from dependencies.release_all_dependents(new)
    states = {**known_states, **new_states}
    receipts: list[Receipt] = []
    accepted: list[Key] = []
    for stored in letters:
        key = get_key(stored)
        if content[key] != stored.fingerprint:
            yield from insert_dead_letter(make_dead_letter(stored, "letter_conflict", OTHER_CONTENT, now, new_id()))
            receipts.append(make_receipt(stored, "dead", is_new=False))
            continue
        accepted.append(key)
        receipts.append(make_receipt(stored, states[key], is_new=new_states.pop(key, None) is not None))
    yield from remove_all_from_outbox([key for key in accepted if key not in foreign])
    return receipts


def _get_states(letters: Sequence[StoredLetter]) -> Generator[Statement, Rows, dict[Key, LetterState]]:
    """Where letters stand that are in an inbox already."""
    states: dict[Key, LetterState] = {}
    for mailbox, names in group_by_mailbox(map(get_key, letters)):
        for marks, batch in in_clause_chunks(names):
            rows = yield (
                f"SELECT letter_id, state FROM inbox WHERE {MAILBOX} AND letter_id IN ({marks})",
                (*mailbox, *batch),
            )
            states.update(((*mailbox, name), state) for name, state in rows)
    return states


def _get_fingerprints(keys: Iterable[Key]) -> Generator[Statement, Rows, dict[Key, bytes]]:
    """What makes each letter that is kept this one and no other."""
    fingerprints: dict[Key, bytes] = {}
    for mailbox, names in group_by_mailbox(keys):
        for marks, batch in in_clause_chunks(names):
            rows = yield (
                f"SELECT letter_id, fingerprint FROM letters WHERE {MAILBOX} AND letter_id IN ({marks})",
                (*mailbox, *batch),
            )
            fingerprints.update(((*mailbox, name), bytes(fingerprint)) for name, fingerprint in rows)
    return fingerprints


def group_by_mailbox(keys: Iterable[Key]) -> list[tuple[tuple[str, str], list[str]]]:
    """The letters of each mailbox. All in one order, so that nobody waits for somebody who waits."""
    boxes: dict[tuple[str, str], list[str]] = {}
    for recipient_id, team_id, letter_id in keys:
        boxes.setdefault((recipient_id, team_id), []).append(letter_id)
    return [(mailbox, sorted(names)) for mailbox, names in sorted(boxes.items())]


def make_dead_letter(stored: StoredLetter, reason: str, error: str, now: datetime, dead_id: str) -> DeadLetter:
    """A letter that is given up."""
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


def remove_from_outbox(key: Key) -> Steps:
    """The recipient has a letter: it need not be sent again, and the next one of its task may be."""
    yield from remove_all_from_outbox([key])


def remove_all_from_outbox(keys: Sequence[Key]) -> Steps:
    """The same for several."""
    for mailbox, names in group_by_mailbox(keys):
        yield lock_mailbox((*mailbox, ""))
        for marks, batch in in_clause_chunks(names):
            rows = yield (
                f"DELETE FROM outbox WHERE {MAILBOX} AND letter_id IN ({marks}) RETURNING task_id",
                (*mailbox, *batch),
            )
            for task_id in (yield from find_busy_tasks("outbox", mailbox, {task_id for (task_id,) in rows})):
                yield from promote_next("outbox", *mailbox, task_id)
