"""The message cache returns a message only while its row is unchanged."""

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


async def test_a_history_that_is_read_again_is_the_same_messages(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message(f"word {number}") for number in range(6)])
    first = await store.read(session.id)
    again = await store.read(session.id)
    assert again == first
    assert all(one.message is other.message for one, other in zip(first, again, strict=True))
    await store.append(session.id, text_message("one more"))
    assert [row.seq for row in await store.tail(session.id, 3)] == [5, 6, 7]
    assert (await store.tail(session.id, 3))[0].message is first[4].message


async def test_a_message_that_a_caller_could_change_is_read_anew(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, call_message("tu_1"))
    (row,) = await store.read(session.id)
    call = next(block for block in row.message.content if isinstance(block, ToolUseBlock))
    call.input["at"] = "something else"
    (again,) = await store.read(session.id)
    (unchanged,) = [block for block in again.message.content if isinstance(block, ToolUseBlock)]
    assert unchanged.input == {"at": "tu_1"}


async def test_what_another_program_has_changed_is_not_given_out_as_it_was(database_location: StoreLocation) -> None:
    async with database_location.open() as one, database_location.open() as other:
        session = await one.create_session()
        (row,) = await one.append(session.id, answer_message("so far", status=MessageStatus.PARTIAL))
        assert (await one.read(session.id))[0].message.content == (TextBlock("so far"),)
        await other.update(session.id, row.message.replace(content=(TextBlock("so far, so good"),)))
        assert (await one.read(session.id))[0].message.content == (TextBlock("so far, so good"),)


async def test_a_fork_shares_what_was_read_of_its_origin(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("a"), text_message("b")])
    rows = await store.read(session.id)
    fork = await store.fork(session.id, 1)
    await store.append(fork.id, text_message("c"))
    shared, own = await store.read(fork.id)
    assert shared.message is rows[0].message
    assert own.message.content == (TextBlock("c"),)


@pytest.mark.parametrize("text", ["", "short", "ä" * 300, "漢" * 300, "🎉" * 300])
def test_what_is_kept_takes_no_more_memory_than_it_may(text: str) -> None:
    most = 200_000
    tracemalloc.start()
    try:
        recent = MessageCache(most)
        for number in range(1_000):
            usage = create_usage(number, number, "0.000654")
            made = answer_message(f"{number}{text}", model=f"acme:{number}", usage=usage).replace(
                id=f"m{number}", session_id="s"
            )
            columns = columns_from(made)
            hash_ = message_hash("s", number, columns)
            message = message_from("s", number, columns, hash_, {})
            recent.put("s", number, hash_, message, len(columns.content_json) + len(columns.metadata_json))
        del made, columns, hash_, message, usage
        assert 0.5 * most < tracemalloc.get_traced_memory()[0] < 4 * most
        assert recent.has_session("s")
    finally:
        tracemalloc.stop()


def test_the_oldest_makes_way_and_what_is_too_large_is_not_kept() -> None:
    recent = MessageCache(max_size=10_000)
    for number in range(12):
        recent.put("s", number, b"hash", text_message(f"{number}"), 300)
    assert recent.get("s", 0, b"hash") is None
    assert recent.get("s", 11, b"hash") == text_message("11")
    recent.put("s", 12, b"hash", text_message("large"), 1_000)
    assert recent.get("s", 12, b"hash") is None
    recent.clear()
    assert recent.get("s", 11, b"hash") is None
    assert not recent.has_session("s")


def test_a_message_is_given_out_at_its_place_and_with_its_hash_alone() -> None:
    recent = MessageCache()
    recent.put("s", 1, b"old", text_message("so far"), 10)
    recent.put("s", 1, b"new", text_message("so far, so good"), 10)
    assert recent.get("s", 1, b"new") == text_message("so far, so good")
    for session_id, seq, hash_ in (("s", 1, b"old"), ("s", 2, b"new"), ("t", 1, b"new")):
        assert recent.get(session_id, seq, hash_) is None


async def test_what_was_read_is_not_given_out_at_another_place_where_its_hash_stands(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, [text_message(f"word {number}") for number in range(1, 7)])
        assert len(await store.read(session.id)) == 6
        other = apsw.Connection(str(path))
        other.execute("UPDATE messages SET hash = (SELECT hash FROM messages WHERE seq = 5) WHERE seq = 2")
        other.close()
        for asked in (store.read(session.id), store.tail(session.id), store.read(session.id, after_seq=1, limit=1)):
            with pytest.raises(CorruptDataError, match="message 2"):
                await asked
        assert len(await store.read(session.id, after_seq=2)) == 4
