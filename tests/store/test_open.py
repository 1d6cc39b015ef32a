"""Tests of opening and closing a store on every engine."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import (
    StoreUnusableError,
)
from dragoman.store import open_store
from tests.store.conftest import LOCATIONS, StoreLocation, engine_names
from tests.store.messages import text_message


def test_fixtures_cover_every_engine() -> None:
    assert engine_names() == set(LOCATIONS) - {"memory"}  # SQLite without a file


@pytest.mark.parametrize("url", ["", "memory", "sqlite:", "sqlite:///", "mysql://localhost/x", "postgresql:x", "x"])
def test_invalid_store_url_is_rejected(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_store(url)
    assert caught.value.code == "not_a_store"


async def test_closed_store_raises(store_location: StoreLocation) -> None:
    store = store_location.open()
    with pytest.raises(StoreUnusableError, match="not open"):
        await store.get_session("s")
    async with store:
        pass
    with pytest.raises(StoreUnusableError, match="not open"):
        await store.create_session()


async def test_data_survives_reopen(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session(title="first")
        rows = await store.append(session.id, [text_message("one"), text_message("two")])
    async with database_location.open() as store:
        assert await store.read(session.id) == rows
        assert (await store.get_session(session.id)).title == "first"


async def test_new_store_can_be_opened_concurrently(database_location: StoreLocation) -> None:
    stores = [database_location.open() for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    session = await stores[0].create_session()
    assert [(await store.get_session(session.id)).id for store in stores] == [session.id] * 4
    await asyncio.gather(*(store.close() for store in stores))
