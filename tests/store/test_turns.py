"""Tests of the combined reads and writes of a turn on every engine."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.errors import ConflictError, UnknownSessionError
from dragoman.message import Message, MessageStatus, TextBlock
from dragoman.store import Session, Store
from tests.store.messages import answer_message, create_usage, list_texts, text_message

LEARNED = [("openai", "tu_1", "call_1"), ("mistral", "tu_1", "abc123def")]


async def append_partial(store: Store, session_id: str) -> Message:
    _, row = await store.append(session_id, [text_message("hi"), answer_message("", status=MessageStatus.PARTIAL)])
    return row.message


def end_message(message: Message) -> Message:
    metadata = message.metadata.replace(status=MessageStatus.COMPLETE)
    return message.replace(content=(TextBlock("Hello."),), metadata=metadata)


async def test_open_returns_history_and_tool_ids(store: Store) -> None:
    session = await store.create_session(title="long", metadata={"a": 1})
    assert (await store.turns.open(session.id)).rows == []
    for start in range(0, 650, 50):
        await store.append(session.id, [text_message(f"line {number}") for number in range(start, start + 50)])
    await store.save_tool_ids(session.id, LEARNED)
    found = await store.turns.open(session.id)
    assert found.session == await store.get_session(session.id)
    assert list_texts(found.rows) == [f"line {number}" for number in range(650)]
    assert found.tool_ids == tuple(LEARNED)
    assert [row async for row in store.history(session.id)] == found.rows


@pytest.mark.parametrize("count", [1, 99, 100, 101, 600, 601])
async def test_open_reads_history_of_any_length(store: Store, count: int) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message(f"line {number}") for number in range(count)])
    assert len((await store.turns.open(session.id)).rows) == count


async def test_open_of_fork_includes_shared_history(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, [text_message("one"), text_message("two")])
    await store.save_tool_ids(session.id, LEARNED)
    fork = await store.fork(session.id, 1)
    await store.append(fork.id, text_message("three"))
    found = await store.turns.open(fork.id)
    assert list_texts(found.rows) == ["one", "three"]
    assert found.tool_ids == tuple(LEARNED)


async def test_open_of_unknown_session_raises(store: Store) -> None:
    with pytest.raises(UnknownSessionError):
        await store.turns.open("sess_none")


async def start_turn(store: Store, session: Session, messages: list[Message], *, is_new: bool) -> Session:
    async with store.turns.lease(session.id).until_end() as lease:
        await (await store.turns.start(lease, session, store.turns.place(session, messages), is_new=is_new))
    return await store.get_session(session.id)


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)], ids=["ids increase", "ids do not increase"])
async def test_new_session_equals_existing_session(store: Store, numbers: tuple[int, ...]) -> None:
    messages = [text_message(f"lighthouse {number}").replace(id=f"{number:026}") for number in numbers]
    created = await store.create_session(title="a")
    new = msgspec.structs.replace(created, id="new")
    both = [
        await start_turn(store, created, messages, is_new=False),
        await start_turn(store, new, messages, is_new=True),
    ]
    ends = [(session.title, session.last_seq, session.updated_at >= session.created_at) for session in both]
    assert ends == [("a", 2, True)] * 2
    assert {hit.session_id for hit in await store.search("lighthouse")} == {created.id, "new"}
    for session in both:
        (row,) = await store.append(session.id, text_message("dark"))
        assert row.seq == 3
        assert list_texts(await store.read(session.id)) == [*(f"lighthouse {number}" for number in numbers), "dark"]
    assert (await store.verify()).is_sound


async def test_new_session_with_known_id_is_rejected(store: Store) -> None:
    session = await store.create_session()
    with pytest.raises(ConflictError) as error:
        await start_turn(store, session, [text_message("hi")], is_new=True)
    assert error.value.code == "session_exists"
    assert await store.read(session.id) == []


async def test_end_stores_answer_ids_and_entries_and_releases_lease(store: Store) -> None:
    session = await store.create_session()
    await store.turns.acquire(session.id, "me")
    arriving = await append_partial(store, session.id)
    entries = [{"type": "task", "content": "hi"}, {"type": "final", "content": "Hello."}]
    row = await store.turns.finish_answer(
        session.id, end_message(arriving), tool_ids=LEARNED, entries=entries, agent_key="clerk", owner="me"
    )
    assert row == (await store.read(session.id))[1]
    assert await store.tool_ids(session.id) == tuple(LEARNED)
    assert [entry["type"] for entry in await store.entries.agent(session.id, "clerk")] == ["task", "final"]
    await store.turns.acquire(session.id, "you")
    assert (await store.verify()).is_sound


async def test_end_of_ended_answer_stores_nothing(store: Store) -> None:
    session = await store.create_session()
    await store.turns.acquire(session.id, "me")
    arriving = await append_partial(store, session.id)
    await store.turns.finish_answer(session.id, end_message(arriving))
    entry = {"type": "final", "content": "Hello."}
    with pytest.raises(ConflictError) as caught:
        await store.turns.finish_answer(
            session.id, end_message(arriving), tool_ids=LEARNED, entries=[entry], agent_key="clerk", owner="me"
        )
    assert caught.value.code == "message_ended"
    assert await store.tool_ids(session.id) == ()
    assert await store.entries.agent(session.id, "clerk") == []
    with pytest.raises(ConflictError):
        await store.turns.acquire(session.id, "you")


async def test_released_lease_is_not_released_again(store: Store) -> None:
    session = await store.create_session()
    async with store.turns.lease(session.id) as tenure:
        arriving = await append_partial(store, session.id)
        await store.turns.finish_answer(session.id, end_message(arriving), owner=tenure.owner)
        tenure.confirm_release()
        await store.turns.acquire(session.id, "you")
    with pytest.raises(ConflictError):
        await store.turns.acquire(session.id, "me")


async def test_usage_of_summary_is_counted(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("a summary", model="m", usage=create_usage(10, 20, "0.5")))
    (total,) = await store.costs.totals("session", session=session.id)
    assert (total.input_tokens, total.output_tokens, str(total.cost_usd)) == (10, 20, "0.5")
    assert (await store.verify()).is_sound


async def test_late_renewal_leaves_no_lease(store: Store) -> None:
    session = (await store.create_session()).id
    for _ in range(20):
        async with store.turns.lease(session) as tenure:
            assert tenure._renewal_timer is not None
            tenure._renewal_timer.cancel()
            tenure._start_renewal()  # concurrent with the end
            await store.turns.release(session, tenure.owner)
            tenure.confirm_release()
        await store.turns.acquire(session, "somebody else")
        await store.turns.release(session, "somebody else")
