"""Tests of PostgreSQL behind PgBouncer in transaction mode: differences from a direct connection."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import StoreUnusableError
from dragoman.store import Store, open_store
from dragoman.store.engines.postgres import PostgresStore
from tests.store.conftest import StoreLocation, create_schema_location
from tests.store.messages import text_message


@pytest.fixture
def store_location(request: pytest.FixtureRequest, pooler: str) -> StoreLocation:
    """A new location behind the pooler."""
    return create_schema_location(request, pooler)


@pytest.fixture
def database_location(store_location: StoreLocation) -> StoreLocation:
    return store_location


async def test_pooler_is_detected(store: Store, postgres_server: str) -> None:
    assert isinstance(store, PostgresStore)
    assert store.uses_pooler
    assert not store.signals.is_shared  # LISTEN is not possible
    async with open_store(f"{postgres_server}&schema=direct") as direct:
        assert isinstance(direct, PostgresStore)
        assert not direct.uses_pooler


async def test_more_writers_than_pooler_connections_succeed(store_location: StoreLocation) -> None:
    async with store_location.open() as first, store_location.open() as second:
        session = (await first.create_session()).id
        stores = [first, second] * 10
        await asyncio.gather(*(store.append(session, text_message(f"word {at}")) for at, store in enumerate(stores)))
        rows = await second.read(session)
        assert [row.seq for row in rows] == list(range(1, 21))
        assert (await first.verify()).is_sound


async def test_unknown_pooler_kind_is_rejected(postgres_server: str) -> None:
    with pytest.raises(StoreUnusableError, match="pooler=none or pooler=transaction"):
        open_store(f"{postgres_server}&pooler=statement")
