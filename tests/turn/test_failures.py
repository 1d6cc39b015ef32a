"""Failures around a turn: subscribers, disks, leases, keys, tools, workers, summaries."""

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


async def messages(it: FakeAgent, session_id: str | None = None) -> list[Message]:
    return [row.message async for row in it.store.history(session_id or it.session)]


def results_in(history: list[Message]) -> list[ToolResultBlock]:
    return [block for one in history for block in one.content if isinstance(block, ToolResultBlock)]


async def told_to(agent: Agent) -> list[Event]:
    """The events of an agent's bus from now on."""
    said: list[Event] = []
    agent.bus.subscribe("test", said.append)
    await agent.bus.drain()
    return said


async def types_in(agent: Agent, said: list[Event]) -> list[str]:
    await agent.bus.drain()
    return [event.type for event in said]


async def interrupted(turn: AsyncIterator[TurnEvent], when: type, by: Callable[[], Awaitable[None]]) -> None:
    """Follow a turn to its end; at the first event of that kind, something happens."""
    is_to_come = True
    async for event in turn:
        if is_to_come and isinstance(event, when):
            is_to_come = False
            await by()


# --- the bus ---------------------------------------------------------------------------------------------------------


async def test_a_subscriber_that_raises_hurts_no_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()

        def take(_: Event) -> None:
            raise ZeroDivisionError

        agent.bus.subscribe("clumsy", take)
        agent.bus.subscribe("clumsy and fast", take, fast=True)
        assert (await agent.run(it.session, "Hello?")).fault is None


async def test_a_bus_that_is_full_or_closed_hurts_no_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        full = Bus(limit=3)  # nobody delivers: it was never started
        agent = await it.agent(bus=full)
        assert (await agent.run(it.session, "Hello?")).fault is None
        closed = Bus()
        await closed.close()
        agent = await it.agent(bus=closed)
        assert (await agent.run(it.session, "Hello?")).fault is None
        assert [one.metadata.status for one in await messages(it)] == [MessageStatus.COMPLETE] * 4
        await full.close()


# --- the store -------------------------------------------------------------------------------------------------------


