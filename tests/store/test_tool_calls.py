"""Tests of the status of tool calls and of provider ids on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import CorruptDataError
from dragoman.message import InvalidToolUseBlock, Role, ToolUseBlock
from dragoman.store import Store
from tests.store.conftest import Clock, StoreLocation
from tests.store.messages import call_message, message, read_call_states, result_message


async def test_call_is_pending_until_answered(store: Store, clock: Clock) -> None:
    store.clock = clock
    session = await store.create_session()
    (request,) = await store.append(session.id, call_message("tu_9", "tu_1", "tu_5", "tu_3", provider="acme"))
    assert list(await read_call_states(store, session.id)) == [
        "tu_9",
        "tu_1",
        "tu_5",
        "tu_3",
    ]  # in message order
    clock.move(seconds=2)
    good, bad = await store.append(session.id, [result_message("tu_1"), result_message("tu_5", is_error=True)])
    assert await store.cancel_tool_call(session.id, "tu_3")
    assert not await store.cancel_tool_call(session.id, "tu_1")
    assert not await store.cancel_tool_call(session.id, "none")
    assert await read_call_states(store, session.id) == {
        "tu_9": "pending",
        "tu_1": "succeeded",
        "tu_5": "failed",
        "tu_3": "cancelled",
    }
    for status in ("pending", "succeeded", "failed", "cancelled"):
        (call,) = await store.tool_calls(session.id, status)
        assert (call.session_id, call.message_id, call.seq) == (session.id, request.message.id, request.seq)
        assert (call.name, call.provider, call.status) == ("look", "acme", status)
    (call,) = await store.tool_calls(session.id, "succeeded")
    assert (call.result_message_id, call.result_seq) == (good.message.id, good.seq)
    assert (call.created_at, call.completed_at) == (request.message.created_at, good.message.created_at)
    (call,) = await store.tool_calls(session.id, "failed")
    assert call.result_message_id == bad.message.id


async def test_first_result_of_call_counts(store: Store) -> None:
    session = await store.create_session()
    await store.append(
        session.id,
        [call_message("tu_1"), result_message("tu_1"), result_message("tu_1", is_error=True), result_message("orphan")],
    )
    (call,) = await store.tool_calls(session.id)
    assert (call.status, call.result_seq) == ("succeeded", 2)


async def test_invalid_call_has_failed(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, message(Role.ASSISTANT, [InvalidToolUseBlock("tu_1", "look", "{", "cut")]))
    assert await read_call_states(store, session.id) == {"tu_1": "failed"}


async def test_provider_id_of_call_is_stored(store: Store) -> None:
    session = await store.create_session()
    blocks = [ToolUseBlock("tu_1", "look", {}, {"id": "call_7"}), ToolUseBlock("tu_2", "look", {}, {"id": 7})]
    await store.append(session.id, message(Role.ASSISTANT, blocks))
    assert [call.provider_id for call in await store.tool_calls(session.id)] == ["call_7", None]


async def test_tool_ids_keep_insertion_order(
    database_location: StoreLocation,
) -> None:
    learned = [("acme", "tu_2", "x2"), ("acme", "tu_1", "x1"), ("zeta", "tu_1", "call_1")]
    async with database_location.open() as store:
        session = await store.create_session()
        assert await store.tool_ids(session.id) == ()
        await store.save_tool_ids(session.id, learned[:2])
        await store.save_tool_ids(session.id, [])
        await store.save_tool_ids(session.id, learned[2:])
    async with database_location.open() as store:
        assert await store.tool_ids(session.id) == tuple(learned)


async def test_concurrent_tool_ids_are_all_stored(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()
        entries = [("acme", f"tu_{number}", f"x{number}") for number in range(20)]
        await asyncio.gather(
            *(
                (first_store, second_store)[number % 2].save_tool_ids(session.id, [entry])
                for number, entry in enumerate(entries)
            )
        )
        assert sorted(await first_store.tool_ids(session.id)) == sorted(entries)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tool_calls SET created_at = created_at + 1024 WHERE id = 'tu_1'",
        "UPDATE tool_calls SET completed_at = completed_at + 1024 WHERE id = 'tu_1'",
        "UPDATE tool_calls SET completed_at = 7 WHERE id = 'tu_2'",
        "UPDATE tool_calls SET block = block + 1 WHERE id = 'tu_1'",
        "UPDATE tool_calls SET provider = 'another' WHERE id = 'tu_1'",
        "UPDATE tool_calls SET status = 'failed' WHERE id = 'tu_1'",
        "UPDATE tool_calls SET status = 'zzz' WHERE id = 'tu_1'",
        "UPDATE tool_calls SET status = 'pending' WHERE id = 'tu_1'",
        "UPDATE tool_calls SET status = 'succeeded' WHERE id = 'tu_2'",
        "UPDATE tool_calls SET name = 'delete_all' WHERE id = 'tu_1'",
        "UPDATE tool_calls SET result_seq = 1 WHERE id = 'tu_1'",
        "UPDATE tool_calls SET message_id = 'another' WHERE id = 'tu_1'",
    ],
)
async def test_changed_call_is_detected_and_not_returned(store: Store, change: str) -> None:
    session = (await store.create_session()).id
    await store.append(session, [call_message("tu_1", "tu_2", "tu_3"), result_message("tu_1")])
    await store.cancel_tool_call(session, "tu_3")
    assert (await store.verify()).is_sound
    await store._write(_run_statement(change))
    assert not (await store.verify()).is_sound
    with pytest.raises(CorruptDataError):
        await store.tool_calls(session)
    call_id = "tu_2" if "tu_2" in change else "tu_1"
    await store.append(session, result_message("tu_2"))
    await store.cancel_tool_call(session, call_id)
    assert not (await store.verify()).is_sound  # a damaged row gets no valid hash


async def test_call_of_earlier_version_gets_hash_on_change(store: Store) -> None:
    session = (await store.create_session()).id
    await store.append(session, call_message("tu_1", "tu_2"))
    await store._write(_run_statement("UPDATE tool_calls SET hash = NULL"))
    await store.append(session, result_message("tu_1"))
    fork = await store.fork(session)
    await store.cancel_tool_call(fork.id, "tu_2")
    assert (await store.verify()).is_sound
    assert [call.status for call in await store.tool_calls(fork.id)] == ["succeeded", "cancelled"]
    hashed = await store._read(
        _run_statement("SELECT session_id, id FROM tool_calls WHERE hash IS NOT NULL ORDER BY id")
    )
    assert hashed == [(session, "tu_1"), (fork.id, "tu_2")]


@pytest.mark.parametrize(
    ("call_id", "status"),
    [("tu_1", "failed"), ("tu_1", "pending"), ("tu_2", "succeeded"), ("tu_2", "failed"), ("bad", "pending")],
)
async def test_status_without_hash_is_compared_with_messages(store: Store, call_id: str, status: str) -> None:
    session = (await store.create_session()).id
    bad = message(Role.ASSISTANT, [InvalidToolUseBlock("bad", "look", "{", "cut")])
    await store.append(session, [call_message("tu_1", "tu_2"), result_message("tu_1"), bad])
    await store._write(_run_statement("UPDATE tool_calls SET hash = NULL"))
    assert (await store.verify()).is_sound
    await store._write(_run_statement(f"UPDATE tool_calls SET status = '{status}' WHERE id = '{call_id}'"))
    assert [found_damage.what for found_damage in (await store.verify()).damage] == [
        f"the call {call_id} has the status {status!r}, which does not fit its messages"
    ]


async def test_unknown_status_without_hash_is_not_returned(store: Store) -> None:
    session = (await store.create_session()).id
    await store.append(session, call_message("tu_1"))
    await store._write(_run_statement("UPDATE tool_calls SET hash = NULL, status = 'zzz'"))
    assert not (await store.verify()).is_sound
    with pytest.raises(CorruptDataError, match="status is unknown"):
        await store.tool_calls(session)


async def test_tool_ids_and_idempotency_keys_have_hashes(store: Store) -> None:
    session = (await store.create_session()).id
    await store.append(session, call_message("tu_1"), idempotency_key="k")
    await store.save_tool_ids(session, [("anthropic", "tu_1", "toolu_1")])
    await store._write(_run_statement("UPDATE tool_ids SET provider_id = 'toolu_2'"))
    await store._write(_run_statement("UPDATE idempotency SET first_seq = 0"))
    assert [found_damage.what.partition(":")[0] for found_damage in (await store.verify()).damage] == [
        "the provider's id of a call",
        "an idempotency key",
    ]
    with pytest.raises(CorruptDataError):
        await store.tool_ids(session)
    with pytest.raises(CorruptDataError):
        await store.append(session, call_message("tu_1"), idempotency_key="k")


def _run_statement(sql: str) -> Any:
    return (yield sql, ())
