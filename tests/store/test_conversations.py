"""Sessions of envelopes, on every engine."""

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
from tests.test_envelope_converter import envelopes, rides, rows

ROW = {
    "role": "assistant",
    "content": "AI ACTION (Turn 1): Executing Wiki Upsert",
    "metadata": {"type": "tool_call", "tool_name": "wiki_upsert", "parameters": {"title": "Example"}, "turn": 1},
}


@pytest.fixture
def conversations(store: Store) -> EnvelopeStore:
    return EnvelopeStore(store)


async def told(conversations: EnvelopeStore, session_id: str) -> list[dict[str, Any]]:
    session = await conversations.get_session(session_id)
    assert session is not None
    messages: list[dict[str, Any]] = session["messages"]
    return messages


async def test_a_session_has_everything_that_a_host_asks_for(store: Store, clock: Clock) -> None:
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


async def test_a_session_that_is_not_there_is_none_and_changing_it_is_refused(conversations: EnvelopeStore) -> None:
    assert await conversations.get_session("none") is None
    assert not await conversations.update_session("none", [])
    assert not await conversations.append("none", [])
    assert not await conversations.update_title("none", "x")
    assert not await conversations.mark_read("none")
    assert await conversations.delete_session("none")


async def test_either_shape_goes_in_and_envelopes_come_out(conversations: EnvelopeStore) -> None:
    given_: list[dict[str, Any]] = [
        {"role": "user", "content": "Write it."},
        ROW,
        tool_result("done", "wiki_upsert", {"success": True, "turn": 1}),
        {"version": 1, "type": "final_result", "data": {"k": 1}, "content": "Written.", "id": "m4"},
    ]
    session_id = await conversations.create_session("u")
    await conversations.append(session_id, given_[:2])
    await conversations.append(session_id, given_[2:])
    assert await told(conversations, session_id) == normalize_many(given_)
    (call,) = await conversations.store.tool_calls(session_id)
    assert (call.name, call.status) == ("wiki_upsert", "succeeded")


