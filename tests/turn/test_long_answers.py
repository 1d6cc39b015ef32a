"""Tests of answers of many pieces: flushes during the stream do not block its end."""

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
async def test_answer_that_ends_during_a_flush_is_finished(steps: int, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        adapter = agent.services.adapter(agent.services.get_model("anthropic"), ToolIds())
        empty = Message(
            id=harness.store.new_id(),
            session_id=harness.session,
            role=Role.ASSISTANT,
            content=(TextBlock(""),),
            metadata=MessageMetadata(status=MessageStatus.PARTIAL),
            created_at=agent.services.clock(),
        )
        (row,) = await harness.store.append(harness.session, empty)
        context = RequestContext(session_id=harness.session, message_id=empty.id, created_at=empty.created_at)
        writer = AnswerWriter(harness.store, row, adapter, context)
        writer.feed(TextDelta(0, "a"))
        for _ in range(3):
            await asyncio.sleep(0)
        writer.feed(TextDelta(0, "b" * FLUSH_CHARACTERS))
        for _ in range(steps):
            await asyncio.sleep(0)
        whole = writer.message(writer.accumulator.reply(), context, MessageStatus.CANCELLED)
        async with asyncio.timeout(60):
            ended = await writer.finish(whole)
        assert ended.message.content == (TextBlock("a" + "b" * FLUSH_CHARACTERS),)


async def test_answer_of_many_pieces_is_stored_completely(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        harness.fakes["anthropic"].reply("word " * 6000)
        async with asyncio.timeout(60):
            assert (await agent.run(harness.session, "Tell me a lot")).fault is None
        (row,) = await harness.store.tail(harness.session, 1)
        assert row.message.content == (TextBlock("word " * 6000),)
