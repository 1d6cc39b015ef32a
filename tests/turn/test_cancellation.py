"""Tests of cancellation at every point of a turn: the stored history can be used by the next turn."""

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


async def allow(_: ConfirmationRequest) -> Confirmation:
    await asyncio.sleep(0)
    return Confirmation(allow=True)


class CancelledCoroutine:
    """A coroutine whose task is cancelled at its n-th wait, and optionally some waits later again."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int, again_after: tuple[int, ...] = ()) -> None:
        self._work = work
        self._cancel_at = {at, *(at + more for more in again_after)}
        self.at = at
        self.waits = 0

    @types.coroutine
    def run(self) -> Generator[Any, Any, None]:
        send, value = self._work.send, None
        while True:
            try:
                awaited = send(value)
            except StopIteration:
                return
            self.waits += 1
            if self.waits in self._cancel_at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                value = yield awaited
                send = self._work.send
            except BaseException as error:  # noqa: BLE001  the exception is passed to the coroutine
                send, value = self._work.throw, error  # type: ignore[assignment]

    async def is_cancelled(self) -> bool:
        """Run the coroutine, and return whether it was cancelled before its end."""
        task = asyncio.ensure_future(self.run())
        await asyncio.wait([task])
        if task.cancelled():
            return True
        task.result()
        return self.waits >= self.at


class ObservedAgent:
    """An agent with two tools, one of which needs approval, and the events of its bus."""

    def __init__(self, harness: FakeAgent, agent: Agent, events: list[Event]) -> None:
        self.harness = harness
        self.agent = agent
        self.events = events
        self.session = harness.session

    async def reset(self) -> None:
        """Create another session, with the same answers."""
        self.session = (await self.harness.store.create_session()).id
        self.events.clear()
        fake = self.harness.fakes["anthropic"]
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

    async def read_messages(self) -> list[Message]:
        return [row.message async for row in self.harness.store.history(self.session)]

    async def check(self) -> None:
        """Check the invariants after a turn that ended in any way."""
        await self.agent.bus.drain()
        types = [event.type for event in self.events if event.session_id == self.session]
        assert sum(name in ENDS for name in types) == ("turn.started" in types), types
        assert types.count("llm.call_started") == types.count("llm.call_completed") + types.count("llm.call_failed"), (
            types
        )
        stored = await self.read_messages()
        assert not [message for message in stored if message.metadata.status is MessageStatus.PARTIAL], stored
        assert check(stored) == ()
        calls = [block.id for message in stored for block in message.content if isinstance(block, ToolUseBlock)]
        results = [
            block.tool_use_id for message in stored for block in message.content if isinstance(block, ToolResultBlock)
        ]
        whole = [message for message in stored if message.metadata.status is MessageStatus.COMPLETE]
        required = [block.id for message in whole for block in message.content if isinstance(block, ToolUseBlock)]
        assert set(required) <= set(results) <= set(calls)
        assert len(results) == len(set(results))
        fake = self.harness.fakes["anthropic"]
        fake.clear_script()
        assert (await self.agent.run(self.session, "And now?")).fault is None
        assert fake.refusals == []


@contextlib.asynccontextmanager
async def open_observed_agent(folder: Path, **options: Any) -> AsyncIterator[ObservedAgent]:
    async with open_fake_agent(folder, "anthropic") as harness:
        agent = await harness.agent(tools=[add, note], confirm=allow, **options)
        events: list[Event] = []
        agent.bus.subscribe("test", events.append)
        yield ObservedAgent(harness, agent, events)


@pytest.mark.parametrize("again_after", [(), (1,), (1, 2, 3)], ids=["once", "twice", "again and again"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_turn_can_be_cancelled_at_every_wait(
    again_after: tuple[int, ...],
    *,
    streamed: bool,
    tmp_path: Path,
) -> None:
    async with open_observed_agent(tmp_path, stream=streamed) as observed:
        at = 0
        is_cancelled = True
        while is_cancelled:
            at += 1
            await observed.reset()
            is_cancelled = await CancelledCoroutine(observed.turn(), at, again_after).is_cancelled()
            try:
                await observed.check()
            except (AssertionError, DragomanError) as error:
                raise AssertionError(f"cancelled at wait {at}: {error}") from error
        assert at > 10  # every write is a wait


async def test_turn_can_be_left_at_every_event(tmp_path: Path) -> None:
    async with open_observed_agent(tmp_path) as observed:
        left_at = 0
        is_left = True
        while is_left:
            left_at += 1
            await observed.reset()
            is_left = False
            async with contextlib.aclosing(observed.agent.turn(observed.session, "What is 1 + 2?")) as events:
                count = 0
                async for _ in events:
                    count += 1
                    if count == left_at:
                        is_left = True
                        break
            try:
                await observed.check()
            except (AssertionError, DragomanError) as error:
                raise AssertionError(f"left at event {left_at}: {error}") from error
        assert left_at > 15
