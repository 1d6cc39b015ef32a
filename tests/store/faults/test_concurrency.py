"""Tests of concurrent processes on one session: order, conflicts and leases."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

import pytest

from dragoman.errors import ConflictError
from dragoman.store import Store, liveness, open_store
from tests import fork_server
from tests.conftest import scale
from tests.store.conftest import StoreLocation, pass_time
from tests.store.messages import text_message

PROCESSES, EACH = 16, scale(12, 200)

Work = Callable[[Store, str, int], Coroutine[Any, Any, Any]]


def run_processes(work: Work, store_location: StoreLocation, session_id: str, processes: int) -> list[Any]:
    """Run the work in several processes at the same time and return the outcomes."""
    barrier = fork_server.processes.Barrier(processes)
    started = []
    for number in range(processes):
        hears, says = fork_server.processes.Pipe(duplex=False)
        process = fork_server.processes.Process(
            target=_run_work, args=(work, (store_location.url, session_id, number), barrier, says)
        )
        process.start()
        says.close()
        started.append((process, hears))
    outcomes = []
    for process, hears in started:
        outcomes.append(hears.recv())
        process.join(60)
    return outcomes


def _run_work(work: Work, arguments: tuple[str, str, int], barrier: Any, says: Connection) -> None:
    url, session_id, number = arguments

    async def main() -> Any:
        async with open_store(url) as store:
            await asyncio.to_thread(barrier.wait, 60)
            return await work(store, session_id, number)

    try:
        says.send(asyncio.run(main()))
    except Exception as error:  # noqa: BLE001  the test checks this outcome
        says.send(error)


# --- one order -------------------------------------------------------------------------------------------------------


async def append_many(store: Store, session_id: str, number: int) -> list[int]:
    numbers = []
    for each in range(EACH):
        (row,) = await store.append(session_id, text_message(f"{number} {each}"))
        numbers.append(row.seq)
    return numbers


@pytest.mark.slow
async def test_sixteen_processes_write_to_session_in_one_order(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        outcomes = await asyncio.to_thread(run_processes, append_many, database_location, session.id, PROCESSES)
        assert [outcome for outcome in outcomes if not isinstance(outcome, list)] == []
        expected = {
            seq: f"{number} {each}" for number, numbers in enumerate(outcomes) for each, seq in enumerate(numbers)
        }
        assert sorted(expected) == list(range(1, PROCESSES * EACH + 1))
        stored = {row.seq: row.message.content[0].text async for row in store.history(session.id)}
        assert list(stored) == list(range(1, PROCESSES * EACH + 1))
        assert stored == expected
        assert all(numbers == sorted(numbers) for numbers in outcomes)


# --- one winner ------------------------------------------------------------------------------------------------------

ROUNDS = scale(12, 50)


async def append_at_expected_seq(store: Store, session_id: str, number: int) -> list[str]:
    """Return every number at which this process appended."""
    won = []
    for seq in range(ROUNDS):
        try:
            await store.append(session_id, text_message(f"{number} at {seq}"), expected_seq=seq)
            won.append(f"{number} at {seq}")
        except ConflictError as error:
            if error.code != "seq_conflict":
                raise
    return won


async def test_one_of_two_processes_appends_at_expected_seq(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        outcomes = await asyncio.to_thread(run_processes, append_at_expected_seq, database_location, session.id, 2)
        stored = [row.message.content[0].text async for row in store.history(session.id)]
    assert len(stored) == ROUNDS
    assert [text.partition(" at ")[2] for text in stored] == [str(place) for place in range(ROUNDS)]
    assert sorted(outcomes[0] + outcomes[1]) == sorted(stored)


async def append_with_one_key(store: Store, session_id: str, number: int) -> list[list[int]]:
    return [
        [
            row.seq
            for row in await store.append(
                session_id, [text_message(f"a {turn}"), text_message("b")], idempotency_key=f"k{turn}"
            )
        ]
        for turn in range(30)
    ]


async def test_processes_with_same_key_get_same_numbers(
    database_location: StoreLocation,
) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        outcomes = await asyncio.to_thread(run_processes, append_with_one_key, database_location, session.id, 6)
        assert [outcome for outcome in outcomes if outcome != outcomes[0]] == []
        assert [row.message.content[0].text async for row in store.history(session.id)] == [
            text for turn in range(30) for text in (f"a {turn}", "b")
        ]


async def create_same_session(store: Store, session_id: str, number: int) -> int:
    won = 0
    for each in range(40):
        try:
            await store.create_session(f"{session_id}_{each}")
            won += 1
        except ConflictError as error:
            if error.code != "session_exists":
                raise
    return won


async def test_session_id_is_created_by_one_process(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        outcomes = await asyncio.to_thread(run_processes, create_same_session, database_location, "sess_x", 4)
        assert sum(outcomes) == 40
        assert len(await store.list_sessions(limit=100)) == 40


# --- one turn at a time ----------------------------------------------------------------------------------------------


async def take_turns(store: Store, session_id: str, number: int) -> list[tuple[float, float]]:
    """Return when this process held the lease, by the monotonic clock that all processes share."""
    held = []
    while len(held) < 5:
        try:
            async with store.turns.lease(session_id, seconds=20):
                began = time.monotonic()
                await asyncio.sleep(0.005)
                held.append((began, time.monotonic()))
        except ConflictError as error:
            if error.code != "turn_in_flight":
                raise
            await asyncio.sleep(0.002)
    return held


async def test_lease_allows_one_turn_at_a_time(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        outcomes = await asyncio.to_thread(run_processes, take_turns, database_location, session.id, 4)
    held = sorted(stretch for outcome in outcomes for stretch in outcome)
    assert len(held) == 20
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(held))


def _hold_lease(url: str, session_id: str, pipe: Connection) -> None:
    async def main() -> None:
        async with open_store(url) as store, store.turns.lease(session_id, seconds=3600):
            pipe.send("held")
            await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def _lease_holder(store_location: StoreLocation, session_id: str) -> AsyncIterator[None]:
    """Start a process that holds the lease of a session for an hour."""
    receiver, sender = fork_server.processes.Pipe(duplex=False)
    process = fork_server.processes.Process(target=_hold_lease, args=(store_location.url, session_id, sender))
    process.start()
    sender.close()
    try:
        assert await asyncio.to_thread(receiver.recv) == "held"
        yield
    finally:
        process.kill()
        process.join()


async def test_lease_ends_with_killed_process(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        async with _lease_holder(database_location, session.id):
            with pytest.raises(ConflictError, match="a turn is running"):
                await store.turns.acquire(session.id, "another")
        await store.turns.acquire(session.id, "another")
        with pytest.raises(ConflictError):
            await store.turns.acquire(session.id, "a third")


async def test_lease_of_killed_process_of_other_machine_expires(
    database_location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_machine", lambda: "another")
    async with database_location.open() as store:
        session = await store.create_session()
        async with _lease_holder(database_location, session.id):
            pass
        await pass_time(store, seconds=3000)
        with pytest.raises(ConflictError, match="a turn is running"):
            await store.turns.acquire(session.id, "another")
        await pass_time(store, seconds=601)
        await store.turns.acquire(session.id, "another")
        with pytest.raises(ConflictError):
            await store.turns.acquire(session.id, "a third")
