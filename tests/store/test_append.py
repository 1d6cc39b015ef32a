"""Messages are added at the end of a session: once, in order, all or none; on every engine."""

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


async def test_messages_have_their_places_in_order_without_a_gap(store: Store) -> None:
    session = await store.create_session()
    (first,) = await store.append(session.id, text_message("1"))
    more = await store.append(session.id, [text_message(str(number)) for number in range(2, 6)])
    assert await store.append(session.id, []) == []
    (last,) = await store.append(session.id, [answer_message("6")])
    rows = [first, *more, last]
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert await store.read(session.id) == rows
    assert (await store.get_session(session.id)).last_seq == 6


async def test_a_message_without_a_session_becomes_the_sessions_own(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session()
    before = text_message("x")
    when = datetime(2020, 1, 1, tzinfo=UTC)
    rows = await store.append(session.id, [before, before.replace(created_at=when)])
    assert [row.message.session_id for row in rows] == [session.id] * 2
    assert rows[0].message.id < rows[1].message.id
    assert [row.message.created_at for row in rows] == [clock.now, when]
    assert before.id == ""


async def test_a_message_of_another_session_is_refused(store: Store) -> None:
    one, two = await store.create_session(), await store.create_session()
    (row,) = await store.append(one.id, text_message("x"))
    with pytest.raises(FormatError, match="belongs to"):
        await store.append(two.id, row.message)
    assert await store.read(two.id) == []


async def test_an_append_that_expects_another_end_adds_nothing(store: Store) -> None:
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


async def test_of_two_who_expect_the_same_end_one_appends(database_location: StoreLocation) -> None:
    async with database_location.open() as one, database_location.open() as two:
        session = await one.create_session()
        done = await asyncio.gather(
            *(store.append(session.id, text_message("x"), expected_seq=0) for store in (one, two) * 4),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, list) for outcome in done) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in done) == 7
        assert len(await two.read(session.id)) == 1


async def test_the_same_under_the_same_key_is_stored_once(store: Store, clock: Clock) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [text_message("1"), text_message("2")], idempotency_key="k")
    before = await store.get_session(session.id)
    await asyncio.sleep(0)
    assert (
        await store.append(session.id, [text_message("1"), text_message("2")], idempotency_key="k") == rows
    )  # ids of before, too
    assert await store.get_session(session.id) == before
    await store.append(session.id, text_message("3"))
    assert (
        await store.append(session.id, [text_message("1"), text_message("2")], idempotency_key="k", expected_seq=0)
        == rows
    )
    assert list_texts(await store.read(session.id)) == ["1", "2", "3"]


async def test_something_else_under_the_same_key_is_refused(store: Store) -> None:
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
    await store.append(other.id, text_message("2"), idempotency_key="k")  # a key is a session's
    assert list_texts(await store.read(session.id)) == ["1"]
    assert list_texts(await store.read(other.id)) == ["2"]


async def test_a_key_is_known_after_the_store_was_opened_again(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        session = await store.create_session()
        rows = await store.append(session.id, text_message("1"), idempotency_key="k")
    async with database_location.open() as store:
        assert await store.append(session.id, text_message("1"), idempotency_key="k") == rows
        assert await store.read(session.id) == rows


async def test_of_many_with_one_key_all_get_the_same_place(database_location: StoreLocation) -> None:
    async with database_location.open() as one, database_location.open() as two:
        session = await one.create_session()
        done = await asyncio.gather(
            *(store.append(session.id, text_message("x"), idempotency_key="k") for store in (one, two) * 6)
        )
        assert done == [await one.read(session.id)] * 12
        assert len(done[0]) == 1


async def test_the_same_messages_again_are_stored_once(store: Store) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [text_message("1"), text_message("2")])
    await store.append(session.id, text_message("3"))
    same = [row.message for row in rows]
    assert await store.append(session.id, same) == rows
    assert await store.append(session.id, same[1], expected_seq=0) == rows[1:]
    assert list_texts(await store.read(session.id)) == ["1", "2", "3"]


