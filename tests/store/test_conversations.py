"""Tests of envelope sessions on every engine."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.envelope import normalize, normalize_many, text, tool_call, tool_result
from dragoman.envelope_store import EnvelopeStore
from dragoman.errors import EnvelopeError
from dragoman.store import Store
from tests.conftest import scale
from tests.store.conftest import Clock
from tests.store.messages import answer_message, call_message, result_message, text_message
from tests.test_envelope_converter import envelopes, has_dragoman_metadata, rows

ROW = {
    "role": "assistant",
    "content": "AI ACTION (Turn 1): Executing Wiki Upsert",
    "metadata": {"type": "tool_call", "tool_name": "wiki_upsert", "parameters": {"title": "Example"}, "turn": 1},
}


@pytest.fixture
def conversations(store: Store) -> EnvelopeStore:
    return EnvelopeStore(store)


async def read_messages(conversations: EnvelopeStore, session_id: str) -> list[dict[str, Any]]:
    session = await conversations.get_session(session_id)
    assert session is not None
    messages: list[dict[str, Any]] = session["messages"]
    return messages


async def test_session_contains_every_field_of_interface(store: Store, clock: Clock) -> None:
    store.clock = clock
    conversations = EnvelopeStore(store)
    session_id = await conversations.create_session(7, agent_id=3, metadata={"a": 1})
    assert uuid.UUID(session_id).version == 4
    clock.move(seconds=1)
    assert await conversations.update_session(session_id, [ROW], {"b": 2}, "anthropic", "claude-sonnet-4-6")
    assert await conversations.update_title(session_id, "Wiki")
    assert await conversations.mark_read(session_id)
    assert await conversations.get_session(session_id) == {
        "session_id": session_id,
        "user_id": 7,
        "agent_id": 3,
        "title": "Wiki",
        "messages": [normalize(ROW)],
        "metadata": {"b": 2},
        "provider": "anthropic",
        "model": "claude-sonnet-4-6",
        "context": "chat",
        "created_at": "2026-05-08 12:00:00",
        "updated_at": "2026-05-08 12:00:01",
        "last_read_at": "2026-05-08 12:00:01",
        "expires_at": "2026-05-09 12:00:01",
    }


async def test_missing_session_is_none_and_cannot_be_changed(conversations: EnvelopeStore) -> None:
    assert await conversations.get_session("none") is None
    assert not await conversations.update_session("none", [])
    assert not await conversations.append("none", [])
    assert not await conversations.update_title("none", "x")
    assert not await conversations.mark_read("none")
    assert await conversations.delete_session("none")


async def test_rows_and_envelopes_are_read_as_envelopes(conversations: EnvelopeStore) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Write it."},
        ROW,
        tool_result("done", "wiki_upsert", {"success": True, "turn": 1}),
        {"version": 1, "type": "final_result", "data": {"k": 1}, "content": "Written.", "id": "m4"},
    ]
    session_id = await conversations.create_session("u")
    await conversations.append(session_id, messages[:2])
    await conversations.append(session_id, messages[2:])
    assert await read_messages(conversations, session_id) == normalize_many(messages)
    (call,) = await conversations.store.tool_calls(session_id)
    assert (call.name, call.status) == ("wiki_upsert", "succeeded")


async def test_invalid_message_changes_nothing(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    with pytest.raises(EnvelopeError, match="unsupported type"):
        await conversations.update_session(session_id, [ROW, {"schema": "x", "version": 1, "type": "song"}])
    assert await read_messages(conversations, session_id) == []


async def test_update_replaces_all_messages(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    first, second, third = (text("user", content) for content in ("one", "two", "three"))
    for messages in (
        [first],
        [first, second],
        [first, second],
        [first, third],
        [third],
        [],
        [second, first],
        [second, first, third],
    ):
        assert await conversations.update_session(session_id, messages)
        assert await read_messages(conversations, session_id) == messages
    listed = await conversations.list_sessions(1)
    assert [session["session_id"] for session in listed] == [session_id]


async def test_growing_list_stays_in_its_session(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    messages = [text("user", str(number)) for number in range(5)]
    for end in range(6):
        await conversations.update_session(session_id, messages[:end])
    assert (await conversations.store.get_session(session_id)).last_seq == 5


async def test_canonical_session_round_trips(store: Store) -> None:
    conversations = EnvelopeStore(store)
    session = await store.create_session()
    await store.append(
        session.id,
        [text_message("Look."), call_message("tu_01HZ100"), result_message("tu_01HZ100"), answer_message("Seen.")],
    )
    before = await store.read(session.id)
    messages = await read_messages(conversations, session.id)
    assert [message["type"] for message in messages] == ["text", "tool_call", "tool_result", "text"]
    assert await conversations.update_session(session.id, [*messages, {"role": "user", "content": "And?"}])
    after = await store.read(session.id)
    assert after[:4] == before
    assert (await read_messages(conversations, session.id))[4] == text("user", "And?")


async def test_canonical_session_is_copied_into_other_session(store: Store) -> None:
    conversations = EnvelopeStore(store)
    session = await store.create_session()
    await store.append(
        session.id,
        [text_message("Look."), call_message("tu_01HZ100"), result_message("tu_01HZ100"), answer_message("Seen.")],
    )
    copy = await conversations.create_session(1)
    assert await conversations.update_session(copy, await read_messages(conversations, session.id))
    original, copied = await store.read(session.id), await store.read(copy)
    assert [row.message.content for row in original] == [row.message.content for row in copied]
    assert await conversations.update_session(copy, await read_messages(conversations, copy))
    assert await store.read(copy) == copied


async def test_repeated_calls_of_one_tool_are_distinct(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    for turn in range(3):
        await conversations.append(session_id, [tool_call("", "look", {"turn": turn}, turn)])
        await conversations.append(session_id, [tool_result("seen", "look", {"success": turn != 1})])
    calls = await conversations.store.tool_calls(session_id)
    assert [call.status for call in calls] == ["succeeded", "failed", "succeeded"]


async def test_concurrent_appends_lose_no_message(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    contents = [str(number) for number in range(8)]
    await asyncio.gather(*(conversations.append(session_id, [text("user", item)]) for item in contents))
    assert sorted(message["content"] for message in await read_messages(conversations, session_id)) == contents


async def test_delete_removes_replaced_messages(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    await conversations.update_session(session_id, [text("user", "one")])
    await conversations.update_session(session_id, [text("user", "two")])
    assert await conversations.delete_session(session_id)
    assert await conversations.delete_session(session_id)
    assert await conversations.get_session(session_id) is None
    assert await conversations.store.list_sessions() == []


async def test_sessions_are_filtered_by_user_agent_and_context(conversations: EnvelopeStore) -> None:
    expected = await conversations.create_session(1, agent_id=2, context="pipeline")
    for user_id, agent_id, context in ((1, 2, "chat"), (1, 3, "pipeline"), (2, 2, "pipeline")):
        await conversations.create_session(user_id, agent_id, context=context)
    sessions = await conversations.list_sessions(1, 2, "pipeline")
    assert [session["session_id"] for session in sessions] == [expected]
    assert "messages" not in sessions[0]


async def test_session_expires_one_day_after_last_change(store: Store, clock: Clock) -> None:
    store.clock = clock
    conversations = EnvelopeStore(store)
    session_id = await conversations.create_session(1)
    clock.move(hours=23)
    await conversations.append(session_id, [ROW])
    clock.move(hours=23)
    assert await read_messages(conversations, session_id) == [normalize(ROW)]
    clock.move(hours=1)
    assert await conversations.get_session(session_id) is None
    assert await conversations.list_sessions(1) == []
    assert await EnvelopeStore(store, expires_after=None).get_session(session_id) is not None
    assert await EnvelopeStore(store, expires_after=timedelta(days=2)).get_session(session_id) is not None


async def test_pending_session_is_found_again(store: Store, clock: Clock) -> None:
    store.clock = clock
    conversations = EnvelopeStore(store)
    assert await conversations.get_recent_pending_session(1) is None
    first = await conversations.create_session(1, token=5)
    clock.move(seconds=1)
    second = await conversations.create_session(1)

    async def pending(**filters: Any) -> str | None:
        session = await conversations.get_recent_pending_session(1, **filters)
        return None if session is None else session["session_id"]

    assert await pending() == second
    assert await pending(token=5) == first
    assert await pending(context="pipeline") is None
    await conversations.update_session(second, [ROW])
    assert await pending() == first
    await conversations.update_session(second, [ROW], {"status": "processing"})
    assert await pending() == second
    clock.move(seconds=601)
    assert await pending() is None


def test_random_messages_are_read_as_envelopes(store: Store, runner: asyncio.Runner) -> None:
    @settings(max_examples=scale(8, 25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists((rows | envelopes).filter(lambda message: not has_dragoman_metadata(message)), max_size=4))
    def check(messages: list[dict[str, Any]]) -> None:
        async def store_and_read() -> list[dict[str, Any]]:
            conversations = EnvelopeStore(store)
            session_id = await conversations.create_session(1)
            await conversations.update_session(session_id, messages)
            return await read_messages(conversations, session_id)

        assert runner.run(store_and_read()) == normalize_many(messages)

    check()
