"""Tests of one turn, against strict fake providers, over real sockets."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path

import pytest

from dragoman.bus import Event
from dragoman.entries import messages_from_entries
from dragoman.errors import ConflictError, RoutingConstraintError
from dragoman.event import TextDelta
from dragoman.exchange import SideEffects, StopReason
from dragoman.message import (
    ImageBlock,
    ImageSource,
    Message,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.pricing import prices_from_mapping
from dragoman.rules import check
from dragoman.store import Store
from dragoman.tools import tool
from dragoman.turn import AnswerEnd, AnswerStart, ToolResultEvent, TurnEnd, TurnStart
from tests.fake_providers import call_part, text_part, thinking_part
from tests.turn.fake_agent import DIALECTS, make_agent, open_fake_agent, settings_for

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
_RATES = {"input_per_mtok_usd": "3", "output_per_mtok_usd": "15"}
PRICES = prices_from_mapping(
    {"pricing_version": "by-hand", "models": {f"fake-{name}:model": _RATES for name in ("anthropic", "openai_chat")}}
)
IMAGE = ImageBlock(ImageSource("base64", PIXEL), "image/png")


@tool(side_effects=SideEffects.NONE)
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


async def read_messages(store: Store, session_id: str) -> list[Message]:
    return [row.message async for row in store.history(session_id)]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_question_is_answered_and_every_step_is_stored(dialect: str, *, streamed: bool, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        agent = await harness.agent(tools=[add], stream=streamed)
        harness.fakes[dialect].call("add", {"a": 1, "b": 2})
        harness.fakes[dialect].reply("It is three.")
        events = [event async for event in agent.turn(harness.session, "What is 1 + 2?")]
        stored = await read_messages(harness.store, harness.session)
        assert [message.role for message in stored] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
        assert text_of(stored[3]) == "It is three."
        assert stored[2].content == (ToolResultBlock(stored[1].content[-1].id, (TextBlock("3"),)),)
        assert all(message.metadata.status is MessageStatus.COMPLETE for message in stored)
        assert all(message.metadata.usage is not None for message in stored if message.role is Role.ASSISTANT)
        assert stored[2].metadata.latency_ms is not None
        assert check(stored) == ()
        steps = [type(event) for event in events if type(event).__module__ == "dragoman.turn.types"]
        assert steps == [TurnStart, AnswerStart, AnswerEnd, ToolResultEvent, AnswerStart, AnswerEnd, TurnEnd]
        ended = events[-1]
        assert isinstance(ended, TurnEnd)
        assert (ended.stop_reason, ended.llm_calls, ended.tool_calls) == (StopReason.END_TURN, 2, 1)
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It is three."
        assert harness.fakes[dialect].refusals == []


async def test_model_receives_the_whole_history_and_the_system_prompt(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(system_prompt="Be brief.")
        for number in range(3):
            harness.fakes["openai_chat"].reply(f"answer {number}")
            await agent.run(harness.session, f"question {number}")
        sent = harness.fakes["openai_chat"].bodies[-1]["messages"]
        assert [message["content"] for message in sent] == [
            "Be brief.",
            "question 0",
            "answer 0",
            "question 1",
            "answer 1",
            "question 2",
        ]


async def test_events_of_a_turn_have_parents(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        emitted: list[Event] = []
        agent.bus.subscribe("test", emitted.append)
        harness.fakes["anthropic"].call("add", {"a": 1, "b": 2})
        await agent.run(harness.session, "What is 1 + 2?")
        await agent.bus.drain()
        turn = [event for event in emitted if event.turn_id is not None]
        by_id = {event.id: event.type for event in turn}
        assert [(event.type, by_id.get(event.parent_event_id or "")) for event in turn] == [
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


async def test_turn_writes_entries_for_its_agent(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add], agent_key="clerk")
        harness.fakes["anthropic"].call("add", {"a": 1, "b": 2})
        harness.fakes["anthropic"].reply("three")
        await agent.run(harness.session, "What is 1 + 2?")
        entries = await harness.store.entries.agent(harness.session, "clerk")
        assert [entry["type"] for entry in entries] == ["task", "action", "observation", "final"]
        assert [entry["type"] for entry in await harness.store.entries.conversation(harness.session)] == [
            "user_message",
            "assistant_message",
        ]


# --- choice of the model ---------------------------------------------------------------------------------------------


async def test_model_named_in_the_message_answers_only_that_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent()
        await agent.run(harness.session, "@gemini hello")
        await agent.run(harness.session, "hello again")
        first, second = [
            message for message in await read_messages(harness.store, harness.session) if message.role is Role.ASSISTANT
        ]
        assert (first.metadata.model, second.metadata.model) == ("fake-gemini:model", "fake-anthropic:model")
        assert first.metadata.routing is not None
        assert first.metadata.routing.mode.value == "override"
        assert text_of((await read_messages(harness.store, harness.session))[0]) == "hello"


async def test_image_for_a_model_without_vision_is_rejected_and_nothing_is_stored(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        await harness.store.change_session(harness.session, active_model="blind-anthropic")
        with pytest.raises(RoutingConstraintError) as caught:
            await agent.run(harness.session, [TextBlock("What is this?"), IMAGE])
        assert caught.value.validation_failure == "no_vision_support"
        assert caught.value.would_fall_back_to == "fake-anthropic:model"
        assert await read_messages(harness.store, harness.session) == []
        assert harness.fakes["anthropic"].bodies == []
        assert (await harness.store.get_session(harness.session)).active_model == "blind-anthropic"


@pytest.mark.parametrize(
    ("policy", "expected"), [("placeholder", "[image (image/png)]"), ("describe", "a single red pixel")]
)
async def test_image_can_be_replaced_by_text(policy: str, expected: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(capability_policy=policy, describe_image=lambda _: "a single red pixel")
        await agent.run(harness.session, [TextBlock("What is this?"), IMAGE], model="blind-openai_chat")
        assert expected in str(harness.fakes["openai_chat"].bodies[0])
        assert (await read_messages(harness.store, harness.session))[0].content[1] == IMAGE


# --- failures --------------------------------------------------------------------------------------------------------


async def test_truncated_answer_is_stored_and_runs_no_tool(tmp_path: Path) -> None:
    words: list[str] = []

    @tool
    def note(word: str) -> str:
        """Note a word."""
        words.append(word)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[note])
        harness.fakes["anthropic"].cut(900, text_part("Let me see. " * 20), call_part("note", {"word": "never"}))
        ended = await agent.run(harness.session, "Go on")
        assert ended.stop_reason is StopReason.ERROR
        assert ended.fault is not None
        answer = (await read_messages(harness.store, harness.session))[-1]
        assert answer.metadata.status is MessageStatus.ERROR
        assert text_of(answer).startswith("Let me see.")
        assert words == []
        harness.fakes["anthropic"].reply("Where were we?")
        assert (await agent.run(harness.session, "And now?")).fault is None
        assert harness.fakes["anthropic"].refusals == []


async def test_provider_error_is_a_fault_and_ends_the_answer(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent()
        harness.fakes["openai_chat"].fail(429, "slow down", {"retry-after": "7"})
        ended = await agent.run(harness.session, "Hello?")
        assert ended.fault is not None
        assert (ended.fault.code, ended.fault.retry_after_s) == ("rate_limited", 7)
        assert (await read_messages(harness.store, harness.session))[-1].metadata.status is MessageStatus.ERROR
        assert (await agent.run(harness.session, "Hello again?")).fault is None
        assert harness.fakes["openai_chat"].refusals == []


@pytest.mark.parametrize("after", range(14))
async def test_turn_can_be_cancelled_at_any_event(after: int, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        harness.fakes["anthropic"].answer_with(
            thinking_part("hm"), text_part("one two"), call_part("add", {"a": 1, "b": 2})
        )
        harness.fakes["anthropic"].reply("three")
        turn = agent.begin(harness.session, "What is 1 + 2?")
        count = 0
        async for _ in turn:
            if count == after:
                turn.cancel()
            count += 1
        last = turn.events[-1]
        assert isinstance(last, TurnEnd)
        stored = await read_messages(harness.store, harness.session)
        assert not [message for message in stored if message.metadata.status is MessageStatus.PARTIAL]
        if last.stop_reason is StopReason.CANCELLED and stored[-1].role is Role.ASSISTANT:
            assert stored[-1].metadata.status in (MessageStatus.CANCELLED, MessageStatus.COMPLETE)
        harness.fakes["anthropic"].clear_script()
        assert (await agent.run(harness.session, "And now?")).fault is None
        assert harness.fakes["anthropic"].refusals == []


async def test_cancellation_stops_tools_and_adds_a_result_to_every_call(tmp_path: Path) -> None:
    is_started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        is_started.set()
        await asyncio.sleep(60)
        return "never"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[wait])
        harness.fakes["anthropic"].answer_with(call_part("wait", {}), call_part("wait", {}))
        turn = agent.begin(harness.session, "Wait")
        await is_started.wait()
        await turn.cancel_and_wait()
        stored = await read_messages(harness.store, harness.session)
        calls = [block.id for block in stored[1].content if isinstance(block, ToolUseBlock)]
        results = [block for message in stored for block in message.content if isinstance(block, ToolResultBlock)]
        assert sorted(result.tool_use_id for result in results) == sorted(calls)
        assert all(result.is_error for result in results)
        assert check(stored) == ()


async def test_session_has_one_turn_at_a_time(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        first = agent.turn(harness.session, "Hello")
        await anext(first)
        with pytest.raises(ConflictError) as caught:
            await agent.run(harness.session, "Me too")
        assert caught.value.code == "turn_in_flight"
        await first.aclose()
        assert (await agent.run(harness.session, "Me too")).fault is None


async def test_model_that_always_calls_tools_is_stopped(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add], max_steps=3)
        for _ in range(5):
            harness.fakes["anthropic"].call("add", {"a": 1, "b": 2})
        ended = await agent.run(harness.session, "Go")
        assert ended.fault is not None
        assert ended.fault.code == "too_many_steps"
        assert ended.llm_calls == 3


# --- delegation and summaries ----------------------------------------------------------------------------------------


async def test_task_is_delegated_to_its_own_session(tmp_path: Path) -> None:
    (tmp_path / ".dragoman").mkdir()
    (tmp_path / ".dragoman" / "routing.yaml").write_text(
        "schema_version: 1\ntiers: {fast: gemini, balanced: gemini, deep: gemini}\n"
    )
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent(workspace=tmp_path, allow_delegation=True, tools=[add])
        harness.fakes["anthropic"].call(
            "delegate", {"tier": "fast", "task": "Add 1 and 2", "context": ["1 + 2"], "allowed_tools": ["add"]}
        )
        harness.fakes["anthropic"].reply("The worker says three.")
        harness.fakes["gemini"].call("add", {"a": 1, "b": 2})
        harness.fakes["gemini"].reply("three")
        ended = await agent.run(harness.session, "Have somebody add 1 and 2")
        assert ended.fault is None
        results = [b for message in await read_messages(harness.store, harness.session) for b in message.content]
        (result,) = [block for block in results if isinstance(block, ToolResultBlock)]
        assert (result.content, result.is_error) == ((TextBlock("three"),), False)
        (worker,) = [message for message in await harness.store.list_sessions() if message.id != harness.session]
        assert worker.metadata["parent_session_id"] == harness.session
        (answer, *_) = [
            message for message in await read_messages(harness.store, worker.id) if message.role is Role.ASSISTANT
        ]
        assert answer.metadata.model == "fake-gemini:model"
        assert answer.metadata.routing is not None
        assert answer.metadata.routing.mode.value == "delegate"
        assert {tool["name"] for tool in harness.fakes["gemini"].bodies[0]["tools"][0]["functionDeclarations"]} == {
            "add"
        }


async def test_delegation_is_traced_with_task_time_and_observation(tmp_path: Path) -> None:
    tiers = {"schema_version": 1, "tiers": dict.fromkeys(("fast", "balanced", "deep"), "gemini")}
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent(allow_delegation=True)
        session = await harness.store.create_session(routing_policy=tiers)
        arguments = {"tier": "fast", "task": "Add 1 and 2", "context": ["1 + 2"]}
        harness.fakes["anthropic"].call("delegate", arguments)
        harness.fakes["anthropic"].reply("Three.")
        harness.fakes["gemini"].reply("three")
        ended = await agent.run(session.id, "Have somebody add 1 and 2")
        assert ended.fault is None, "the tiers of the session hold"
        stages = [message.metadata.stage for message in await read_messages(harness.store, session.id)]
        assert stages == [None, "intent", "delegation", "answer"]
        entries = await harness.store.entries.agent(session.id, "assistant")
        assert [entry["type"] for entry in entries] == ["task", "delegation", "observation", "final"]
        delegation = entries[1]
        assert (delegation["worker"], delegation["task"], delegation["args"]) == ("fast", "Add 1 and 2", arguments)
        assert delegation["turn_id"] == ended.turn_id
        times = [entry["timestamp"] for entry in entries]
        assert times == sorted(times)
        assert delegation["tool_use_id"] == entries[2]["tool_use_id"]
        (call,) = [
            block
            for message in messages_from_entries(entries)
            for block in message.content
            if isinstance(block, ToolUseBlock)
        ]
        assert (call.name, call.input) == ("delegate", arguments)
        worker = next(message for message in await harness.store.list_sessions() if message.metadata.get("is_worker"))
        (_, answer) = await read_messages(harness.store, worker.id)
        assert answer.metadata.model == "fake-gemini:model"


async def test_tier_without_a_model_is_an_error_result_and_creates_no_session(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(allow_delegation=True)
        harness.fakes["anthropic"].call("delegate", {"tier": "deep", "task": "Think"})
        ended = await agent.run(harness.session, "Have somebody think")
        assert ended.fault is None
        results = [b for message in await read_messages(harness.store, harness.session) for b in message.content]
        (result,) = [block for block in results if isinstance(block, ToolResultBlock)]
        assert result.is_error
        assert "no_model_available_for_tier" in str(result.content)
        assert len(await harness.store.list_sessions()) == 1


async def test_large_output_schema_is_an_error_result_and_creates_no_session(tmp_path: Path) -> None:
    definitions = {f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 2} for index in range(30)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d30": {"type": "string"}}}
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent(allow_delegation=True)
        harness.fakes["anthropic"].call(
            "delegate", {"tier": "fast", "task": "Think", "output_schema": json.dumps(schema)}
        )
        ended = await agent.run(harness.session, "Have somebody think")
        assert ended.fault is None
        results = [b for message in await read_messages(harness.store, harness.session) for b in message.content]
        (result,) = [block for block in results if isinstance(block, ToolResultBlock)]
        assert result.is_error
        assert "output_schema is too large" in str(result.content)
        assert len(await harness.store.list_sessions()) == 1


SMALL = """
[models."fake-openai_chat:small"]
aliases = ["small"]
max_context_tokens = 2000
"""


async def test_conversation_longer_than_the_window_loses_its_oldest_turns(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        fake = harness.fakes["openai_chat"]
        agent = make_agent(
            harness.store, settings_for(tmp_path, harness.fakes, "small", SMALL), tools=[add], system_prompt="Be kind."
        )
        async with agent:
            emitted: list[Event] = []
            agent.bus.subscribe("test", emitted.append, event_types=["llm.call_started"])
            for number in range(12):
                fake.call("add", {"a": number, "b": 1})
                fake.reply(f"answer {number} " + "word " * 200)
                ended = await agent.run(harness.session, f"question {number}")
                assert ended.fault is None
            events = [event async for event in agent.turn(harness.session, "And?")]
            await agent.bus.drain()
        (started,) = [event for event in events if isinstance(event, AnswerStart)]
        stored = await read_messages(harness.store, harness.session)
        assert started.omitted_count > 20
        assert stored[-1].metadata.extra == {"omitted_messages": started.omitted_count}
        assert emitted[-1].payload.omitted_messages == started.omitted_count
        (adjustment,) = [item for item in started.adjustments if item.block_type == "history"]
        assert f"the oldest {started.omitted_count} messages are not sent" in adjustment.reason
        sent = fake.bodies[-1]["messages"]
        assert [message["role"] for message in sent[:3]] == ["system", "user", "assistant"]  # a whole turn
        assert "question 0" not in str(sent)
        assert "question 11" in str(sent)
        assert len(stored) == 12 * 4 + 2
        assert fake.refusals == []


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_history_that_overflows_is_sent_again_without_its_oldest_turns(*, streamed: bool, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        fake, agent = harness.fakes["openai_chat"], await harness.agent(stream=streamed)
        emitted: list[Event] = []
        agent.bus.subscribe("test", emitted.append, event_types=["llm.call_completed", "llm.call_failed"])
        for number in range(8):
            fake.reply(f"answer {number} " + "word " * 100)
            await agent.run(harness.session, f"question {number}")
        fake.fail(413, "too long")
        fake.reply("Short enough.")
        ended = await agent.run(harness.session, "And now?")
        assert ended.fault is None
        sent = str(fake.bodies[-1]["messages"])
        assert "question 0" not in sent
        assert "question 7" in sent
        answer = (await read_messages(harness.store, harness.session))[-1]
        omitted = 17 - len(fake.bodies[-1]["messages"])
        assert answer.metadata.extra == {"omitted_messages": omitted}
        fake.fail(413, "too long")
        fake.fail(413, "still too long")
        ended = await agent.run(harness.session, "Again?")
        assert ended.fault is not None
        assert (ended.fault.code, ended.fault.message) == ("context_overflow", "still too long")
        await agent.bus.drain()
        retries = [[retry.error_code for retry in event.payload.retries] for event in emitted[-2:]]
        assert retries == [["context_overflow"], ["context_overflow"]]


async def test_single_question_that_overflows_is_not_sent_again(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        fake, agent = harness.fakes["openai_chat"], await harness.agent()
        fake.fail(413, "too long")
        ended = await agent.run(harness.session, "A long question")
        assert ended.fault is not None
        assert ended.fault.code == "context_overflow"
        assert len(fake.received) == 1


async def test_single_question_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        async with make_agent(harness.store, settings_for(tmp_path, harness.fakes, "", SMALL)) as agent:
            with pytest.raises(RoutingConstraintError, match="longer than this model accepts"):
                await agent.run(harness.session, "word " * 3000, model="small")
        assert await read_messages(harness.store, harness.session) == []


async def test_long_history_is_summarized_once_and_stays_in_the_store(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(summarize=True, summarize_above_tokens=300)
        fake = harness.fakes["openai_chat"]
        for number in range(7):
            fake.reply(f"answer {number} " + "word " * 60)
            await agent.run(harness.session, f"question {number}")
        fake.reply("They talked about words.")
        fake.reply("indeed")
        await agent.run(harness.session, "And?")
        sent = str(fake.bodies[-1])
        assert "They talked about words." in sent
        assert "question 0" not in sent
        assert "question 6" in sent
        stored = await read_messages(harness.store, harness.session)
        assert text_of(stored[0]) == "question 0"
        assert [message.metadata.stage for message in stored[-3:]] == [None, "answer", "summary"]


async def test_cost_of_a_summary_is_reported_and_counted(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(summarize=True, summarize_above_tokens=300, price_table=PRICES)
        emitted: list[Event] = []
        agent.bus.subscribe("test", emitted.append, event_types=["llm.call_started", "llm.call_completed"])
        fake, calls = harness.fakes["openai_chat"], 0
        for number in range(7):
            fake.reply(f"answer {number} " + "word " * 60)
            calls += (await agent.run(harness.session, f"question {number}")).llm_calls
        (before,) = await harness.store.costs.totals("session", session=harness.session)
        fake.reply("They talked about words.")
        ended = await agent.run(harness.session, "And?")
        (after,) = await harness.store.costs.totals("session", session=harness.session)
        await agent.bus.drain()
        assert ended.llm_calls == 2
        assert len(emitted) == 2 * (calls + 2) == 2 * len(fake.bodies)
        events = [event.payload for event in emitted[-4:] if event.type == "llm.call_completed"]
        assert ended.output_tokens == sum(payload.output_tokens for payload in events)
        assert after.output_tokens - before.output_tokens == ended.output_tokens
        assert after.input_tokens - before.input_tokens == ended.input_tokens
        assert after.cost_usd - before.cost_usd == ended.cost_usd
        assert (await harness.store.verify()).is_sound


async def test_failed_summary_is_reported_as_a_failed_call(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(summarize=True, summarize_above_tokens=300, max_steps=1)
        emitted: list[str] = []
        agent.bus.subscribe("test", lambda event: emitted.append(event.type))
        fake = harness.fakes["openai_chat"]
        for number in range(7):
            fake.reply(f"answer {number} " + "word " * 60)
            await agent.run(harness.session, f"question {number}")
        fake.fail(500)
        ended = await agent.run(harness.session, "And?")
        await agent.bus.drain()
        assert ended.fault is None
        assert emitted.count("llm.call_failed") == 1


async def test_cost_of_a_turn_is_the_sum_of_its_answers(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add], price_table=PRICES)
        harness.fakes["anthropic"].call("add", {"a": 1, "b": 2})
        ended = await agent.run(harness.session, "What is 1 + 2?", user_id="u1")
        usages = [
            message.metadata.usage
            for message in await read_messages(harness.store, harness.session)
            if message.metadata.usage
        ]
        assert ended.cost_usd == sum((usage.cost_usd or 0 for usage in usages), Decimal(0)) > 0
        assert (ended.state, ended.unpriced_calls) == ("priced", 0)
        assert ended.output_tokens == sum(usage.output_tokens for usage in usages)


async def test_thinking_is_sent_back_with_its_signature(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        harness.fakes["anthropic"].call("add", {"a": 1, "b": 2}, thinking="One and two.")
        await agent.run(harness.session, "What is 1 + 2?")
        stored = await read_messages(harness.store, harness.session)
        (thought,) = [block for block in stored[1].content if isinstance(block, ThinkingBlock)]
        assert thought.signature
        assert thought.signature in str(harness.fakes["anthropic"].bodies[1])
