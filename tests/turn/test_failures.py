"""Tests of failures around a turn: subscribers, disks, leases, keys, tools, workers, summaries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from dragoman import settings
from dragoman.bus import Bus, Event
from dragoman.errors import (
    ConflictError,
    RoutingConstraintError,
    SettingsError,
    StorageError,
    UnknownSessionError,
)
from dragoman.event import TextDelta
from dragoman.exchange import Options, SideEffects, StopReason
from dragoman.message import Message, MessageStatus, Role, TextBlock, ToolResultBlock
from dragoman.rules import check
from dragoman.tools import Confirmation, ConfirmationRequest, ToolContext, tool
from dragoman.turn import Agent, AnswerEnd, AnswerStart, TurnEnd, TurnEvent
from dragoman.turn.model_call import MAX_CALLS
from tests.fake_providers import call_part, text_part
from tests.store.conftest import pass_time
from tests.store.faults.test_disk_full import small_disk  # noqa: F401  a fixture
from tests.turn.fake_agent import FakeAgent, open_fake_agent

ENDS = ("turn.completed", "turn.failed", "turn.cancelled")


async def read_messages(harness: FakeAgent, session_id: str | None = None) -> list[Message]:
    return [row.message async for row in harness.store.history(session_id or harness.session)]


def results_in(history: list[Message]) -> list[ToolResultBlock]:
    return [block for message in history for block in message.content if isinstance(block, ToolResultBlock)]


async def record_events(agent: Agent) -> list[Event]:
    """Return a list that receives the events of an agent's bus from now on."""
    events: list[Event] = []
    agent.bus.subscribe("test", events.append)
    await agent.bus.drain()
    return events


async def read_types(agent: Agent, events: list[Event]) -> list[str]:
    await agent.bus.drain()
    return [event.type for event in events]


async def run_interrupted(turn: AsyncIterator[TurnEvent], when: type, by: Callable[[], Awaitable[None]]) -> None:
    """Read a turn to its end; at the first event of that type, call a function."""
    is_first = True
    async for event in turn:
        if is_first and isinstance(event, when):
            is_first = False
            await by()


# --- bus -------------------------------------------------------------------------------------------------------------


async def test_subscriber_that_raises_does_not_fail_the_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()

        def raise_error(_: Event) -> None:
            raise ZeroDivisionError

        agent.bus.subscribe("failing", raise_error)
        agent.bus.subscribe("failing and fast", raise_error, fast=True)
        assert (await agent.run(harness.session, "Hello?")).fault is None


async def test_full_or_closed_bus_does_not_fail_the_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        full = Bus(limit=3)  # it was never started, so no event is delivered
        agent = await harness.agent(bus=full)
        assert (await agent.run(harness.session, "Hello?")).fault is None
        closed = Bus()
        await closed.close()
        agent = await harness.agent(bus=closed)
        assert (await agent.run(harness.session, "Hello?")).fault is None
        assert [message.metadata.status for message in await read_messages(harness)] == [MessageStatus.COMPLETE] * 4
        await full.close()


# --- store -----------------------------------------------------------------------------------------------------------


