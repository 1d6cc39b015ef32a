"""Tests of batches, which have the same effect as single letters, and of the order of delayed letters."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.errors import ConflictError
from dragoman.letters import Letter
from dragoman.letters.records import StoredLetter
from dragoman.mail import Encryptor, Mail, RetryRule
from dragoman.mail.stored_letter import to_stored
from dragoman.store import Store, open_store
from dragoman.store.engines.tables import LETTER_COLUMNS, migrations
from dragoman.store.mailbox.letters import to_row
from dragoman.store.operation import in_clause_chunks, insert_chunks
from tests.conftest import scale
from tests.mail.conftest import Clock, failure, pass_time, result
from tests.mail.timeouts import time_limit
from tests.store.conftest import StoreLocation

ROUNDS = scale(2, 6)


def run_statement(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    return (yield sql, arguments)


async def read_tables(store: Store, team: str) -> dict[str, Any]:
    """Return the rows of a team's mail, without random names."""
    columns_of = {
        "inbox": "recipient_id, letter_id, number, task_id, state, attempts, error_class, lease IS NULL",
        "outbox": "recipient_id, letter_id, number, task_id, state, attempts, broker_seq",
        "letters": "recipient_id, letter_id, task_id, fingerprint",
        "mailboxes": "recipient_id, last_number",
        "task_states": "task_id, state",
        "task_needs": "task_id, needed_id, recipient_id, letter_id",
        "dead_letters": "recipient_id, letter_id, reason",
        "sealed_values": "recipient_id, letter_id, input_id",
    }
    return {
        table: sorted(
            await store._read(run_statement(f"SELECT {columns} FROM {table} WHERE team_id = ?", team)), key=repr
        )
        for table, columns in columns_of.items()
    }


def random_letters(rng: random.Random, count: int) -> list[Letter]:
    """Return letters to few recipients about few tasks, with some duplicates."""
    letters: list[Letter] = []
    for number in range(count):
        fields = {"to": rng.choice("AB"), "message_id": f"L{number}"}
        task = f"T{rng.randrange(6)}"
        status = rng.choice(("success", "failed", "partial_success"))
        secret = {"inputs": {"a": "first-secret"}} if rng.random() < 0.1 else {}
        letters.append(
            failure(task, **fields) if rng.random() < 0.2 else result(task, status=status, **secret, **fields)
        )
        if rng.random() < 0.2:
            letters.append(rng.choice(letters))
    return letters


def create_held_letters() -> list[Letter]:
    return [failure(f"H{number}", to="C", message_id=f"H{number}", depends_on=[f"T{number}"]) for number in range(6)]


@pytest.mark.parametrize("via_transport", [False, True])
async def test_send_all_equals_single_sends(
    store: Store, clock: Clock, rng: random.Random, via_transport: bool
) -> None:
    store.clock = clock
    mail = Mail(store)
    for round_number in range(ROUNDS):
        teams = [mail.for_team(team_id=f"{name}{round_number}") for name in ("one", "all")]
        letters = random_letters(rng, rng.choice((2, 5, 17, 70)))
        receipts: list[list[Any]] = []
        for mail in teams:
            posted = [
                to_stored(letter, mail.encryptor, team_id=mail.team_id) for letter in (*create_held_letters(), *letters)
            ]
            for stored in posted[:6]:
                await store.mail.post(stored, via_transport=via_transport)
            if mail is teams[0]:
                receipts.append([await store.mail.post(stored, via_transport=via_transport) for stored in posted[6:]])
            else:
                first = rng.randrange(len(letters))
                receipts.append(await store.mail.post_all(posted[6 : 6 + first], via_transport=via_transport))
                receipts[-1] += await store.mail.post_all(posted[6 + first :], via_transport=via_transport)
        assert [(receipt.letter_id, receipt.is_new) for receipt in receipts[0]] == [
            (receipt.letter_id, receipt.is_new) for receipt in receipts[1]
        ]
        single, batch = [await read_tables(store, mail.team_id) for mail in teams]
        assert single == batch


async def test_batch_receive_equals_single_receives(store: Store, clock: Clock, rng: random.Random) -> None:
    store.clock = clock
    mail = Mail(store)
    for round_number in range(ROUNDS):
        teams = [mail.for_team(team_id=f"{name}{round_number}") for name in ("one", "all")]
        letters = random_letters(rng, rng.choice((2, 5, 17, 70)))
        published = [letter for letter in letters if rng.random() < 0.3]  # in the outbox of this store
        conflicting = [letter.replace(task_id="T9") for letter in letters if rng.random() < 0.1]
        receipts: list[list[Any]] = []
        for mail in teams:

            def to_stored_letters(letters: Sequence[Letter], mail: Mail = mail) -> list[StoredLetter]:
                return [to_stored(letter, mail.encryptor, team_id=mail.team_id) for letter in letters]

            for stored in to_stored_letters([*create_held_letters(), *published]):
                await store.mail.post(stored, via_transport=True)
            incoming = to_stored_letters([*letters, *conflicting])
            if mail is teams[0]:
                receipts.append([receipt for stored in incoming for receipt in await store.mail.receive([stored])])
            else:
                receipts.append(await store.mail.receive(incoming))
        assert [(receipt.letter_id, receipt.is_new) for receipt in receipts[0]] == [
            (receipt.letter_id, receipt.is_new) for receipt in receipts[1]
        ]
        single, batch = [await read_tables(store, mail.team_id) for mail in teams]
        assert single == batch


