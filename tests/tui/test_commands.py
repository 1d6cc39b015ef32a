"""Commands of the chat, and the questions that lie over the conversation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Button, OptionList

from dragoman.exchange import SideEffects
from dragoman.message import Message, MessageMetadata, Role, TextBlock, ToolResultBlock
from dragoman.tools import tool
from dragoman.tui.commands import Commands
from dragoman.tui.widgets import text_of
from tests.conftest import ROOT
from tests.tui.chat_fixture import PIXEL, Chat, chat

RUN: list[str] = []


@tool(side_effects=SideEffects.WRITE)
def burn(what: str) -> str:
    """Burn something."""
    RUN.append(what)
    return f"{what} is ashes"


@pytest.fixture(autouse=True)
def nothing_was_run() -> None:
    RUN.clear()


async def results(it: Chat) -> list[ToolResultBlock]:
    return [block for one in await it.kept() for block in one.content if isinstance(block, ToolResultBlock)]


# --- may it? ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_a_tool_that_changes_something_asks_first(size: tuple[int, int], tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", tools=[burn], size=size) as it:
        it.fakes["anthropic"].call("burn", {"what": "[bold]letters[/bold]"})
        it.fakes["anthropic"].say("Done.")
        await it.write("Burn the letters")
        await it.is_asked()
        await it.shows("Approve burn? (write)", "[bold]letters[/bold]", "Deny", "Allow once", "Allow in this session")
        assert RUN == []
        await it.press("right", "enter")
        await it.is_over()
        assert RUN == ["[bold]letters[/bold]"]
        await it.shows("✓ burn", "Done.")


async def test_enter_alone_denies_because_the_question_may_come_while_somebody_types(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", tools=[burn]) as it:
        it.fakes["anthropic"].call("burn", {"what": "letters"})
        await it.write("Burn the letters")
        await it.is_asked()
        assert isinstance(it.app.focused, Button)
        assert it.app.focused.id == "deny"
        await it.press("a", "y", "enter")
        await it.is_over()
        assert RUN == []
        (result,) = await results(it)
        assert result.is_error
        await it.shows("✗ burn")


async def test_escape_denies_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", tools=[burn]) as it:
        it.fakes["anthropic"].call("burn", {"what": "letters"})
        it.fakes["anthropic"].say("Then not.")
        await it.write("Burn the letters")
        await it.is_asked()
        await it.press("escape")
        await it.is_over()
        await it.shows("Then not.")
        assert RUN == []


async def test_what_is_allowed_once_is_asked_again_and_what_is_allowed_here_is_not(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", tools=[burn]) as it:
        for keys in (("right", "enter"), ("right", "right", "enter"), ()):
            it.fakes["anthropic"].call("burn", {"what": "letters"})
            it.fakes["anthropic"].say("Done.")
            await it.write("Burn the letters")
            if keys:
                await it.is_asked()
                await it.press(*keys)
            await it.is_over()
        assert RUN == ["letters"] * 3


async def test_two_questions_come_one_after_the_other(tmp_path: Path) -> None:
    from tests.strict import call

    async with chat(tmp_path, "anthropic", tools=[burn]) as it:
        it.fakes["anthropic"].answer_with(call("burn", {"what": "letters"}), call("burn", {"what": "books"}))
        await it.write("Burn everything")
        await it.is_asked()
        await it.shows("letters")
        assert len(it.app.screen_stack) == 2
        first = it.app.screen
        await it.press("right", "enter")
        await it.until(lambda: it.has_dialog and it.app.screen is not first)
        await it.shows("books")
        await it.press("enter")
        await it.is_over()
        assert RUN == ["letters"]


async def test_a_question_that_nobody_answers_in_time_goes_away(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", tools=[burn]) as it:
        bench = it.app.agent.services.tool_session(it.app.agent.config, it.app.session.id, None)
        bench.confirm_timeout_s = 1.0
        it.fakes["anthropic"].call("burn", {"what": "letters"})
        it.fakes["anthropic"].say("Nobody was there.")
        await it.write("Burn the letters")
        await it.shows("Nobody was there.")
        await it.is_over()
        assert RUN == []


# --- another model ---------------------------------------------------------------------------------------------------


async def test_a_swap_is_looked_at_before_it_is_made(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", "gemini") as it:
        await it.write("Hello")
        await it.is_over()
        await it.write("/model gemini")
        await it.is_asked()
        await it.shows("Swap to fake-gemini:model?", "2 blocks unchanged", "fits the context window")
        signals: list[Any] = []
        it.app.agent.bus.subscribe("test", signals.append, event_types=["feedback.implicit"])
        await it.press("enter")
        await it.shows("fake-gemini:model answers from the next message on.")
        await it.app.agent.bus.drain()
        assert [event.payload.signal for event in signals] == ["swap"]
        await it.write("And you?")
        await it.is_over()
        assert (await it.kept())[-1].metadata.model == "fake-gemini:model"
        assert it.fakes["gemini"].refused == []
        await it.write("/model show")
        await it.shows(
            "Chosen with /model: fake-gemini:model", "Last answer: fake-gemini:model", "Why: manual, session"
        )
        await it.write("/model -")
        await it.shows("fake-anthropic:model (routed)")


async def test_before_an_answer_the_model_that_is_shown_is_the_routings(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/model show")
        await it.shows("Chosen with /model: none; the routing chooses", "No answers yet.")


@pytest.mark.parametrize("keys", [("right", "enter"), ("escape",)])
async def test_a_swap_that_is_not_wanted_is_not_made(keys: tuple[str, ...], tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", "gemini") as it:
        await it.write("/model gemini")
        await it.is_asked()
        await it.press(*keys)
        await it.is_over()
        assert it.app.session.active_model is None


async def test_a_swap_that_is_impossible_says_why_and_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(PIXEL)
    async with chat(tmp_path, "anthropic", "gemini", size=(80, 24)) as it:
        refused: list[Any] = []
        it.app.agent.bus.subscribe("test", refused.append, event_types=["routing_constraint_failure"])
        await it.write(f"/image {file}")
        await it.shows("1 image attached")
        await it.write("What is this?")
        await it.is_over()
        await it.write("/model blind-gemini")
        await it.is_asked()
        await it.shows("Cannot swap to fake-gemini:blind", "Not possible:", "Keep the model")
        assert [button.id for button in it.app.screen.query(Button)] == ["no"]
        await it.press("enter")
        await it.is_over()
        assert it.app.session.active_model is None
        assert [event.payload.source for event in refused] == ["swap"]


async def test_a_model_can_be_chosen_from_those_that_can_be_called(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", "gemini") as it:
        await it.write("/model")
        await it.is_asked()
        await it.shows("Choose a model", "fake-gemini:model", "blind-gemini")
        names = it.app.screen.query_one(OptionList)
        names.highlighted = names.get_option_index("fake-gemini:model")
        await it.press("enter")
        await it.shows("Swap to fake-gemini:model?")
        await it.press("enter")
        await it.shows("fake-gemini:model answers from the next message on.")


async def test_a_model_named_in_a_message_answers_that_message_alone(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", "gemini") as it:
        for text in ("@gemini hello", "hello again"):
            await it.write(text)
            await it.is_over()
        answers = [one.metadata.model for one in await it.kept() if one.role is Role.ASSISTANT]
        assert answers == ["fake-gemini:model", "fake-anthropic:model"]


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_costs_are_shown_by_model(size: tuple[int, int], tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", "gemini", size=size) as it:
        for text in ("hello", "@gemini hello"):
            await it.write(text)
            await it.is_over()
        await it.write("/cost")
        await it.is_asked()
        await it.shows("have no price", "fake-anthropic:model", "fake-gemini:model", "tokens", "Back")
        await it.press("escape")
        await it.is_over()


# --- other conversations ---------------------------------------------------------------------------------------------


async def test_undo_goes_on_before_the_last_question_and_deletes_nothing(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/undo")
        await it.shows("no question to undo")
        for text in ("first", "second"):
            await it.write(text)
            await it.is_over()
        before = it.app.session
        await it.write("/undo")
        await it.shows("The last question and its answer are in the original conversation")
        assert [text_of(one) for one in await it.kept() if one.role is Role.USER] == ["first"]
        assert len(await it.kept(before)) == 4
        await it.write("/undo")
        await it.until(lambda: it.app.session.last_seq == 0, "the beginning")
        await it.write("third")
        await it.is_over()
        assert [text_of(one) for one in await it.kept() if one.role is Role.USER] == ["third"]


async def test_a_fork_shares_what_was_said_up_to_a_message(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        for text in ("first", "second"):
            await it.write(text)
            await it.is_over()
        origin = it.app.session
        await it.write("/fork 2")
        await it.shows("created; the original does not change")
        assert len(await it.kept()) == 2
        await it.write("another")
        await it.is_over()
        assert len(await it.kept(origin)) == 4
        await it.write("/fork two")
        await it.shows("'two' is not a message number")


async def test_a_conversation_is_found_by_its_words_and_opened(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("Where is the aubergine?")
        await it.is_over()
        first = it.app.session
        await it.write("/new")
        await it.shows("new conversation")
        await it.write("/search aubergine")
        await it.is_asked()
        await it.shows("1 message with aubergine", "user: Where is the aubergine?")
        await it.press("enter")
        await it.until(lambda: it.app.session.id == first.id)
        await it.shows("Where is the aubergine?")
        await it.write("/search courgette")
        await it.shows("No messages found for 'courgette'.")
        await it.write("/search")
        await it.shows("no words")


async def test_a_conversation_opens_where_the_words_are_and_goes_on_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.tui.app.MAX_MESSAGES", 30)
    async with chat(tmp_path, "anthropic") as it:
        said = it.app.session
        long = [
            Message(
                "",
                "",
                Role.USER,
                (TextBlock(f"line {n}" + " aubergine" * (n == 20)),),
                MessageMetadata(),
                said.created_at,
            )
            for n in range(1, 81)
        ]
        await it.app.store.append(said.id, long)
        await it.write("/new")
        await it.shows("new conversation")
        await it.write("/search aubergine")
        await it.is_asked()
        await it.press("enter")
        await it.until(lambda: it.app.session.id == said.id)
        await it.until(lambda: len(it.app.query(".found")) == 1)
        await it.shows("line 20 aubergine")
        (found,) = it.app.query(".found")
        talk = it.app.query_one("#talk")
        await it.until(
            lambda: (
                talk.region.contains_region(found.region.intersection(talk.region)) and found.region.y >= talk.region.y
            )
        )
        assert found.region.y < talk.region.bottom
        await it.write("And now?")
        await it.is_over()
        assert [text_of(one) for one in await it.kept()][-2] == "And now?"
        await it.shows("line 80", "And now?")
        assert not it.app.query(".found")


async def test_conversations_are_listed_with_their_titles_and_resumed(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/sessions")
        await it.shows("no conversations")
        await it.write("The first one")
        await it.is_over()
        first = it.app.session
        await it.write("/title About [red]things[/red]")
        await it.shows("About [red]things[/red]")
        await it.write("/new")
        await it.until(lambda: it.app.session.id != first.id)
        await it.write("/sessions")
        await it.is_asked()
        await it.shows("Conversations", "About [red]things[/red] 2 messages")
        await it.press("enter")
        await it.until(lambda: it.app.session.id == first.id)
        await it.shows("The first one")


# --- and the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sign"),
    [("markdown", "The answer"), ("html", "<html"), ("canonical", '"role"'), ("openai_chat", '"role"')],
)
async def test_a_conversation_is_written_to_a_file(kind: str, sign: str, tmp_path: Path) -> None:
    file = tmp_path / "a talk"
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].say("The answer.")
        await it.write("The question")
        await it.is_over()
        await it.write(f"/export {kind} '{file}'")
        await it.shows("Written to")
        assert sign in file.read_text("utf-8")
        assert "The answer" in file.read_text("utf-8")


@pytest.mark.parametrize("line", ["/export html", "/export", "/export nonsense /nowhere/x", "/export html /nowhere/x"])
async def test_a_file_that_cannot_be_written_is_an_error_and_the_chat_goes_on(line: str, tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write(line)
        await it.until(lambda: "]" in it.screen, "an error with its code")
        it.fakes["anthropic"].say("Still here.")
        await it.write("Hello?")
        await it.shows("Still here.")


async def test_the_last_answer_goes_to_the_clipboard(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/copy")
        await it.shows("no answer to copy")
        it.fakes["anthropic"].say("Take *this*.")
        await it.write("Hello")
        await it.is_over()
        await it.write("/copy")
        await it.until(lambda: it.app.clipboard == "Take *this*.")


async def test_the_theme_can_be_light_and_dark(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/theme light")
        await it.until(lambda: not it.app.current_theme.dark)
        await it.write("/theme")
        await it.until(lambda: it.app.current_theme.dark)
        await it.write("/theme plaid")
        await it.shows("unknown theme 'plaid'")


async def test_quit_leaves(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/quit")
        await it.until(lambda: not it.app.is_running)


async def test_whoever_leaves_while_a_question_is_open_just_leaves(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", tools=[burn]) as it:
        it.fakes["anthropic"].call("burn", {"what": "letters"})
        await it.write("Burn the letters")
        await it.is_asked()
        await it.press("ctrl+q")
        await it.until(lambda: not it.app.is_running)
        await it.app.agent.close()
        assert RUN == []


def test_every_command_is_documented_and_every_documented_command_exists() -> None:
    page = (ROOT / "docs" / "chat.md").read_text("utf-8")
    documented = re.findall(r"^\| `/(\w+)", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(name.removeprefix("do_") for name in vars(Commands) if name.startswith("do_"))
