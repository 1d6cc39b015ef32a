"""Tests of session leases on every engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ConflictError, StorageError
from dragoman.store import Store, lease_clock, open_store
from dragoman.store.lease_clock import restart_leases
from tests.store.conftest import Clock, StoreLocation, pass_time
from tests.store.messages import text_message

STEPS = [{"days": 1}, {"days": -1}, {"hours": 1}, {"hours": -1}]


async def test_lease_allows_one_turn_at_a_time(store: Store, clock: Clock) -> None:
    store.clock = clock
    session, other = await store.create_session(), await store.create_session()
    lease = await store.turns.acquire(session.id, "me", seconds=30)
    assert (lease.session_id, lease.owner, (lease.expires_at - clock.now).seconds) == (session.id, "me", 30)
    with pytest.raises(ConflictError) as caught:
        await store.turns.acquire(session.id, "you")
    assert caught.value.code == "turn_in_flight"
    await store.turns.acquire(other.id, "you")
    await pass_time(store, clock, seconds=20)
    assert (await store.turns.acquire(session.id, "me", seconds=30)).expires_at > lease.expires_at  # renewed
    await pass_time(store, clock, seconds=25)
    with pytest.raises(ConflictError):
        await store.turns.acquire(session.id, "you")
    await pass_time(store, clock, seconds=5)
    assert (await store.turns.acquire(session.id, "you")).owner == "you"  # the lease had expired
    with pytest.raises(ConflictError):
        await store.turns.acquire(session.id, "me")
    await store.turns.release(session.id, "me")  # no longer the owner
    with pytest.raises(ConflictError):
        await store.turns.acquire(session.id, "me")
    await store.turns.release(session.id, "you")
    await store.turns.acquire(session.id, "me")


@pytest.mark.parametrize("step", STEPS, ids=str)
async def test_wall_clock_change_does_not_affect_lease(store: Store, clock: Clock, step: dict[str, float]) -> None:
    store.clock = clock
    session = await store.create_session()
    await store.turns.acquire(session.id, "me", seconds=30)
    clock.move(**step)
    with pytest.raises(ConflictError, match=r"the session is free in \d+ s"):
        await store.turns.acquire(session.id, "you")
    clock.move(days=500)
    assert await store.retain(timedelta(days=400)) == []  # a turn is running in it
    clock.move(days=-500)
    await pass_time(store, seconds=30)
    clock.move(**step)
    assert (await store.turns.acquire(session.id, "you")).owner == "you"


@pytest.mark.parametrize("step", STEPS, ids=str)
async def test_lease_ignores_clock_difference_between_machines(
    database_location: StoreLocation, step: dict[str, float]
) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        second_store.clock = clock = Clock()
        clock.now = first_store.clock() + timedelta(**step)
        session = await first_store.create_session()
        await first_store.turns.acquire(session.id, "one", seconds=30)
        with pytest.raises(ConflictError):
            await second_store.turns.acquire(session.id, "two", seconds=30)
        await first_store.turns.release(session.id, "one")
        await second_store.turns.acquire(session.id, "two", seconds=30)
        with pytest.raises(ConflictError):
            await first_store.turns.acquire(session.id, "one", seconds=30)
        await pass_time(first_store, seconds=30)
        await first_store.turns.acquire(session.id, "one", seconds=30)


async def test_lease_restarts_with_full_length_after_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_store(url) as store:
        session = (await store.create_session()).id
        await store.append(session, text_message("x"))
        await store.turns.acquire(session, "me", seconds=30)
        await store.runs.start(store.runs.new(session, "run", b"hash", owner="worker"), alive_s=20)
        await pass_time(store, days=-100)  # acquired at an uptime of 100 days
    monkeypatch.setattr(lease_clock, "_BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("another start\n")
    async with open_store(url) as store:
        with pytest.raises(ConflictError, match=r"free in (30|29) s"):
            await store.turns.acquire(session, "you")
        assert await store.runs.expired() == []
    async with open_store(url) as store:
        await pass_time(store, seconds=30)
        assert [run.run_id for run in await store.runs.expired()] == ["run"]
        await store.turns.acquire(session, "you")


async def test_lease_is_limited_after_backward_clock_step(store: Store) -> None:
    session = await store.create_session()
    await store.turns.acquire(session.id, "me", seconds=30)
    await pass_time(store, days=-1)
    with pytest.raises(ConflictError, match=r"free in 86\d{3} s"):
        await store.turns.acquire(session.id, "you")
    await store._write(restart_leases(None))
    with pytest.raises(ConflictError, match=r"free in (30|29) s"):
        await store.turns.acquire(session.id, "you")


async def test_one_of_concurrent_acquires_succeeds(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()
        outcomes = await asyncio.gather(
            *(
                (first_store, second_store)[number % 2].turns.acquire(session.id, f"owner {number}")
                for number in range(10)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 9


async def test_lease_is_released_after_success_and_error(store: Store) -> None:
    session = await store.create_session()
    async with store.turns.lease(session.id):
        with pytest.raises(ConflictError):
            await store.turns.acquire(session.id, "other")
    with pytest.raises(ZeroDivisionError):
        async with store.turns.lease(session.id):
            raise ZeroDivisionError
    await store.turns.acquire(session.id, "other")


async def test_failed_release_is_repeated_by_next_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await store.create_session()

    async def fail(_: object) -> None:
        raise StorageError("the disk is full", where="store", code="disk_full")

    with pytest.raises(StorageError):
        async with store.turns.lease(session.id):
            monkeypatch.setattr(store, "_write", fail)
    monkeypatch.undo()
    async with store.turns.lease(session.id), store.turns.lease((await store.create_session()).id):
        with pytest.raises(ConflictError):
            await store.turns.acquire(session.id, "other")


async def test_lease_of_long_turn_is_renewed(store: Store) -> None:
    session = await store.create_session()
    async with store.turns.lease(session.id, seconds=30) as lease:
        for _ in range(3):
            await pass_time(store, seconds=25)
            with pytest.raises(ConflictError, match=r"free in [1-5] s"):
                await store.turns.acquire(session.id, "other")
            lease._start_renewal()  # the timer does it after 10 s
            renewal = lease._renewal
            assert renewal is not None
            async with asyncio.timeout(60):
                while not await is_renewed(store, session.id):
                    await asyncio.sleep(0)
            renewal.cancel()
            with pytest.raises(ConflictError):
                await store.turns.acquire(session.id, "other")


async def is_renewed(store: Store, session_id: str) -> bool:
    """Return whether more than 10 s of a lease remain."""
    sql = "SELECT expires_at - lease_now() FROM leases WHERE session_id = ?"

    def select() -> Any:
        return (yield sql, (session_id,))

    ((left_us,),) = await store._read(select())
    return bool(left_us > 10_000_000)
