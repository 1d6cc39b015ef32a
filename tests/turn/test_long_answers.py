"""Answers of many pieces: what was flushed in the middle does not hold up the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.adapter import RequestContext
from dragoman.event import TextDelta
from dragoman.ids import ToolIds
from dragoman.message import Message, MessageMetadata, MessageStatus, Role, TextBlock
from dragoman.turn.model_call import FLUSH_CHARACTERS, AnswerWriter
from tests.turn.fake_agent import open_fake_agent


@pytest.mark.parametrize("steps", range(8))
async def test_an_answer_that_ends_just_when_it_is_flushed_ends(steps: int, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        adapter = agent.services.adapter(agent.services.get_model("anthropic"), ToolIds())
        empty = Message(
            id=it.store.new_id(),
            session_id=it.session,
            role=Role.ASSISTANT,
            content=(TextBlock(""),),
            metadata=MessageMetadata(status=MessageStatus.PARTIAL),
            created_at=agent.services.clock(),
        )
        (row,) = await it.store.append(it.session, empty)
        context = RequestContext(session_id=it.session, message_id=empty.id, created_at=empty.created_at)
        growing = AnswerWriter(it.store, row, adapter, context)
        growing.feed(TextDelta(0, "a"))
        for _ in range(3):
            await asyncio.sleep(0)
        growing.feed(TextDelta(0, "b" * FLUSH_CHARACTERS))
        for _ in range(steps):
            await asyncio.sleep(0)
        whole = growing.message(growing.accumulator.reply(), context, MessageStatus.CANCELLED)
        async with asyncio.timeout(60):
            ended = await growing.finish(whole)
        assert ended.message.content == (TextBlock("a" + "b" * FLUSH_CHARACTERS),)


async def test_an_answer_of_many_pieces_is_answered_whole(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        it.fakes["anthropic"].reply("word " * 6000)
        async with asyncio.timeout(60):
            assert (await agent.run(it.session, "Tell me a lot")).fault is None
        (row,) = await it.store.tail(it.session, 1)
        assert row.message.content == (TextBlock("word " * 6000),)