async def test_ack_all_equals_single_acks(store: Store, clock: Clock, rng: random.Random) -> None:
    store.clock = clock
    for round_number in range(ROUNDS):
        count = rng.choice((2, 5, 17, 70))
        letters = [result(f"T{number % 7}", message_id=f"L{number}") for number in range(count)]
        seed = rng.getrandbits(32)
        results: list[list[Any]] = []
        teams = [Mail(store).for_team(team_id=f"{name}{round_number}") for name in ("one", "all")]
        for mail in teams:
            round_rng = random.Random(seed)
            await mail.send_all(letters)
            results.append([])
            while held := await mail.receive("ARCH", limit=50, lease_s=1):
                if round_rng.random() < 0.2:
                    await pass_time(mail.store, clock, seconds=2)
                others = await mail.receive("ARCH", limit=2)
                deliveries = [*held, *others, *held[:2]]
                round_rng.shuffle(deliveries)
                if mail is teams[0]:
                    for delivery in deliveries:
                        try:
                            results[-1].append(await delivery.ack())
                        except ConflictError as error:
                            results[-1].append(error.code)
                else:
                    outcomes = await mail.ack_all(deliveries)
                    results[-1] += [
                        result_or_error.code if isinstance(result_or_error, ConflictError) else result_or_error
                        for result_or_error in outcomes
                    ]
        assert results[0] == results[1]
        single, batch = [await read_tables(store, mail.team_id) for mail in teams]
        assert single == batch
        assert {row[4] for row in batch["inbox"]} == {"done"}


