"""Which model takes a turn: policies of a session and of a workspace, at work."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from dragoman.errors import PolicyError, RoutingConstraintError
from dragoman.message import Message, MessageMetadata, Role, TextBlock, Usage
from dragoman.turn import Agent, TurnStart
from tests import cli_runner
from tests.turn.fake_agent import FakeAgent, open_fake_agent
from tests.turn.test_turn import PICTURE

TWO = ("openai_chat", "anthropic")


async def answered_by(it: FakeAgent, session_id: str, text: str, **given: object) -> Message:
    """The answer to a question, from an agent of its own."""
    for fake in it.fakes.values():
        fake.reply("Yes.")
    agent = await it.agent(**given)
    await agent.run(session_id, text)
    (row,) = await it.store.tail(session_id, 1)
    return row.message


async def model_of(it: FakeAgent, name: str) -> str:
    """The id of the model that a fake serves."""
    answer = await answered_by(it, (await it.store.create_session()).id, f"@{name} hello")
    assert answer.metadata.model is not None
    return answer.metadata.model


async def test_a_policy_of_the_session_s_own_goes_before_every_other(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *TWO) as it:
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
    async with open_fake_agent(tmp_path, *TWO) as it:
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


# --- who failed lately -----------------------------------------------------------------------------------------------


async def failing(it: FakeAgent, agent: Agent, name: str) -> None:
    """Have a provider refuse the key once: it is passed over from then on."""
    it.fakes[name].fail(401, "who are you?")
    ended = await agent.run((await it.store.create_session()).id, "hello", model=name)
    assert ended.fault is not None


async def test_who_failed_lately_is_passed_over_where_another_may_answer(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *TWO) as it:
        rules = [{"name": "mine", "when": {"message_matches": "hello"}, "use": "anthropic"}]
        session = await it.store.create_session(routing_policy={"schema_version": 1, "rules": rules})
        agent = await it.agent()
        await failing(it, agent, "anthropic")
        assert (await agent.run(session.id, "hello")).model == "fake-openai_chat:model"


async def test_who_failed_lately_is_tried_again_rather_than_nobody(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        await failing(it, agent, "anthropic")
        assert not agent.services.availability.is_available(
            "fake-anthropic", "fake-anthropic:model", agent.services.clock()
        )
        ended = await agent.run(it.session, "hello")
        assert (ended.model, ended.fault) == ("fake-anthropic:model", None)
        assert agent.services.availability.is_available(
            "fake-anthropic", "fake-anthropic:model", agent.services.clock()
        )


@pytest.mark.parametrize("how", ["@model", "/model"])
async def test_what_a_person_chose_is_tried_also_if_it_failed_lately(how: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *TWO) as it:
        agent = await it.agent()
        await failing(it, agent, "anthropic")
        if how == "/model":
            await it.store.change_session(it.session, active_model="anthropic")
        ended = await agent.run(it.session, "hello" if how == "/model" else "@anthropic hello")
        assert (ended.model, ended.fault) == ("fake-anthropic:model", None)


async def test_a_choice_that_failed_lately_is_still_refused_for_what_it_cannot_do(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *TWO) as it:
        agent = await it.agent()
        await failing(it, agent, "anthropic")
        with pytest.raises(RoutingConstraintError) as caught:
            await agent.run(it.session, [TextBlock("What is this?"), PICTURE], model="blind-anthropic")
        assert caught.value.validation_failure == "no_vision_support"


# --- money -----------------------------------------------------------------------------------------------------------


async def test_a_rule_may_ask_what_was_spent_today(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *TWO) as it:
        rules = [{"name": "thrifty", "when": {"cost_today_exceeds_usd": 1}, "use": "anthropic"}]
        policy = {"schema_version": 1, "rules": rules}

        async def asked() -> str:
            session = await it.store.create_session(routing_policy=policy)
            return (await (await it.agent()).run(session.id, "hello")).model

        assert await asked() == "fake-openai_chat:model"
        now = it.store.clock()
        for when in (now - timedelta(days=2), now):  # what was spent before today does not count
            paid = Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal("0.75"), pricing_version="x", latency_ms=1)
            told = MessageMetadata(model="a:b", provider="a", usage=paid)
            await it.store.append(it.session, Message("", "", Role.ASSISTANT, (TextBlock("x"),), told, when))
        assert await asked() == "fake-openai_chat:model"
        await it.store.append(it.session, Message("", "", Role.ASSISTANT, (TextBlock("x"),), told, now))
        assert await asked() == "fake-anthropic:model"


async def test_a_rule_may_ask_what_the_team_has_left_if_the_caller_says_so(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *TWO) as it:
        rules = [{"name": "thrifty", "when": {"team_budget_remaining_lt": 5}, "use": "anthropic"}]
        session = await it.store.create_session(routing_policy={"schema_version": 1, "rules": rules})
        agent = await it.agent()
        assert (await agent.run(session.id, "hello")).model == "fake-openai_chat:model"
        ended = await agent.run(session.id, "hello", team_budget_remaining_usd=Decimal("4.99"))
        assert ended.model == "fake-anthropic:model"


# --- what worked before ----------------------------------------------------------------------------------------------


async def test_turns_that_were_judged_decide_who_takes_the_next_one_like_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_fake_agent(tmp_path, *TWO, url=url) as it:
        for number in range(6):
            for name, score in (("anthropic", "0.95"), ("openai_chat", "0.2")):
                session = await it.store.create_session()
                agent = await it.agent()
                await agent.run(session.id, f"@{name} translate letter {number} into French")
                await evaluate(url, session.id, score)
        agent = await it.agent()
        told = [event async for event in agent.turn(it.session, "translate this letter into French")]
        assert isinstance(told[0], TurnStart)
        decision = told[0].decision
        assert (decision.chosen_model, decision.record.mode.value) == ("fake-anthropic:model", "pattern")
        assert decision.chain[decision.winner_index].policy == "pattern"
        (row,) = await it.store.tail(it.session, 1)
        assert row.message.metadata.routing == decision.record
        await agent.bus.drain()
        (decided,) = await it.store.trace.events(it.session, types=["route.decided"])
        assert decided.payload["chain"][3]["pattern_alternatives"]


async def test_what_one_user_judged_does_not_choose_the_models_of_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_fake_agent(tmp_path, *TWO, url=url) as it:
        for number in range(6):
            for name, score in (("anthropic", "0.95"), ("openai_chat", "0.2")):
                session = await it.store.create_session(user_id="ada")
                agent = await it.agent()
                await agent.run(session.id, f"@{name} translate letter {number} into French", user_id="ada")
                await evaluate(url, session.id, score)
        agent = await it.agent()
        for user, model in (("bea", "fake-openai_chat:model"), ("ada", "fake-anthropic:model")):
            session = await it.store.create_session(user_id=user)
            assert (await agent.run(session.id, "translate this letter into French", user_id=user)).model == model


async def evaluate(url: str, session_id: str, score: str) -> None:
    """Judge the last turn of a session with the command."""
    arguments = ("evaluate", session_id, "--score", score, "--store", url)
    assert (await asyncio.to_thread(cli_runner.run_text, *arguments, environment=os.environ)).returncode == 0
