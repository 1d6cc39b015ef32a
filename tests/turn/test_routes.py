"""Tests of the model of a turn: policies of a session and of a workspace."""

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
from tests.turn.test_turn import IMAGE

DIALECT_NAMES = ("openai_chat", "anthropic")


async def ask_new_agent(harness: FakeAgent, session_id: str, text: str, **options: object) -> Message:
    """Return the answer to a question from a new agent."""
    for fake in harness.fakes.values():
        fake.reply("Yes.")
    agent = await harness.agent(**options)
    await agent.run(session_id, text)
    (row,) = await harness.store.tail(session_id, 1)
    return row.message


async def read_model(harness: FakeAgent, name: str) -> str:
    """Return the id of the model of a fake."""
    answer = await ask_new_agent(harness, (await harness.store.create_session()).id, f"@{name} hello")
    assert answer.metadata.model is not None
    return answer.metadata.model


async def test_policy_of_a_session_overrides_every_other(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        other = await read_model(harness, "anthropic")
        rules = [{"name": "mine", "when": {"message_matches": "hello"}, "use": other}]
        session = await harness.store.create_session(routing_policy={"schema_version": 1, "rules": rules})
        answer = await ask_new_agent(harness, session.id, "hello", workspace=tmp_path)
        assert answer.metadata.routing is not None
        assert (answer.metadata.model, answer.metadata.routing.rule_name) == (other, "mine")
        invalid = await harness.store.create_session(routing_policy={"schema_version": 2})
        with pytest.raises(PolicyError, match=invalid.id):
            await ask_new_agent(harness, invalid.id, "hello")
        assert await harness.store.tail(invalid.id, 1) == []


async def test_policy_of_a_sessions_workspace_overrides_that_of_the_agent(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        other = await read_model(harness, "anthropic")
        for folder, model in (("here", ""), ("there", f"global_default: {other}\n")):
            file = tmp_path / folder / ".dragoman" / "routing.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(f"schema_version: 1\n{model}", "utf-8")
        session = await harness.store.create_session(workspace_path=str(tmp_path / "there"))
        answer = await ask_new_agent(harness, session.id, "hello", workspace=tmp_path / "here")
        assert answer.metadata.model == other
        assert answer.content == (TextBlock("Yes."),)
        without_workspace = await harness.store.create_session()
        assert (
            await ask_new_agent(harness, without_workspace.id, "hello", workspace=tmp_path / "here")
        ).metadata.model != other


# --- recent failures -------------------------------------------------------------------------------------------------


async def fail_provider(harness: FakeAgent, agent: Agent, name: str) -> None:
    """Let a provider reject the key once, so that it is skipped from then on."""
    harness.fakes[name].fail(401, "who are you?")
    ended = await agent.run((await harness.store.create_session()).id, "hello", model=name)
    assert ended.fault is not None


async def test_provider_with_a_recent_failure_is_skipped_if_another_can_answer(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        rules = [{"name": "mine", "when": {"message_matches": "hello"}, "use": "anthropic"}]
        session = await harness.store.create_session(routing_policy={"schema_version": 1, "rules": rules})
        agent = await harness.agent()
        await fail_provider(harness, agent, "anthropic")
        assert (await agent.run(session.id, "hello")).model == "fake-openai_chat:model"


async def test_provider_with_a_recent_failure_is_retried_if_it_is_the_only_one(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        await fail_provider(harness, agent, "anthropic")
        assert not agent.services.availability.is_available(
            "fake-anthropic", "fake-anthropic:model", agent.services.clock()
        )
        ended = await agent.run(harness.session, "hello")
        assert (ended.model, ended.fault) == ("fake-anthropic:model", None)
        assert agent.services.availability.is_available(
            "fake-anthropic", "fake-anthropic:model", agent.services.clock()
        )


@pytest.mark.parametrize("choice", ["@model", "/model"])
async def test_explicit_choice_is_tried_despite_a_recent_failure(choice: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        agent = await harness.agent()
        await fail_provider(harness, agent, "anthropic")
        if choice == "/model":
            await harness.store.change_session(harness.session, active_model="anthropic")
        ended = await agent.run(harness.session, "hello" if choice == "/model" else "@anthropic hello")
        assert (ended.model, ended.fault) == ("fake-anthropic:model", None)


async def test_explicit_choice_is_still_rejected_for_missing_capabilities(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        agent = await harness.agent()
        await fail_provider(harness, agent, "anthropic")
        with pytest.raises(RoutingConstraintError) as caught:
            await agent.run(harness.session, [TextBlock("What is this?"), IMAGE], model="blind-anthropic")
        assert caught.value.validation_failure == "no_vision_support"


# --- budgets ---------------------------------------------------------------------------------------------------------


async def test_rule_can_depend_on_the_cost_of_today(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        rules = [{"name": "thrifty", "when": {"cost_today_exceeds_usd": 1}, "use": "anthropic"}]
        policy = {"schema_version": 1, "rules": rules}

        async def ask_model() -> str:
            session = await harness.store.create_session(routing_policy=policy)
            return (await (await harness.agent()).run(session.id, "hello")).model

        assert await ask_model() == "fake-openai_chat:model"
        now = harness.store.clock()
        for when in (now - timedelta(days=2), now):  # the cost of earlier days does not count
            usage = Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal("0.75"), pricing_version="x", latency_ms=1)
            metadata = MessageMetadata(model="a:b", provider="a", usage=usage)
            await harness.store.append(
                harness.session, Message("", "", Role.ASSISTANT, (TextBlock("x"),), metadata, when)
            )
        assert await ask_model() == "fake-openai_chat:model"
        await harness.store.append(harness.session, Message("", "", Role.ASSISTANT, (TextBlock("x"),), metadata, now))
        assert await ask_model() == "fake-anthropic:model"


async def test_rule_can_depend_on_the_remaining_team_budget(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, *DIALECT_NAMES) as harness:
        rules = [{"name": "thrifty", "when": {"team_budget_remaining_lt": 5}, "use": "anthropic"}]
        session = await harness.store.create_session(routing_policy={"schema_version": 1, "rules": rules})
        agent = await harness.agent()
        assert (await agent.run(session.id, "hello")).model == "fake-openai_chat:model"
        ended = await agent.run(session.id, "hello", team_budget_remaining_usd=Decimal("4.99"))
        assert ended.model == "fake-anthropic:model"


# --- patterns --------------------------------------------------------------------------------------------------------


async def test_evaluated_turns_choose_the_model_of_similar_turns(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_fake_agent(tmp_path, *DIALECT_NAMES, url=url) as harness:
        for number in range(6):
            for name, score in (("anthropic", "0.95"), ("openai_chat", "0.2")):
                session = await harness.store.create_session()
                agent = await harness.agent()
                await agent.run(session.id, f"@{name} translate letter {number} into French")
                await evaluate(url, session.id, score)
        agent = await harness.agent()
        events = [event async for event in agent.turn(harness.session, "translate this letter into French")]
        assert isinstance(events[0], TurnStart)
        decision = events[0].decision
        assert (decision.chosen_model, decision.record.mode.value) == ("fake-anthropic:model", "pattern")
        assert decision.chain[decision.winner_index].policy == "pattern"
        (row,) = await harness.store.tail(harness.session, 1)
        assert row.message.metadata.routing == decision.record
        await agent.bus.drain()
        (decided,) = await harness.store.trace.events(harness.session, types=["route.decided"])
        assert decided.payload["chain"][3]["pattern_alternatives"]


async def test_evaluations_of_a_user_do_not_choose_models_of_another_user(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_fake_agent(tmp_path, *DIALECT_NAMES, url=url) as harness:
        for number in range(6):
            for name, score in (("anthropic", "0.95"), ("openai_chat", "0.2")):
                session = await harness.store.create_session(user_id="ada")
                agent = await harness.agent()
                await agent.run(session.id, f"@{name} translate letter {number} into French", user_id="ada")
                await evaluate(url, session.id, score)
        agent = await harness.agent()
        for user, model in (("bea", "fake-openai_chat:model"), ("ada", "fake-anthropic:model")):
            session = await harness.store.create_session(user_id=user)
            assert (await agent.run(session.id, "translate this letter into French", user_id=user)).model == model


async def evaluate(url: str, session_id: str, score: str) -> None:
    """Evaluate the last turn of a session with the command."""
    arguments = ("evaluate", session_id, "--score", score, "--store", url)
    assert (await asyncio.to_thread(cli_runner.run_text, *arguments, environment=os.environ)).returncode == 0
