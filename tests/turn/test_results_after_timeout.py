"""Tests of results of tools that arrive after the timeout of their call."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.bus import Event
from dragoman.message import Role, ToolResultBlock
from dragoman.rules import check
from dragoman.tools import ToolContext, tool
from dragoman.turn.state import is_late_note
from tests.turn.fake_agent import DIALECTS, open_fake_agent
from tests.turn.test_turn import read_messages, text_of


@tool(timeout_s=0.02)
def report(context: ToolContext) -> str:
    """Write a report, and ignore the cancellation."""
    context.stop_event.wait(30)
    return "the report is written"


@tool(timeout_s=0.02)
def fail_late(context: ToolContext) -> str:
    """Fail after the cancellation."""
    context.stop_event.wait(30)
    raise OSError("no")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_late_result_is_sent_in_the_next_turn_and_later_turns(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        agent = await harness.agent(tools=[report])
        events: list[Event] = []
        agent.bus.subscribe("test", events.append, event_types=["tool.called", "tool.completed_late"])
        fake = harness.fakes[dialect]
        fake.call("report", {})
        fake.reply("It took too long.")
        ended = await agent.run(harness.session, "Write a report")
        assert ended.fault is None
        assert "the report is written" not in str(fake.bodies)
        await agent.run(harness.session, "And?")
        await agent.run(harness.session, "Good")
        assert "the report is written" in str(fake.bodies[2])
        assert "the report is written" in str(fake.bodies[3])
        assert fake.refusals == []
        stored = await read_messages(harness.store, harness.session)
        (note,) = [message for message in stored if is_late_note(message)]
        assert stored.index(note) == [text_of(message) for message in stored].index("And?") - 1
        (result,) = [block for message in stored for block in message.content if isinstance(block, ToolResultBlock)]
        assert result.is_error
        assert check(stored) == ()
        await agent.bus.drain()
        called, late = events
        assert (late.payload.tool_use_id, late.payload.success) == (result.tool_use_id, True)
        assert late.parent_event_id == called.id


async def test_late_result_is_stored_if_the_agent_closes_before_the_next_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[report])
        harness.fakes["anthropic"].call("report", {})
        await agent.run(harness.session, "Write a report")
        await agent.close()
        last = (await read_messages(harness.store, harness.session))[-1]
        assert last.role is Role.USER
        assert "the report is written" in text_of(last)
        other = await harness.agent()
        assert (await other.run(harness.session, "And?")).fault is None
        assert harness.fakes["anthropic"].refusals == []


async def test_late_failure_is_only_an_event(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[fail_late])
        events: list[Event] = []
        agent.bus.subscribe("test", events.append, event_types=["tool.completed_late"])
        harness.fakes["anthropic"].call("fail_late", {})
        await agent.run(harness.session, "Fail")
        await agent.run(harness.session, "And?")
        assert not any(is_late_note(message) for message in await read_messages(harness.store, harness.session))
        await agent.bus.drain()
        assert [event.payload.success for event in events] == [False]