async def test_another_message_under_a_known_id_is_refused(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, text_message("1"))
    new = text_message("new").replace(id="00000000000000000000000000", session_id=session.id)
    for given in (
        row.message.replace(content=(TextBlock("other"),)),
        row.message.replace(role=Role.ASSISTANT),
        [row.message, new],
        [new, row.message],
        [new, new],
    ):
        with pytest.raises(ConflictError) as caught:
            await store.append(session.id, given)
        assert caught.value.code == "id_conflict"
    assert await store.read(session.id) == [row]


async def test_an_append_is_searched_after_another_store_has_filled_the_index(database_location: StoreLocation) -> None:
    async with database_location.open() as store, database_location.open() as other:
        session = await store.create_session()
        await store.append(session.id, text_message("one"))
        assert len(await other.search("one")) == 1
        await store.append(session.id, text_message("two"))
        assert len(await other.search("two")) == 1
        assert len(await store.search("two")) == 1


async def test_sessions_are_listed_by_the_last_of_several_appends(store: Store, clock: Clock) -> None:
    store.clock = clock
    sessions = [(await store.create_session()).id for _ in range(2)]
    for session_id in (sessions[1], sessions[0], sessions[0], sessions[1], sessions[0]):
        clock.move(seconds=7)
        await store.append(session_id, text_message("x"))
        assert (await store.list_sessions(limit=1))[0].id == session_id
        assert (await store.get_session(session_id)).updated_at == clock.now


async def test_ids_need_not_grow(store: Store) -> None:
    session = await store.create_session()
    given = [text_message(name).replace(id=name, session_id=session.id) for name in ("m5", "m1", "m9", "m2")]
    await store.append(session.id, given)
    await store.append(session.id, text_message("m3").replace(id="m3", session_id=session.id))
    assert list_texts(await store.read(session.id)) == ["m5", "m1", "m9", "m2", "m3"]
    assert list_texts(await store.append(session.id, given[1])) == ["m1"]


async def test_many_who_append_at_once_lose_and_double_nothing(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()

    async def writer(number: int) -> None:
        for turn in range(8):
            await store.append(session.id, [text_message(f"{number}.{turn}a"), answer_message(f"{number}.{turn}b")])
            await store.append(other.id, text_message(f"{number}.{turn}"))

    await asyncio.gather(*(writer(number) for number in range(16)))
    rows = await store.read(session.id, limit=1000)
    assert [row.seq for row in rows] == list(range(1, 257))
    for number in range(16):
        mine = [text for text in list_texts(rows) if text.startswith(f"{number}.")]
        assert mine == [f"{number}.{turn}{half}" for turn in range(8) for half in "ab"]
    firsts, seconds = list_texts(rows)[::2], list_texts(rows)[1::2]
    assert [text[:-1] for text in firsts] == [text[:-1] for text in seconds]  # nobody comes between
    assert len(set(list_texts(await store.read(other.id, limit=1000)))) == 128


async def test_many_who_append_through_two_stores_lose_and_double_nothing(database_location: StoreLocation) -> None:
    async with database_location.open() as one, database_location.open() as two:
        session = await one.create_session()

        async def writer(store: Store, number: int) -> None:
            for turn in range(8):
                await store.append(session.id, text_message(f"{number}.{turn}"))

        await asyncio.gather(*(writer((one, two)[number % 2], number) for number in range(16)))
        rows = await one.read(session.id, limit=1000)
        assert [row.seq for row in rows] == list(range(1, 129))
        assert sorted(list_texts(rows)) == sorted(f"{number}.{turn}" for number in range(16) for turn in range(8))
        assert await two.read(session.id, limit=1000) == rows


async def test_who_gives_up_waiting_harms_nobody(store: Store) -> None:
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
