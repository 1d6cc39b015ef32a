"""What SQLite does in one statement leaves the same rows as the operation that it stands for, or does nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConflictError, FormatError
from dragoman.mail import Mail
from dragoman.mail.stored_letter import to_stored
from dragoman.store import Store, open_store
from dragoman.store.engines import sqlite
from tests.mail.conftest import Clock, failure, pass_time, result
from tests.mail.test_several import held_letters, rows_of, some_letters

ROUNDS = 12
_TABLES = {
    "letters": "recipient_id, letter_id, sender_id, task_id, type, trace_id, session_id, message_id, turn_id, user_id,"
    " created_at, fingerprint, letter_json",  # the hash covers the team, too
    "inbox": "recipient_id, letter_id, number, task_id, state, available_at > 0, attempts, error_class, arrived_at,"
    " ended_at, lease IS NULL",
    "mailboxes": "recipient_id, last_number",
    "task_states": "task_id, state, changed_at",
    "task_needs": "task_id, needed_id, recipient_id, letter_id",
    "sealed_values": "recipient_id, letter_id, input_id",
}


@pytest.fixture
def quick(tmp_path: Path, clock: Clock, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store on a disk that is taken for quick, and nobody hurries."""
    monkeypatch.setattr(sqlite, "_QUICK_S", 60.0)
    monkeypatch.setattr(sqlite, "_PATIENCE_S", 60.0)
    store = open_store(f"sqlite:///{tmp_path / 'mail.db'}")
    runner.run(store.open())
    store.clock = clock
    yield store
    runner.run(store.close())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each statement that was tried has done what was asked for."""
    told: list[bool] = []
    done_here: Callable[..., Any] = sqlite._Writer.execute_inline

    def noted(self: Any, sql: str, arguments: Any) -> Any:
        rows = done_here(self, sql, arguments)
        told.append(rows is not None and (bool(rows) or "RETURNING" not in sql))
        return rows

    monkeypatch.setattr(sqlite._Writer, "execute_inline", noted)
    return told


async def everything(store: Store, team: str) -> dict[str, Any]:
    return {
        table: sorted(await store._read(rows_of(f"SELECT {columns} FROM {table} WHERE team_id = ?", team)), key=repr)
        for table, columns in _TABLES.items()
    }


async def worked_through(store: Store, mail: Mail, letters: list[Any], chance: random.Random) -> list[Any]:
    """Everything that is told while letters are sent, received and done with, in an order that chance gives."""
    told: list[Any] = []
    for letter in letters:
        posted = to_stored(letter, mail.encryptor, team_id=mail.team_id)
        told.append((await store.mail.post(posted)).state)
        if chance.random() < 0.5:
            for one in await store.mail.lease_letters(chance.choice("ABC"), mail.team_id, limit=2):
                told.append(one.letter.letter_id)
                told.append(await store.mail.acknowledge(one))
                told.append(await store.mail.acknowledge(one))
    return told


async def test_single_statement_writes_the_same_rows_as_the_steps(
    quick: Store, at_once: list[bool], chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = Mail(quick)
    for turn in range(ROUNDS):
        given = [*held_letters(), *some_letters(chance, 30)]
        seed = chance.random()
        told: list[Any] = []
        left: list[Any] = []
        for name, is_at_once in (("steps", False), ("once", True)):
            with monkeypatch.context() as patched:
                if not is_at_once:
                    patched.setattr(quick, "_may_write_at_once", lambda: False)
                team = mail.for_team(team_id=f"{name}{turn}")
                told.append(await worked_through(quick, team, given, random.Random(seed)))
                left.append(await everything(quick, team.team_id))
        assert told[0] == told[1]
        assert left[0] == left[1]
    assert at_once.count(True) > ROUNDS * 5
    assert at_once.count(False) > ROUNDS * 5
    assert (await quick.verify()).is_sound


async def test_letter_without_dependencies_is_posted_and_acknowledged_with_one_statement(
    quick: Store, at_once: list[bool]
) -> None:
    mail = Mail(quick)
    assert (await mail.send(result("T1", to="A", message_id="L1"))).state == "ready"
    (delivery,) = await mail.receive("A")
    assert (await delivery.ack()).is_first
    assert at_once == [True, True]
    assert not (await delivery.ack()).is_first
    assert not (await mail.send(result("T1", to="A", message_id="L1"))).is_new
    with pytest.raises(ConflictError, match="another letter of that id"):
        await mail.send(result("T2", to="A", message_id="L1"))
    assert at_once == [True, True, False, False, False]


async def test_letter_behind_another_or_with_dependents_uses_the_general_path(
    quick: Store, at_once: list[bool]
) -> None:
    mail = Mail(quick)
    await mail.send(failure("T2", to="B", message_id="waits", depends_on=["T1"]))
    assert at_once == []
    await mail.send(result("T1", to="A", message_id="first", status="failed"))
    assert (await mail.send(result("T1", to="A", message_id="second"))).state == "behind"
    assert at_once == [True, False]
    (one,) = await mail.receive("A", limit=5)
    await one.ack()
    assert at_once[2:] == [False]  # the second comes forward
    (two,) = await mail.receive("A", limit=5)
    assert (two.letter_id, [each.letter_id for each in await mail.receive("B")]) == ("second", ["waits"])


async def test_lost_lease_cannot_acknowledge_with_one_statement(
    quick: Store, clock: Clock, at_once: list[bool]
) -> None:
    mail = Mail(quick)
    await mail.send(result("T1", to="A", message_id="L1"))
    (lost,) = await mail.receive("A", lease_s=1)
    await pass_time(mail.store, clock, seconds=2)
    (held,) = await mail.receive("A")
    with pytest.raises(ConflictError, match="other hands"):
        await lost.ack()
    assert (await held.ack()).is_first
    assert at_once == [True, False, True]


async def test_name_that_an_engine_cannot_store_is_rejected(quick: Store) -> None:
    posted = to_stored(result("T1", to="A", message_id="L1"), Mail(quick).encryptor)
    with pytest.raises(FormatError, match="NUL"):
        await quick.mail.post(msgspec.structs.replace(posted, task_id="T\0"))