async def test_full_disk_fails_the_turn_and_the_next_turn_works_after_space_is_freed(
    small_disk: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    room = small_disk / "room"
    room.write_bytes(bytes(256 * 1024))
    async with open_fake_agent(tmp_path, "anthropic", url=f"sqlite:///{small_disk / 'store.db'}") as harness:
        agent = await harness.agent(record_trace=False)
        events = await record_events(agent)
        harness.fakes["anthropic"].reply("word " * 200_000)  # more than the free space of the disk
        with pytest.raises(StorageError) as caught:
            await agent.run(harness.session, "Tell me everything")
        assert caught.value.code == "disk_full"
        types = await read_types(agent, events)
        assert [name for name in types if name in ENDS] == ["turn.failed"]
        assert types.count("llm.call_started") == types.count("llm.call_completed") + types.count("llm.call_failed")
        room.unlink()
        harness.fakes["anthropic"].reply("briefly")
        assert (await agent.run(harness.session, "Shorter, please")).fault is None
        stored = await read_messages(harness)
        assert [message.role for message in stored] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
        assert stored[1].metadata.status is MessageStatus.ERROR
        assert stored[3].content == (TextBlock("briefly"),)
        assert harness.fakes["anthropic"].refusals == []


async def test_session_can_be_deleted_after_its_last_answer(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        events = await record_events(agent)
        turn = agent.turn(harness.session, "Hello?")
        await run_interrupted(turn, AnswerEnd, lambda: harness.store.delete_session(harness.session))
        assert [name for name in await read_types(agent, events) if name in ENDS] == ["turn.completed"]
        assert (await harness.store.verify()).is_sound


async def test_last_answer_its_entries_and_the_release_of_the_lease_are_one_step(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent, other = await harness.agent(), await harness.agent()
        async for event in agent.turn(harness.session, "Hello?"):
            if isinstance(event, AnswerEnd):
                written = await harness.store.entries.agent(harness.session, agent.agent_key)
                assert [entry["type"] for entry in written] == ["task", "final"]
                assert (await other.run(harness.session, "Me too")).fault is None
        stored = await read_messages(harness)
        assert [message.role for message in stored] == [Role.USER, Role.ASSISTANT] * 2
        assert harness.fakes["anthropic"].refusals == []


@pytest.mark.parametrize("when", [AnswerStart, TextDelta])
async def test_session_can_be_deleted_during_a_turn(when: type, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        events = await record_events(agent)
        harness.fakes["anthropic"].reply("Hello there.")
        turn = agent.turn(harness.session, "Hello?")
        with pytest.raises(UnknownSessionError):
            await run_interrupted(turn, when, lambda: harness.store.delete_session(harness.session))
        assert [name for name in await read_types(agent, events) if name in ENDS] == ["turn.failed"]
        with pytest.raises(UnknownSessionError):
            await agent.run(harness.session, "Still there?")
        assert (await harness.store.verify()).is_sound


async def test_turn_that_lost_its_lease_ends_and_the_other_turn_continues(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent, other = await harness.agent(), await harness.agent()
        events = await record_events(agent)
        harness.fakes["anthropic"].reply("This was sent before the machine was suspended.")
        turn = agent.turn(harness.session, "Hello?")
        async for event in turn:
            if isinstance(event, TextDelta):
                break
        await pass_time(harness.store, minutes=5)
        harness.fakes["anthropic"].reply("Good morning.")
        assert (await other.run(harness.session, "Anybody there?")).fault is None
        with pytest.raises(ConflictError):
            async for _ in turn:
                pass
        assert [name for name in await read_types(agent, events) if name in ENDS] == ["turn.failed"]
        stored = await read_messages(harness)
        assert [message.role for message in stored] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
        assert stored[1].metadata.extra == {"interrupted": True}
        assert check(stored) == ()


async def test_turn_that_lost_its_lease_calls_no_model_and_runs_no_tool(tmp_path: Path) -> None:
    words: list[str] = []

    @tool(side_effects=SideEffects.NONE)
    def note(word: str) -> str:
        """Note a word."""
        words.append(word)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[note])
        harness.fakes["anthropic"].call("note", {"word": "never"})
        real = harness.store.turns.lease
        harness.store.turns.lease = lambda session_id: real(session_id, 0.03)  # type: ignore[method-assign]

        async def expire_lease() -> None:
            await pass_time(harness.store, minutes=5)
            await harness.store.turns.acquire(harness.session, "somebody else", 600)
            await asyncio.sleep(0.1)  # until it renews its lease

        with pytest.raises(ConflictError) as caught:
            await run_interrupted(agent.turn(harness.session, "Note something"), AnswerEnd, expire_lease)
        assert caught.value.code == "turn_in_flight"
        assert words == []
        assert len(harness.fakes["anthropic"].bodies) == 1
        assert check(await read_messages(harness)) == ()


# --- keys and addresses ----------------------------------------------------------------------------------------------


async def test_missing_key_is_reported_before_anything_is_stored(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        keys = ["sk-fake"]
        file = harness.settings.file
        assert file is not None
        loaded = settings.load(environment={}, file=Path(file), keyring=lambda _: keys[0] if keys else None)
        harness.settings = loaded
        agent = await harness.agent()
        events = await record_events(agent)
        keys.clear()
        with pytest.raises(SettingsError) as caught:
            await agent.run(harness.session, "Hello?")
        assert caught.value.code == "missing_key"
        assert await read_messages(harness) == []
        assert [name for name in await read_types(agent, events) if name in ENDS] == ["turn.failed"]
        keys.append("sk-fake")
        assert (await agent.run(harness.session, "Hello?")).fault is None
        keys.clear()  # a key is read once per agent
        assert (await agent.run(harness.session, "Hello?")).fault is None


async def test_provider_without_an_address_is_rejected_and_nothing_is_stored(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        assert harness.settings.file is not None
        file = Path(harness.settings.file)
        file.write_text(file.read_text() + '[providers.nowhere]\ndialect = "openai_chat"\n[models."nowhere:m"]\n')
        harness.settings = settings.load(environment={"FAKE_KEY": "x"}, file=file, keyring=lambda _: None)
        agent = await harness.agent()
        with pytest.raises(RoutingConstraintError) as caught:
            await agent.run(harness.session, "Hello?", model="nowhere:m")
        assert caught.value.validation_failure == "not_configured"
        assert await read_messages(harness) == []


# --- tools -----------------------------------------------------------------------------------------------------------


async def test_result_after_the_timeout_is_not_a_second_result(tmp_path: Path) -> None:
    is_late = asyncio.Event()

    @tool(side_effects=SideEffects.NONE, timeout_s=0.05)
    async def ignore_cancellation() -> str:
        """Take too long, and ignore the cancellation."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_late.set()
        return "too late"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[ignore_cancellation])
        harness.fakes["anthropic"].call("ignore_cancellation")
        harness.fakes["anthropic"].reply("It took too long.")
        assert (await agent.run(harness.session, "Wait")).fault is None
        await is_late.wait()
        (result,) = results_in(await read_messages(harness))
        assert result.is_error
        assert "took longer" in str(result.content)
        assert "too late" not in str(harness.fakes["anthropic"].bodies)


async def test_approval_that_times_out_is_not_given(tmp_path: Path) -> None:
    words: list[str] = []

    @tool(side_effects=SideEffects.WRITE)
    def note(word: str) -> str:
        """Note a word."""
        words.append(word)
        return "noted"

    async def silence(_: ConfirmationRequest) -> Confirmation:
        await asyncio.sleep(60)
        raise AssertionError

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[note], confirm=silence, confirm_timeout_s=0.05)
        harness.fakes["anthropic"].call("note", {"word": "never"})
        assert (await agent.run(harness.session, "Note something")).fault is None
        (result,) = results_in(await read_messages(harness))
        assert (result.is_error, words) == (True, [])
        assert "in time" in str(result.content)


async def test_tools_receive_the_user_of_each_turn(tmp_path: Path) -> None:
    users: list[str | None] = []

    @tool(side_effects=SideEffects.NONE)
    def whoami(context: ToolContext) -> str:
        """Return the user of the turn."""
        users.append(context.user_id)
        return "somebody"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[whoami])
        for user in ("ada", "grace"):
            harness.fakes["anthropic"].call("whoami")
            harness.fakes["anthropic"].reply("I see.")
            await agent.run(harness.session, "Who am I?", user_id=user)
        assert users == ["ada", "grace"]


# --- workers ---------------------------------------------------------------------------------------------------------


def write_tiers(folder: Path, model: str) -> None:
    (folder / ".dragoman").mkdir()
    text = f"schema_version: 1\ntiers: {{fast: {model}, balanced: {model}, deep: {model}}}\n"
    (folder / ".dragoman" / "routing.yaml").write_text(text)


async def test_running_workers_are_cancelled_with_their_turn(tmp_path: Path) -> None:
    working = asyncio.Semaphore(0)

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        working.release()
        await asyncio.sleep(60)
        return "never"

    write_tiers(tmp_path, "gemini")
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent(workspace=tmp_path, allow_delegation=True, tools=[wait])
        events = await record_events(agent)
        task = {"tier": "fast", "task": "Wait", "allowed_tools": ["wait"]}
        harness.fakes["anthropic"].answer_with(call_part("delegate", task), call_part("delegate", task))
        harness.fakes["gemini"].call("wait")
        harness.fakes["gemini"].call("wait")
        turn = agent.begin(harness.session, "Have two wait")
        await working.acquire()
        await working.acquire()
        await turn.cancel_and_wait()
        types = await read_types(agent, events)
        assert types.count("turn.started") == types.count("turn.cancelled") == 3
        assert types.count("delegate.failed") == 2
        sessions = await harness.store.list_sessions()
        assert len(sessions) == 3
        for session in sessions:
            stored = await read_messages(harness, session.id)
            assert check(stored) == ()
            assert not [message for message in stored if message.metadata.status is MessageStatus.PARTIAL]
            await harness.store.turns.acquire(session.id, "anybody")
        assert len(results_in(await read_messages(harness))) == 2


async def test_task_that_begins_with_an_at_sign_names_no_model(tmp_path: Path) -> None:
    write_tiers(tmp_path, "gemini")
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent(workspace=tmp_path, allow_delegation=True)
        for task in ("@anthropic do it yourself", "@nobody do it"):
            harness.fakes["anthropic"].call("delegate", {"tier": "fast", "task": task})
            harness.fakes["anthropic"].reply("Thank you.")
            harness.fakes["gemini"].reply("done")
            assert (await agent.run(harness.session, "Delegate it")).fault is None
        assert [result.content for result in results_in(await read_messages(harness))] == [(TextBlock("done"),)] * 2
        assert "@nobody do it" in str(harness.fakes["gemini"].bodies[-1])


async def test_failed_worker_is_an_error_result_and_the_turn_continues(tmp_path: Path) -> None:
    write_tiers(tmp_path, "gemini")
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent(workspace=tmp_path, allow_delegation=True)
        harness.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Do it"})
        harness.fakes["gemini"].fail(401, "who are you?")
        assert (await agent.run(harness.session, "Delegate it")).fault is None
        (result,) = results_in(await read_messages(harness))
        assert result.is_error
        assert "worker_error" in str(result.content)
        assert not agent.services.availability.is_available("fake-gemini", "fake-gemini:model", agent.services.clock())


# --- configuration ---------------------------------------------------------------------------------------------------


async def test_system_prompt_can_change_between_turns(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(system_prompt="Be brief.")
        await agent.run(harness.session, "Hello?")
        agent.config = msgspec.structs.replace(agent.config, system_prompt="Be thorough.")
        await agent.run(harness.session, "Hello again?")
        first, second = harness.fakes["anthropic"].bodies
        assert "Be brief." in str(first["system"])
        assert "Be thorough." in str(second["system"])
        assert "Be brief." not in str(second)
        assert not [message for message in await read_messages(harness) if message.role is Role.SYSTEM]


async def test_zero_option_of_a_turn_overrides_the_option_of_the_agent(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(options=Options(temperature=0.7, max_output_tokens=9))
        await agent.run(harness.session, "Hello?", options=Options(temperature=0))
        body = harness.fakes["openai_chat"].bodies[0]
        assert body["temperature"] == 0
        assert 9 in body.values()


async def test_failed_summary_does_not_fail_the_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent(summarize_above_tokens=300)
        fake = harness.fakes["openai_chat"]
        for number in range(7):
            fake.reply(f"answer {number} " + "word " * 60)
            await agent.run(harness.session, f"question {number}")
        agent.config = msgspec.structs.replace(agent.config, summarize=True)
        fake.fail(500, "no summary today")
        fake.reply("indeed")
        ended = await agent.run(harness.session, "And?")
        assert (ended.fault, ended.stop_reason) == (None, StopReason.END_TURN)
        assert "question 0" in str(fake.bodies[-1])
        assert (await read_messages(harness))[-1].content == (TextBlock("indeed"),)


async def test_rejected_second_turn_does_not_hide_the_first(tmp_path: Path) -> None:
    is_refused = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait until the second turn is rejected."""
        await is_refused.wait()
        return "refused"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[wait])
        harness.fakes["anthropic"].answer_with(call_part("wait", {}))
        first = agent.begin(harness.session, "Hello?")
        await anext(aiter(first))
        second = agent.begin(harness.session, "Me too")
        with pytest.raises(ConflictError):
            await second.wait()
        is_refused.set()
        assert isinstance(await first.wait(), TurnEnd)


async def test_calls_beyond_the_last_step_get_a_result_and_are_not_run(tmp_path: Path) -> None:
    @tool(side_effects=SideEffects.NONE)
    def add(a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add], max_steps=1)
        harness.fakes["anthropic"].answer_with(text_part("So."), call_part("add", {"a": 1, "b": 2}))
        ended = await agent.run(harness.session, "What is 1 + 2?")
        assert ended.fault is not None
        (result,) = results_in(await read_messages(harness))
        assert result.is_error
        assert "too many steps" in str(result.content)
        assert [row.status for row in await harness.store.tool_calls(harness.session)] != ["pending"]


# --- limits of answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_answer_with_too_many_calls_is_an_error_and_runs_none(tmp_path: Path, streamed: bool) -> None:
    numbers: list[int] = []

    @tool(side_effects=SideEffects.NONE)
    async def note(number: int) -> str:
        """Note a number."""
        numbers.append(number)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[note], stream=streamed)
        harness.fakes["anthropic"].answer_with(
            *(call_part("note", {"number": number}) for number in range(MAX_CALLS + 1))
        )
        ended = await agent.run(harness.session, "Note everything")
        assert ended.fault is not None
        assert ended.fault.code == "too_many_tool_calls"
        assert numbers == []
        _, answer = await read_messages(harness)
        assert answer.metadata.status is MessageStatus.ERROR
        assert len(answer.content) >= MAX_CALLS  # the received content is stored
        harness.fakes["anthropic"].reply("Fewer, then.")
        assert (await agent.run(harness.session, "Go on")).fault is None


async def test_answer_with_the_allowed_number_of_calls_runs_all(tmp_path: Path) -> None:
    numbers: list[int] = []

    @tool(side_effects=SideEffects.NONE)
    async def note(number: int) -> str:
        """Note a number."""
        numbers.append(number)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[note])
        harness.fakes["anthropic"].answer_with(*(call_part("note", {"number": number}) for number in range(MAX_CALLS)))
        assert (await agent.run(harness.session, "Note everything")).fault is None
        assert sorted(numbers) == list(range(MAX_CALLS))