async def test_a_disk_that_fills_up_in_the_middle_is_said_and_once_there_is_room_the_next_turn_works(
    small_disk: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    room = small_disk / "room"
    room.write_bytes(bytes(256 * 1024))
    async with open_fake_agent(tmp_path, "anthropic", url=f"sqlite:///{small_disk / 'store.db'}") as it:
        agent = await it.agent(record_trace=False)
        said = await told_to(agent)
        it.fakes["anthropic"].reply("word " * 200_000)  # more than the disk has room for
        with pytest.raises(StorageError) as caught:
            await agent.run(it.session, "Tell me everything")
        assert caught.value.code == "disk_full"
        types = await types_in(agent, said)
        assert [name for name in types if name in ENDS] == ["turn.failed"]
        assert types.count("llm.call_started") == types.count("llm.call_completed") + types.count("llm.call_failed")
        room.unlink()
        it.fakes["anthropic"].reply("briefly")
        assert (await agent.run(it.session, "Shorter, please")).fault is None
        kept = await messages(it)
        assert [one.role for one in kept] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
        assert kept[1].metadata.status is MessageStatus.ERROR
        assert kept[3].content == (TextBlock("briefly"),)
        assert it.fakes["anthropic"].refusals == []


async def test_a_session_may_be_deleted_as_soon_as_its_last_answer_is_told(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        said = await told_to(agent)
        turn = agent.turn(it.session, "Hello?")
        await interrupted(turn, AnswerEnd, lambda: it.store.delete_session(it.session))
        assert [name for name in await types_in(agent, said) if name in ENDS] == ["turn.completed"]
        assert (await it.store.verify()).is_sound


async def test_the_last_answer_its_entries_and_the_end_of_the_lease_are_one_step(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent, other = await it.agent(), await it.agent()
        async for event in agent.turn(it.session, "Hello?"):
            if isinstance(event, AnswerEnd):
                written = await it.store.entries.agent(it.session, agent.agent_key)
                assert [entry["type"] for entry in written] == ["task", "final"]
                assert (await other.run(it.session, "Me too")).fault is None
        kept = await messages(it)
        assert [one.role for one in kept] == [Role.USER, Role.ASSISTANT] * 2
        assert it.fakes["anthropic"].refusals == []


@pytest.mark.parametrize("when", [AnswerStart, TextDelta])
async def test_a_session_may_be_deleted_while_a_turn_runs_in_it(when: type, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        said = await told_to(agent)
        it.fakes["anthropic"].reply("Hello there.")
        turn = agent.turn(it.session, "Hello?")
        with pytest.raises(UnknownSessionError):
            await interrupted(turn, when, lambda: it.store.delete_session(it.session))
        assert [name for name in await types_in(agent, said) if name in ENDS] == ["turn.failed"]
        with pytest.raises(UnknownSessionError):
            await agent.run(it.session, "Still there?")
        assert (await it.store.verify()).is_sound


async def test_a_turn_that_lost_its_lease_to_another_ends_and_the_other_goes_on(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent, other = await it.agent(), await it.agent()
        said = await told_to(agent)
        it.fakes["anthropic"].reply("This was said before the machine fell asleep.")
        turn = agent.turn(it.session, "Hello?")
        async for event in turn:
            if isinstance(event, TextDelta):
                break
        await pass_time(it.store, minutes=5)
        it.fakes["anthropic"].reply("Good morning.")
        assert (await other.run(it.session, "Anybody there?")).fault is None
        with pytest.raises(ConflictError):
            async for _ in turn:
                pass
        assert [name for name in await types_in(agent, said) if name in ENDS] == ["turn.failed"]
        kept = await messages(it)
        assert [one.role for one in kept] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
        assert kept[1].metadata.extra == {"interrupted": True}
        assert check(kept) == ()


async def test_a_turn_that_lost_its_lease_calls_no_model_and_runs_no_tool(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(side_effects=SideEffects.NONE)
    def note(word: str) -> str:
        """Note a word."""
        ran.append(word)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[note])
        it.fakes["anthropic"].call("note", {"word": "never"})
        real = it.store.turns.lease
        it.store.turns.lease = lambda session_id: real(session_id, 0.03)  # type: ignore[method-assign]

        async def taken() -> None:
            await pass_time(it.store, minutes=5)
            await it.store.turns.acquire(it.session, "somebody else", 600)
            await asyncio.sleep(0.1)  # until it wants to renew its lease

        with pytest.raises(ConflictError) as caught:
            await interrupted(agent.turn(it.session, "Note something"), AnswerEnd, taken)
        assert caught.value.code == "turn_in_flight"
        assert ran == []
        assert len(it.fakes["anthropic"].bodies) == 1
        assert check(await messages(it)) == ()


# --- keys and addresses ----------------------------------------------------------------------------------------------


async def test_a_key_that_is_gone_is_said_before_anything_is_stored(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        keys = ["sk-fake"]
        given = it.settings.file
        assert given is not None
        found = settings.load(environment={}, file=Path(given), keyring=lambda _: keys[0] if keys else None)
        it.settings = found
        agent = await it.agent()
        said = await told_to(agent)
        keys.clear()
        with pytest.raises(SettingsError) as caught:
            await agent.run(it.session, "Hello?")
        assert caught.value.code == "missing_key"
        assert await messages(it) == []
        assert [name for name in await types_in(agent, said) if name in ENDS] == ["turn.failed"]
        keys.append("sk-fake")
        assert (await agent.run(it.session, "Hello?")).fault is None
        keys.clear()  # what was found once is good for the agent's life
        assert (await agent.run(it.session, "Hello?")).fault is None


async def test_a_provider_without_an_address_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        assert it.settings.file is not None
        file = Path(it.settings.file)
        file.write_text(file.read_text() + '[providers.nowhere]\ndialect = "openai_chat"\n[models."nowhere:m"]\n')
        it.settings = settings.load(environment={"FAKE_KEY": "x"}, file=file, keyring=lambda _: None)
        agent = await it.agent()
        with pytest.raises(RoutingConstraintError) as caught:
            await agent.run(it.session, "Hello?", model="nowhere:m")
        assert caught.value.validation_failure == "not_configured"
        assert await messages(it) == []


# --- tools -----------------------------------------------------------------------------------------------------------


async def test_what_a_tool_gives_too_late_is_no_second_answer(tmp_path: Path) -> None:
    is_late = asyncio.Event()

    @tool(side_effects=SideEffects.NONE, timeout_s=0.05)
    async def dawdle() -> str:
        """Take too long, and do not listen."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_late.set()
        return "too late"

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[dawdle])
        it.fakes["anthropic"].call("dawdle")
        it.fakes["anthropic"].reply("It took too long.")
        assert (await agent.run(it.session, "Dawdle")).fault is None
        await is_late.wait()
        (result,) = results_in(await messages(it))
        assert result.is_error
        assert "took longer" in str(result.content)
        assert "too late" not in str(it.fakes["anthropic"].bodies)


async def test_who_does_not_answer_in_time_has_not_allowed_it(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(side_effects=SideEffects.WRITE)
    def note(word: str) -> str:
        """Note a word."""
        ran.append(word)
        return "noted"

    async def silence(_: ConfirmationRequest) -> Confirmation:
        await asyncio.sleep(60)
        raise AssertionError

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[note], confirm=silence, confirm_timeout_s=0.05)
        it.fakes["anthropic"].call("note", {"word": "never"})
        assert (await agent.run(it.session, "Note something")).fault is None
        (result,) = results_in(await messages(it))
        assert (result.is_error, ran) == (True, [])
        assert "in time" in str(result.content)


async def test_tools_know_who_asks_in_each_turn(tmp_path: Path) -> None:
    seen: list[str | None] = []

    @tool(side_effects=SideEffects.NONE)
    def whoami(context: ToolContext) -> str:
        """Return the user who asks."""
        seen.append(context.user_id)
        return "somebody"

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[whoami])
        for user in ("ada", "grace"):
            it.fakes["anthropic"].call("whoami")
            it.fakes["anthropic"].reply("I see.")
            await agent.run(it.session, "Who am I?", user_id=user)
        assert seen == ["ada", "grace"]


# --- workers ---------------------------------------------------------------------------------------------------------


def with_tiers(folder: Path, model: str) -> None:
    (folder / ".dragoman").mkdir()
    text = f"schema_version: 1\ntiers: {{fast: {model}, balanced: {model}, deep: {model}}}\n"
    (folder / ".dragoman" / "routing.yaml").write_text(text)


async def test_workers_at_work_are_cancelled_with_the_turn_that_sent_them(tmp_path: Path) -> None:
    working = asyncio.Semaphore(0)

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        working.release()
        await asyncio.sleep(60)
        return "never"

    with_tiers(tmp_path, "gemini")
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as it:
        agent = await it.agent(workspace=tmp_path, allow_delegation=True, tools=[wait])
        said = await told_to(agent)
        task = {"tier": "fast", "task": "Wait", "allowed_tools": ["wait"]}
        it.fakes["anthropic"].answer_with(call_part("delegate", task), call_part("delegate", task))
        it.fakes["gemini"].call("wait")
        it.fakes["gemini"].call("wait")
        turn = agent.begin(it.session, "Have two wait")
        await working.acquire()
        await working.acquire()
        await turn.cancel_and_wait()
        types = await types_in(agent, said)
        assert types.count("turn.started") == types.count("turn.cancelled") == 3
        assert types.count("delegate.failed") == 2
        sessions = await it.store.list_sessions()
        assert len(sessions) == 3
        for session in sessions:
            kept = await messages(it, session.id)
            assert check(kept) == ()
            assert not [one for one in kept if one.metadata.status is MessageStatus.PARTIAL]
            await it.store.turns.acquire(session.id, "anybody")
        assert len(results_in(await messages(it))) == 2


async def test_a_task_that_begins_with_an_at_sign_names_no_model(tmp_path: Path) -> None:
    with_tiers(tmp_path, "gemini")
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as it:
        agent = await it.agent(workspace=tmp_path, allow_delegation=True)
        for task in ("@anthropic do it yourself", "@nobody do it"):
            it.fakes["anthropic"].call("delegate", {"tier": "fast", "task": task})
            it.fakes["anthropic"].reply("Thank you.")
            it.fakes["gemini"].reply("done")
            assert (await agent.run(it.session, "Delegate it")).fault is None
        assert [result.content for result in results_in(await messages(it))] == [(TextBlock("done"),)] * 2
        assert "@nobody do it" in str(it.fakes["gemini"].bodies[-1])


async def test_a_worker_whose_provider_fails_is_an_error_result_and_the_turn_goes_on(tmp_path: Path) -> None:
    with_tiers(tmp_path, "gemini")
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as it:
        agent = await it.agent(workspace=tmp_path, allow_delegation=True)
        it.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Do it"})
        it.fakes["gemini"].fail(401, "who are you?")
        assert (await agent.run(it.session, "Delegate it")).fault is None
        (result,) = results_in(await messages(it))
        assert result.is_error
        assert "worker_error" in str(result.content)
        assert not agent.services.availability.is_available("fake-gemini", "fake-gemini:model", agent.services.clock())


# --- terms -----------------------------------------------------------------------------------------------------------


async def test_the_prompt_may_change_from_turn_to_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(system_prompt="Be brief.")
        await agent.run(it.session, "Hello?")
        agent.config = msgspec.structs.replace(agent.config, system_prompt="Be thorough.")
        await agent.run(it.session, "Hello again?")
        first, second = it.fakes["anthropic"].bodies
        assert "Be brief." in str(first["system"])
        assert "Be thorough." in str(second["system"])
        assert "Be brief." not in str(second)
        assert not [one for one in await messages(it) if one.role is Role.SYSTEM]


async def test_a_zero_that_a_turn_asks_for_goes_before_the_agent_s_own_choice(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as it:
        agent = await it.agent(options=Options(temperature=0.7, max_output_tokens=9))
        await agent.run(it.session, "Hello?", options=Options(temperature=0))
        body = it.fakes["openai_chat"].bodies[0]
        assert body["temperature"] == 0
        assert 9 in body.values()


async def test_a_summary_that_cannot_be_had_stops_no_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as it:
        agent = await it.agent(summarize_above_tokens=300)
        fake = it.fakes["openai_chat"]
        for number in range(7):
            fake.reply(f"answer {number} " + "word " * 60)
            await agent.run(it.session, f"question {number}")
        agent.config = msgspec.structs.replace(agent.config, summarize=True)
        fake.fail(500, "no summary today")
        fake.reply("indeed")
        ended = await agent.run(it.session, "And?")
        assert (ended.fault, ended.stop_reason) == (None, StopReason.END_TURN)
        assert "question 0" in str(fake.bodies[-1])
        assert (await messages(it))[-1].content == (TextBlock("indeed"),)


async def test_a_second_turn_that_is_refused_does_not_hide_the_first(tmp_path: Path) -> None:
    is_refused = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait until the second turn is refused."""
        await is_refused.wait()
        return "refused"

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[wait])
        it.fakes["anthropic"].answer_with(call_part("wait", {}))
        first = agent.begin(it.session, "Hello?")
        await anext(aiter(first))
        second = agent.begin(it.session, "Me too")
        with pytest.raises(ConflictError):
            await second.wait()
        is_refused.set()
        assert isinstance(await first.wait(), TurnEnd)


async def test_calls_beyond_the_last_step_are_answered_and_not_run(tmp_path: Path) -> None:
    @tool(side_effects=SideEffects.NONE)
    def add(a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[add], max_steps=1)
        it.fakes["anthropic"].answer_with(text_part("So."), call_part("add", {"a": 1, "b": 2}))
        ended = await agent.run(it.session, "What is 1 + 2?")
        assert ended.fault is not None
        (result,) = results_in(await messages(it))
        assert result.is_error
        assert "too many steps" in str(result.content)
        assert [one.status for one in await it.store.tool_calls(it.session)] != ["pending"]


# --- answers without end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_with_too_many_calls_ends_as_an_error_and_runs_none(tmp_path: Path, streamed: bool) -> None:
    ran: list[int] = []

    @tool(side_effects=SideEffects.NONE)
    async def note(number: int) -> str:
        """Note a number."""
        ran.append(number)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[note], stream=streamed)
        it.fakes["anthropic"].answer_with(*(call_part("note", {"number": at}) for at in range(MAX_CALLS + 1)))
        ended = await agent.run(it.session, "Note everything")
        assert ended.fault is not None
        assert ended.fault.code == "too_many_tool_calls"
        assert ran == []
        _, answer = await messages(it)
        assert answer.metadata.status is MessageStatus.ERROR
        assert len(answer.content) >= MAX_CALLS  # what had arrived is kept
        it.fakes["anthropic"].reply("Fewer, then.")
        assert (await agent.run(it.session, "Go on")).fault is None


async def test_an_answer_with_as_many_calls_as_allowed_runs_all(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(side_effects=SideEffects.NONE)
    async def note(number: int) -> str:
        """Note a number."""
        ran.append(number)
        return "noted"

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[note])
        it.fakes["anthropic"].answer_with(*(call_part("note", {"number": at}) for at in range(MAX_CALLS)))
        assert (await agent.run(it.session, "Note everything")).fault is None
        assert sorted(ran) == list(range(MAX_CALLS))
