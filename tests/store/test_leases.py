"""One turn runs in a session at a time, on every engine."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import (
    ConflictError,
)
from dragoman.store import Store
from tests.store.conftest import Clock, Place


async def test_one_turn_runs_at_a_time(store: Store, clock: Clock) -> None:
    store.clock = clock
    session, other = await store.create_session(), await store.create_session()
    lease = await store.take_lease(session.id, "me", seconds=30)
    assert (lease.session_id, lease.owner, (lease.expires_at - clock.now).seconds) == (session.id, "me", 30)
    with pytest.raises(ConflictError) as caught:
        await store.take_lease(session.id, "you")
    assert caught.value.code == "turn_in_flight"
    await store.take_lease(other.id, "you")
    clock.move(seconds=20)
    assert (await store.take_lease(session.id, "me")).expires_at > lease.expires_at  # renewed
    clock.move(seconds=29)
    with pytest.raises(ConflictError):
        await store.take_lease(session.id, "you")
    clock.move(seconds=1)
    assert (await store.take_lease(session.id, "you")).owner == "you"  # it had expired
    with pytest.raises(ConflictError):
        await store.take_lease(session.id, "me")
    await store.release_lease(session.id, "me")  # it is not mine any more
    with pytest.raises(ConflictError):
        await store.take_lease(session.id, "me")
    await store.release_lease(session.id, "you")
    await store.take_lease(session.id, "me")


async def test_of_many_who_want_to_run_a_turn_one_does(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        session = await one.create_session()
        done = await asyncio.gather(
            *((one, two)[number % 2].take_lease(session.id, f"owner {number}") for number in range(10)),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, ConflictError) for outcome in done) == 9


async def test_a_turn_gives_its_right_back_however_it_ends(store: Store) -> None:
    session = await store.create_session()
    async with store.turn(session.id):
        with pytest.raises(ConflictError):
            await store.take_lease(session.id, "other")
    with pytest.raises(ZeroDivisionError):
        async with store.turn(session.id):
            raise ZeroDivisionError
    await store.take_lease(session.id, "other")


async def test_a_turn_that_takes_long_keeps_its_right(store: Store) -> None:
    session = await store.create_session()
    async with store.turn(session.id, seconds=0.3):
        for _ in range(10):
            await asyncio.sleep(0.1)
            with pytest.raises(ConflictError):
                await store.take_lease(session.id, "other")
