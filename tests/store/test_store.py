"""What a store does, on every engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import (
    ConflictError,
    FormatError,
    StoreUnusableError,
    UnknownMessageError,
    UnknownSessionError,
)
from dragoman.message import InvalidToolUseBlock, Message, MessageStatus, Role, TextBlock, ToolUseBlock, Usage
from dragoman.store import Row, Session, Store, open_store
from tests.store.conftest import PLACES, Clock, Place, engines
from tests.store.talk import answered, called, message, result, said


def test_every_engine_is_tested() -> None:
    assert engines() == set(PLACES) - {"memory"}  # which is SQLite without a file


def texts(rows: Sequence[Row]) -> list[str]:
    return [block.text for row in rows for block in row.message.content if isinstance(block, TextBlock)]


async def count(store: Store, table: str) -> int:
    """How many rows a table has."""

    def counted() -> Any:
        return (yield f"SELECT count(*) FROM {table}", ())

    return (await store._read(counted()))[0][0]


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "memory", "sqlite:", "sqlite:///", "mysql://localhost/x", "postgresql:x", "x.db"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreUnusableError) as caught:
        open_store(url)
    assert caught.value.code == "not_a_store"


async def test_a_store_that_is_not_open_says_so(place: Place) -> None:
    store = place.open()
    with pytest.raises(StoreUnusableError, match="not open"):
        await store.get_session("s")
    async with store:
        pass
    with pytest.raises(StoreUnusableError, match="not open"):
        await store.create_session()


async def test_what_is_stored_is_there_when_the_store_is_opened_again(shared_place: Place) -> None:
    async with shared_place.open() as store:
        session = await store.create_session(title="first")
        rows = await store.append(session.id, [said("one"), said("two")])
    async with shared_place.open() as store:
        assert await store.read(session.id) == rows
        assert (await store.get_session(session.id)).title == "first"


async def test_many_may_open_a_new_store_at_once(shared_place: Place) -> None:
    stores = [shared_place.open() for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    session = await stores[0].create_session()
    assert [(await store.get_session(session.id)).id for store in stores] == [session.id] * 4
    await asyncio.gather(*(store.close() for store in stores))


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_a_session_keeps_what_is_said_about_it(store: Store, clock: Clock) -> None:
    store.clock = clock
    made = await store.create_session(
        title="Ärger 🎉",
        workspace_path="/srv/work",
        active_model="a:b",
        routing_policy={"rules": [{"when": "code", "use": "a:c"}]},
        user_id="u",
        team_id="t",
        metadata={"n": 1.5, "big": 10**30, "deep": [{"x": None}]},
    )
    assert made.id.startswith("sess_")
    assert made.created_at == made.updated_at == clock.now
    assert await store.get_session(made.id) == made


async def test_a_session_of_an_unknown_id_is_an_error_of_its_own(store: Store) -> None:
    for asked in (
        store.get_session("none"),
        store.read("none"),
        store.tail("none"),
        store.append("none", said("x")),
        store.rename_session("none", "x"),
        store.fork("none"),
        store.tool_calls("none"),
        store.tool_ids("none"),
        store.learn_tool_ids("none", [("a", "b", "c")]),
        store.take_lease("none", "me"),
    ):
        with pytest.raises(UnknownSessionError):
            await asked


async def test_an_id_of_ones_own_can_be_used_once(store: Store) -> None:
    assert (await store.create_session("mine")).id == "mine"
    with pytest.raises(ConflictError) as caught:
        await store.create_session("mine", title="again")
    assert caught.value.code == "session_exists"
    assert (await store.get_session("mine")).title is None


async def test_of_many_who_create_one_session_exactly_one_does(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        made = await asyncio.gather(*(store.create_session("mine") for store in (one, two) * 4), return_exceptions=True)
    assert sum(isinstance(outcome, Session) for outcome in made) == 1
    assert {type(outcome) for outcome in made} == {Session, ConflictError}


async def test_only_what_is_named_changes(store: Store, clock: Clock) -> None:
    store.clock = clock
    made = await store.create_session(title="old", active_model="a:b", metadata={"k": 1}, user_id="u")
    clock.move(seconds=1)
    renamed = await store.rename_session(made.id, "new")
    assert (renamed.title, renamed.active_model, renamed.metadata) == ("new", "a:b", {"k": 1})
    assert renamed.updated_at == clock.now
    changed = await store.change_session(made.id, active_model=None, metadata={}, team_id="t", routing_policy={"a": []})
    assert (changed.active_model, changed.metadata, changed.team_id) == (None, {}, "t")
    assert (changed.user_id, changed.routing_policy) == ("u", {"a": []})
    assert await store.get_session(made.id) == changed


async def test_sessions_are_listed_by_page_the_one_that_changed_last_first(store: Store, clock: Clock) -> None:
    store.clock = clock
    made = []
    for number in range(7):
        made.append(await store.create_session(user_id="ab"[number % 2], team_id="t" if number > 4 else None))
        clock.move(seconds=number % 3)  # some of them at the same time
    clock.move(seconds=1)
    await store.append(made[2].id, said("x"))
    everything = await store.list_sessions()
    assert everything[0].id == made[2].id
    order = [(session.updated_at, session.id) for session in everything]
    assert order == sorted(order, reverse=True)
    pages, last = list[str](), None
    while page := await store.list_sessions(limit=3, before=last):
        pages += [session.id for session in page]
        last = page[-1]
    assert pages == [session.id for session in everything]
    assert {session.id for session in await store.list_sessions(user_id="b")} == {made[1].id, made[3].id, made[5].id}
    assert [session.id for session in await store.list_sessions(user_id="b", team_id="t")] == [made[5].id]
    assert await store.list_sessions(user_id="c") == []


@pytest.mark.parametrize("odd", [{"a": float("nan")}, {1: "a"}, {"a": "\ud800"}, {"a": {1, 2}}], ids=repr)
async def test_what_json_cannot_say_is_not_kept_with_a_session(store: Store, odd: Any) -> None:
    with pytest.raises(FormatError):
        await store.create_session("s", metadata=odd)
    await store.create_session("s")
    with pytest.raises(FormatError):
        await store.change_session("s", routing_policy=odd)


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"], ids=ascii)
async def test_names_that_not_every_engine_can_hold_are_refused_by_all(store: Store, odd: str) -> None:
    session = await store.create_session()
    for asked in (
        store.create_session(odd),
        store.create_session(title=odd),
        store.rename_session(session.id, odd),
        store.get_session(odd),
        store.append(session.id, said("x"), idempotency_key=odd),
        store.take_lease(session.id, odd),
        store.learn_tool_ids(session.id, [("a", "b", odd)]),
        store.list_sessions(user_id=odd),
    ):
        with pytest.raises(FormatError):
            await asked
    assert await store.read(session.id) == []
    assert (await store.list_sessions()) == [session]


# --- append ----------------------------------------------------------------------------------------------------------


async def test_messages_have_their_places_in_order_without_a_gap(store: Store) -> None:
    session = await store.create_session()
    (first,) = await store.append(session.id, said("1"))
    more = await store.append(session.id, [said(str(number)) for number in range(2, 6)])
    assert await store.append(session.id, []) == []
    (last,) = await store.append(session.id, [answered("6")])
    rows = [first, *more, last]
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert await store.read(session.id) == rows
    assert (await store.get_session(session.id)).last_seq == 6


async def test_a_message_without_a_session_becomes_the_sessions_own(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session()
    before = said("x")
    when = datetime(2020, 1, 1, tzinfo=UTC)
    rows = await store.append(session.id, [before, before.replace(created_at=when)])
    assert [row.message.session_id for row in rows] == [session.id] * 2
    assert rows[0].message.id < rows[1].message.id
    assert [row.message.created_at for row in rows] == [clock.now, when]
    assert before.id == ""


async def test_a_message_of_another_session_is_refused(store: Store) -> None:
    one, two = await store.create_session(), await store.create_session()
    (row,) = await store.append(one.id, said("x"))
    with pytest.raises(FormatError, match="belongs to"):
        await store.append(two.id, row.message)
    assert await store.read(two.id) == []


async def test_an_append_that_expects_another_end_adds_nothing(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, said("1"), expected_seq=0)
    before = await store.get_session(session.id)
    for expected in (0, 2):
        with pytest.raises(ConflictError) as caught:
            await store.append(session.id, said("2"), expected_seq=expected)
        assert caught.value.code == "seq_conflict"
    assert await store.get_session(session.id) == before
    await store.append(session.id, said("2"), expected_seq=1)
    assert texts(await store.read(session.id)) == ["1", "2"]


async def test_of_two_who_expect_the_same_end_one_appends(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        session = await one.create_session()
        done = await asyncio.gather(
            *(store.append(session.id, said("x"), expected_seq=0) for store in (one, two) * 4), return_exceptions=True
        )
        assert sum(isinstance(outcome, list) for outcome in done) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in done) == 7
        assert len(await two.read(session.id)) == 1


async def test_the_same_under_the_same_key_is_stored_once(store: Store, clock: Clock) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [said("1"), said("2")], idempotency_key="k")
    before = await store.get_session(session.id)
    await asyncio.sleep(0)
    assert await store.append(session.id, [said("1"), said("2")], idempotency_key="k") == rows  # ids of before, too
    assert await store.get_session(session.id) == before
    await store.append(session.id, said("3"))
    assert await store.append(session.id, [said("1"), said("2")], idempotency_key="k", expected_seq=0) == rows
    assert texts(await store.read(session.id)) == ["1", "2", "3"]


async def test_something_else_under_the_same_key_is_refused(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    await store.append(session.id, said("1"), idempotency_key="k")
    for new in ([said("2")], [answered("1")], [said("1"), said("2")], [said("1", model="m")]):
        with pytest.raises(ConflictError) as caught:
            await store.append(session.id, new, idempotency_key="k")
        assert caught.value.code == "idempotency_key_reused"
    await store.append(other.id, said("2"), idempotency_key="k")  # a key is a session's
    assert texts(await store.read(session.id)) == ["1"]
    assert texts(await store.read(other.id)) == ["2"]


async def test_a_key_is_known_after_the_store_was_opened_again(shared_place: Place) -> None:
    async with shared_place.open() as store:
        session = await store.create_session()
        rows = await store.append(session.id, said("1"), idempotency_key="k")
    async with shared_place.open() as store:
        assert await store.append(session.id, said("1"), idempotency_key="k") == rows
        assert await store.read(session.id) == rows


async def test_of_many_with_one_key_all_get_the_same_place(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        session = await one.create_session()
        done = await asyncio.gather(
            *(store.append(session.id, said("x"), idempotency_key="k") for store in (one, two) * 6)
        )
        assert done == [await one.read(session.id)] * 12
        assert len(done[0]) == 1


async def test_the_same_messages_again_are_stored_once(store: Store) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [said("1"), said("2")])
    await store.append(session.id, said("3"))
    same = [row.message for row in rows]
    assert await store.append(session.id, same) == rows
    assert await store.append(session.id, same[1], expected_seq=0) == rows[1:]
    assert texts(await store.read(session.id)) == ["1", "2", "3"]


async def test_another_message_under_a_known_id_is_refused(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, said("1"))
    new = said("new").replace(id="00000000000000000000000000", session_id=session.id)
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


async def test_ids_need_not_grow(store: Store) -> None:
    session = await store.create_session()
    given = [said(name).replace(id=name, session_id=session.id) for name in ("m5", "m1", "m9", "m2")]
    await store.append(session.id, given)
    await store.append(session.id, said("m3").replace(id="m3", session_id=session.id))
    assert texts(await store.read(session.id)) == ["m5", "m1", "m9", "m2", "m3"]
    assert texts(await store.append(session.id, given[1])) == ["m1"]


async def test_many_who_append_at_once_lose_and_double_nothing(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()

    async def writer(number: int) -> None:
        for turn in range(8):
            await store.append(session.id, [said(f"{number}.{turn}a"), answered(f"{number}.{turn}b")])
            await store.append(other.id, said(f"{number}.{turn}"))

    await asyncio.gather(*(writer(number) for number in range(16)))
    rows = await store.read(session.id, limit=1000)
    assert [row.seq for row in rows] == list(range(1, 257))
    for number in range(16):
        mine = [text for text in texts(rows) if text.startswith(f"{number}.")]
        assert mine == [f"{number}.{turn}{half}" for turn in range(8) for half in "ab"]
    firsts, seconds = texts(rows)[::2], texts(rows)[1::2]
    assert [text[:-1] for text in firsts] == [text[:-1] for text in seconds]  # nobody comes between
    assert len(set(texts(await store.read(other.id, limit=1000)))) == 128


async def test_many_who_append_through_two_stores_lose_and_double_nothing(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        session = await one.create_session()

        async def writer(store: Store, number: int) -> None:
            for turn in range(8):
                await store.append(session.id, said(f"{number}.{turn}"))

        await asyncio.gather(*(writer((one, two)[number % 2], number) for number in range(16)))
        rows = await one.read(session.id, limit=1000)
        assert [row.seq for row in rows] == list(range(1, 129))
        assert sorted(texts(rows)) == sorted(f"{number}.{turn}" for number in range(16) for turn in range(8))
        assert await two.read(session.id, limit=1000) == rows


async def test_who_gives_up_waiting_harms_nobody(store: Store) -> None:
    session = await store.create_session()
    tasks = [asyncio.create_task(store.append(session.id, said(str(number)))) for number in range(20)]
    await asyncio.sleep(0.001)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.append(session.id, said("last"))
    rows = await store.read(session.id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert {str(number) for number in range(1, 20, 2)} <= set(texts(rows))
    assert len(set(texts(rows))) == len(rows)


# --- read ------------------------------------------------------------------------------------------------------------


async def test_a_history_is_read_by_page_in_both_directions(store: Store) -> None:
    session = await store.create_session()
    assert await store.read(session.id) == await store.tail(session.id) == []
    rows = await store.append(session.id, [said(str(number)) for number in range(1, 12)])
    assert await store.read(session.id, limit=4) == rows[:4]
    assert await store.read(session.id, after_seq=4, limit=4) == rows[4:8]
    assert await store.read(session.id, after_seq=8, limit=4) == rows[8:]
    assert await store.read(session.id, after_seq=11) == []
    assert await store.tail(session.id, limit=4) == rows[7:]
    assert await store.read_back(session.id, before_seq=8, limit=4) == rows[3:7]
    assert await store.read_back(session.id, before_seq=4, limit=4) == rows[:3]
    assert await store.read_back(session.id, before_seq=1) == []
    assert [row async for row in store.history(session.id, page=3)] == rows


async def test_a_message_is_found_by_its_id(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    rows = await store.append(session.id, [said("1"), said("2")])
    assert await store.get_message(session.id, rows[1].message.id) == rows[1]
    for session_id, message_id in ((other.id, rows[1].message.id), (session.id, "none")):
        with pytest.raises(UnknownMessageError):
            await store.get_message(session_id, message_id)


# --- tools -----------------------------------------------------------------------------------------------------------


async def states(store: Store, session_id: str) -> dict[str, str]:
    return {call.id: call.status for call in await store.tool_calls(session_id)}


async def test_a_call_is_pending_until_it_is_answered(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session()
    (asked,) = await store.append(session.id, called("tu_9", "tu_1", "tu_5", "tu_3", provider="acme"))
    assert list(await states(store, session.id)) == ["tu_9", "tu_1", "tu_5", "tu_3"]  # in the order of the message
    clock.move(seconds=2)
    good, bad = await store.append(session.id, [result("tu_1"), result("tu_5", is_error=True)])
    assert await store.cancel_tool_call(session.id, "tu_3")
    assert not await store.cancel_tool_call(session.id, "tu_1")
    assert not await store.cancel_tool_call(session.id, "none")
    assert await states(store, session.id) == {
        "tu_9": "pending",
        "tu_1": "succeeded",
        "tu_5": "failed",
        "tu_3": "cancelled",
    }
    for status in ("pending", "succeeded", "failed", "cancelled"):
        (call,) = await store.tool_calls(session.id, status)
        assert (call.session_id, call.message_id, call.seq) == (session.id, asked.message.id, asked.seq)
        assert (call.name, call.provider, call.status) == ("look", "acme", status)
    (call,) = await store.tool_calls(session.id, "succeeded")
    assert (call.result_message_id, call.result_seq) == (good.message.id, good.seq)
    assert (call.created_at, call.completed_at) == (asked.message.created_at, good.message.created_at)
    (call,) = await store.tool_calls(session.id, "failed")
    assert call.result_message_id == bad.message.id


async def test_the_first_answer_of_a_call_counts(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [called("tu_1"), result("tu_1"), result("tu_1", is_error=True), result("orphan")])
    (call,) = await store.tool_calls(session.id)
    assert (call.status, call.result_seq) == ("succeeded", 2)


async def test_a_call_that_cannot_be_made_has_failed(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, message(Role.ASSISTANT, [InvalidToolUseBlock("tu_1", "look", "{", "cut")]))
    assert await states(store, session.id) == {"tu_1": "failed"}


async def test_what_the_provider_calls_a_call_is_kept(store: Store) -> None:
    session = await store.create_session()
    blocks = [ToolUseBlock("tu_1", "look", {}, {"id": "call_7"}), ToolUseBlock("tu_2", "look", {}, {"id": 7})]
    await store.append(session.id, message(Role.ASSISTANT, blocks))
    assert [call.provider_id for call in await store.tool_calls(session.id)] == ["call_7", None]


async def test_tool_ids_are_remembered_in_the_order_in_which_they_were_learned(shared_place: Place) -> None:
    learned = [("acme", "tu_2", "x2"), ("acme", "tu_1", "x1"), ("zeta", "tu_1", "call_1")]
    async with shared_place.open() as store:
        session = await store.create_session()
        assert await store.tool_ids(session.id) == ()
        await store.learn_tool_ids(session.id, learned[:2])
        await store.learn_tool_ids(session.id, [])
        await store.learn_tool_ids(session.id, learned[2:])
    async with shared_place.open() as store:
        assert await store.tool_ids(session.id) == tuple(learned)


async def test_many_who_learn_tool_ids_at_once_lose_none(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        session = await one.create_session()
        entries = [("acme", f"tu_{number}", f"x{number}") for number in range(20)]
        await asyncio.gather(
            *((one, two)[number % 2].learn_tool_ids(session.id, [entry]) for number, entry in enumerate(entries))
        )
        assert sorted(await one.tool_ids(session.id)) == sorted(entries)


# --- forks -----------------------------------------------------------------------------------------------------------


async def test_a_fork_shares_the_history_up_to_a_message(store: Store) -> None:
    session = await store.create_session(title="t", active_model="a:b", user_id="u", metadata={"k": 1})
    rows = await store.append(session.id, [said(str(number)) for number in range(1, 6)])
    by_id = await store.fork(session.id, rows[2].message.id)
    by_seq = await store.fork(session.id, 3, title="other", user_id="v")
    whole = await store.fork(session.id)
    nothing = await store.fork(session.id, 0)
    assert await store.read(by_id.id) == await store.read(by_seq.id) == rows[:3]
    assert await store.read(whole.id) == rows
    assert await store.read(nothing.id) == []
    assert (by_id.title, by_id.active_model, by_id.user_id, by_id.metadata) == ("t", "a:b", "u", {"k": 1})
    assert (by_seq.title, by_seq.user_id) == ("other", "v")
    assert (by_id.parent_session_id, by_id.parent_seq, by_id.last_seq) == (session.id, 3, 3)
    assert await store.get_session(by_id.id) == by_id


async def test_a_fork_and_its_parent_go_on_apart(store: Store) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [said("1"), said("2"), said("3")])
    fork = await store.fork(session.id, 2)
    mine = await store.append(fork.id, [said("3 of fork"), said("4 of fork")], expected_seq=2)
    (theirs,) = await store.append(session.id, said("4"), expected_seq=3)
    assert [row.seq for row in mine] == [3, 4]
    assert await store.read(fork.id) == [*rows[:2], *mine]
    assert await store.read(session.id) == [*rows, theirs]
    assert await store.get_message(fork.id, rows[1].message.id) == rows[1]
    assert await store.get_message(fork.id, mine[0].message.id) == mine[0]
    with pytest.raises(UnknownMessageError):
        await store.get_message(fork.id, rows[2].message.id)
    with pytest.raises(UnknownMessageError):
        await store.get_message(session.id, mine[0].message.id)


async def test_a_fork_of_a_fork_is_read_across_all_of_them(store: Store) -> None:
    one = await store.create_session()
    rows = await store.append(one.id, [said(str(number)) for number in range(1, 5)])
    two = await store.fork(one.id, 3)
    rows_two = await store.append(two.id, [said("4 of two"), said("5 of two")])
    three = await store.fork(two.id, 4)
    rows_three = await store.append(three.id, said("5 of three"))
    early = await store.fork(three.id, 2)
    whole = [*rows[:3], rows_two[0], *rows_three]
    assert await store.read(three.id) == whole
    assert [row async for row in store.history(three.id, page=2)] == whole
    assert await store.tail(three.id, limit=3) == whole[2:]
    assert await store.read_back(three.id, before_seq=5, limit=2) == whole[2:4]
    assert await store.read(three.id, after_seq=2, limit=2) == whole[2:4]
    assert await store.read(early.id) == rows[:2]
    assert early.parent_session_id == one.id  # it shares with the one that has the messages
    for found in whole:
        assert await store.get_message(three.id, found.message.id) == found


async def test_a_fork_costs_one_row(store: Store) -> None:
    session = await store.create_session()
    blocks = [ToolUseBlock("tu_1", "look", {"x": "a" * 50_000})]
    await store.append(session.id, [said("x"), message(Role.ASSISTANT, blocks), result("tu_1")])
    tables = ("sessions", "messages", "tool_calls", "usage", "blob_refs", "tool_ids", "idempotency")
    before = {table: await count(store, table) for table in tables}
    await store.fork(session.id)
    assert {table: await count(store, table) for table in tables} == before | {"sessions": before["sessions"] + 1}


async def test_a_fork_at_a_message_that_is_not_there_is_refused(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    await store.append(session.id, said("1"))
    (foreign,) = await store.append(other.id, said("x"))
    for at in (2, -1, "none", foreign.message.id):
        with pytest.raises(UnknownMessageError):
            await store.fork(session.id, at)


async def test_a_call_is_answered_in_each_history_for_itself(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, called("tu_1", "tu_2"))
    fork = await store.fork(session.id)
    assert await states(store, fork.id) == {"tu_1": "pending", "tu_2": "pending"}
    await store.append(session.id, result("tu_1"))
    assert await states(store, fork.id) == {"tu_1": "pending", "tu_2": "pending"}
    (row,) = await store.append(fork.id, result("tu_1", is_error=True))
    await store.append(fork.id, result("tu_2"))
    assert await states(store, session.id) == {"tu_1": "succeeded", "tu_2": "pending"}
    assert await states(store, fork.id) == {"tu_1": "failed", "tu_2": "succeeded"}
    (call,) = await store.tool_calls(fork.id, "failed")
    assert (call.result_message_id, call.seq, call.result_seq) == (row.message.id, 1, 2)
    later = await store.fork(fork.id, 2)
    assert await states(store, later.id) == {"tu_1": "failed", "tu_2": "pending"}
    assert await states(store, (await store.fork(session.id, 0)).id) == {}


async def test_a_fork_gives_a_shared_call_up_for_itself(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, called("tu_1"))
    fork = await store.fork(session.id)
    assert await store.cancel_tool_call(fork.id, "tu_1")
    assert not await store.cancel_tool_call(fork.id, "tu_1")
    assert await states(store, fork.id) == {"tu_1": "cancelled"}
    assert await states(store, session.id) == {"tu_1": "pending"}


async def test_a_fork_knows_the_tool_ids_that_its_parent_had_learned(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, called("tu_1"))
    await store.learn_tool_ids(session.id, [("acme", "tu_1", "x")])
    fork = await store.fork(session.id)
    await store.learn_tool_ids(fork.id, [("acme", "tu_2", "y")])
    assert await store.tool_ids(fork.id) == (("acme", "tu_1", "x"), ("acme", "tu_2", "y"))
    assert await store.tool_ids(session.id) == (("acme", "tu_1", "x"),)


# --- messages that arrive --------------------------------------------------------------------------------------------


async def begun(store: Store, session_id: str) -> Message:
    (row,) = await store.append(session_id, answered("He", status=MessageStatus.PARTIAL))
    return row.message


def grown(message: Message, text: str, status: MessageStatus = MessageStatus.PARTIAL) -> Message:
    return message.replace(content=(TextBlock(text),), metadata=message.metadata.replace(status=status))


async def test_a_message_that_arrives_grows_in_its_place_until_it_ends(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, said("hi"))
    arriving = await begun(store, session.id)
    await store.append(session.id, said("next"))
    more = await store.update(session.id, grown(arriving, "Hello"))
    assert more.seq == 2
    assert (await store.read(session.id))[1] == more
    done = await store.update(session.id, grown(arriving, "Hello.", MessageStatus.COMPLETE))
    assert texts(await store.read(session.id)) == ["hi", "Hello.", "next"]
    assert await store.get_message(session.id, arriving.id) == done
    assert (await store.get_session(session.id)).last_seq == 3


@pytest.mark.parametrize("end", [status for status in MessageStatus if status is not MessageStatus.PARTIAL])
async def test_a_message_that_has_ended_stays_as_it_is(store: Store, end: MessageStatus) -> None:
    session = await store.create_session()
    arriving = await begun(store, session.id)
    done = await store.update(session.id, grown(arriving, "Hello.", end))
    with pytest.raises(ConflictError) as caught:
        await store.update(session.id, grown(arriving, "Other."))
    assert caught.value.code == "message_ended"
    assert await store.read(session.id) == [done]


async def test_a_message_that_is_not_there_does_not_grow(store: Store) -> None:
    session = await store.create_session()
    arriving = await begun(store, session.id)
    with pytest.raises(UnknownMessageError):
        await store.update(session.id, arriving.replace(id="none"))
    with pytest.raises(FormatError):
        await store.update((await store.create_session()).id, arriving)


async def test_of_many_who_end_a_message_one_does(shared_place: Place) -> None:
    async with shared_place.open() as one, shared_place.open() as two:
        session = await one.create_session()
        arriving = await begun(one, session.id)
        ends = [grown(arriving, f"end {number}", MessageStatus.COMPLETE) for number in range(8)]
        done = await asyncio.gather(
            *((one, two)[number % 2].update(session.id, end) for number, end in enumerate(ends)),
            return_exceptions=True,
        )
        (won,) = [outcome for outcome in done if isinstance(outcome, Row)]
        assert sum(isinstance(outcome, ConflictError) for outcome in done) == 7
        assert await two.read(session.id) == [won]


async def test_the_calls_of_a_message_that_arrives_are_those_of_its_latest_content(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, called("tu_1", "tu_2", status=MessageStatus.PARTIAL))
    invalid = InvalidToolUseBlock("tu_3", "look", "{", "cut")
    content = (row.message.content[0], row.message.content[1], invalid)
    await store.update(session.id, row.message.replace(content=content))
    assert await states(store, session.id) == {"tu_1": "pending", "tu_2": "pending", "tu_3": "failed"}
    (answer,) = await store.append(session.id, result("tu_1"))  # while the others still arrive
    await store.cancel_tool_call(session.id, "tu_2")
    content = (*content[:2], ToolUseBlock("tu_3", "look", {}), ToolUseBlock("tu_4", "look", {}))
    ended = row.message.metadata.replace(status=MessageStatus.COMPLETE)
    await store.update(session.id, row.message.replace(content=content, metadata=ended))
    assert await states(store, session.id) == {
        "tu_1": "succeeded",
        "tu_2": "cancelled",
        "tu_3": "pending",
        "tu_4": "pending",
    }
    assert (await store.tool_calls(session.id, "succeeded"))[0].result_message_id == answer.message.id


async def test_an_answer_that_arrives_can_turn_out_to_be_a_failure(store: Store) -> None:
    session = await store.create_session()
    partial = result("tu_1").replace(metadata=result("tu_1").metadata.replace(status=MessageStatus.PARTIAL))
    _, row = await store.append(session.id, [called("tu_1"), partial])
    await store.update(session.id, row.message.replace(content=result("tu_1", is_error=True).content))
    assert await states(store, session.id) == {"tu_1": "failed"}


async def test_what_a_message_consumed_is_counted_once_however_often_it_grew(store: Store) -> None:
    session = await store.create_session()
    arriving = await begun(store, session.id)
    for tokens in (1, 5, 9):
        metadata = arriving.metadata.replace(usage=used(output=tokens, cost="0.1"))
        await store.update(session.id, arriving.replace(metadata=metadata))
    (total,) = await store.totals("session")
    assert (total.messages, total.output_tokens, total.cost_usd) == (1, 9, Decimal("0.1"))


# --- leases ----------------------------------------------------------------------------------------------------------


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


# --- totals ----------------------------------------------------------------------------------------------------------


def used(input: int = 0, output: int = 0, cost: str = "0") -> Usage:  # noqa: A002
    return Usage(
        input_tokens=input,
        output_tokens=output,
        cached_input_tokens=input * 2,
        cache_creation_input_tokens=input * 3,
        reasoning_tokens=output // 2,
        cost_usd=Decimal(cost),
        pricing_version="v1",
        latency_ms=1,
    )


async def test_totals_add_up_by_every_group_to_the_last_digit(store: Store) -> None:
    one, two = await store.create_session("s1"), await store.create_session("s2")
    spent = [
        (one, "2026-05-08T23:59:59", "a:x", "a", "u1", "t1", "0.1"),
        (one, "2026-05-09T00:00:00", "a:y", "a", "u1", "t1", "0.2"),
        (two, "2026-05-09T12:00:00", "b:z", "b", "u2", "t1", "1E-25"),
        (two, "2026-05-10T12:00:00", "b:z", "b", "u2", None, "100000.000000000000000000000001"),
        (two, "2026-05-10T13:00:00", None, None, None, None, "0"),
    ]
    for session, when, model, provider, user, team, cost in spent:
        usage = used(10, 4, cost)
        new = answered("x", model=model, provider=provider, user_id=user, team_id=team, usage=usage)
        await store.append(session.id, new.replace(created_at=datetime.fromisoformat(f"{when}+00:00")))
    await store.append(one.id, [said("asks"), answered("no usage")])

    async def costs(by: Any, **wanted: Any) -> dict[str | None, Decimal]:
        return {total.group: total.cost_usd for total in await store.totals(by, **wanted)}

    high = Decimal("100000.0000000000000000000000011")  # more digits than a Decimal keeps by default
    last = Decimal("100000.000000000000000000000001")
    tiny = Decimal("1E-25")
    assert await costs("session") == {"s1": Decimal("0.3"), "s2": high}
    assert await costs("user") == {None: Decimal(0), "u1": Decimal("0.3"), "u2": high}
    assert await costs("team") == {None: last, "t1": Decimal("0.3000000000000000000000001")}
    assert await costs("model") == {None: 0, "a:x": Decimal("0.1"), "a:y": Decimal("0.2"), "b:z": high}
    assert await costs("provider") == {None: 0, "a": Decimal("0.3"), "b": high}
    days = {"2026-05-08": Decimal("0.1"), "2026-05-09": Decimal("0.2000000000000000000000001"), "2026-05-10": last}
    assert await costs("day") == days
    assert await costs("model", session="s2", until="2026-05-10") == {"b:z": tiny}
    assert await costs("day", since="2026-05-09", until="2026-05-10") == {"2026-05-09": days["2026-05-09"]}
    assert await costs("user", team="t1", model="a:y") == {"u1": Decimal("0.2")}
    assert await costs("day", user="nobody") == {}
    assert list(await costs("model")) == [None, "a:x", "a:y", "b:z"]
    (total,) = await store.totals("session", session="s1")
    assert (total.messages, total.input_tokens, total.output_tokens) == (2, 20, 8)
    assert (total.cached_input_tokens, total.cache_creation_input_tokens, total.reasoning_tokens) == (40, 60, 4)


async def test_groups_come_in_the_same_order_on_every_engine(store: Store) -> None:
    session = await store.create_session()
    names = ["b", "B", "a", "ä", "Z", "_", "🎉", "\uffff", "é", ""]
    await store.append(session.id, [answered("x", model=name, usage=used()) for name in names])
    assert [total.group for total in await store.totals("model")] == sorted(names)


# --- odd text --------------------------------------------------------------------------------------------------------


async def test_every_naughty_string_survives(store: Store, suites: Path) -> None:
    strings: list[str] = json.loads((suites / "blns.json").read_text("utf-8"))
    session = await store.create_session()
    blocks = [ToolUseBlock(f"tu_{number}", text, {text: text}) for number, text in enumerate(strings)]
    rows = await store.append(
        session.id, [*(said(text, extra={"k": text}) for text in strings), message(Role.ASSISTANT, blocks)]
    )
    assert await store.read(session.id, limit=1000) == rows
    assert [call.name for call in await store.tool_calls(session.id)] == strings
    for text in strings:
        changed = await store.change_session(session.id, title=text, metadata={text: [text]}, user_id=text)
        assert await store.get_session(session.id) == changed
        assert (changed.title, changed.metadata) == (text, {text: [text]})
        assert await store.list_sessions(user_id=text) == [changed]


@pytest.mark.parametrize(
    "odd", ["a\0b", "\0", "\U0010ffff", "\U0001d4b3🎉", "\ufeffx", "\u2028", "a\r\nb", "\\u0000", "\x7f\x01"], ids=ascii
)
async def test_odd_characters_of_a_message_survive(store: Store, odd: str) -> None:
    session = await store.create_session()
    usage = used(1, 1, "1")
    new = message(
        Role.ASSISTANT,
        [TextBlock(odd), ToolUseBlock("tu_1" + odd, odd, {odd: [odd]})],
        model=odd,
        provider=odd,
        user_id=odd,
        team_id=odd,
        extra={odd: odd},
        usage=usage,
    )
    rows = await store.append(session.id, new)
    assert await store.read(session.id) == rows
    assert rows[0].message.content == new.content
    (call,) = await store.tool_calls(session.id)
    assert call.name == odd.replace("\0", "\u2400")  # beside a message, a NUL is shown by its picture
    await store.append(session.id, result("tu_1" + odd))
    assert (await store.tool_calls(session.id))[0].status == "succeeded"
    assert [total.group for total in await store.totals("model")] == [odd.replace("\0", "\u2400")]
