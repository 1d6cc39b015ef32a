"""What a store does, on every engine."""

from __future__ import annotations

from dragoman.store import Store
from tests.store.conftest import PLACES, engines
from tests.store.talk import said


def test_every_engine_is_tested() -> None:
    assert engines() == set(PLACES) - {"memory"}  # which is SQLite without a file


async def test_what_is_appended_is_read(store: Store) -> None:
    session = await store.create_session(title="first")
    rows = await store.append(session.id, [said("one"), said("two")])
    assert [row.seq for row in rows] == [1, 2]
    assert await store.read(session.id) == rows
