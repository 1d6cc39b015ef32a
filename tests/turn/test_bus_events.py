"""Tests of the events of turns: the trace in the store, the spans of OpenTelemetry, and both after a command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman.bus import Bus
from dragoman.bus.otel import SpanExporter
from dragoman.exchange import SideEffects
from dragoman.tools import tool
from tests import cli_runner
from tests.fake_providers import call_part, text_part, thinking_part
from tests.turn.fake_agent import FakeAgent, open_fake_agent

SECRET = "sk-ant-api03-" + "a1B2" * 20


@tool(side_effects=SideEffects.NONE)
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


def script_answers(harness: FakeAgent) -> None:
    harness.fakes["anthropic"].answer_with(
        thinking_part("Hm."), text_part("Let me add."), call_part("add", {"a": 1, "b": 2})
    )
    harness.fakes["anthropic"].reply("It is three.")


async def test_trace_of_a_turn_is_stored_when_the_agent_is_closed(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        script_answers(harness)
        ended = await agent.run(harness.session, f"What is 1 + 2? {SECRET}")
        await agent.close()
        events = await harness.store.trace.events(harness.session)
        by_id = {event.id: event for event in events}
        tree = [(event.type, by_id[event.parent_event_id].type if event.parent_event_id else None) for event in events]
        assert tree == [
            ("session.created", None),
            ("turn.started", None),
            ("route.decided", "turn.started"),
            ("llm.call_started", "turn.started"),
            ("llm.call_completed", "llm.call_started"),
            ("tool.called", "llm.call_completed"),
            ("tool.completed", "tool.called"),
            ("llm.call_started", "tool.completed"),
            ("llm.call_completed", "llm.call_started"),
            ("turn.completed", "turn.started"),
        ]
        assert {event.turn_id for event in events[1:]} == {ended.turn_id}
        over: Any = events[-1].payload
        assert (over["llm_call_count"], over["tool_call_count"]) == (2, 1)
        assert (over["total_input_tokens"], over["total_output_tokens"]) == (ended.input_tokens, ended.output_tokens)
        called: Any = events[4].payload
        assert (called["produced_tool_calls"], called["produced_thinking_blocks"]) == (1, 1)
        everything = str([event.payload for event in events])
        assert SECRET not in everything
        assert "It is three" not in everything


async def test_trace_is_recorded_by_default_only_with_an_own_bus(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        for options, is_recorded in (({}, True), ({"record_trace": False}, False), ({"record_trace": True}, True)):
            session = await harness.store.create_session()
            agent = await harness.agent(**options)
            await agent.run(session.id, "Hello?")
            await agent.close()
            assert bool(await harness.store.trace.events(session.id)) is is_recorded
        for trace in (None, True):
            session = await harness.store.create_session()
            async with Bus() as bus:
                agent = await harness.agent(bus=bus, record_trace=trace)
                await agent.run(session.id, "Hello?")
                await agent.close()
                assert bool(await harness.store.trace.events(session.id)) is (trace is True)


async def test_turn_becomes_nested_spans(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        spans = SpanExporter(provider, agent="scout")
        spans.listen(agent.bus)
        script_answers(harness)
        ended = await agent.run(harness.session, "What is 1 + 2?")
        harness.fakes["anthropic"].fail(429, "slow down")
        await agent.run(harness.session, "And 2 + 3?")
        await agent.close()
        await spans.close()
    finished = exporter.get_finished_spans()
    turns = sorted((span for span in finished if span.parent is None), key=lambda span: span.start_time or 0)
    assert [span.name for span in turns] == ["invoke_agent scout"] * 2
    first, second = ([inner for inner in finished if _is_in(inner, span)] for span in turns)
    names = sorted(span.name for span in first)
    assert names == ["chat model", "chat model", "execute_tool add"]
    tokens = sum((span.attributes or {})["gen_ai.usage.output_tokens"] for span in first if span.name == "chat model")
    assert tokens == ended.output_tokens
    (failed,) = second
    assert (failed.attributes or {})["error.type"] == "rate_limit"
    assert "1 + 2" not in str([span.attributes for span in finished])


def _is_in(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    return inner.parent is not None and outer.context is not None and inner.parent.span_id == outer.context.span_id


async def test_trace_of_a_command_line_question_can_be_read(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        harness.fakes["anthropic"].reply("It is three.")
        environment = {"DRAGOMAN_CONFIG": str(harness.settings.file), "FAKE_KEY": "x", "HOME": str(tmp_path)}
        answer = await run(environment, "ask", "What is 1 + 2?", "--store", store)
        assert answer == "It is three.\n"
        trace = json.loads(await run(environment, "trace", "last", "--json", "--store", store))
        types = [event["type"] for event in trace["events"]]
        assert types == [
            "session.created",
            "turn.started",
            "route.decided",
            "llm.call_started",
            "llm.call_completed",
            "turn.completed",
        ]


async def run(environment: dict[str, str], *arguments: str) -> str:
    """Run a command while the fake provider answers in this loop, and return its output."""
    done = await asyncio.to_thread(cli_runner.run_text, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
