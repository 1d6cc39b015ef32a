"""Tests of turns in a fork: the shared and the own messages are one history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.turn.fake_agent import DIALECTS, open_fake_agent


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_question_in_a_fork_is_sent_with_the_shared_history(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        agent, fake = await harness.agent(), harness.fakes[dialect]
        for text in ("first", "second"):
            await agent.run(harness.session, f"The {text} question")
        fork = await harness.store.fork(harness.session, 2)
        for text in ("third", "fourth"):
            ended = await agent.run(fork.id, f"The {text} question")
            assert ended.fault is None
            assert f"The {text} question" in str(fake.bodies[-1])
            assert "The first question" in str(fake.bodies[-1])
            assert "The second question" not in str(fake.bodies[-1])
        assert fake.refusals == []
