"""Turns in a fork: what it shares with another session and what is said in it are one history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.turn.fake_agent import DIALECTS, open_fake_agent


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_question_in_a_fork_is_asked_behind_what_the_fork_shares(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as it:
        agent, fake = await it.agent(), it.fakes[dialect]
        for text in ("first", "second"):
            await agent.run(it.session, f"The {text} question")
        fork = await it.store.fork(it.session, 2)
        for text in ("third", "fourth"):
            ended = await agent.run(fork.id, f"The {text} question")
            assert ended.fault is None
            assert f"The {text} question" in str(fake.bodies[-1])
            assert "The first question" in str(fake.bodies[-1])
            assert "The second question" not in str(fake.bodies[-1])
        assert fake.refusals == []
