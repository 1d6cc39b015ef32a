"""Tests of reading messages by page and by id on every engine."""

from __future__ import annotations

import pytest

from dragoman.errors import (
    UnknownMessageError,
)
from dragoman.store import Store
from tests.store.messages import text_message


async def test_history_is_read_by_page_in_both_directions(store: Store) -> None:
    session = await store.create_session()
    assert await store.read(session.id) == await store.tail(session.id) == []
    rows = await store.append(session.id, [text_message(str(number)) for number in range(1, 12)])
    assert await store.read(session.id, limit=4) == rows[:4]
    assert await store.read(session.id, after_seq=4, limit=4) == rows[4:8]
    assert await store.read(session.id, after_seq=8, limit=4) == rows[8:]
    assert await store.read(session.id, after_seq=11) == []
    assert await store.tail(session.id, limit=4) == rows[7:]
    assert await store.read_before(session.id, before_seq=8, limit=4) == rows[3:7]
    assert await store.read_before(session.id, before_seq=4, limit=4) == rows[:3]
    assert await store.read_before(session.id, before_seq=1) == []
    assert [row async for row in store.history(session.id, page=3)] == rows


async def test_message_is_found_by_id(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    rows = await store.append(session.id, [text_message("1"), text_message("2")])
    assert await store.get_message(session.id, rows[1].message.id) == rows[1]
    for session_id, message_id in ((other.id, rows[1].message.id), (session.id, "none")):
        with pytest.raises(UnknownMessageError):
            await store.get_message(session_id, message_id)
