"""Tests of partial messages, which are updated in place until they end, on every engine."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from dragoman.errors import (
    ConflictError,
    FormatError,
    UnknownMessageError,
)
from dragoman.message import InvalidToolUseBlock, Message, MessageStatus, TextBlock, ToolUseBlock
from dragoman.store import Row, Store
from tests.store.conftest import StoreLocation
from tests.store.messages import (
    answer_message,
    call_message,
    create_usage,
    list_texts,
    read_call_states,
    result_message,
    text_message,
)


async def append_partial(store: Store, session_id: str) -> Message:
    (row,) = await store.append(session_id, answer_message("He", status=MessageStatus.PARTIAL))
    return row.message


def extend(message: Message, text: str, status: MessageStatus = MessageStatus.PARTIAL) -> Message:
    return message.replace(content=(TextBlock(text),), metadata=message.metadata.replace(status=status))


async def test_partial_message_is_updated_in_place(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("hi"))
    partial = await append_partial(store, session.id)
    await store.append(session.id, text_message("next"))
    more = await store.update(session.id, extend(partial, "Hello"))
    assert more.seq == 2
    assert (await store.read(session.id))[1] == more
    ended = await store.update(session.id, extend(partial, "Hello.", MessageStatus.COMPLETE))
    assert list_texts(await store.read(session.id)) == ["hi", "Hello.", "next"]
    assert await store.get_message(session.id, partial.id) == ended
    assert (await store.get_session(session.id)).last_seq == 3


@pytest.mark.parametrize("end", [status for status in MessageStatus if status is not MessageStatus.PARTIAL])
async def test_ended_message_cannot_be_updated(store: Store, end: MessageStatus) -> None:
    session = await store.create_session()
    partial = await append_partial(store, session.id)
    ended = await store.update(session.id, extend(partial, "Hello.", end))
    with pytest.raises(ConflictError) as caught:
        await store.update(session.id, extend(partial, "Other."))
    assert caught.value.code == "message_ended"
    assert await store.read(session.id) == [ended]


async def test_unknown_message_cannot_be_updated(store: Store) -> None:
    session = await store.create_session()
    partial = await append_partial(store, session.id)
    with pytest.raises(UnknownMessageError):
        await store.update(session.id, partial.replace(id="none"))
    with pytest.raises(FormatError):
        await store.update((await store.create_session()).id, partial)


async def test_one_of_concurrent_ends_succeeds(database_location: StoreLocation) -> None:
    async with database_location.open() as first_store, database_location.open() as second_store:
        session = await first_store.create_session()
        partial = await append_partial(first_store, session.id)
        ends = [extend(partial, f"end {number}", MessageStatus.COMPLETE) for number in range(8)]
        outcomes = await asyncio.gather(
            *((first_store, second_store)[number % 2].update(session.id, end) for number, end in enumerate(ends)),
            return_exceptions=True,
        )
        (won,) = [outcome for outcome in outcomes if isinstance(outcome, Row)]
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 7
        assert await second_store.read(session.id) == [won]


async def test_tool_calls_follow_latest_content(store: Store) -> None:
    session = await store.create_session()
    (row,) = await store.append(session.id, call_message("tu_1", "tu_2", status=MessageStatus.PARTIAL))
    invalid = InvalidToolUseBlock("tu_3", "look", "{", "cut")
    content = (row.message.content[0], row.message.content[1], invalid)
    await store.update(session.id, row.message.replace(content=content))
    assert await read_call_states(store, session.id) == {"tu_1": "pending", "tu_2": "pending", "tu_3": "failed"}
    (answer,) = await store.append(session.id, result_message("tu_1"))  # while the message is partial
    await store.cancel_tool_call(session.id, "tu_2")
    content = (*content[:2], ToolUseBlock("tu_3", "look", {}), ToolUseBlock("tu_4", "look", {}))
    ended = row.message.metadata.replace(status=MessageStatus.COMPLETE)
    await store.update(session.id, row.message.replace(content=content, metadata=ended))
    assert await read_call_states(store, session.id) == {
        "tu_1": "succeeded",
        "tu_2": "cancelled",
        "tu_3": "pending",
        "tu_4": "pending",
    }
    assert (await store.tool_calls(session.id, "succeeded"))[0].result_message_id == answer.message.id


async def test_partial_result_can_become_error(store: Store) -> None:
    session = await store.create_session()
    partial = result_message("tu_1").replace(
        metadata=result_message("tu_1").metadata.replace(status=MessageStatus.PARTIAL)
    )
    _, row = await store.append(session.id, [call_message("tu_1"), partial])
    await store.update(session.id, row.message.replace(content=result_message("tu_1", is_error=True).content))
    assert await read_call_states(store, session.id) == {"tu_1": "failed"}


async def test_usage_of_partial_message_is_counted_once(store: Store) -> None:
    session = await store.create_session()
    partial = await append_partial(store, session.id)
    for tokens in (1, 5, 9):
        metadata = partial.metadata.replace(usage=create_usage(output=tokens, cost="0.1"))
        await store.update(session.id, partial.replace(metadata=metadata))
    (total,) = await store.costs.totals("session")
    assert (total.messages, total.output_tokens, total.cost_usd) == (1, 9, Decimal("0.1"))
