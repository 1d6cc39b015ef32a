"""Tests of turns that end with pending calls, and continue when these are answered, possibly in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.bus import Event
from dragoman.errors import ConflictError, FormatError, ToolInputError, ToolSchemaError
from dragoman.exchange import SideEffects, StopReason, ToolDefinition
from dragoman.message import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.rules import check
from dragoman.store import Store, open_store
from dragoman.tools import Confirmation, builtin_tools, tool
from dragoman.turn import Agent, AgentConfig, Approval, PendingCall, ToolResultEvent, TurnEnd, TurnStart
from tests.fake_providers import call_part, text_part
from tests.turn.fake_agent import DIALECTS, open_fake_agent
from tests.turn.test_turn import PIXEL, add, read_messages, text_of

PLACE = ToolDefinition(
    name="get_place",
    description="Where the user is.",
    input_schema={"type": "object", "properties": {"exact": {"type": "boolean"}}, "additionalProperties": False},
    side_effects=SideEffects.READ,
    requires_workspace=False,
)
IMAGE = ImageBlock(ImageSource("base64", PIXEL), "image/png")


def make_note_tool() -> tuple[list[str], Any]:
    """Return a tool that needs approval, and the list of its inputs."""
    words: list[str] = []

    @tool(side_effects=SideEffects.WRITE)
    def note(word: str) -> str:
        """Note a word."""
        words.append(word)
        return f"noted {word}"

    return words, note


def make_result(pending: PendingCall, *content: Any, is_error: bool = False) -> ToolResultBlock:
    blocks = tuple(TextBlock(part) if isinstance(part, str) else part for part in content)
    return ToolResultBlock(pending.call_id, blocks, is_error=is_error)


async def read_results(store: Store, session: str) -> dict[str, ToolResultBlock]:
    blocks = [block for message in await read_messages(store, session) for block in message.content]
    return {block.tool_use_id: block for block in blocks if isinstance(block, ToolResultBlock)}


# --- tools of the caller ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_tool_of_the_caller_is_offered_called_and_answered_in_the_next_turn(
    dialect: str, *, streamed: bool, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        agent = await harness.agent(tools=[add], stream=streamed)
        fake = harness.fakes[dialect]
        fake.answer_with(call_part("add", {"a": 1, "b": 2}), call_part("get_place", {"exact": True}))
        ended = await agent.run(harness.session, "Where am I, and what is 1 + 2?", tools=(PLACE,))
        (pending,) = ended.pending
        assert (pending.name, pending.input, pending.reason) == ("get_place", {"exact": True}, "caller")
        assert (ended.stop_reason, ended.fault, ended.llm_calls, ended.tool_calls) == (StopReason.TOOL_USE, None, 1, 1)
        assert "get_place" in str(fake.bodies[0])
        assert await agent.pending_calls(harness.session) == ended.pending

        fake.reply("In Bern, and three.")
        events = [
            event
            async for event in agent.turn(harness.session, tools=(PLACE,), answers=(make_result(pending, "Bern"),))
        ]
        start, end = events[0], events[-1]
        assert isinstance(start, TurnStart)
        assert start.question is None
        assert [row.message.content for row in start.answers] == [(make_result(pending, "Bern"),)]
        assert not any(isinstance(event, ToolResultEvent) for event in events)
        assert isinstance(end, TurnEnd)
        assert (end.stop_reason, end.pending, end.llm_calls) == (StopReason.END_TURN, (), 1)
        stored = await read_messages(harness.store, harness.session)
        assert [message.role.value for message in stored] == ["user", "assistant", "tool", "tool", "assistant"]
        assert check(stored) == ()
        assert "Bern" in str(fake.bodies[1])
        assert fake.refusals == []
        assert await agent.pending_calls(harness.session) == ()
        assert [row.status for row in await harness.store.tool_calls(harness.session)] == ["succeeded", "succeeded"]


async def test_pending_calls_are_readable_in_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with open_fake_agent(tmp_path, "anthropic", url=url) as harness:
        _, note = make_note_tool()
        agent = await harness.agent(tools=[note], pause_for_approval=True)
        harness.fakes["anthropic"].answer_with(call_part("get_place", {}), call_part("note", {"word": "here"}))
        ended = await agent.run(harness.session, "Note where I am", tools=(PLACE,))
        ran, again = make_note_tool()
        async with (
            open_store(url) as store,
            Agent(
                store, settings=harness.settings, tools=[again], config=AgentConfig(pause_for_approval=True)
            ) as other,
        ):
            assert await other.pending_calls(harness.session) == ended.pending
            place, consent = ended.pending
            assert (place.reason, consent.reason) == ("caller", "approval")
            end = await other.run(
                harness.session,
                answers=(make_result(place, "Bern"),),
                approvals=(Approval(consent.call_id, approved=True),),
            )
            assert end.fault is None
            assert end.pending == ()
            assert ran == ["here"]
        assert harness.fakes["anthropic"].refusals == []


async def test_turn_continues_when_the_last_pending_call_is_answered(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        harness.fakes["anthropic"].answer_with(call_part("get_place", {}), call_part("get_place", {"exact": True}))
        first, second = (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(harness.session, answers=(make_result(first, "Bern"),))
        assert ended.pending == (second,)
        assert (ended.llm_calls, ended.stop_reason) == (0, StopReason.TOOL_USE)
        assert len(harness.fakes["anthropic"].bodies) == 1
        ended = await agent.run(harness.session, answers=(make_result(second, "46.9, 7.4", IMAGE, is_error=True),))
        assert (ended.llm_calls, ended.pending) == (1, ())
        assert (await read_results(harness.store, harness.session))[second.call_id].is_error
        assert PIXEL in str(harness.fakes["anthropic"].bodies[1])
        assert harness.fakes["anthropic"].refusals == []


async def test_answer_and_question_can_be_sent_together(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as harness:
        agent = await harness.agent()
        fake = harness.fakes["openai_chat"]
        fake.answer_with(call_part("get_place", {}), call_part("get_place", {"exact": True}))
        first, second = (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(harness.session, "And be brief", answers=(make_result(first, "Bern"),))
        assert (ended.fault, ended.pending) == (None, ())
        stored = await read_messages(harness.store, harness.session)
        assert [message.role.value for message in stored] == ["user", "assistant", "tool", "user", "assistant"]
        statuses = {row.id: row.status for row in await harness.store.tool_calls(harness.session)}
        assert statuses == {first.call_id: "succeeded", second.call_id: "cancelled"}
        assert fake.refusals == []


async def test_model_of_the_pending_call_continues_the_turn(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        agent = await harness.agent()
        harness.fakes["gemini"].call("get_place", {}, thinking="Hm.")
        (pending,) = (await agent.run(harness.session, "@gemini Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(harness.session, answers=(make_result(pending, "Bern"),), tools=(PLACE,))
        assert ended.model == "fake-gemini:model"
        assert harness.fakes["anthropic"].bodies == []
        assert harness.fakes["gemini"].refusals == []
        assert (await agent.run(harness.session, "Thank you")).model == "fake-anthropic:model"


async def test_tool_of_the_caller_needs_a_unique_valid_definition(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        with pytest.raises(ToolSchemaError, match="the agent has a tool of that name"):
            await agent.run(harness.session, "Hello", tools=(PLACE.replace(name="add"),))
        with pytest.raises(ToolSchemaError, match="already registered"):
            await agent.run(harness.session, "Hello", tools=(PLACE, PLACE))
        with pytest.raises(ToolSchemaError, match="unknown keyword"):
            await agent.run(harness.session, "Hello", tools=(PLACE.replace(input_schema={"type": "object", "x": 1}),))
        with pytest.raises(ToolSchemaError, match="name"):
            await agent.run(harness.session, "Hello", tools=(PLACE.replace(name="where am I"),))
        assert await read_messages(harness.store, harness.session) == []


async def test_tool_of_the_caller_keeps_its_name(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        harness.fakes["anthropic"].call("getPlace", {})
        ended = await agent.run(harness.session, "Where am I?", tools=(PLACE.replace(name="getPlace"),))
        assert [pending.name for pending in ended.pending] == ["getPlace"]


async def test_input_that_violates_the_schema_of_the_caller_is_an_error_result(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        harness.fakes["anthropic"].call("get_place", {"exact": "very"})
        harness.fakes["anthropic"].call("get_place", {"exact": True})
        ended = await agent.run(harness.session, "Where am I?", tools=(PLACE,))
        assert [pending.input for pending in ended.pending] == [{"exact": True}]
        assert ended.llm_calls == 2
        (result,) = (await read_results(harness.store, harness.session)).values()
        assert result.is_error
        assert "does not fit" in str(result.content)


async def test_answer_of_an_unknown_call_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        _, note = make_note_tool()
        agent = await harness.agent(tools=[note], pause_for_approval=True)
        harness.fakes["anthropic"].answer_with(call_part("get_place", {}), call_part("note", {"word": "x"}))
        place, consent = (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).pending
        before = await read_messages(harness.store, harness.session)
        rejected: list[dict[str, Any]] = [
            {"answers": (ToolResultBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", ()),)},
            {"answers": (make_result(consent, "invented"),)},
            {"approvals": (Approval(place.call_id, approved=True),)},
        ]
        for terms in rejected:
            with pytest.raises(FormatError) as caught:
                await agent.run(harness.session, **terms)
            assert caught.value.code == "unknown_tool_use"
        with pytest.raises(ConflictError) as conflict:
            await agent.run(harness.session, answers=(make_result(place, "Bern"), make_result(place, "Basel")))
        assert conflict.value.code == "already_answered"
        nested = ToolResultBlock(place.call_id, (ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", "x", {}),))
        with pytest.raises(FormatError, match="cannot have a tool_use block"):
            await agent.run(harness.session, answers=(nested,))
        with pytest.raises(ToolInputError):
            await agent.run(
                harness.session, approvals=(Approval(consent.call_id, approved=True, edited_input={"word": 1}),)
            )
        assert await read_messages(harness.store, harness.session) == before
        assert await agent.pending_calls(harness.session) == (place, consent)


async def test_call_is_answered_only_once(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        harness.fakes["anthropic"].call("get_place", {})
        (first,) = (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).pending
        await agent.run(harness.session, answers=(make_result(first, "Bern"),))
        harness.fakes["anthropic"].call("get_place", {})
        (second,) = (await agent.run(harness.session, "And now?", tools=(PLACE,))).pending
        await agent.run(harness.session, "Never mind")
        for late in (first, second):
            with pytest.raises(ConflictError) as caught:
                await agent.run(harness.session, answers=(make_result(late, "Basel"),))
            assert caught.value.code == "already_answered"


async def test_only_calls_of_the_caller_stay_pending_after_the_last_step(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add], max_steps=1)
        harness.fakes["anthropic"].call("get_place", {})
        assert (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).fault is None
        harness.fakes["anthropic"].answer_with(call_part("add", {"a": 1, "b": 2}), call_part("get_place", {}))
        ended = await agent.run(harness.session, "And now?", tools=(PLACE,))
        assert ended.fault is not None
        assert (ended.fault.code, ended.pending) == ("too_many_steps", ())
        assert await agent.pending_calls(harness.session) == ()
        assert (await agent.run(harness.session, "And now?")).fault is None
        assert harness.fakes["anthropic"].refusals == []


# --- a new question during pending calls -----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_question_cancels_pending_calls_and_every_provider_accepts_the_history(
    dialect: str, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        ran, note = make_note_tool()
        agent = await harness.agent(tools=[add, note], pause_for_approval=True)
        fake = harness.fakes[dialect]
        fake.answer_with(
            text_part("Let me see."),
            call_part("get_place", {}),
            call_part("add", {"a": 1, "b": 2}),
            call_part("note", {"word": "x"}),
        )
        pending = (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).pending
        assert [item.reason for item in pending] == ["caller", "approval"]
        fake.reply("As you like.")
        ended = await agent.run(harness.session, "Never mind. What is new?")
        assert (ended.fault, ended.pending) == (None, ())
        assert (await agent.run(harness.session, "Really?")).fault is None
        assert fake.refusals == []
        assert ran == []
        statuses = [row.status for row in await harness.store.tool_calls(harness.session)]
        assert statuses == ["cancelled", "succeeded", "cancelled"]
        assert await agent.pending_calls(harness.session) == ()


@pytest.mark.parametrize("target", DIALECTS)
async def test_another_provider_continues_while_a_call_is_pending(target: str, tmp_path: Path) -> None:
    origin = "anthropic" if target != "anthropic" else "gemini"
    async with open_fake_agent(tmp_path, origin, target) as harness:
        agent = await harness.agent()
        harness.fakes[origin].call("get_place", {}, thinking="Hm.")
        (pending,) = (await agent.run(harness.session, "Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(harness.session, answers=(make_result(pending, "Bern"),), tools=(PLACE,), model=target)
        assert ended.fault is None
        harness.fakes[origin].call("get_place", {})
        await agent.run(harness.session, "And now?", tools=(PLACE,), model=origin)
        assert (await agent.run(harness.session, "Never mind", model=target)).fault is None
        assert harness.fakes[origin].refusals == harness.fakes[target].refusals == []


# --- approval --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_later_decision_runs_or_declines_the_call(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        ran, note = make_note_tool()
        agent = await harness.agent(tools=[add, note], pause_for_approval=True)
        fake = harness.fakes[dialect]
        words = ("yes", "perhaps", "no")
        fake.answer_with(call_part("add", {"a": 1, "b": 2}), *(call_part("note", {"word": word}) for word in words))
        ended = await agent.run(harness.session, "Note some words")
        assert [(item.name, item.input["word"], item.reason) for item in ended.pending] == [
            ("note", word, "approval") for word in words
        ]
        assert ran == []
        yes, perhaps, no = ended.pending
        approvals = (
            Approval(yes.call_id, approved=True),
            Approval(perhaps.call_id, approved=True, edited_input={"word": "certainly"}),
            Approval(no.call_id, approved=False, reason="it is rude"),
        )
        events = [event async for event in agent.turn(harness.session, approvals=approvals)]
        assert sorted(ran) == ["certainly", "yes"]
        stored = [event.row.message for event in events if isinstance(event, ToolResultEvent)]
        assert len(stored) == 3
        found = await read_results(harness.store, harness.session)
        assert found[yes.call_id] == ToolResultBlock(yes.call_id, (TextBlock("noted yes"),))
        assert text_of(
            Message("", "", Role.TOOL, found[perhaps.call_id].content, MessageMetadata(), stored[0].created_at)
        ) == ('The user changed the input of this call. It was run with: {"word":"certainly"}noted certainly')
        assert found[no.call_id].is_error
        assert "rejected this call: it is rude" in str(found[no.call_id].content)
        stored = await read_messages(harness.store, harness.session)
        (asking,) = [message for message in stored if any(isinstance(block, ToolUseBlock) for block in message.content)]
        assert [
            block.input["word"] for block in asking.content if isinstance(block, ToolUseBlock) and block.name == "note"
        ] == list(words)
        assert check(stored) == ()
        assert fake.refusals == []
        assert isinstance(events[-1], TurnEnd)
        assert events[-1].pending == ()


async def test_undecided_call_stays_pending(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        ran, note = make_note_tool()
        agent = await harness.agent(tools=[note], pause_for_approval=True)
        harness.fakes["anthropic"].answer_with(call_part("note", {"word": "a"}), call_part("note", {"word": "b"}))
        first, second = (await agent.run(harness.session, "Note")).pending
        ended = await agent.run(harness.session, approvals=(Approval(first.call_id, approved=True),))
        assert (ran, ended.pending, ended.llm_calls) == (["a"], (second,), 0)
        assert (await agent.run(harness.session)).pending == (second,)
        with pytest.raises(ConflictError) as caught:
            await agent.run(harness.session, approvals=(Approval(first.call_id, approved=True),))
        assert caught.value.code == "already_answered"
        ended = await agent.run(harness.session, "Stop", approvals=(Approval(second.call_id, approved=True),))
        assert (ran, ended.pending, ended.fault) == (["a", "b"], (), None)
        assert harness.fakes["anthropic"].refusals == []


async def test_agent_without_pause_for_approval_declines_without_an_approver(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        ran, note = make_note_tool()
        agent = await harness.agent(tools=[note])
        harness.fakes["anthropic"].call("note", {"word": "x"})
        ended = await agent.run(harness.session, "Note")
        assert (ended.pending, ran) == ((), [])
        (result,) = (await read_results(harness.store, harness.session)).values()
        assert "no approver is configured" in str(result.content)


async def test_request_and_decision_of_approval_are_events(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        _, note = make_note_tool()
        agent = await harness.agent(tools=[note], pause_for_approval=True)
        events: list[Event] = []
        agent.bus.subscribe("test", events.append)
        harness.fakes["anthropic"].call("note", {"word": "x"})
        (pending,) = (await agent.run(harness.session, "Note")).pending
        await agent.run(harness.session)
        await agent.run(harness.session, approvals=(Approval(pending.call_id, approved=True),))
        await agent.bus.drain()
        tool_events = [event for event in events if event.type.startswith("tool.")]
        assert [event.type for event in tool_events] == [
            "tool.confirmation_requested",
            "tool.confirmation_resolved",
            "tool.called",
            "tool.completed",
        ]
        asked, decided = tool_events[0].payload, tool_events[1].payload
        assert asked.confirmation_request_id == decided.confirmation_request_id
        assert (asked.expires_at, decided.decision) == (None, "allow")
        ends = [event.payload.stop_reason for event in events if event.type == "turn.completed"]
        assert ends == ["tool_use", "tool_use", "end_turn"]


async def test_worker_does_not_pause_for_approval(tmp_path: Path) -> None:
    (tmp_path / ".dragoman").mkdir()
    (tmp_path / ".dragoman" / "routing.yaml").write_text(
        "schema_version: 1\ntiers: {fast: gemini, balanced: gemini, deep: gemini}\n"
    )
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as harness:
        ran, note = make_note_tool()
        agent = await harness.agent(workspace=tmp_path, allow_delegation=True, tools=[note], pause_for_approval=True)
        harness.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Note x", "allowed_tools": ["note"]})
        harness.fakes["gemini"].call("note", {"word": "x"})
        harness.fakes["gemini"].reply("I may not.")
        ended = await agent.run(harness.session, "Have somebody note x")
        assert (ended.pending, ended.fault, ran) == ((), None, [])
        assert "I may not." in str((await read_results(harness.store, harness.session)).values())


# --- after a crash ---------------------------------------------------------------------------------------------------


async def store_interrupted_turn(store: Store, session: str, *calls: ToolUseBlock) -> None:
    """Store the messages of a process that died while it ran tools."""
    metadata = MessageMetadata(model="fake-anthropic:model", provider="fake-anthropic")
    base = (await store.get_session(session)).created_at
    await store.append(
        session,
        [
            Message("", "", Role.USER, (TextBlock("Go"),), MessageMetadata(), base),
            Message("", "", Role.ASSISTANT, calls, metadata, base),
        ],
    )


async def test_call_interrupted_by_a_crash_is_not_repeated(tmp_path: Path) -> None:
    numbers: list[int] = []

    @tool
    def count(number: int) -> str:
        """Count."""
        numbers.append(number)
        return str(number)

    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[count], pause_for_approval=True)
        own = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAA", "count", {"number": 1})
        other = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAB", "get_place", {})
        await store_interrupted_turn(harness.store, harness.session, own, other)
        (pending,) = await agent.pending_calls(harness.session)
        assert pending.call_id == other.id
        ended = await agent.run(harness.session, answers=(make_result(pending, "Bern"),))
        assert (ended.fault, ended.pending, numbers) == (None, (), [])
        found = await read_results(harness.store, harness.session)
        assert found[own.id].is_error
        assert "interrupted" in str(found[own.id].content)
        assert harness.fakes["anthropic"].refusals == []


async def test_turn_interrupted_by_a_crash_continues_without_a_question(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        await store_interrupted_turn(
            harness.store, harness.session, ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAA", "add", {"a": 1, "b": 2})
        )
        events = [event async for event in agent.turn(harness.session)]
        assert isinstance(events[-1], TurnEnd)
        assert (events[-1].fault, events[-1].llm_calls) == (None, 1)
        assert harness.fakes["anthropic"].refusals == []
        harness.fakes["anthropic"].fail(500)
        assert (await agent.run(harness.session, "Again")).fault is not None
        assert (await agent.run(harness.session)).fault is None
        stored = await read_messages(harness.store, harness.session)
        assert [message.metadata.status for message in stored][-2:] == [MessageStatus.ERROR, MessageStatus.COMPLETE]


async def test_turn_without_question_in_an_answered_session_is_rejected(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent()
        with pytest.raises(FormatError, match="nothing to answer"):
            await agent.run(harness.session)
        await agent.run(harness.session, "Hello")
        with pytest.raises(FormatError, match="nothing to answer"):
            await agent.run(harness.session)
        assert len(harness.fakes["anthropic"].bodies) == 1


async def test_tool_sessions_without_state_are_dropped(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=[add])
        harness.fakes["anthropic"].call("add", {"a": 1, "b": 2})
        await agent.run(harness.session, "Add")
        tool_session = agent.services.tool_session(agent.config, harness.session, None)
        tool_session.answers["add"] = Confirmation(allow=True, scope="session")
        for number in range(1_000):
            agent.services.tool_session(agent.config, f"sess_{number}", None)
        assert len(agent.services.tool_sessions) <= 257
        assert agent.services.tool_session(agent.config, harness.session, None) is tool_session


async def test_approved_call_interrupted_by_a_crash_needs_approval_again(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        ran, note = make_note_tool()
        agent = await harness.agent(tools=[note], pause_for_approval=True)
        await store_interrupted_turn(
            harness.store, harness.session, ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAA", "note", {"word": "x"})
        )
        (pending,) = await agent.pending_calls(harness.session)
        assert pending.reason == "approval"
        ended = await agent.run(harness.session, approvals=(Approval(pending.call_id, approved=True),))
        assert (ended.fault, ran) == (None, ["x"])


@pytest.mark.parametrize("dialect", ["anthropic", "openai_chat"])
@pytest.mark.parametrize("after", range(7))
async def test_continued_turn_can_be_cancelled_at_any_event(dialect: str, after: int, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as harness:
        _, note = make_note_tool()
        agent = await harness.agent(tools=[note], pause_for_approval=True)
        fake = harness.fakes[dialect]
        fake.answer_with(call_part("get_place", {}), call_part("note", {"word": "a"}), call_part("note", {"word": "b"}))
        place, first, _ = (await agent.run(harness.session, "Note where I am", tools=(PLACE,))).pending
        turn = agent.begin(
            harness.session, answers=(make_result(place, "Bern"),), approvals=(Approval(first.call_id, approved=True),)
        )
        count = 0
        async for _ in turn:
            if count == after:
                turn.cancel()
            count += 1
        stored = await read_messages(harness.store, harness.session)
        assert not [message for message in stored if message.metadata.status is MessageStatus.PARTIAL]
        remaining = await agent.pending_calls(harness.session)
        assert [item.reason for item in remaining] in ([], ["approval"])
        fake.clear_script()
        decided = tuple(Approval(item.call_id, approved=False) for item in remaining)
        ended = await agent.run(harness.session, "And now?", approvals=decided)
        assert (ended.fault, ended.pending) == (None, ())
        assert fake.refusals == []


# --- questions to the user -------------------------------------------------------------------------------------------

QUESTION = {"question": "How many?", "inputs": [{"id": "count", "prompt": "Of them", "type": "number"}]}


async def test_question_to_the_user_is_answered_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with open_fake_agent(tmp_path, "anthropic", url=url) as harness:
        fake = harness.fakes["anthropic"]
        _, note = make_note_tool()
        agent = await harness.agent(tools=[note, *builtin_tools(["ask_user"])], pause_for_approval=True)
        fake.answer_with(call_part("ask_user", QUESTION), call_part("note", {"word": "here"}))
        ended = await agent.run(harness.session, "Order some")
        question, consent = ended.pending
        assert (question.reason, question.input, consent.reason) == ("input", QUESTION, "approval")
        assert question.answer_schema is not None
        assert question.answer_schema["properties"] == {"count": {"type": "number", "description": "Of them"}}
        assert ended.stop_reason is StopReason.TOOL_USE
        ran, again = make_note_tool()
        tools = [again, *builtin_tools(["ask_user"])]
        async with (
            open_store(url) as store,
            Agent(store, settings=harness.settings, tools=tools, config=AgentConfig(pause_for_approval=True)) as other,
        ):
            assert await other.pending_calls(harness.session) == ended.pending
            with pytest.raises(FormatError, match="waits for a result"):
                await other.run(harness.session, approvals=(Approval(question.call_id, approved=True),))
            with pytest.raises(FormatError, match="waits for an approval"):
                await other.run(harness.session, answers=(make_result(consent, "yes"),))
            over = await other.run(harness.session, answers=(make_result(question, '{"count":3}'),))
            assert over.pending == (consent,)
            fake.reply("Done.")
            over = await other.run(harness.session, approvals=(Approval(consent.call_id, approved=True),))
            assert (over.fault, over.pending, ran) == (None, (), ["here"])
            stored = await read_messages(store, harness.session)
        assert [message.role.value for message in stored] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [message.metadata.stage for message in stored[1:]] == ["intent", "input", "tool_execution", "answer"]
        assert check(stored) == ()
        assert "count" in str(fake.bodies[-1])
        assert fake.refusals == []


@pytest.mark.parametrize(
    ("pauses", "question", "expected"),
    [
        (False, QUESTION, "No user can be asked here"),
        (True, {"question": "Which?", "inputs": [{"id": "a", "prompt": "b", "type": "choice"}]}, "has no choices"),
        (True, {"question": "Which?", "inputs": [{"id": "a", "prompt": "b", "type": "number"}] * 2}, "the same id"),
    ],
    ids=["no user", "no choices", "one id twice"],
)
async def test_invalid_question_to_the_user_is_an_error_result(
    *, pauses: bool, question: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=builtin_tools(["ask_user"]), pause_for_approval=pauses)
        harness.fakes["anthropic"].call("ask_user", question)
        harness.fakes["anthropic"].reply("Then not.")
        ended = await agent.run(harness.session, "Order some")
        assert (ended.pending, ended.llm_calls) == ((), 2)
        (result,) = (await read_results(harness.store, harness.session)).values()
        assert result.is_error
        assert expected in str(result.content)


async def test_new_question_cancels_the_question_of_the_model(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as harness:
        agent = await harness.agent(tools=builtin_tools(["ask_user"]), pause_for_approval=True)
        harness.fakes["anthropic"].call("ask_user", {"question": "How many?"})
        (question,) = (await agent.run(harness.session, "Order some")).pending
        assert (await agent.run(harness.session, "Never mind")).pending == ()
        with pytest.raises(ConflictError, match="cancelled by a later message"):
            await agent.run(harness.session, answers=(make_result(question, "3"),))
        assert harness.fakes["anthropic"].refusals == []
