"""Tests of the message cache, which returns a message only while its row is unchanged."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import apsw
import pytest

from dragoman import TextBlock
from dragoman.errors import CorruptDataError
from dragoman.message import MessageStatus, ToolUseBlock
from dragoman.store import Store, open_store
from dragoman.store.message_reader import MessageCache
from dragoman.store.message_rows import columns_from, message_from, message_hash
from tests.store.conftest import StoreLocation
from tests.store.messages import answer_message, call_message, create_usage, text_message


async def test_repeated_read_returns_cached_messages(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message(f"word {number}") for number in range(6)])
    first = await store.read(session.id)
    reread = await store.read(session.id)
    assert reread == first
    assert all(one.message is other.message for one, other in zip(first, reread, strict=True))
    await store.append(session.id, text_message("one more"))
    assert [row.seq for row in await store.tail(session.id, 3)] == [5, 6, 7]
    assert (await store.tail(session.id, 3))[0].message is first[4].message


async def test_mutable_message_is_not_cached(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, call_message("tu_1"))
    (row,) = await store.read(session.id)
    call = next(block for block in row.message.content if isinstance(block, ToolUseBlock))
    call.input["at"] = "something else"
    (reread,) = await store.read(session.id)
    (unchanged,) = [block for block in reread.message.content if isinstance(block, ToolUseBlock)]
    assert unchanged.input == {"at": "tu_1"}


async def test_message_changed_by_other_store_is_read_again(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as other:
        session = await first_store.create_session()
        (row,) = await first_store.append(session.id, answer_message("so far", status=MessageStatus.PARTIAL))
        assert (await first_store.read(session.id))[0].message.content == (TextBlock("so far"),)
        await other.update(session.id, row.message.replace(content=(TextBlock("so far, so good"),)))
        assert (await first_store.read(session.id))[0].message.content == (TextBlock("so far, so good"),)


async def test_fork_shares_cached_messages(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("a"), text_message("b")])
    rows = await store.read(session.id)
    fork = await store.fork(session.id, 1)
    await store.append(fork.id, text_message("c"))
    shared, own = await store.read(fork.id)
    assert shared.message is rows[0].message
    assert own.message.content == (TextBlock("c"),)


@pytest.mark.parametrize("text", ["", "short", "ä" * 300, "漢" * 300, "🎉" * 300])
def test_cache_memory_is_limited(text: str) -> None:
    max_size = 200_000
    tracemalloc.start()
    try:
        cache = MessageCache(max_size)
        for number in range(1_000):
            usage = create_usage(number, number, "0.000654")
            message_value = answer_message(f"{number}{text}", model=f"acme:{number}", usage=usage).replace(
                id=f"m{number}", session_id="s"
            )
            columns = columns_from(message_value)
            hash_ = message_hash("s", number, columns)
            message = message_from("s", number, columns, hash_, {})
            cache.put("s", number, hash_, message, len(columns.content_json) + len(columns.metadata_json))
        del message_value, columns, hash_, message, usage
        assert 0.5 * max_size < tracemalloc.get_traced_memory()[0] < 4 * max_size
        assert cache.has_session("s")
    finally:
        tracemalloc.stop()


def test_cache_evicts_oldest_and_skips_large_messages() -> None:
    cache = MessageCache(max_size=10_000)
    for number in range(12):
        cache.put("s", number, b"hash", text_message(f"{number}"), 300)
    assert cache.get("s", 0, b"hash") is None
    assert cache.get("s", 11, b"hash") == text_message("11")
    cache.put("s", 12, b"hash", text_message("large"), 1_000)
    assert cache.get("s", 12, b"hash") is None
    cache.clear()
    assert cache.get("s", 11, b"hash") is None
    assert not cache.has_session("s")


def test_cache_key_contains_session_seq_and_hash() -> None:
    cache = MessageCache()
    cache.put("s", 1, b"old", text_message("so far"), 10)
    cache.put("s", 1, b"new", text_message("so far, so good"), 10)
    assert cache.get("s", 1, b"new") == text_message("so far, so good")
    for session_id, seq, hash_ in (("s", 1, b"old"), ("s", 2, b"new"), ("t", 1, b"new")):
        assert cache.get(session_id, seq, hash_) is None


async def test_message_with_hash_of_other_row_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, [text_message(f"word {number}") for number in range(1, 7)])
        assert len(await store.read(session.id)) == 6
        other = apsw.Connection(str(path))
        other.execute("UPDATE messages SET hash = (SELECT hash FROM messages WHERE seq = 5) WHERE seq = 2")
        other.close()
        for operation in (store.read(session.id), store.tail(session.id), store.read(session.id, after_seq=1, limit=1)):
            with pytest.raises(CorruptDataError, match="message 2"):
                await operation
        assert len(await store.read(session.id, after_seq=2)) == 4
