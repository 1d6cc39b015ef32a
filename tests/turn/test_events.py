"""Events that several entry points emit: sessions, choices against the routing, and providers that get worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.bus import Event
from dragoman.turn import Agent
from tests.turn.fake_agent import open_fake_agent


def heard(agent: Agent, *types: str) -> list[Event]:
    seen: list[Event] = []
    agent.bus.subscribe("test", seen.append, event_types=list(types))
    return seen


async def test_a_session_begins_with_its_first_turn_and_goes_on_in_another_process(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        session = await it.store.create_session(
            workspace_path="/shop", active_model="anthropic", routing_policy={"schema_version": 1}
        )
        first = await it.agent()
        seen = heard(first, "session.created", "session.resumed")
        await first.run(session.id, "Hello")
        await first.run(session.id, "And?")
        await first.bus.drain()
        (created,) = seen
        payload: Any = created.payload
        assert (created.type, created.session_id, created.turn_id) == ("session.created", session.id, None)
        assert (payload.workspace_path, payload.initial_active_model) == ("/shop", "anthropic")
        assert len(payload.workspace_hash) == len(payload.routing_policy_version) == 64
        second = await it.agent()
        seen = heard(second, "session.created", "session.resumed")
        await second.run(session.id, "Again")
        await second.bus.drain()
        (resumed,) = seen
        assert resumed.type == "session.resumed"
        assert resumed.payload.message_count == 4  # type: ignore[attr-defined]
        assert resumed.payload.idle_seconds >= 0  # type: ignore[attr-defined]


async def test_a_choice_against_the_routing_and_against_what_worked_is_told(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as it:
        agent = await it.agent()
        seen = heard(agent, "route.overridden", "pattern.matched", "pattern.override_dismissed")
        await agent.run(it.session, "Hello")
        await agent.run(it.session, "@anthropic Hello", model=None)
        await agent.bus.drain()
        assert seen == [], "the routing had the same model"
        for _ in range(5):
            await agent.run(it.session, "@gemini Hello")
            judged = await it.store.evaluations.for_turn(it.session)
            await it.store.evaluations.record(it.session, score=1.0, **judged)
        await agent.bus.drain()
        assert {event.type for event in seen} == {"route.overridden"}
        overridden: Any = seen[0].payload
        assert (overridden.previous_model, overridden.chosen_model) == ("fake-anthropic:model", "fake-gemini:model")
        assert overridden.source == "per_message_override"
        seen.clear()
        other = await it.agent()
        seen = heard(other, "route.overridden", "pattern.matched", "pattern.override_dismissed")
        await other.run(it.session, "Hello")
        await other.run(it.session, "@anthropic Hello")
        await other.bus.drain()
        assert [event.type for event in seen] == ["pattern.matched", "route.overridden", "pattern.override_dismissed"]
        matched: Any = seen[0].payload
        assert (matched.model, matched.sample_size) == ("fake-gemini:model", 5)
        assert seen[2].payload.model == "fake-gemini:model"  # type: ignore[attr-defined]


async def test_three_failures_in_a_row_say_that_a_provider_gets_worse(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        seen = heard(agent, "provider.degraded")
        for number in range(4):
            it.fakes["anthropic"].fail(500)
            await agent.run(it.session, f"Hello {number}")
        await agent.bus.drain()
        (degraded,) = seen
        payload: Any = degraded.payload
        assert (payload.provider, payload.models_affected) == ("fake-anthropic", ("fake-anthropic:model",))
