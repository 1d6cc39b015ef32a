"""Results of tools that arrive after their call was answered without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.bus import Event
from dragoman.message import Role, ToolResultBlock
from dragoman.rules import check
from dragoman.tools import ToolContext, tool
from dragoman.turn.state import is_late_note
from tests.turn.fake_agent import DIALECTS, open_fake_agent
from tests.turn.test_turn import messages, text_of


@tool(timeout_s=0.02)
def report(context: ToolContext) -> str:
    """Write a report, and do not stop when told to."""
    context.stop_event.wait(30)
    return "the report is written"


@tool(timeout_s=0.02)
def failing(context: ToolContext) -> str:
    """Fail, and not before being told to stop."""
    context.stop_event.wait(30)
    raise OSError("no")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_late_result_is_told_to_the_next_turn_and_to_those_after(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as it:
        agent = await it.agent(tools=[report])
        seen: list[Event] = []
        agent.bus.subscribe("test", seen.append, event_types=["tool.called", "tool.completed_late"])
        fake = it.fakes[dialect]
        fake.call("report", {})
        fake.reply("It took too long.")
        ended = await agent.run(it.session, "Write a report")
        assert ended.fault is None
        assert "the report is written" not in str(fake.bodies)
        await agent.run(it.session, "And?")
        await agent.run(it.session, "Good")
        assert "the report is written" in str(fake.bodies[2])
        assert "the report is written" in str(fake.bodies[3])
        assert fake.refusals == []
        kept = await messages(it.store, it.session)
        (note,) = [one for one in kept if is_late_note(one)]
        assert kept.index(note) == [text_of(one) for one in kept].index("And?") - 1
        (result,) = [block for one in kept for block in one.content if isinstance(block, ToolResultBlock)]
        assert result.is_error
        assert check(kept) == ()
        await agent.bus.drain()
        called, late = seen
        assert (late.payload.tool_use_id, late.payload.success) == (result.tool_use_id, True)
        assert late.parent_event_id == called.id


async def test_a_late_result_is_stored_when_the_agent_ends_before_the_next_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[report])
        it.fakes["anthropic"].call("report", {})
        await agent.run(it.session, "Write a report")
        await agent.close()
        last = (await messages(it.store, it.session))[-1]
        assert last.role is Role.USER
        assert "the report is written" in text_of(last)
        other = await it.agent()
        assert (await other.run(it.session, "And?")).fault is None
        assert it.fakes["anthropic"].refusals == []


async def test_of_a_tool_that_fails_late_the_bus_alone_hears(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[failing])
        seen: list[Event] = []
        agent.bus.subscribe("test", seen.append, event_types=["tool.completed_late"])
        it.fakes["anthropic"].call("failing", {})
        await agent.run(it.session, "Fail")
        await agent.run(it.session, "And?")
        assert not any(is_late_note(one) for one in await messages(it.store, it.session))
        await agent.bus.drain()
        assert [event.payload.success for event in seen] == [False]
