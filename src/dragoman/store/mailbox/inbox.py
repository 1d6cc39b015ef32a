"""Stores letters and appends them to a mailbox, or to the outbox if a transport sends them.

    post(stored, now, via_transport=False)      one letter
    post_all(letters, now, …)                   several letters, all or none
    receive(letters, now, …)                    letters from a transport: into the inbox, and out of our outbox

A batch needs few statements and has the same effect as its letters one by one.

Invariant: a letter and its position are committed in one transaction, which holds the row of the mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from dragoman.letters.records import LetterState, Receipt, StoredLetter
from dragoman.store.mailbox import dependencies
from dragoman.store.mailbox.dead_letters import insert_dead_letter, make_dead_letter
from dragoman.store.mailbox.letters import (
    LETTER_KEY,
    OTHER_CONTENT,
    Key,
    MailboxKey,
    get_key,
    group_by_mailbox,
    insert_letter,
    insert_letters,
    is_result,
    is_success,
    record_states,
    run_for_letters,
)
from dragoman.store.mailbox.outbox import OPEN_CONDITION, find_busy_tasks, remove_from_outbox
from dragoman.store.operation import Steps, insert_chunks, operation, to_micros

_NEXT_NUMBER: Final = (
    "INSERT INTO mailboxes (recipient_id, team_id, last_number) VALUES (?, ?, ?)"
    " ON CONFLICT (recipient_id, team_id) DO UPDATE SET last_number = mailboxes.last_number + excluded.last_number"
    " RETURNING last_number"
)
_NEXT_NUMBER_AND_NEED: Final = (
    f"{_NEXT_NUMBER}, (SELECT 1 FROM task_needs AS n WHERE n.needed_id = ? AND n.team_id = ? LIMIT 1)"
)
_INSERT: Final = {
    table: f"INSERT INTO {table} (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts,"
    f" {when}) VALUES"
    for table, when in (("inbox", "arrived_at"), ("outbox", "put_at"))
}
_AVAILABLE_AT: Final = {"inbox": "0", "outbox": "lease_now()"}  # immediately, and after the letters sent before
_INSERT_NEXT: Final = {  # the order of the subquery matches an index
    table: f"{insert} (?, ?, ?, ?, ?, CASE WHEN (SELECT e.number FROM {table} AS e WHERE e.recipient_id = ?"
    f" AND e.team_id = ? AND e.task_id = ?{OPEN_CONDITION[table]} ORDER BY e.number LIMIT 1) IS NULL"
    f" THEN 'ready' ELSE 'behind' END, {_AVAILABLE_AT[table]}, 0, ?) RETURNING state"
    for table, insert in _INSERT.items()
}
_INSERT_HELD: Final = {
    table: f"{insert} (?, ?, ?, ?, ?, 'held', {_AVAILABLE_AT[table]}, 0, ?)" for table, insert in _INSERT.items()
}
_BATCH_FROM: Final = 2  # number of letters from which a batch is faster


def make_receipt(stored: StoredLetter, state: LetterState, *, is_new: bool) -> Receipt:
    """Return the receipt of a letter."""
    return Receipt(letter_id=stored.letter_id, recipient_id=stored.recipient_id, is_new=is_new, state=state)


# --- one letter ------------------------------------------------------------------------------------------------------


@operation
def post(stored: StoredLetter, now: datetime, *, via_transport: bool) -> Steps[Receipt]:
    """Store a letter; the same letter again changes nothing."""
    if not (yield from insert_letter(stored, now)):
        return make_receipt(stored, (yield from _get_state(get_key(stored))), is_new=False)
    is_held = bool(stored.needs) and (yield from dependencies.add_dependencies(stored, now))
    if is_result(stored):
        yield from record_states([stored], now)
    table = "outbox" if via_transport else "inbox"
    state, is_needed = yield from _enqueue(table, stored, now, is_held=is_held)
    if is_needed and is_success(stored):
        yield from dependencies.release_task(stored.task_id, stored.team_id)
    return make_receipt(stored, "away" if via_transport else state, is_new=True)


def _get_state(key: Key) -> Steps[LetterState]:
    rows = yield f"SELECT state FROM inbox WHERE {LETTER_KEY}", key
    state: LetterState = rows[0][0] if rows else "away"
    return state


def enqueue(table: str, stored: StoredLetter, now: datetime) -> Steps[LetterState]:
    """Append a letter to a mailbox."""
    return (yield from _enqueue(table, stored, now, is_held=False))[0]


def _enqueue(table: str, stored: StoredLetter, now: datetime, *, is_held: bool) -> Steps[tuple[LetterState, bool]]:
    """Append a letter to a mailbox; return its state and whether another letter waits for its task."""
    recipient, team, task, at = stored.recipient_id, stored.team_id, stored.task_id, to_micros(now)
    ((number, need),) = yield _NEXT_NUMBER_AND_NEED, (recipient, team, 1, task, team)
    columns = (recipient, team, stored.letter_id, number, task)
    if is_held:
        yield _INSERT_HELD[table], (*columns, at)
        return "held", need is not None
    ((state,),) = yield _INSERT_NEXT[table], (*columns, recipient, team, task, at)
    return state, need is not None


# --- several letters -------------------------------------------------------------------------------------------------


@operation
def post_all(letters: Sequence[StoredLetter], now: datetime, *, via_transport: bool) -> Steps[list[Receipt]]:
    """Store letters in this order, all or none."""
    receipts: list[Receipt] = []
    if len(letters) < _BATCH_FROM or any(stored.needs for stored in letters):  # one may depend on another
        for stored in letters:
            receipts.append((yield from post(stored, now, via_transport=via_transport)))
        return receipts
    are_new = yield from insert_letters(letters, now)
    new = [stored for stored, is_new in zip(letters, are_new, strict=True) if is_new]
    yield from record_states(new, now)
    states = yield from _enqueue_all("outbox" if via_transport else "inbox", new, now)
    yield from dependencies.release_dependents(new)
    for stored, is_new in zip(letters, are_new, strict=True):
        if is_new:
            state = "away" if via_transport else states[get_key(stored)]
        else:
            state = yield from _get_state(get_key(stored))
        receipts.append(make_receipt(stored, state, is_new=is_new))
    return receipts


def _enqueue_all(table: str, letters: Sequence[StoredLetter], now: datetime) -> Steps[dict[Key, LetterState]]:
    """Append letters without dependencies to their mailboxes, in this order."""
    mailboxes: dict[MailboxKey, list[StoredLetter]] = {}
    for stored in letters:
        mailboxes.setdefault((stored.recipient_id, stored.team_id), []).append(stored)
    states: dict[Key, LetterState] = {}
    rows: list[tuple[Any, ...]] = []
    at = to_micros(now)
    for mailbox, group in sorted(mailboxes.items()):  # sorted: a common lock order
        ((last,),) = yield _NEXT_NUMBER, (*mailbox, len(group))
        busy = yield from find_busy_tasks(table, mailbox, {stored.task_id for stored in group})
        for number, stored in enumerate(group, last - len(group) + 1):
            key, task = get_key(stored), stored.task_id
            states[key] = "behind" if task in busy else "ready"
            busy.add(task)
            rows.append((*key, number, task, states[key], at))
    row = f"(?, ?, ?, ?, ?, ?, {_AVAILABLE_AT[table]}, 0, ?)"
    for chunk in insert_chunks(rows):
        yield f"{_INSERT[table]} {', '.join([row] * len(chunk))}", [value for values in chunk for value in values]
    return states


# --- letters from a transport ----------------------------------------------------------------------------------------


@operation
def receive(
    letters: Sequence[StoredLetter], now: datetime, new_id: Callable[[], str], foreign: Collection[Key] = ()
) -> Steps[list[Receipt]]:
    """Store letters from a transport. An existing letter changes nothing; a conflicting letter becomes a dead letter.

    ``foreign`` are the letters in the outbox of another store. A conflicting letter has the id of another one and
    different content. Invariant: it does not change the outbox.
    """
    first: dict[Key, StoredLetter] = {}
    for stored in letters:
        first.setdefault(get_key(stored), stored)
    known_states: dict[Key, LetterState] = yield from _select_by_key("state", "inbox", first)
    fingerprints = yield from _select_by_key("fingerprint", "letters", first)
    content = {key: bytes(fingerprints.get(key, stored.fingerprint)) for key, stored in first.items()}
    fresh = {key: stored for key, stored in first.items() if key not in known_states}
    new = [stored for key, stored in fresh.items() if key not in fingerprints]  # not sent from this store
    genuine = [stored for key, stored in fresh.items() if content[key] == stored.fingerprint]
    yield from insert_letters(new, now)
    yield from record_states(new, now)
    new_states = yield from _enqueue_all("inbox", genuine, now)  # the sender has held them
    yield from dependencies.release_dependents(new)
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
    yield from remove_from_outbox([key for key in accepted if key not in foreign])
    return receipts


def _select_by_key(column: str, table: str, keys: Iterable[Key]) -> Steps[dict[Key, Any]]:
    """Return a column of the letters that exist in a table."""
    values: dict[Key, Any] = {}
    for mailbox, ids in group_by_mailbox(keys):
        rows = yield from run_for_letters(mailbox, ids, f"SELECT letter_id, {column} FROM {table} WHERE {{}}")
        values.update(((*mailbox, letter_id), value) for letter_id, value in rows)
    return values
