"""Turns that end while calls wait for somebody else, and go on when they are answered, perhaps in another process."""

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
from tests.turn.test_turn import PIXEL, add, messages, text_of

PLACE = ToolDefinition(
    name="get_place",
    description="Where the user is.",
    input_schema={"type": "object", "properties": {"exact": {"type": "boolean"}}, "additionalProperties": False},
    side_effects=SideEffects.READ,
    requires_workspace=False,
)
PICTURE = ImageBlock(ImageSource("base64", PIXEL), "image/png")


def notes() -> tuple[list[str], Any]:
    """A tool that needs consent, and what it was run with."""
    ran: list[str] = []

    @tool(side_effects=SideEffects.WRITE)
    def note(word: str) -> str:
        """Note a word."""
        ran.append(word)
        return f"noted {word}"

    return ran, note


def given(pending: PendingCall, *content: Any, is_error: bool = False) -> ToolResultBlock:
    blocks = tuple(TextBlock(part) if isinstance(part, str) else part for part in content)
    return ToolResultBlock(pending.call_id, blocks, is_error=is_error)


async def results(store: Store, session: str) -> dict[str, ToolResultBlock]:
    found = [block for one in await messages(store, session) for block in one.content]
    return {block.tool_use_id: block for block in found if isinstance(block, ToolResultBlock)}


# --- tools of the caller ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_tool_of_the_caller_is_offered_called_and_answered_in_the_next_turn(
    dialect: str, *, streamed: bool, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, dialect) as it:
        agent = await it.agent(tools=[add], stream=streamed)
        fake = it.fakes[dialect]
        fake.answer_with(call_part("add", {"a": 1, "b": 2}), call_part("get_place", {"exact": True}))
        ended = await agent.run(it.session, "Where am I, and what is 1 + 2?", tools=(PLACE,))
        (pending,) = ended.pending
        assert (pending.name, pending.input, pending.reason) == ("get_place", {"exact": True}, "caller")
        assert (ended.stop_reason, ended.fault, ended.llm_calls, ended.tool_calls) == (StopReason.TOOL_USE, None, 1, 1)
        assert "get_place" in str(fake.bodies[0])
        assert await agent.pending_calls(it.session) == ended.pending

        fake.reply("In Bern, and three.")
        told = [event async for event in agent.turn(it.session, tools=(PLACE,), answers=(given(pending, "Bern"),))]
        began, over = told[0], told[-1]
        assert isinstance(began, TurnStart)
        assert began.question is None
        assert [row.message.content for row in began.answers] == [(given(pending, "Bern"),)]
        assert not any(isinstance(event, ToolResultEvent) for event in told)
        assert isinstance(over, TurnEnd)
        assert (over.stop_reason, over.pending, over.llm_calls) == (StopReason.END_TURN, (), 1)
        kept = await messages(it.store, it.session)
        assert [one.role.value for one in kept] == ["user", "assistant", "tool", "tool", "assistant"]
        assert check(kept) == ()
        assert "Bern" in str(fake.bodies[1])
        assert fake.refusals == []
        assert await agent.pending_calls(it.session) == ()
        assert [one.status for one in await it.store.tool_calls(it.session)] == ["succeeded", "succeeded"]


async def test_what_waits_is_known_to_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with open_fake_agent(tmp_path, "anthropic", url=url) as it:
        _, note = notes()
        agent = await it.agent(tools=[note], pause_for_approval=True)
        it.fakes["anthropic"].answer_with(call_part("get_place", {}), call_part("note", {"word": "here"}))
        ended = await agent.run(it.session, "Note where I am", tools=(PLACE,))
        ran, again = notes()
        async with (
            open_store(url) as store,
            Agent(store, settings=it.settings, tools=[again], config=AgentConfig(pause_for_approval=True)) as other,
        ):
            assert await other.pending_calls(it.session) == ended.pending
            place, consent = ended.pending
            assert (place.reason, consent.reason) == ("caller", "approval")
            over = await other.run(
                it.session, answers=(given(place, "Bern"),), approvals=(Approval(consent.call_id, approved=True),)
            )
            assert over.fault is None
            assert over.pending == ()
            assert ran == ["here"]
        assert it.fakes["anthropic"].refusals == []


