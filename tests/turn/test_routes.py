"""Which model takes a turn: policies of a session and of a workspace, at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.errors import PolicyError
from dragoman.message import Message, TextBlock
from tests.turn.ground import Ground, ground

TWO = ("openai_chat", "anthropic")


async def answered_by(it: Ground, session_id: str, text: str, **given: object) -> Message:
    """The answer to a question, from an agent of its own."""
    for fake in it.fakes.values():
        fake.say("Yes.")
    agent = await it.agent(**given)
    await agent.ask(session_id, text)
    (row,) = await it.store.tail(session_id, 1)
    return row.message


async def model_of(it: Ground, name: str) -> str:
    """The id of the model that a fake serves."""
    answer = await answered_by(it, (await it.store.create_session()).id, f"@{name} hello")
    assert answer.metadata.model is not None
    return answer.metadata.model


async def test_a_policy_of_the_session_s_own_goes_before_every_other(tmp_path: Path) -> None:
    async with ground(tmp_path, *TWO) as it:
        other = await model_of(it, "anthropic")
        rules = [{"name": "mine", "when": {"message_matches": "hello"}, "use": other}]
        session = await it.store.create_session(routing_policy={"schema_version": 1, "rules": rules})
        answer = await answered_by(it, session.id, "hello", workspace=tmp_path)
        assert answer.metadata.routing is not None
        assert (answer.metadata.model, answer.metadata.routing.rule_name) == (other, "mine")
        wrong = await it.store.create_session(routing_policy={"schema_version": 2})
        with pytest.raises(PolicyError, match=wrong.id):
            await answered_by(it, wrong.id, "hello")
        assert await it.store.tail(wrong.id, 1) == []


async def test_the_policy_of_a_session_s_workspace_holds_wherever_the_agent_works(tmp_path: Path) -> None:
    async with ground(tmp_path, *TWO) as it:
        other = await model_of(it, "anthropic")
        for folder, model in (("here", ""), ("there", f"global_default: {other}\n")):
            file = tmp_path / folder / ".dragoman" / "routing.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(f"schema_version: 1\n{model}", "utf-8")
        session = await it.store.create_session(workspace_path=str(tmp_path / "there"))
        answer = await answered_by(it, session.id, "hello", workspace=tmp_path / "here")
        assert answer.metadata.model == other
        assert answer.content == (TextBlock("Yes."),)
        homeless = await it.store.create_session()
        assert (await answered_by(it, homeless.id, "hello", workspace=tmp_path / "here")).metadata.model != other