async def test_what_is_no_message_changes_nothing(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    with pytest.raises(EnvelopeError, match="unsupported type"):
        await conversations.update_session(session_id, [ROW, {"schema": "x", "version": 1, "type": "song"}])
    assert await told(conversations, session_id) == []


async def test_an_update_replaces_the_whole_list(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    one, two, three = (text("user", words) for words in ("one", "two", "three"))
    for messages in ([one], [one, two], [one, two], [one, three], [three], [], [two, one], [two, one, three]):
        assert await conversations.update_session(session_id, messages)
        assert await told(conversations, session_id) == messages
    listed = await conversations.list_sessions(1)
    assert [session["session_id"] for session in listed] == [session_id]


async def test_a_list_that_only_grows_stays_in_its_session(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    messages = [text("user", str(number)) for number in range(5)]
    for end in range(6):
        await conversations.update_session(session_id, messages[:end])
    assert (await conversations.store.get_session(session_id)).last_seq == 5


async def test_a_canonical_session_is_given_out_and_taken_back_unchanged(store: Store) -> None:
    conversations = EnvelopeStore(store)
    session = await store.create_session()
    await store.append(
        session.id,
        [text_message("Look."), call_message("tu_01HZ100"), result_message("tu_01HZ100"), answer_message("Seen.")],
    )
    before = await store.read(session.id)
    messages = await told(conversations, session.id)
    assert [message["type"] for message in messages] == ["text", "tool_call", "tool_result", "text"]
    assert await conversations.update_session(session.id, [*messages, {"role": "user", "content": "And?"}])
    after = await store.read(session.id)
    assert after[:4] == before
    assert (await told(conversations, session.id))[4] == text("user", "And?")


async def test_a_canonical_session_can_be_put_into_another_one(store: Store) -> None:
    conversations = EnvelopeStore(store)
    session = await store.create_session()
    await store.append(
        session.id,
        [text_message("Look."), call_message("tu_01HZ100"), result_message("tu_01HZ100"), answer_message("Seen.")],
    )
    copy = await conversations.create_session(1)
    assert await conversations.update_session(copy, await told(conversations, session.id))
    one, other = await store.read(session.id), await store.read(copy)
    assert [row.message.content for row in one] == [row.message.content for row in other]
    assert await conversations.update_session(copy, await told(conversations, copy))
    assert await store.read(copy) == other


async def test_calls_of_one_tool_in_several_appends_are_told_apart(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    for turn in range(3):
        await conversations.append(session_id, [tool_call("", "look", {"turn": turn}, turn)])
        await conversations.append(session_id, [tool_result("seen", "look", {"success": turn != 1})])
    calls = await conversations.store.tool_calls(session_id)
    assert [call.status for call in calls] == ["succeeded", "failed", "succeeded"]


async def test_of_many_who_append_nobody_is_lost(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    words = [str(number) for number in range(8)]
    await asyncio.gather(*(conversations.append(session_id, [text("user", one)]) for one in words))
    assert sorted(message["content"] for message in await told(conversations, session_id)) == words


async def test_a_deleted_session_is_gone_with_what_it_replaced(conversations: EnvelopeStore) -> None:
    session_id = await conversations.create_session(1)
    await conversations.update_session(session_id, [text("user", "one")])
    await conversations.update_session(session_id, [text("user", "two")])
    assert await conversations.delete_session(session_id)
    assert await conversations.delete_session(session_id)
    assert await conversations.get_session(session_id) is None
    assert await conversations.store.list_sessions() == []


async def test_sessions_are_listed_by_user_agent_and_context(conversations: EnvelopeStore) -> None:
    wanted = await conversations.create_session(1, agent_id=2, context="pipeline")
    for user_id, agent_id, context in ((1, 2, "chat"), (1, 3, "pipeline"), (2, 2, "pipeline")):
        await conversations.create_session(user_id, agent_id, context=context)
    found = await conversations.list_sessions(1, 2, "pipeline")
    assert [session["session_id"] for session in found] == [wanted]
    assert "messages" not in found[0]


async def test_a_session_expires_a_day_after_it_last_changed(store: Store, clock: Clock) -> None:
    store.clock = clock
    conversations = EnvelopeStore(store)
    session_id = await conversations.create_session(1)
    clock.move(hours=23)
    await conversations.append(session_id, [ROW])
    clock.move(hours=23)
    assert await told(conversations, session_id) == [normalize(ROW)]
    clock.move(hours=1)
    assert await conversations.get_session(session_id) is None
    assert await conversations.list_sessions(1) == []
    assert await EnvelopeStore(store, expires_after=None).get_session(session_id) is not None
    assert await EnvelopeStore(store, expires_after=timedelta(days=2)).get_session(session_id) is not None


async def test_a_client_that_asks_again_finds_the_session_that_it_began(store: Store, clock: Clock) -> None:
    store.clock = clock
    conversations = EnvelopeStore(store)
    assert await conversations.get_recent_pending_session(1) is None
    first = await conversations.create_session(1, token=5)
    clock.move(seconds=1)
    second = await conversations.create_session(1)

    async def pending(**asked: Any) -> str | None:
        found = await conversations.get_recent_pending_session(1, **asked)
        return None if found is None else found["session_id"]

    assert await pending() == second
    assert await pending(token=5) == first
    assert await pending(context="pipeline") is None
    await conversations.update_session(second, [ROW])
    assert await pending() == first
    await conversations.update_session(second, [ROW], {"status": "processing"})
    assert await pending() == second
    clock.move(seconds=601)
    assert await pending() is None


def test_whatever_is_put_in_comes_out_as_envelopes(store: Store, runner: asyncio.Runner) -> None:
    @settings(max_examples=scale(8, 25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists((rows | envelopes).filter(lambda message: not rides(message)), max_size=4))
    def holds(messages: list[dict[str, Any]]) -> None:
        async def put_and_get() -> list[dict[str, Any]]:
            conversations = EnvelopeStore(store)
            session_id = await conversations.create_session(1)
            await conversations.update_session(session_id, messages)
            return await told(conversations, session_id)

        assert runner.run(put_and_get()) == normalize_many(messages)

    holds()