async def test_a_turn_goes_on_when_the_last_pending_call_is_answered(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        it.fakes["anthropic"].answer_with(call_part("get_place", {}), call_part("get_place", {"exact": True}))
        first, second = (await agent.run(it.session, "Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(it.session, answers=(given(first, "Bern"),))
        assert ended.pending == (second,)
        assert (ended.llm_calls, ended.stop_reason) == (0, StopReason.TOOL_USE)
        assert len(it.fakes["anthropic"].bodies) == 1
        ended = await agent.run(it.session, answers=(given(second, "46.9, 7.4", PICTURE, is_error=True),))
        assert (ended.llm_calls, ended.pending) == (1, ())
        assert (await results(it.store, it.session))[second.call_id].is_error
        assert PIXEL in str(it.fakes["anthropic"].bodies[1])
        assert it.fakes["anthropic"].refusals == []


async def test_an_answer_and_a_question_may_come_together(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "openai_chat") as it:
        agent = await it.agent()
        fake = it.fakes["openai_chat"]
        fake.answer_with(call_part("get_place", {}), call_part("get_place", {"exact": True}))
        first, second = (await agent.run(it.session, "Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(it.session, "And be brief", answers=(given(first, "Bern"),))
        assert (ended.fault, ended.pending) == (None, ())
        kept = await messages(it.store, it.session)
        assert [one.role.value for one in kept] == ["user", "assistant", "tool", "user", "assistant"]
        statuses = {one.id: one.status for one in await it.store.tool_calls(it.session)}
        assert statuses == {first.call_id: "succeeded", second.call_id: "cancelled"}
        assert fake.refusals == []


async def test_the_model_that_began_an_answer_goes_on_with_it(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as it:
        agent = await it.agent()
        it.fakes["gemini"].call("get_place", {}, thinking="Hm.")
        (pending,) = (await agent.run(it.session, "@gemini Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(it.session, answers=(given(pending, "Bern"),), tools=(PLACE,))
        assert ended.model == "fake-gemini:model"
        assert it.fakes["anthropic"].bodies == []
        assert it.fakes["gemini"].refusals == []
        assert (await agent.run(it.session, "Thank you")).model == "fake-anthropic:model"


async def test_a_tool_of_the_caller_may_not_have_the_name_of_one_of_the_agent_s(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[add])
        with pytest.raises(ToolSchemaError, match="the agent has a tool of that name"):
            await agent.run(it.session, "Hello", tools=(PLACE.replace(name="add"),))
        with pytest.raises(ToolSchemaError, match="already registered"):
            await agent.run(it.session, "Hello", tools=(PLACE, PLACE))
        with pytest.raises(ToolSchemaError, match="unknown keyword"):
            await agent.run(it.session, "Hello", tools=(PLACE.replace(input_schema={"type": "object", "x": 1}),))
        with pytest.raises(ToolSchemaError, match="name"):
            await agent.run(it.session, "Hello", tools=(PLACE.replace(name="where am I"),))
        assert await messages(it.store, it.session) == []


async def test_a_tool_of_the_caller_has_the_name_that_the_caller_gave_it(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        it.fakes["anthropic"].call("getPlace", {})
        ended = await agent.run(it.session, "Where am I?", tools=(PLACE.replace(name="getPlace"),))
        assert [one.name for one in ended.pending] == ["getPlace"]


async def test_an_input_that_does_not_fit_the_caller_s_tool_is_told_to_the_model(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        it.fakes["anthropic"].call("get_place", {"exact": "very"})
        it.fakes["anthropic"].call("get_place", {"exact": True})
        ended = await agent.run(it.session, "Where am I?", tools=(PLACE,))
        assert [one.input for one in ended.pending] == [{"exact": True}]
        assert ended.llm_calls == 2
        (told,) = (await results(it.store, it.session)).values()
        assert told.is_error
        assert "does not fit" in str(told.content)


async def test_an_answer_for_nobody_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        _, note = notes()
        agent = await it.agent(tools=[note], pause_for_approval=True)
        it.fakes["anthropic"].answer_with(call_part("get_place", {}), call_part("note", {"word": "x"}))
        place, consent = (await agent.run(it.session, "Where am I?", tools=(PLACE,))).pending
        before = await messages(it.store, it.session)
        wrong: list[dict[str, Any]] = [
            {"answers": (ToolResultBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", ()),)},
            {"answers": (given(consent, "of my own making"),)},
            {"approvals": (Approval(place.call_id, approved=True),)},
        ]
        for terms in wrong:
            with pytest.raises(FormatError) as caught:
                await agent.run(it.session, **terms)
            assert caught.value.code == "unknown_tool_use"
        with pytest.raises(ConflictError) as conflict:
            await agent.run(it.session, answers=(given(place, "Bern"), given(place, "Basel")))
        assert conflict.value.code == "already_answered"
        nested = ToolResultBlock(place.call_id, (ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", "x", {}),))
        with pytest.raises(FormatError, match="cannot have a tool_use block"):
            await agent.run(it.session, answers=(nested,))
        with pytest.raises(ToolInputError):
            await agent.run(it.session, approvals=(Approval(consent.call_id, approved=True, edited_input={"word": 1}),))
        assert await messages(it.store, it.session) == before
        assert await agent.pending_calls(it.session) == (place, consent)


async def test_a_call_is_answered_once(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        it.fakes["anthropic"].call("get_place", {})
        (first,) = (await agent.run(it.session, "Where am I?", tools=(PLACE,))).pending
        await agent.run(it.session, answers=(given(first, "Bern"),))
        it.fakes["anthropic"].call("get_place", {})
        (second,) = (await agent.run(it.session, "And now?", tools=(PLACE,))).pending
        await agent.run(it.session, "Never mind")
        for late in (first, second):
            with pytest.raises(ConflictError) as caught:
                await agent.run(it.session, answers=(given(late, "Basel"),))
            assert caught.value.code == "already_answered"


async def test_only_a_call_that_nobody_can_run_here_counts_as_pending_when_steps_are_over(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[add], max_steps=1)
        it.fakes["anthropic"].call("get_place", {})
        assert (await agent.run(it.session, "Where am I?", tools=(PLACE,))).fault is None
        it.fakes["anthropic"].answer_with(call_part("add", {"a": 1, "b": 2}), call_part("get_place", {}))
        ended = await agent.run(it.session, "And now?", tools=(PLACE,))
        assert ended.fault is not None
        assert (ended.fault.code, ended.pending) == ("too_many_steps", ())
        assert await agent.pending_calls(it.session) == ()
        assert (await agent.run(it.session, "And now?")).fault is None
        assert it.fakes["anthropic"].refusals == []


# --- a new question meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_question_gives_up_what_is_pending_and_every_provider_takes_the_history(
    dialect: str, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, dialect) as it:
        ran, note = notes()
        agent = await it.agent(tools=[add, note], pause_for_approval=True)
        fake = it.fakes[dialect]
        fake.answer_with(
            text_part("Let me see."),
            call_part("get_place", {}),
            call_part("add", {"a": 1, "b": 2}),
            call_part("note", {"word": "x"}),
        )
        pending = (await agent.run(it.session, "Where am I?", tools=(PLACE,))).pending
        assert [one.reason for one in pending] == ["caller", "approval"]
        fake.reply("As you like.")
        ended = await agent.run(it.session, "Never mind. What is new?")
        assert (ended.fault, ended.pending) == (None, ())
        assert (await agent.run(it.session, "Really?")).fault is None
        assert fake.refusals == []
        assert ran == []
        statuses = [one.status for one in await it.store.tool_calls(it.session)]
        assert statuses == ["cancelled", "succeeded", "cancelled"]
        assert await agent.pending_calls(it.session) == ()


@pytest.mark.parametrize("target", DIALECTS)
async def test_another_provider_takes_over_while_a_call_is_pending(target: str, tmp_path: Path) -> None:
    origin = "anthropic" if target != "anthropic" else "gemini"
    async with open_fake_agent(tmp_path, origin, target) as it:
        agent = await it.agent()
        it.fakes[origin].call("get_place", {}, thinking="Hm.")
        (pending,) = (await agent.run(it.session, "Where am I?", tools=(PLACE,))).pending
        ended = await agent.run(it.session, answers=(given(pending, "Bern"),), tools=(PLACE,), model=target)
        assert ended.fault is None
        it.fakes[origin].call("get_place", {})
        await agent.run(it.session, "And now?", tools=(PLACE,), model=origin)
        assert (await agent.run(it.session, "Never mind", model=target)).fault is None
        assert it.fakes[origin].refusals == it.fakes[target].refusals == []


# --- consent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_somebody_decides_later_is_run_or_declined(dialect: str, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as it:
        ran, note = notes()
        agent = await it.agent(tools=[add, note], pause_for_approval=True)
        fake = it.fakes[dialect]
        words = ("yes", "perhaps", "no")
        fake.answer_with(call_part("add", {"a": 1, "b": 2}), *(call_part("note", {"word": word}) for word in words))
        ended = await agent.run(it.session, "Note some words")
        assert [(one.name, one.input["word"], one.reason) for one in ended.pending] == [
            ("note", word, "approval") for word in words
        ]
        assert ran == []
        yes, perhaps, no = ended.pending
        approvals = (
            Approval(yes.call_id, approved=True),
            Approval(perhaps.call_id, approved=True, edited_input={"word": "certainly"}),
            Approval(no.call_id, approved=False, reason="it is rude"),
        )
        told = [event async for event in agent.turn(it.session, approvals=approvals)]
        assert sorted(ran) == ["certainly", "yes"]
        stored = [event.row.message for event in told if isinstance(event, ToolResultEvent)]
        assert len(stored) == 3
        found = await results(it.store, it.session)
        assert found[yes.call_id] == ToolResultBlock(yes.call_id, (TextBlock("noted yes"),))
        assert text_of(
            Message("", "", Role.TOOL, found[perhaps.call_id].content, MessageMetadata(), stored[0].created_at)
        ) == ('The user changed the input of this call. It was run with: {"word":"certainly"}noted certainly')
        assert found[no.call_id].is_error
        assert "rejected this call: it is rude" in str(found[no.call_id].content)
        kept = await messages(it.store, it.session)
        (asking,) = [one for one in kept if any(isinstance(block, ToolUseBlock) for block in one.content)]
        assert [
            block.input["word"] for block in asking.content if isinstance(block, ToolUseBlock) and block.name == "note"
        ] == list(words)
        assert check(kept) == ()
        assert fake.refusals == []
        assert isinstance(told[-1], TurnEnd)
        assert told[-1].pending == ()


async def test_what_nobody_has_decided_goes_on_waiting(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        ran, note = notes()
        agent = await it.agent(tools=[note], pause_for_approval=True)
        it.fakes["anthropic"].answer_with(call_part("note", {"word": "a"}), call_part("note", {"word": "b"}))
        first, second = (await agent.run(it.session, "Note")).pending
        ended = await agent.run(it.session, approvals=(Approval(first.call_id, approved=True),))
        assert (ran, ended.pending, ended.llm_calls) == (["a"], (second,), 0)
        assert (await agent.run(it.session)).pending == (second,)
        with pytest.raises(ConflictError) as caught:
            await agent.run(it.session, approvals=(Approval(first.call_id, approved=True),))
        assert caught.value.code == "already_answered"
        ended = await agent.run(it.session, "Stop", approvals=(Approval(second.call_id, approved=True),))
        assert (ran, ended.pending, ended.fault) == (["a", "b"], (), None)
        assert it.fakes["anthropic"].refusals == []


async def test_an_agent_that_does_not_park_asks_and_waits(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        ran, note = notes()
        agent = await it.agent(tools=[note])
        it.fakes["anthropic"].call("note", {"word": "x"})
        ended = await agent.run(it.session, "Note")
        assert (ended.pending, ran) == ((), [])
        (told,) = (await results(it.store, it.session)).values()
        assert "no approver is configured" in str(told.content)


async def test_asking_and_deciding_is_told(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        _, note = notes()
        agent = await it.agent(tools=[note], pause_for_approval=True)
        seen: list[Event] = []
        agent.bus.subscribe("test", seen.append)
        it.fakes["anthropic"].call("note", {"word": "x"})
        (pending,) = (await agent.run(it.session, "Note")).pending
        await agent.run(it.session)
        await agent.run(it.session, approvals=(Approval(pending.call_id, approved=True),))
        await agent.bus.drain()
        about = [event for event in seen if event.type.startswith("tool.")]
        assert [event.type for event in about] == [
            "tool.confirmation_requested",
            "tool.confirmation_resolved",
            "tool.called",
            "tool.completed",
        ]
        asked, decided = about[0].payload, about[1].payload
        assert asked.confirmation_request_id == decided.confirmation_request_id
        assert (asked.expires_at, decided.decision) == (None, "allow")
        ends = [event.payload.stop_reason for event in seen if event.type == "turn.completed"]
        assert ends == ["tool_use", "tool_use", "end_turn"]


async def test_a_worker_waits_for_nobody(tmp_path: Path) -> None:
    (tmp_path / ".dragoman").mkdir()
    (tmp_path / ".dragoman" / "routing.yaml").write_text(
        "schema_version: 1\ntiers: {fast: gemini, balanced: gemini, deep: gemini}\n"
    )
    async with open_fake_agent(tmp_path, "anthropic", "gemini") as it:
        ran, note = notes()
        agent = await it.agent(workspace=tmp_path, allow_delegation=True, tools=[note], pause_for_approval=True)
        it.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Note x", "allowed_tools": ["note"]})
        it.fakes["gemini"].call("note", {"word": "x"})
        it.fakes["gemini"].reply("I may not.")
        ended = await agent.run(it.session, "Have somebody note x")
        assert (ended.pending, ended.fault, ran) == ((), None, [])
        assert "I may not." in str((await results(it.store, it.session)).values())


# --- after a crash ---------------------------------------------------------------------------------------------------


async def crashed(store: Store, session: str, *calls: ToolUseBlock) -> None:
    """Store the messages of a process that died while it ran tools."""
    told = MessageMetadata(model="fake-anthropic:model", provider="fake-anthropic")
    base = (await store.get_session(session)).created_at
    await store.append(
        session,
        [
            Message("", "", Role.USER, (TextBlock("Go"),), MessageMetadata(), base),
            Message("", "", Role.ASSISTANT, calls, told, base),
        ],
    )


async def test_a_call_that_a_crash_has_interrupted_is_not_run_again(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool
    def count(number: int) -> str:
        """Count."""
        ran.append(number)
        return str(number)

    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[count], pause_for_approval=True)
        own = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAA", "count", {"number": 1})
        other = ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAB", "get_place", {})
        await crashed(it.store, it.session, own, other)
        (pending,) = await agent.pending_calls(it.session)
        assert pending.call_id == other.id
        ended = await agent.run(it.session, answers=(given(pending, "Bern"),))
        assert (ended.fault, ended.pending, ran) == (None, (), [])
        found = await results(it.store, it.session)
        assert found[own.id].is_error
        assert "interrupted" in str(found[own.id].content)
        assert it.fakes["anthropic"].refusals == []


async def test_a_turn_that_a_crash_has_ended_goes_on_without_a_new_question(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[add])
        await crashed(it.store, it.session, ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAA", "add", {"a": 1, "b": 2}))
        told = [event async for event in agent.turn(it.session)]
        assert isinstance(told[-1], TurnEnd)
        assert (told[-1].fault, told[-1].llm_calls) == (None, 1)
        assert it.fakes["anthropic"].refusals == []
        it.fakes["anthropic"].fail(500)
        assert (await agent.run(it.session, "Again")).fault is not None
        assert (await agent.run(it.session)).fault is None
        kept = await messages(it.store, it.session)
        assert [one.metadata.status for one in kept][-2:] == [MessageStatus.ERROR, MessageStatus.COMPLETE]


async def test_nothing_is_asked_where_nothing_was_said(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent()
        with pytest.raises(FormatError, match="nothing to answer"):
            await agent.run(it.session)
        await agent.run(it.session, "Hello")
        with pytest.raises(FormatError, match="nothing to answer"):
            await agent.run(it.session)
        assert len(it.fakes["anthropic"].bodies) == 1


async def test_what_many_sessions_share_with_nobody_is_let_go(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=[add])
        it.fakes["anthropic"].call("add", {"a": 1, "b": 2})
        await agent.run(it.session, "Add")
        kept = agent.services.tool_session(agent.config, it.session, None)
        kept.answers["add"] = Confirmation(allow=True, scope="session")
        for number in range(1_000):
            agent.services.tool_session(agent.config, f"sess_{number}", None)
        assert len(agent.services.tool_sessions) <= 257
        assert agent.services.tool_session(agent.config, it.session, None) is kept


async def test_an_approved_call_that_a_crash_has_interrupted_waits_for_consent_again(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        ran, note = notes()
        agent = await it.agent(tools=[note], pause_for_approval=True)
        await crashed(it.store, it.session, ToolUseBlock("tu_01ARZ3NDEKTSV4RRFFQ69G5FAA", "note", {"word": "x"}))
        (pending,) = await agent.pending_calls(it.session)
        assert pending.reason == "approval"
        ended = await agent.run(it.session, approvals=(Approval(pending.call_id, approved=True),))
        assert (ended.fault, ran) == (None, ["x"])


@pytest.mark.parametrize("dialect", ["anthropic", "openai_chat"])
@pytest.mark.parametrize("after", range(7))
async def test_a_turn_that_goes_on_may_be_cancelled_at_any_event(dialect: str, after: int, tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, dialect) as it:
        _, note = notes()
        agent = await it.agent(tools=[note], pause_for_approval=True)
        fake = it.fakes[dialect]
        fake.answer_with(call_part("get_place", {}), call_part("note", {"word": "a"}), call_part("note", {"word": "b"}))
        place, first, _ = (await agent.run(it.session, "Note where I am", tools=(PLACE,))).pending
        turn = agent.begin(
            it.session, answers=(given(place, "Bern"),), approvals=(Approval(first.call_id, approved=True),)
        )
        count = 0
        async for _ in turn:
            if count == after:
                turn.cancel()
            count += 1
        kept = await messages(it.store, it.session)
        assert not [one for one in kept if one.metadata.status is MessageStatus.PARTIAL]
        left = await agent.pending_calls(it.session)
        assert [one.reason for one in left] in ([], ["approval"])
        fake.clear_script()
        decided = tuple(Approval(one.call_id, approved=False) for one in left)
        ended = await agent.run(it.session, "And now?", approvals=decided)
        assert (ended.fault, ended.pending) == (None, ())
        assert fake.refusals == []


# --- what a person is asked ------------------------------------------------------------------------------------------

QUESTION = {"question": "How many?", "inputs": [{"id": "count", "prompt": "Of them", "type": "number"}]}


async def test_a_question_to_the_user_waits_and_is_answered_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with open_fake_agent(tmp_path, "anthropic", url=url) as it:
        fake = it.fakes["anthropic"]
        _, note = notes()
        agent = await it.agent(tools=[note, *builtin_tools(["ask_user"])], pause_for_approval=True)
        fake.answer_with(call_part("ask_user", QUESTION), call_part("note", {"word": "here"}))
        ended = await agent.run(it.session, "Order some")
        question, consent = ended.pending
        assert (question.reason, question.input, consent.reason) == ("input", QUESTION, "approval")
        assert question.answer_schema is not None
        assert question.answer_schema["properties"] == {"count": {"type": "number", "description": "Of them"}}
        assert ended.stop_reason is StopReason.TOOL_USE
        ran, again = notes()
        tools = [again, *builtin_tools(["ask_user"])]
        async with (
            open_store(url) as store,
            Agent(store, settings=it.settings, tools=tools, config=AgentConfig(pause_for_approval=True)) as other,
        ):
            assert await other.pending_calls(it.session) == ended.pending
            with pytest.raises(FormatError, match="waits for a result"):
                await other.run(it.session, approvals=(Approval(question.call_id, approved=True),))
            with pytest.raises(FormatError, match="waits for an approval"):
                await other.run(it.session, answers=(given(consent, "yes"),))
            over = await other.run(it.session, answers=(given(question, '{"count":3}'),))
            assert over.pending == (consent,)
            fake.reply("Done.")
            over = await other.run(it.session, approvals=(Approval(consent.call_id, approved=True),))
            assert (over.fault, over.pending, ran) == (None, (), ["here"])
            kept = await messages(store, it.session)
        assert [one.role.value for one in kept] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [one.metadata.stage for one in kept[1:]] == ["intent", "input", "tool_execution", "answer"]
        assert check(kept) == ()
        assert "count" in str(fake.bodies[-1])
        assert fake.refusals == []


@pytest.mark.parametrize(
    ("parks", "question", "told"),
    [
        (False, QUESTION, "No user can be asked here"),
        (True, {"question": "Which?", "inputs": [{"id": "a", "prompt": "b", "type": "choice"}]}, "has no choices"),
        (True, {"question": "Which?", "inputs": [{"id": "a", "prompt": "b", "type": "number"}] * 2}, "the same id"),
    ],
    ids=["nobody is there", "no choices", "one id twice"],
)
async def test_a_question_that_cannot_be_asked_is_an_error_to_the_model(
    *, parks: bool, question: dict[str, Any], told: str, tmp_path: Path
) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=builtin_tools(["ask_user"]), pause_for_approval=parks)
        it.fakes["anthropic"].call("ask_user", question)
        it.fakes["anthropic"].reply("Then not.")
        ended = await agent.run(it.session, "Order some")
        assert (ended.pending, ended.llm_calls) == ((), 2)
        (result,) = (await results(it.store, it.session)).values()
        assert result.is_error
        assert told in str(result.content)


async def test_a_new_question_gives_up_the_one_of_the_model(tmp_path: Path) -> None:
    async with open_fake_agent(tmp_path, "anthropic") as it:
        agent = await it.agent(tools=builtin_tools(["ask_user"]), pause_for_approval=True)
        it.fakes["anthropic"].call("ask_user", {"question": "How many?"})
        (question,) = (await agent.run(it.session, "Order some")).pending
        assert (await agent.run(it.session, "Never mind")).pending == ()
        with pytest.raises(ConflictError, match="cancelled by a later message"):
            await agent.run(it.session, answers=(given(question, "3"),))
        assert it.fakes["anthropic"].refusals == []
