"""Letters in batches have the same effect as single letters, and delayed letters are delivered in their order."""

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
from tests.mail.timeouts import within
from tests.store.conftest import Place

ROUNDS = scale(2, 6)


def rows_of(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    return (yield sql, arguments)


async def everything(store: Store, team: str) -> dict[str, Any]:
    """Return the rows of a team's mail, without random names."""
    asked = {
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
        table: sorted(await store._read(rows_of(f"SELECT {columns} FROM {table} WHERE team_id = ?", team)), key=repr)
        for table, columns in asked.items()
    }


def some_letters(chance: random.Random, count: int) -> list[Letter]:
    """Letters to few recipients about few tasks, some of them twice."""
    made: list[Letter] = []
    for number in range(count):
        about = {"to": chance.choice("AB"), "message_id": f"L{number}"}
        task = f"T{chance.randrange(6)}"
        status = chance.choice(("success", "failed", "partial_success"))
        secret = {"inputs": {"a": "first-secret"}} if chance.random() < 0.1 else {}
        made.append(failure(task, **about) if chance.random() < 0.2 else result(task, status=status, **secret, **about))
        if chance.random() < 0.2:
            made.append(chance.choice(made))
    return made


def held_letters() -> list[Letter]:
    return [failure(f"H{number}", to="C", message_id=f"H{number}", depends_on=[f"T{number}"]) for number in range(6)]


@pytest.mark.parametrize("away", [False, True])
async def test_send_all_equals_single_sends(store: Store, clock: Clock, chance: random.Random, away: bool) -> None:
    store.clock = clock
    mail = Mail(store)
    for turn in range(ROUNDS):
        teams = [mail.for_team(team_id=f"{name}{turn}") for name in ("one", "all")]
        given = some_letters(chance, chance.choice((2, 5, 17, 70)))
        receipts: list[list[Any]] = []
        for mail in teams:
            posted = [to_stored(letter, mail.encryptor, team_id=mail.team_id) for letter in (*held_letters(), *given)]
            for one in posted[:6]:
                await store.mail.post(one, via_transport=away)
            if mail is teams[0]:
                receipts.append([await store.mail.post(one, via_transport=away) for one in posted[6:]])
            else:
                first = chance.randrange(len(given))
                receipts.append(await store.mail.post_all(posted[6 : 6 + first], via_transport=away))
                receipts[-1] += await store.mail.post_all(posted[6 + first :], via_transport=away)
        assert [(one.letter_id, one.is_new) for one in receipts[0]] == [
            (one.letter_id, one.is_new) for one in receipts[1]
        ]
        one_by_one, together = [await everything(store, mail.team_id) for mail in teams]
        assert one_by_one == together


async def test_batch_receive_equals_single_receives(store: Store, clock: Clock, chance: random.Random) -> None:
    store.clock = clock
    mail = Mail(store)
    for turn in range(ROUNDS):
        teams = [mail.for_team(team_id=f"{name}{turn}") for name in ("one", "all")]
        given = some_letters(chance, chance.choice((2, 5, 17, 70)))
        ours = [letter for letter in given if chance.random() < 0.3]  # which went out from here
        false = [letter.replace(task_id="T9") for letter in given if chance.random() < 0.1]
        receipts: list[list[Any]] = []
        for mail in teams:

            def posted(letters: Sequence[Letter], mail: Mail = mail) -> list[StoredLetter]:
                return [to_stored(letter, mail.encryptor, team_id=mail.team_id) for letter in letters]

            for one in posted([*held_letters(), *ours]):
                await store.mail.post(one, via_transport=True)
            brought = posted([*given, *false])
            if mail is teams[0]:
                receipts.append([receipt for one in brought for receipt in await store.mail.receive([one])])
            else:
                receipts.append(await store.mail.receive(brought))
        assert [(one.letter_id, one.is_new) for one in receipts[0]] == [
            (one.letter_id, one.is_new) for one in receipts[1]
        ]
        one_by_one, together = [await everything(store, mail.team_id) for mail in teams]
        assert one_by_one == together


async def test_ack_all_equals_single_acks(store: Store, clock: Clock, chance: random.Random) -> None:
    store.clock = clock
    for turn in range(ROUNDS):
        count = chance.choice((2, 5, 17, 70))
        given = [result(f"T{number % 7}", message_id=f"L{number}") for number in range(count)]
        seed = chance.getrandbits(32)
        ends: list[list[Any]] = []
        teams = [Mail(store).for_team(team_id=f"{name}{turn}") for name in ("one", "all")]
        for mail in teams:
            drawn = random.Random(seed)
            await mail.send_all(given)
            ends.append([])
            while held := await mail.receive("ARCH", limit=50, lease_s=1):
                if drawn.random() < 0.2:
                    await pass_time(mail.store, clock, seconds=2)
                others = await mail.receive("ARCH", limit=2)
                asked = [*held, *others, *held[:2]]
                drawn.shuffle(asked)
                if mail is teams[0]:
                    for delivery in asked:
                        try:
                            ends[-1].append(await delivery.ack())
                        except ConflictError as error:
                            ends[-1].append(error.code)
                else:
                    told = await mail.ack_all(asked)
                    ends[-1] += [end.code if isinstance(end, ConflictError) else end for end in told]
        assert ends[0] == ends[1]
        one_by_one, together = [await everything(store, mail.team_id) for mail in teams]
        assert one_by_one == together
        assert {row[4] for row in together["inbox"]} == {"done"}


async def test_concurrent_sends_and_acks_of_one_task_leave_no_letter_blocked(
    shared_place: Place, chance: random.Random
) -> None:
    wanted = 120
    async with shared_place.open() as one, shared_place.open() as two:
        mails = [Mail(one), Mail(two)]
        seen: list[str] = []

        async def send(mail: Mail, name: str) -> None:
            letters = [result(f"T{number % 4}", message_id=f"{name}{number}") for number in range(wanted // 4)]
            while letters:
                some, letters = letters[: (size := chance.choice((1, 1, 7)))], letters[size:]
                await (mail.send(some[0]) if size == 1 else mail.send_all(some))

        async def handle(mail: Mail) -> None:
            while len(seen) < wanted:
                held = await mail.receive("ARCH", limit=chance.choice((1, 5)))
                seen.extend(
                    delivery.letter_id for delivery in held
                )  # before the ack, which releases the next of a task
                if len(held) == 1:
                    await held[0].ack()
                elif held:
                    await mail.ack_all(held)
                await asyncio.sleep(0)

        async with within(120, f"{wanted} letters"):
            working = [send(mail, name) for mail, name in zip(mails * 2, "abcd", strict=True)]
            await asyncio.gather(*working, *(handle(mail) for mail in mails * 2))
        assert sorted(seen) == sorted(f"{name}{number}" for name in "abcd" for number in range(wanted // 4))
        for name in "abcd":  # of each task, in the order in which they were sent
            for task in range(4):
                mine = [int(letter[1:]) for letter in seen if letter[0] == name and int(letter[1:]) % 4 == task]
                assert mine == sorted(mine)


async def test_conflict_in_a_batch_stores_none(mail: Mail) -> None:
    many = [result(f"T{number}", message_id=f"L{number}") for number in range(80)]
    with pytest.raises(ConflictError) as caught:
        await mail.send_all([*many, result("T", message_id="L40", output="else")])
    assert caught.value.code == "letter_conflict"
    assert await mail.letters() == []
    assert [one.is_new for one in await mail.send_all([*many, many[40]])] == [True] * 80 + [False]


async def test_broker_sequence_of_each_letter_is_stored(mail: Mail, store: Store, clock: Clock) -> None:
    sent = [result(f"T{number}", to="AB"[number % 2], message_id=f"L{number}") for number in range(90)]
    await store.mail.post_all([to_stored(letter, mail.encryptor) for letter in sent], via_transport=True)
    claimed = await store.mail.claim(30, 100)
    assert {attempts for _, attempts, _ in claimed} == {0}
    places = [
        ((posted.recipient_id, "", posted.letter_id), 100 + number) for number, (posted, _, _) in enumerate(claimed)
    ]
    await store.mail.mark_published(places, 30)
    assert await store.mail.claim(30, 100) == []
    await pass_time(mail.store, clock, seconds=31)
    again = await store.mail.claim(30, 100)
    assert {posted.letter_id: place for posted, _, place in again} == {key[2]: place for key, place in places}
    assert {attempts for _, attempts, _ in again} == {1}


# --- what comes of age -----------------------------------------------------------------------------------------------


async def test_released_letter_is_delivered_before_later_ones(mail: Mail, clock: Clock) -> None:
    for number in range(6):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    (_, failed) = await mail.receive("ARCH", lease_s=10, limit=2)
    await failed.nack("later")  # for some seconds
    assert [one.letter_id for one in await mail.receive("ARCH", limit=1)] == ["L2"]
    await pass_time(mail.store, clock, seconds=11)
    assert [one.letter_id for one in await mail.receive("ARCH", limit=3)] == ["L0", "L1", "L3"]


async def test_expired_lease_can_acknowledge_until_the_letter_is_leased_again(mail: Mail, clock: Clock) -> None:
    for number in range(3):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    first, second, third = await mail.receive("ARCH", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (taken,) = await mail.receive("ARCH", limit=1)  # all three are free by now, and one is given
    assert taken.letter_id == "L0"
    with pytest.raises(ConflictError):
        await first.ack()
    assert (await second.ack()).is_first
    await third.extend(60)
    assert await mail.receive("ARCH") == []
    assert [one.leased_until is not None for one in await mail.letters()] == [True, False, True]


async def test_receive_by_id_finds_a_released_letter(mail: Mail, clock: Clock) -> None:
    for number in range(3):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    await mail.receive("ARCH", lease_s=1)
    assert await mail.receive("ARCH", letter_id="L1") == []
    await pass_time(mail.store, clock, seconds=2)
    assert [one.letter_id for one in await mail.receive("ARCH", letter_id="L1")] == ["L1"]


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
        assert [one.letter_id for one in await mail.receive("ARCH", lease_s=600)] == ["L1", "L5", "L7"]
        await pass_time(mail.store, clock, seconds=60)  # from when it was opened: its times were of the wall clock
        assert [one.letter_id for one in await mail.receive("ARCH")] == ["L2", "L3", "L4"]
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
        assert {item for _, some in in_clause_chunks(range(count)) for item in some} == set(range(count))
