"""Tests of events of several entry points: sessions, choices against the routing, and degraded providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.bus import Event
from dragoman.turn import Agent
from tests.turn.fake_agent import open_fake_agent


def subscribe(agent: Agent, *types: str) -> list[Event]:
    events: list[Event] = []
    agent.bus.subscribe("test", events.append, event_types=list(types))
    return events


async def test_session_is_created_in_its_first_turn_and_resumed_in_another_process(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        session = await harness.store.create_session(
            workspace_path="/shop", active_model="anthropic", routing_policy={"schema_version": 1}
        )
        first = await harness.agent()
        events = subscribe(first, "session.created", "session.resumed")
        await first.run(session.id, "Hello")
        await first.run(session.id, "And?")
        await first.bus.drain()
        (created,) = events
        payload: Any = created.payload
        assert (created.type, created.session_id, created.turn_id) == ("session.created", session.id, None)
        assert (payload.workspace_path, payload.initial_active_model) == ("/shop", "anthropic")
        assert len(payload.workspace_hash) == len(payload.routing_policy_version) == 64
        second = await harness.agent()
        events = subscribe(second, "session.created", "session.resumed")
        await second.run(session.id, "Again")
        await second.bus.drain()
        (resumed,) = events
        assert resumed.type == "session.resumed"
        assert resumed.payload.message_count == 4  # type: ignore[attr-defined]
        assert resumed.payload.idle_seconds >= 0  # type: ignore[attr-defined]


async def test_choice_against_routing_and_patterns_emits_events(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent()
        events = subscribe(agent, "route.overridden", "pattern.matched", "pattern.override_dismissed")
        await agent.run(harness.session, "Hello")
        await agent.run(harness.session, "@anthropic Hello", model=None)
        await agent.bus.drain()
        assert events == [], "the routing had the same model"
        for _ in range(5):
            await agent.run(harness.session, "@gemini Hello")
            turn = await harness.store.evaluations.for_turn(harness.session)
            await harness.store.evaluations.record(harness.session, score=1.0, **turn)
        await agent.bus.drain()
        assert {event.type for event in events} == {"route.overridden"}
        overridden: Any = events[0].payload
        assert (overridden.previous_model, overridden.chosen_model) == ("fake-anthropic:model", "fake-gemini:model")
        assert overridden.source == "per_message_override"
        events.clear()
        other = await harness.agent()
        events = subscribe(other, "route.overridden", "pattern.matched", "pattern.override_dismissed")
        await other.run(harness.session, "Hello")
        await other.run(harness.session, "@anthropic Hello")
        await other.bus.drain()
        assert [event.type for event in events] == ["pattern.matched", "route.overridden", "pattern.override_dismissed"]
        matched: Any = events[0].payload
        assert (matched.model, matched.sample_size) == ("fake-gemini:model", 5)
        assert events[2].payload.model == "fake-gemini:model"  # type: ignore[attr-defined]


async def test_three_consecutive_failures_emit_provider_degraded(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        events = subscribe(agent, "provider.degraded")
        for number in range(4):
            harness.fakes["anthropic"].fail(500)
            await agent.run(harness.session, f"Hello {number}")
        await agent.bus.drain()
        (degraded,) = events
        payload: Any = degraded.payload
        assert (payload.provider, payload.models_affected) == ("fake-anthropic", ("fake-anthropic:model",))
