"""Tests of signals between tasks of a store and between servers of one PostgreSQL database."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from dragoman.server.auth.api_keys import KeyRing, load_peppers, new_key
from dragoman.signals import CANCEL, KEYS, MAIL, RUN, Subscription
from dragoman.store import Store, open_store
from tests.store.conftest import StoreLocation


@pytest.fixture
def url(postgres_server: str, request: pytest.FixtureRequest) -> str:
    return f"{postgres_server}&schema=signals_{abs(hash(request.node.name)) % 10**9}"


async def receive(changes: Subscription) -> None:
    async with asyncio.timeout(60):
        while not await changes.wait(10):
            pass


async def wait_until_shared(store: Store) -> None:
    """Wait until a store that has a subscription listens."""
    async with asyncio.timeout(60):
        while not store.signals.is_shared:
            await asyncio.sleep(0.005)


async def test_signal_wakes_task_of_same_store(store_location: StoreLocation) -> None:
    async with store_location.open() as store:
        with store.signals.subscribe(MAIL, "/CA") as changes:
            store.signals.publish(MAIL, "/CA")
            await receive(changes)
            store.signals.publish(MAIL, "/CB")
            if not store_location.url.startswith(
                "postgres"
            ):  # on PostgreSQL, the start of the listener wakes every task once
                assert not await changes.wait(0.01)


async def test_signal_reaches_other_server(url: str) -> None:
    async with open_store(url) as here, open_store(url) as there:
        keys = ["a", "b" * 5_000, "ü 🎉", "c" * 5_000]
        subscriptions = [there.signals.subscribe(RUN, key) for key in keys]
        for item in subscriptions:
            item.open()
        await wait_until_shared(there)
        for item in subscriptions:
            await item.wait(0)  # the wake-up of the start
        for key in keys:
            here.signals.publish(RUN, key)
        for item in subscriptions:
            await receive(item)


async def test_signal_does_not_reach_other_schema(url: str) -> None:
    woken: list[str] = []
    async with open_store(url) as here, open_store(f"{url}_other") as other, open_store(url) as there:
        other.signals.call(RUN, "a", lambda: woken.append("other"))
        there.signals.call(RUN, "a", lambda: woken.append("there"))
        await wait_until_shared(other)
        await wait_until_shared(there)
        woken.clear()
        with other.signals.subscribe(RUN, "last") as last:
            await last.wait(0)
            here.signals.publish(RUN, "a")
            while not woken:
                await asyncio.sleep(0.005)
            other.signals.publish(RUN, "last")
            await receive(last)
    assert woken == ["there"]


async def kill_listeners(url: str) -> None:
    connection: Any = await asyncpg.connect(url.partition("&schema=")[0])
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dragoman signals'"
        )
    finally:
        await connection.close()


async def test_receivers_are_woken_after_lost_connection(url: str) -> None:
    async with open_store(url) as here, open_store(url) as there:
        with there.signals.subscribe(RUN, "a") as changes:
            await wait_until_shared(there)
            await changes.wait(0)
            for number in range(3):
                await kill_listeners(url)
                here.signals.publish(RUN, f"missed {number}")  # possibly without a listener
                await receive(changes)  # the wake-up of the new connection
            await wait_until_shared(there)
            here.signals.publish(RUN, "a")
            await receive(changes)


async def test_signal_sent_before_close_arrives(url: str) -> None:
    """A command that revokes a key ends right after it."""
    async with open_store(url) as there:
        with there.signals.subscribe(KEYS, "") as changes:
            await wait_until_shared(there)
            await changes.wait(0)
            async with open_store(url) as here:
                here.signals.publish(KEYS, "")
            await receive(changes)


async def test_cancel_reaches_worker_of_other_server(url: str) -> None:
    async with open_store(url) as here, open_store(url) as there:
        session = (await here.create_session()).id
        run = await there.runs.start(there.runs.new(session, "r", b"h", owner="there"), alive_s=60)
        with there.signals.subscribe(CANCEL, "there") as cancels, here.signals.subscribe(RUN, session) as events:
            await wait_until_shared(there)
            await wait_until_shared(here)
            await cancels.wait(0)
            await events.wait(0)
            await here.runs.cancel(session)
            await receive(cancels)
            assert await there.runs.to_cancel("there") == [(session, "r")]
            await there.runs.append(run, 0, ['{"type":"X"}'])
            await receive(events)
            assert [event.json for event in (await here.runs.events(session)).events] == ['{"type":"X"}']


async def test_revoked_key_is_rejected_by_other_server(url: str) -> None:
    peppers = load_peppers("memory:")
    async with open_store(url) as here, open_store(url) as there:
        ring = KeyRing(there, peppers, now=lambda: 0.0)  # its cache never expires
        api_key = new_key(peppers)
        await here.keys.create(api_key.public_id, api_key.secret_hash, user_id="ann")
        await wait_until_shared(there)
        assert await ring.verify(api_key.text) is not None
        await here.keys.revoke(api_key.public_id)
        async with asyncio.timeout(60):
            while await ring.verify(api_key.text) is not None:
                await asyncio.sleep(0.005)
