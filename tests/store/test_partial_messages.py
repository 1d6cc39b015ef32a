"""A message that is still arriving grows in its place until it ends, on every engine."""

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


async def begun(store: Store, session_id: str) -> Message:
    (row,) = await store.append(session_id, answer_message("He", status=MessageStatus.PARTIAL))
    return row.message


def grown(message: Message, text: str, status: MessageStatus = MessageStatus.PARTIAL) -> Message:
    return message.replace(content=(TextBlock(text),), metadata=message.metadata.replace(status=status))


async def test_a_message_that_arrives_grows_in_its_place_until_it_ends(store: Store) -> None:
    session = await store.create_session()
    await store.append(session.id, text_message("hi"))
    arriving = await begun(store, session.id)
    await store.append(session.id, text_message("next"))
    more = await store.update(session.id, grown(arriving, "Hello"))
    assert more.seq == 2
    assert (await store.read(session.id))[1] == more
    done = await store.update(session.id, grown(arriving, "Hello.", MessageStatus.COMPLETE))
    assert list_texts(await store.read(session.id)) == ["hi", "Hello.", "next"]
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


async def test_of_many_who_end_a_message_one_does(database_location: StoreLocation) -> None:
    async with database_location.open() as one, database_location.open() as two:
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
    (row,) = await store.append(session.id, call_message("tu_1", "tu_2", status=MessageStatus.PARTIAL))
    invalid = InvalidToolUseBlock("tu_3", "look", "{", "cut")
    content = (row.message.content[0], row.message.content[1], invalid)
    await store.update(session.id, row.message.replace(content=content))
    assert await read_call_states(store, session.id) == {"tu_1": "pending", "tu_2": "pending", "tu_3": "failed"}
    (answer,) = await store.append(session.id, result_message("tu_1"))  # while the others still arrive
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


async def test_an_answer_that_arrives_can_turn_out_to_be_a_failure(store: Store) -> None:
    session = await store.create_session()
    partial = result_message("tu_1").replace(
        metadata=result_message("tu_1").metadata.replace(status=MessageStatus.PARTIAL)
    )
    _, row = await store.append(session.id, [call_message("tu_1"), partial])
    await store.update(session.id, row.message.replace(content=result_message("tu_1", is_error=True).content))
    assert await read_call_states(store, session.id) == {"tu_1": "failed"}


async def test_what_a_message_consumed_is_counted_once_however_often_it_grew(store: Store) -> None:
    session = await store.create_session()
    arriving = await begun(store, session.id)
    for tokens in (1, 5, 9):
        metadata = arriving.metadata.replace(usage=create_usage(output=tokens, cost="0.1"))
        await store.update(session.id, arriving.replace(metadata=metadata))
    (total,) = await store.costs.totals("session")
    assert (total.messages, total.output_tokens, total.cost_usd) == (1, 9, Decimal("0.1"))