async def test_concurrent_sends_and_acks_of_one_task_leave_no_letter_blocked(
    database_location: StoreLocation, rng: random.Random
) -> None:
    letter_count = 120
    async with database_location.open() as first_store, database_location.open() as second_store:
        mails = [Mail(first_store), Mail(second_store)]
        received: list[str] = []

        async def send(mail: Mail, name: str) -> None:
            letters = [result(f"T{number % 4}", message_id=f"{name}{number}") for number in range(letter_count // 4)]
            while letters:
                batch, letters = letters[: (size := rng.choice((1, 1, 7)))], letters[size:]
                await (mail.send(batch[0]) if size == 1 else mail.send_all(batch))

        async def handle(mail: Mail) -> None:
            while len(received) < letter_count:
                held = await mail.receive("ARCH", limit=rng.choice((1, 5)))
                received.extend(
                    delivery.letter_id for delivery in held
                )  # before the ack, which releases the next letter of a task
                if len(held) == 1:
                    await held[0].ack()
                elif held:
                    await mail.ack_all(held)
                await asyncio.sleep(0)

        async with time_limit(120, f"{letter_count} letters"):
            senders = [send(mail, name) for mail, name in zip(mails * 2, "abcd", strict=True)]
            await asyncio.gather(*senders, *(handle(mail) for mail in mails * 2))
        assert sorted(received) == sorted(f"{name}{number}" for name in "abcd" for number in range(letter_count // 4))
        for name in "abcd":  # each task in send order
            for task in range(4):
                numbers = [int(letter[1:]) for letter in received if letter[0] == name and int(letter[1:]) % 4 == task]
                assert numbers == sorted(numbers)


async def test_conflict_in_batch_stores_no_letter(mail: Mail) -> None:
    letters = [result(f"T{number}", message_id=f"L{number}") for number in range(80)]
    with pytest.raises(ConflictError) as caught:
        await mail.send_all([*letters, result("T", message_id="L40", output="else")])
    assert caught.value.code == "letter_conflict"
    assert await mail.letters() == []
    assert [receipt.is_new for receipt in await mail.send_all([*letters, letters[40]])] == [True] * 80 + [False]


async def test_broker_sequence_of_each_letter_is_stored(mail: Mail, store: Store, clock: Clock) -> None:
    sent = [result(f"T{number}", to="AB"[number % 2], message_id=f"L{number}") for number in range(90)]
    await store.mail.post_all([to_stored(letter, mail.encryptor) for letter in sent], via_transport=True)
    claimed = await store.mail.claim(30, 100)
    assert {attempts for _, attempts, _ in claimed} == {0}
    published = [
        ((posted.recipient_id, "", posted.letter_id), 100 + number) for number, (posted, _, _) in enumerate(claimed)
    ]
    await store.mail.mark_published(published, 30)
    assert await store.mail.claim(30, 100) == []
    await pass_time(mail.store, clock, seconds=31)
    reclaimed = await store.mail.claim(30, 100)
    assert {posted.letter_id: broker_seq for posted, _, broker_seq in reclaimed} == {
        key[2]: broker_seq for key, broker_seq in published
    }
    assert {attempts for _, attempts, _ in reclaimed} == {1}


# --- delayed letters -------------------------------------------------------------------------------------------------


async def test_released_letter_is_delivered_before_later_ones(mail: Mail, clock: Clock) -> None:
    for number in range(6):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    (_, failed) = await mail.receive("ARCH", lease_s=10, limit=2)
    await failed.nack("later")  # retried after some seconds
    assert [delivery.letter_id for delivery in await mail.receive("ARCH", limit=1)] == ["L2"]
    await pass_time(mail.store, clock, seconds=11)
    assert [delivery.letter_id for delivery in await mail.receive("ARCH", limit=3)] == ["L0", "L1", "L3"]


async def test_expired_lease_can_acknowledge_until_letter_is_leased_again(mail: Mail, clock: Clock) -> None:
    for number in range(3):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    first, second, third = await mail.receive("ARCH", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (leased,) = await mail.receive("ARCH", limit=1)  # all three leases are over, one letter is leased
    assert leased.letter_id == "L0"
    with pytest.raises(ConflictError):
        await first.ack()
    assert (await second.ack()).is_first
    await third.extend(60)
    assert await mail.receive("ARCH") == []
    assert [status.leased_until is not None for status in await mail.letters()] == [True, False, True]


async def test_receive_by_id_finds_a_released_letter(mail: Mail, clock: Clock) -> None:
    for number in range(3):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    await mail.receive("ARCH", lease_s=1)
    assert await mail.receive("ARCH", letter_id="L1") == []
    await pass_time(mail.store, clock, seconds=2)
    assert [delivery.letter_id for delivery in await mail.receive("ARCH", letter_id="L1")] == ["L1"]


async def test_store_of_the_previous_version_delivers_in_order(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    now = int(clock().timestamp() * 1_000_000)
    connection = apsw.Connection(str(path))
    for number, step in enumerate(migrations("sqlite")[:6], 1):
        connection.execute(step).fetchall()
        connection.pragma("user_version", number)
    connection.pragma("application_id", 0x44524147)
    rows = [  # state, available_at, lease, attempts, error_class, ended_at
        ("ready", now - 5, None, 0, None, None),
        ("ready", now + 9_000_000, "held", 1, None, None),
        ("ready", now - 1, "over", 1, None, None),
        ("ready", now + 5_000_000, None, 1, "error", None),
        ("ready", now - 3, None, 0, None, None),
        ("done", now - 9, None, 1, None, now - 2),
    ]
    for number, (state, at, lease, attempts, error, ended) in enumerate(rows, 1):
        posted = to_stored(result(f"T{number}", message_id=f"L{number}"), Encryptor.in_memory())
        connection.execute(
            f"INSERT INTO letters ({LETTER_COLUMNS}) VALUES ({', '.join('?' * 15)})", to_row(posted, clock())
        )
        connection.execute(
            "INSERT INTO inbox (recipient_id, team_id, letter_id, number, task_id, state, available_at, lease, attempts,"
            " error_class, arrived_at, ended_at) VALUES ('ARCH', '', ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
            (posted.letter_id, number, posted.task_id, state, at, lease, attempts, error, ended),
        )
    connection.execute("INSERT INTO mailboxes VALUES ('ARCH', '', 6)")
    connection.close()
    async with open_store(f"sqlite:///{path}") as store:
        store.clock = clock
        mail = Mail(store, retry_rules={"error": RetryRule(3)})
        assert (await store.verify()).is_sound
        assert (await mail.send(result("T1", message_id="L1"))).is_new is False
        await mail.send(result("T7", message_id="L7"))
        assert [delivery.letter_id for delivery in await mail.receive("ARCH", lease_s=600)] == ["L1", "L5", "L7"]
        await pass_time(mail.store, clock, seconds=60)  # counted from the open: the old version stored wall clock times
        assert [delivery.letter_id for delivery in await mail.receive("ARCH")] == ["L2", "L3", "L4"]
        assert len(await mail.thread("T1")) == 1


# --- statements ------------------------------------------------------------------------------------------------------


def test_batches_use_few_statements() -> None:
    assert {marks.count("?") for count in range(1, 600) for marks, _ in in_clause_chunks(range(count))} == {
        1,
        4,
        16,
        64,
        256,
    }
    assert {len(group) for count in range(1, 600) for group in insert_chunks(range(count))} == {1, 2, 4, 16, 64}
    for count in range(600):
        assert [item for group in insert_chunks(range(count)) for item in group] == list(range(count))
        assert {item for _, chunk in in_clause_chunks(range(count)) for item in chunk} == set(range(count))
