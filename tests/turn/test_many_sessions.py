"""An agent that sees more sessions than it can remember."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.tools import Confirmation
from dragoman.turn.services import MAX_TOOL_SESSIONS
from tests.turn.fake_agent import open_fake_agent


async def test_an_agent_forgets_sessions_of_which_nothing_is_to_be_remembered(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        answered = agent.services.tool_session(agent.config, "answered", None)
        answered.answers["write_file"] = Confirmation(True)
        left = agent.services.tool_session(agent.config, "left", None)
        task = asyncio.create_task(asyncio.sleep(60))
        left.add_orphan(task)
        for number in range(3 * MAX_TOOL_SESSIONS):
            agent.services.tool_session(agent.config, f"session-{number}", None)
        assert len(agent.services.tool_sessions) <= MAX_TOOL_SESSIONS
        assert agent.services.tool_session(agent.config, "answered", None) is answered
        assert agent.services.tool_session(agent.config, "left", None) is left
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
