"""Tests of forks on every engine: shared history, tool calls and independence."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import (
    UnknownMessageError,
)
from dragoman.message import Role, ToolUseBlock
from dragoman.store import Store
from tests.store.messages import call_message, message, read_call_states, result_message, text_message


async def count_rows(store: Store, table: str) -> int:
    """Return the number of rows of a table."""

    def select() -> Any:
        return (yield f"SELECT count(*) FROM {table}", ())

    return (await store._read(select()))[0][0]


async def test_fork_shares_history_up_to_message(store: Store) -> None:
    session = await store.create_session(title="t", active_model="a:b", user_id="u", metadata={"k": 1})
    rows = await store.append(session.id, [text_message(str(number)) for number in range(1, 6)])
    by_id = await store.fork(session.id, rows[2].message.id)
    by_seq = await store.fork(session.id, 3, title="other", user_id="v")
    whole = await store.fork(session.id)
    empty = await store.fork(session.id, 0)
    assert await store.read(by_id.id) == await store.read(by_seq.id) == rows[:3]
    assert await store.read(whole.id) == rows
    assert await store.read(empty.id) == []
    assert (by_id.title, by_id.active_model, by_id.user_id, by_id.metadata) == ("t", "a:b", "u", {"k": 1})
    assert (by_seq.title, by_seq.user_id) == ("other", "v")
    assert (by_id.parent_session_id, by_id.parent_seq, by_id.last_seq) == (session.id, 3, 3)
    assert await store.get_session(by_id.id) == by_id


async def test_fork_and_parent_are_independent(store: Store) -> None:
    session = await store.create_session()
    rows = await store.append(session.id, [text_message("1"), text_message("2"), text_message("3")])
    fork = await store.fork(session.id, 2)
    of_fork = await store.append(fork.id, [text_message("3 of fork"), text_message("4 of fork")], expected_seq=2)
    (of_parent,) = await store.append(session.id, text_message("4"), expected_seq=3)
    assert [row.seq for row in of_fork] == [3, 4]
    assert await store.read(fork.id) == [*rows[:2], *of_fork]
    assert await store.read(session.id) == [*rows, of_parent]
    assert await store.get_message(fork.id, rows[1].message.id) == rows[1]
    assert await store.get_message(fork.id, of_fork[0].message.id) == of_fork[0]
    with pytest.raises(UnknownMessageError):
        await store.get_message(fork.id, rows[2].message.id)
    with pytest.raises(UnknownMessageError):
        await store.get_message(session.id, of_fork[0].message.id)


async def test_fork_of_fork_reads_all_ancestors(store: Store) -> None:
    first = await store.create_session()
    rows = await store.append(first.id, [text_message(str(number)) for number in range(1, 5)])
    second = await store.fork(first.id, 3)
    rows_of_second = await store.append(second.id, [text_message("4 of two"), text_message("5 of two")])
    third = await store.fork(second.id, 4)
    rows_of_third = await store.append(third.id, text_message("5 of three"))
    early = await store.fork(third.id, 2)
    whole = [*rows[:3], rows_of_second[0], *rows_of_third]
    assert await store.read(third.id) == whole
    assert [row async for row in store.history(third.id, page=2)] == whole
    assert await store.tail(third.id, limit=3) == whole[2:]
    assert await store.read_before(third.id, before_seq=5, limit=2) == whole[2:4]
    assert await store.read(third.id, after_seq=2, limit=2) == whole[2:4]
    assert await store.read(early.id) == rows[:2]
    assert early.parent_session_id == first.id  # its parent is the session that has the messages
    for row in whole:
        assert await store.get_message(third.id, row.message.id) == row


async def test_fork_adds_one_row(store: Store) -> None:
    session = await store.create_session()
    blocks = [ToolUseBlock("tu_1", "look", {"x": "a" * 50_000})]
    await store.append(session.id, [text_message("x"), message(Role.ASSISTANT, blocks), result_message("tu_1")])
    tables = ("sessions", "messages", "tool_calls", "usage", "blob_refs", "tool_ids", "idempotency")
    before = {table: await count_rows(store, table) for table in tables}
    await store.fork(session.id)
    assert {table: await count_rows(store, table) for table in tables} == before | {"sessions": before["sessions"] + 1}


async def test_fork_at_unknown_message_is_rejected(store: Store) -> None:
    session, other = await store.create_session(), await store.create_session()
    await store.append(session.id, text_message("1"))
    (foreign,) = await store.append(other.id, text_message("x"))
    for at in (2, -1, "none", foreign.message.id):
        with pytest.raises(UnknownMessageError):
            await store.fork(session.id, at)


async def test_shared_call_has_own_result_in_each_fork(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, call_message("tu_1", "tu_2"))
    fork = await store.fork(session.id)
    assert await read_call_states(store, fork.id) == {"tu_1": "pending", "tu_2": "pending"}
    await store.append(session.id, result_message("tu_1"))
    assert await read_call_states(store, fork.id) == {"tu_1": "pending", "tu_2": "pending"}
    (row,) = await store.append(fork.id, result_message("tu_1", is_error=True))
    await store.append(fork.id, result_message("tu_2"))
    assert await read_call_states(store, session.id) == {"tu_1": "succeeded", "tu_2": "pending"}
    assert await read_call_states(store, fork.id) == {"tu_1": "failed", "tu_2": "succeeded"}
    (call,) = await store.tool_calls(fork.id, "failed")
    assert (call.result_message_id, call.seq, call.result_seq) == (row.message.id, 1, 2)
    later = await store.fork(fork.id, 2)
    assert await read_call_states(store, later.id) == {"tu_1": "failed", "tu_2": "pending"}
    assert await read_call_states(store, (await store.fork(session.id, 0)).id) == {}


async def test_fork_cancels_shared_call_for_itself(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, call_message("tu_1"))
    fork = await store.fork(session.id)
    assert await store.cancel_tool_call(fork.id, "tu_1")
    assert not await store.cancel_tool_call(fork.id, "tu_1")
    assert await read_call_states(store, fork.id) == {"tu_1": "cancelled"}
    assert await read_call_states(store, session.id) == {"tu_1": "pending"}


async def test_fork_inherits_tool_ids(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, call_message("tu_1"))
    await store.save_tool_ids(session.id, [("acme", "tu_1", "x")])
    fork = await store.fork(session.id)
    await store.save_tool_ids(fork.id, [("acme", "tu_2", "y")])
    assert await store.tool_ids(fork.id) == (("acme", "tu_1", "x"), ("acme", "tu_2", "y"))
    assert await store.tool_ids(session.id) == (("acme", "tu_1", "x"),)
