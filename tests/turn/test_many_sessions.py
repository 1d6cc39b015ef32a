"""Tests of an agent with more sessions than its limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.tools import Confirmation
from dragoman.turn.services import MAX_TOOL_SESSIONS
from tests.turn.fake_agent import open_fake_agent


async def test_agent_drops_tool_sessions_without_state(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        with_answers = agent.services.tool_session(agent.config, "answered", None)
        with_answers.answers["write_file"] = Confirmation(True)
        with_orphan = agent.services.tool_session(agent.config, "left", None)
        task = asyncio.create_task(asyncio.sleep(60))
        with_orphan.add_orphan(task)
        for number in range(3 * MAX_TOOL_SESSIONS):
            agent.services.tool_session(agent.config, f"session-{number}", None)
        assert len(agent.services.tool_sessions) <= MAX_TOOL_SESSIONS
        assert agent.services.tool_session(agent.config, "answered", None) is with_answers
        assert agent.services.tool_session(agent.config, "left", None) is with_orphan
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
