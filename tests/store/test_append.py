"""Tests of append on every engine: order, conflicts, idempotency and concurrency."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from dragoman.errors import (
    ConflictError,
    FormatError,
)
from dragoman.message import Role, TextBlock
from dragoman.store import Store
from tests.store.conftest import Clock, StoreLocation
from tests.store.messages import answer_message, list_texts, text_message


async def test_messages_are_numbered_without_gaps(store: Store) -> None:
    session = await store.create_session()
    (first,) = await store.append(session.id, text_message("1"))
    more = await store.append(session.id, [text_message(str(number)) for number in range(2, 6)])
    assert await store.append(session.id, []) == []
    (last,) = await store.append(session.id, [answer_message("6")])
    rows = [first, *more, last]
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert await store.read(session.id) == rows
    assert (await store.get_session(session.id)).last_seq == 6


async def test_message_gets_id_session_and_time(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session()
    before = text_message("x")
    created_at = datetime(2020, 1, 1, tzinfo=UTC)
    rows = await store.append(session.id, [before, before.replace(created_at=created_at)])
    assert [row.message.session_id for row in rows] == [session.id] * 2
    assert rows[0].message.id < rows[1].message.id
    assert [row.message.created_at for row in rows] == [clock.now, created_at]
    assert before.id == ""


async def test_message_of_other_session_is_rejected(store: Store) -> None:
    first, second = await store.create_session(), await store.create_session()
    (row,) = await store.append(first.id, text_message("x"))
    with pytest.raises(FormatError, match="belongs to"):
        await store.append(second.id, row.message)
    assert await store.read(second.id) == []


async def test_append_with_wrong_expected_seq_is_rejected(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("1"), expected_seq=0)
    before = await store.get_session(session.id)
    for expected in (0, 2):
        with pytest.raises(ConflictError) as caught:
            await store.append(session.id, text_message("2"), expected_seq=expected)
        assert caught.value.code == "seq_conflict"
    assert await store.get_session(session.id) == before
    await store.append(session.id, text_message("2"), expected_seq=1)
    assert list_texts(await store.read(session.id)) == ["1", "2"]


async def test_one_of_concurrent_appends_with_same_expected_seq_succeeds(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()
        outcomes = await asyncio.gather(
            *(store.append(session.id, text_message("x"), expected_seq=0) for store in (first_store, second_store) * 4),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, list) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 7
        assert len(await second_store.read(session.id)) == 1


async def test_repeated_idempotency_key_stores_messages_once(store: Store, clock: Clock) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [text_message("1"), text_message("2")], idempotency_key="k")
    before = await store.get_session(session.id)
    await asyncio.sleep(0)
    assert (
        await store.append(session.id, [text_message("1"), text_message("2")], idempotency_key="k") == rows
    )  # with the same ids
    assert await store.get_session(session.id) == before
    await store.append(session.id, text_message("3"))
    assert (
        await store.append(session.id, [text_message("1"), text_message("2")], idempotency_key="k", expected_seq=0)
        == rows
    )
    assert list_texts(await store.read(session.id)) == ["1", "2", "3"]


async def test_idempotency_key_with_other_messages_is_rejected(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    await store.append(session.id, text_message("1"), idempotency_key="k")
    for new in (
        [text_message("2")],
        [answer_message("1")],
        [text_message("1"), text_message("2")],
        [text_message("1", model="m")],
    ):
        with pytest.raises(ConflictError) as caught:
            await store.append(session.id, new, idempotency_key="k")
        assert caught.value.code == "idempotency_key_reused"
    await store.append(other.id, text_message("2"), idempotency_key="k")  # a key belongs to a session
    assert list_texts(await store.read(session.id)) == ["1"]
    assert list_texts(await store.read(other.id)) == ["2"]


async def test_idempotency_key_survives_reopen(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        rows = await store.append(session.id, text_message("1"), idempotency_key="k")
    async with database_location.open() as store:
        assert await store.append(session.id, text_message("1"), idempotency_key="k") == rows
        assert await store.read(session.id) == rows


async def test_concurrent_appends_with_one_key_return_same_rows(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()
        outcomes = await asyncio.gather(
            *(
                store.append(session.id, text_message("x"), idempotency_key="k")
                for store in (first_store, second_store) * 6
            )
        )
        assert outcomes == [await first_store.read(session.id)] * 12
        assert len(outcomes[0]) == 1


async def test_repeated_messages_are_stored_once(store: Store) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [text_message("1"), text_message("2")])
    await store.append(session.id, text_message("3"))
    same = [row.message for row in rows]
    assert await store.append(session.id, same) == rows
    assert await store.append(session.id, same[1], expected_seq=0) == rows[1:]
    assert list_texts(await store.read(session.id)) == ["1", "2", "3"]


async def test_other_message_with_known_id_is_rejected(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, text_message("1"))
    new = text_message("new").replace(id="00000000000000000000000000", session_id=session.id)
    for messages in (
        row.message.replace(content=(TextBlock("other"),)),
        row.message.replace(role=Role.ASSISTANT),
        [row.message, new],
        [new, row.message],
        [new, new],
    ):
        with pytest.raises(ConflictError) as caught:
            await store.append(session.id, messages)
        assert caught.value.code == "id_conflict"
    assert await store.read(session.id) == [row]


async def test_append_is_found_after_other_store_filled_index(database_location: StoreLocation) -> None:
    async with database_location.open() as store, database_location.open() as other:
        session = await store.create_session()
        await store.append(session.id, text_message("one"))
        assert len(await other.search("one")) == 1
        await store.append(session.id, text_message("two"))
        assert len(await other.search("two")) == 1
        assert len(await store.search("two")) == 1


async def test_sessions_are_listed_by_last_append(store: Store, clock: Clock) -> None:
    store.clock = clock
    sessions = [(await store.create_session()).id for _ in range(2)]
    for session_id in (sessions[1], sessions[0], sessions[0], sessions[1], sessions[0]):
        clock.move(seconds=7)
        await store.append(session_id, text_message("x"))
        assert (await store.list_sessions(limit=1))[0].id == session_id
        assert (await store.get_session(session_id)).updated_at == clock.now


async def test_ids_may_be_unordered(store: Store) -> None:
    session = await store.create_session()
    messages = [text_message(name).replace(id=name, session_id=session.id) for name in ("m5", "m1", "m9", "m2")]
    await store.append(session.id, messages)
    await store.append(session.id, text_message("m3").replace(id="m3", session_id=session.id))
    assert list_texts(await store.read(session.id)) == ["m5", "m1", "m9", "m2", "m3"]
    assert list_texts(await store.append(session.id, messages[1])) == ["m1"]


async def test_concurrent_appends_lose_and_duplicate_no_message(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()

    async def writer(number: int) -> None:
        for turn in range(8):
            await store.append(session.id, [text_message(f"{number}.{turn}a"), answer_message(f"{number}.{turn}b")])
            await store.append(other.id, text_message(f"{number}.{turn}"))

    await asyncio.gather(*(writer(number) for number in range(16)))
    rows = await store.read(session.id, limit=1000)
    assert [row.seq for row in rows] == list(range(1, 257))
    for number in range(16):
        own = [text for text in list_texts(rows) if text.startswith(f"{number}.")]
        assert own == [f"{number}.{turn}{half}" for turn in range(8) for half in "ab"]
    firsts, seconds = list_texts(rows)[::2], list_texts(rows)[1::2]
    assert [text[:-1] for text in firsts] == [text[:-1] for text in seconds]  # appends are not interleaved
    assert len(set(list_texts(await store.read(other.id, limit=1000)))) == 128


async def test_concurrent_appends_of_two_stores_lose_no_message(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()

        async def writer(store: Store, number: int) -> None:
            for turn in range(8):
                await store.append(session.id, text_message(f"{number}.{turn}"))

        await asyncio.gather(*(writer((first_store, second_store)[number % 2], number) for number in range(16)))
        rows = await first_store.read(session.id, limit=1000)
        assert [row.seq for row in rows] == list(range(1, 129))
        assert sorted(list_texts(rows)) == sorted(f"{number}.{turn}" for number in range(16) for turn in range(8))
        assert await second_store.read(session.id, limit=1000) == rows


async def test_cancelled_append_does_not_affect_others(store: Store) -> None:
    session = await store.create_session()
    tasks = [asyncio.create_task(store.append(session.id, text_message(str(number)))) for number in range(20)]
    await asyncio.sleep(0.001)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.append(session.id, text_message("last"))
    rows = await store.read(session.id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert {str(number) for number in range(1, 20, 2)} <= set(list_texts(rows))
    assert len(set(list_texts(rows))) == len(rows)
