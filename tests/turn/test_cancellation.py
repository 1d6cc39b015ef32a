"""A turn that is stopped, at every place where it can be: what it leaves is a history that the next turn can use."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from dragoman.bus import Event
from dragoman.errors import DragomanError
from dragoman.exchange import SideEffects
from dragoman.message import Message, MessageStatus, ToolResultBlock, ToolUseBlock
from dragoman.rules import check
from dragoman.tools import Confirmation, ConfirmationRequest, tool
from dragoman.turn import Agent
from tests.fake_providers import call_part, text_part, thinking_part
from tests.turn.fake_agent import FakeAgent, open_fake_agent

ENDS = ("turn.completed", "turn.failed", "turn.cancelled")


@tool(side_effects=SideEffects.NONE)
async def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    await asyncio.sleep(0)
    return str(a + b)


@tool(side_effects=SideEffects.WRITE)
async def note(word: str) -> str:
    """Note a word."""
    await asyncio.sleep(0)
    return f"noted {word}"


async def allowed(_: ConfirmationRequest) -> Confirmation:
    await asyncio.sleep(0)
    return Confirmation(allow=True)


class Stopped:
    """A coroutine whose task is cancelled when it waits for the n-th time, and perhaps some times after that."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int, again_after: tuple[int, ...] = ()) -> None:
        self._work = work
        self._when = {at, *(at + more for more in again_after)}
        self.at = at
        self.waits = 0

    @types.coroutine
    def run(self) -> Generator[Any, Any, None]:
        send, given = self._work.send, None
        while True:
            try:
                awaited = send(given)
            except StopIteration:
                return
            self.waits += 1
            if self.waits in self._when:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                given = yield awaited
                send = self._work.send
            except BaseException as error:  # noqa: BLE001  it is the coroutine's
                send, given = self._work.throw, error  # type: ignore[assignment]

    async def stopped(self) -> bool:
        """Run it; whether it was stopped on its way."""
        task = asyncio.ensure_future(self.run())
        await asyncio.wait([task])
        if task.cancelled():
            return True
        task.result()
        return self.waits >= self.at


class Watched:
    """An agent with two tools, one of which asks first, and everything that its bus says."""

    def __init__(self, it: FakeAgent, agent: Agent, said: list[Event]) -> None:
        self.it = it
        self.agent = agent
        self.said = said
        self.session = it.session

    async def new(self) -> None:
        """Another session, with the same answers to come."""
        self.session = (await self.it.store.create_session()).id
        self.said.clear()
        fake = self.it.fakes["anthropic"]
        fake.clear_script()
        fake.answer_with(
            thinking_part("Hm."),
            text_part("one two"),
            call_part("add", {"a": 1, "b": 2}),
            call_part("note", {"word": "x"}),
        )
        fake.reply("three")

    async def turn(self) -> None:
        async for _ in self.agent.turn(self.session, "What is 1 + 2?"):
            pass

    async def kept(self) -> list[Message]:
        return [row.message async for row in self.it.store.history(self.session)]

    async def check(self) -> None:
        """Check the invariants that hold after a turn, however it ended."""
        await self.agent.bus.drain()
        told = [event.type for event in self.said if event.session_id == self.session]
        assert sum(name in ENDS for name in told) == ("turn.started" in told), told
        assert told.count("llm.call_started") == told.count("llm.call_completed") + told.count("llm.call_failed"), told
        kept = await self.kept()
        assert not [one for one in kept if one.metadata.status is MessageStatus.PARTIAL], kept
        assert check(kept) == ()
        calls = [block.id for one in kept for block in one.content if isinstance(block, ToolUseBlock)]
        results = [block.tool_use_id for one in kept for block in one.content if isinstance(block, ToolResultBlock)]
        whole = [one for one in kept if one.metadata.status is MessageStatus.COMPLETE]
        owed = [block.id for one in whole for block in one.content if isinstance(block, ToolUseBlock)]
        assert set(owed) <= set(results) <= set(calls)
        assert len(results) == len(set(results))
        fake = self.it.fakes["anthropic"]
        fake.clear_script()
        assert (await self.agent.run(self.session, "And now?")).fault is None
        assert fake.refusals == []


@contextlib.asynccontextmanager
async def watched(folder: Path, **given: Any) -> AsyncIterator[Watched]:
    async with open_fake_agent(folder, "anthropic") as it:
        agent = await it.agent(tools=[add, note], confirm=allowed, **given)
        said: list[Event] = []
        agent.bus.subscribe("test", said.append)
        yield Watched(it, agent, said)


@pytest.mark.parametrize("again_after", [(), (1,), (1, 2, 3)], ids=["once", "twice", "again and again"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_turn_may_be_cancelled_wherever_it_waits(
    again_after: tuple[int, ...],
    *,
    streamed: bool,
    tmp_path: Path,
) -> None:
    async with watched(tmp_path, stream=streamed) as it:
        at = 0
        is_stopped = True
        while is_stopped:
            at += 1
            await it.new()
            is_stopped = await Stopped(it.turn(), at, again_after).stopped()
            try:
                await it.check()
            except (AssertionError, DragomanError) as error:
                raise AssertionError(f"cancelled at wait {at}: {error}") from error
        assert at > 10  # every write is a wait


async def test_a_turn_may_be_left_at_every_event(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        left_at = 0
        is_left = True
        while is_left:
            left_at += 1
            await it.new()
            is_left = False
            async with contextlib.aclosing(it.agent.turn(it.session, "What is 1 + 2?")) as events:
                count = 0
                async for _ in events:
                    count += 1
                    if count == left_at:
                        is_left = True
                        break
            try:
                await it.check()
            except (AssertionError, DragomanError) as error:
                raise AssertionError(f"left at event {left_at}: {error}") from error
        assert left_at > 15
