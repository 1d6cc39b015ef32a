"""Tests of the commands and dialogs of the terminal chat."""

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
from tests.tui.chat_fixture import PIXEL, ChatDriver, open_chat

BURNED: list[str] = []


@tool(side_effects=SideEffects.WRITE)
def burn(what: str) -> str:
    """Burn something."""
    BURNED.append(what)
    return f"{what} is ashes"


@pytest.fixture(autouse=True)
def clear_burned() -> None:
    BURNED.clear()


async def read_results(chat: ChatDriver) -> list[ToolResultBlock]:
    return [
        block
        for message in await chat.read_messages()
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


# --- approval --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_write_tool_requires_approval(size: tuple[int, int], tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", tools=[burn], size=size) as chat:
        chat.fakes["anthropic"].call("burn", {"what": "[bold]letters[/bold]"})
        chat.fakes["anthropic"].reply("Done.")
        await chat.submit("Burn the letters")
        await chat.wait_for_dialog()
        await chat.wait_for_text(
            "Approve burn? (write)", "[bold]letters[/bold]", "Deny", "Allow once", "Allow in this session"
        )
        assert BURNED == []
        await chat.press("right", "enter")
        await chat.wait_until_idle()
        assert BURNED == ["[bold]letters[/bold]"]
        await chat.wait_for_text("✓ burn", "Done.")


async def test_enter_denies_by_default_to_prevent_accidental_approval(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", tools=[burn]) as chat:
        chat.fakes["anthropic"].call("burn", {"what": "letters"})
        await chat.submit("Burn the letters")
        await chat.wait_for_dialog()
        assert isinstance(chat.app.focused, Button)
        assert chat.app.focused.id == "deny"
        await chat.press("a", "y", "enter")
        await chat.wait_until_idle()
        assert BURNED == []
        (result,) = await read_results(chat)
        assert result.is_error
        await chat.wait_for_text("✗ burn")


async def test_escape_denies_and_turn_continues(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", tools=[burn]) as chat:
        chat.fakes["anthropic"].call("burn", {"what": "letters"})
        chat.fakes["anthropic"].reply("Then not.")
        await chat.submit("Burn the letters")
        await chat.wait_for_dialog()
        await chat.press("escape")
        await chat.wait_until_idle()
        await chat.wait_for_text("Then not.")
        assert BURNED == []


async def test_approval_applies_once_or_to_the_session(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", tools=[burn]) as chat:
        for keys in (("right", "enter"), ("right", "right", "enter"), ()):
            chat.fakes["anthropic"].call("burn", {"what": "letters"})
            chat.fakes["anthropic"].reply("Done.")
            await chat.submit("Burn the letters")
            if keys:
                await chat.wait_for_dialog()
                await chat.press(*keys)
            await chat.wait_until_idle()
        assert BURNED == ["letters"] * 3


async def test_two_approvals_are_requested_in_sequence(tmp_path: Path) -> None:
    from tests.fake_providers import call_part

    async with open_chat(tmp_path, "anthropic", tools=[burn]) as chat:
        chat.fakes["anthropic"].answer_with(
            call_part("burn", {"what": "letters"}), call_part("burn", {"what": "books"})
        )
        await chat.submit("Burn everything")
        await chat.wait_for_dialog()
        await chat.wait_for_text("letters")
        assert len(chat.app.screen_stack) == 2
        first = chat.app.screen
        await chat.press("right", "enter")
        await chat.wait_until(lambda: chat.has_dialog and chat.app.screen is not first)
        await chat.wait_for_text("books")
        await chat.press("enter")
        await chat.wait_until_idle()
        assert BURNED == ["letters"]


async def test_approval_dialog_closes_after_timeout(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", tools=[burn]) as chat:
        tool_session = chat.app.agent.services.tool_session(chat.app.agent.config, chat.app.session.id, None)
        tool_session.confirm_timeout_s = 1.0
        chat.fakes["anthropic"].call("burn", {"what": "letters"})
        chat.fakes["anthropic"].reply("Nobody was there.")
        await chat.submit("Burn the letters")
        await chat.wait_for_text("Nobody was there.")
        await chat.wait_until_idle()
        assert BURNED == []


# --- model and swap --------------------------------------------------------------------------------------------------


async def test_swap_is_confirmed_after_preflight(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", "gemini") as chat:
        await chat.submit("Hello")
        await chat.wait_until_idle()
        await chat.submit("/model gemini")
        await chat.wait_for_dialog()
        await chat.wait_for_text("Swap to fake-gemini:model?", "2 blocks unchanged", "fits the context window")
        signals: list[Any] = []
        chat.app.agent.bus.subscribe("test", signals.append, event_types=["feedback.implicit"])
        await chat.press("enter")
        await chat.wait_for_text("fake-gemini:model answers from the next message on.")
        await chat.app.agent.bus.drain()
        assert [event.payload.signal for event in signals] == ["swap"]
        await chat.submit("And you?")
        await chat.wait_until_idle()
        assert (await chat.read_messages())[-1].metadata.model == "fake-gemini:model"
        assert chat.fakes["gemini"].refusals == []
        await chat.submit("/model show")
        await chat.wait_for_text(
            "Chosen with /model: fake-gemini:model", "Last answer: fake-gemini:model", "Why: manual, session"
        )
        await chat.submit("/model -")
        await chat.wait_for_text("fake-anthropic:model (routed)")


async def test_model_show_before_first_answer_names_routing(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/model show")
        await chat.wait_for_text("Chosen with /model: none; the routing chooses", "No answers yet.")


async def test_declined_swap_changes_nothing(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", "gemini") as chat:
        for keys in (("right", "enter"), ("escape",)):
            await chat.submit("/model gemini")
            await chat.wait_for_dialog()
            await chat.press(*keys)
            await chat.wait_until_idle()
            assert chat.app.session.active_model is None


async def test_impossible_swap_shows_reason_and_cannot_be_confirmed(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(PIXEL)
    async with open_chat(tmp_path, "anthropic", "gemini", size=(80, 24)) as chat:
        failures: list[Any] = []
        chat.app.agent.bus.subscribe("test", failures.append, event_types=["routing_constraint_failure"])
        await chat.submit(f"/image {file}")
        await chat.wait_for_text("1 image attached")
        await chat.submit("What is this?")
        await chat.wait_until_idle()
        await chat.submit("/model blind-gemini")
        await chat.wait_for_dialog()
        await chat.wait_for_text("Cannot swap to fake-gemini:blind", "Not possible:", "Keep the model")
        assert [button.id for button in chat.app.screen.query(Button)] == ["no"]
        await chat.press("enter")
        await chat.wait_until_idle()
        assert chat.app.session.active_model is None
        assert [event.payload.source for event in failures] == ["swap"]


async def test_model_is_chosen_from_callable_models(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", "gemini") as chat:
        await chat.submit("/model")
        await chat.wait_for_dialog()
        await chat.wait_for_text("Choose a model", "fake-gemini:model", "blind-gemini")
        names = chat.app.screen.query_one(OptionList)
        names.highlighted = names.get_option_index("fake-gemini:model")
        await chat.press("enter")
        await chat.wait_for_text("Swap to fake-gemini:model?")
        await chat.press("enter")
        await chat.wait_for_text("fake-gemini:model answers from the next message on.")


async def test_mentioned_model_answers_only_that_message(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", "gemini") as chat:
        for text in ("@gemini hello", "hello again"):
            await chat.submit(text)
            await chat.wait_until_idle()
        answers = [message.metadata.model for message in await chat.read_messages() if message.role is Role.ASSISTANT]
        assert answers == ["fake-gemini:model", "fake-anthropic:model"]


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_costs_are_shown_by_model(size: tuple[int, int], tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", "gemini", size=size) as chat:
        for text in ("hello", "@gemini hello"):
            await chat.submit(text)
            await chat.wait_until_idle()
        await chat.submit("/cost")
        await chat.wait_for_dialog()
        await chat.wait_for_text("have no price", "fake-anthropic:model", "fake-gemini:model", "tokens", "Back")
        await chat.press("escape")
        await chat.wait_until_idle()


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_undo_forks_before_last_question_and_deletes_nothing(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/undo")
        await chat.wait_for_text("no question to undo")
        for text in ("first", "second"):
            await chat.submit(text)
            await chat.wait_until_idle()
        before = chat.app.session
        await chat.submit("/undo")
        await chat.wait_for_text("The last question and its answer are in the original conversation")
        assert [text_of(message) for message in await chat.read_messages() if message.role is Role.USER] == ["first"]
        assert len(await chat.read_messages(before)) == 4
        await chat.submit("/undo")
        await chat.wait_until(lambda: chat.app.session.last_seq == 0, "the beginning")
        await chat.submit("third")
        await chat.wait_until_idle()
        assert [text_of(message) for message in await chat.read_messages() if message.role is Role.USER] == ["third"]


async def test_fork_shares_messages_up_to_its_position(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        for text in ("first", "second"):
            await chat.submit(text)
            await chat.wait_until_idle()
        origin = chat.app.session
        await chat.submit("/fork 2")
        await chat.wait_for_text("created; the original does not change")
        assert len(await chat.read_messages()) == 2
        await chat.submit("another")
        await chat.wait_until_idle()
        assert len(await chat.read_messages(origin)) == 4
        await chat.submit("/fork two")
        await chat.wait_for_text("'two' is not a message number")


async def test_session_is_found_by_text_and_opened(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("Where is the aubergine?")
        await chat.wait_until_idle()
        first = chat.app.session
        await chat.submit("/new")
        await chat.wait_for_text("new conversation")
        await chat.submit("/search aubergine")
        await chat.wait_for_dialog()
        await chat.wait_for_text("1 message with aubergine", "user: Where is the aubergine?")
        await chat.press("enter")
        await chat.wait_until(lambda: chat.app.session.id == first.id)
        await chat.wait_for_text("Where is the aubergine?")
        await chat.submit("/search courgette")
        await chat.wait_for_text("No messages found for 'courgette'.")
        await chat.submit("/search")
        await chat.wait_for_text("no words")


async def test_found_session_opens_at_match_and_continues_at_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.tui.app.MAX_MESSAGES", 16)
    async with open_chat(tmp_path, "anthropic") as chat:
        session = chat.app.session
        messages = [
            Message(
                "",
                "",
                Role.USER,
                (TextBlock(f"line {n}" + " aubergine" * (n == 20)),),
                MessageMetadata(),
                session.created_at,
            )
            for n in range(1, 41)
        ]
        await chat.app.store.append(session.id, messages)
        await chat.submit("/new")
        await chat.wait_for_text("new conversation")
        await chat.submit("/search aubergine")
        await chat.wait_for_dialog()
        await chat.press("enter")
        await chat.wait_until(lambda: chat.app.session.id == session.id)
        await chat.wait_until(lambda: len(chat.app.query(".found")) == 1)
        await chat.wait_for_text("line 20 aubergine")
        (match,) = chat.app.query(".found")
        talk = chat.app.query_one("#talk")
        await chat.wait_until(
            lambda: (
                talk.region.contains_region(match.region.intersection(talk.region)) and match.region.y >= talk.region.y
            )
        )
        assert match.region.y < talk.region.bottom
        await chat.submit("And now?")
        await chat.wait_until_idle()
        assert [text_of(message) for message in await chat.read_messages()][-2] == "And now?"
        await chat.wait_for_text("line 40", "And now?")
        assert not chat.app.query(".found")


async def test_sessions_are_listed_with_titles_and_resumed(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/sessions")
        await chat.wait_for_text("no conversations")
        await chat.submit("The first one")
        await chat.wait_until_idle()
        first = chat.app.session
        await chat.submit("/title About [red]things[/red]")
        await chat.wait_for_text("About [red]things[/red]")
        await chat.submit("/new")
        await chat.wait_until(lambda: chat.app.session.id != first.id)
        await chat.submit("/sessions")
        await chat.wait_for_dialog()
        await chat.wait_for_text("Conversations", "About [red]things[/red] 2 messages")
        await chat.press("enter")
        await chat.wait_until(lambda: chat.app.session.id == first.id)
        await chat.wait_for_text("The first one")


# --- export and other commands----------------------------------------------------------------------------------------


async def wait_for_count(chat: ChatDriver, text: str, count: int) -> None:
    """Wait until a text is on the screen ``count`` times."""
    await chat.wait_until(lambda: chat.screen.count(text) == count, f"{count} times {text}")


async def test_session_is_exported_to_file(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].reply("The answer.")
        await chat.submit("The question")
        await chat.wait_until_idle()
        kinds = {"markdown": "The answer", "html": "<html", "canonical": '"role"', "openai_chat": '"role"'}
        for number, (kind, expected) in enumerate(kinds.items(), 1):
            file = tmp_path / f"a talk in {kind}"
            await chat.submit(f"/export {kind} '{file}'")
            await wait_for_count(chat, "Written to", number)
            assert expected in file.read_text("utf-8")
            assert "The answer" in file.read_text("utf-8")


async def test_failed_export_is_an_error_and_chat_continues(tmp_path: Path) -> None:
    errors = {
        "/export html": "no format or no path",
        "/export": "no format or no path",
        "/export nonsense /nowhere/x": "there is no format 'nonsense'",
        "/export html /nowhere/x": "/nowhere/x: cannot be written",
    }
    async with open_chat(tmp_path, "anthropic") as chat:
        for number, (line, error) in enumerate(errors.items(), 1):
            await chat.submit(line)
            await wait_for_count(chat, "[invalid_input]", number)
            assert error in chat.screen
        chat.fakes["anthropic"].reply("Still here.")
        await chat.submit("Hello?")
        await chat.wait_for_text("Still here.")


async def test_copy_puts_last_answer_on_clipboard(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/copy")
        await chat.wait_for_text("no answer to copy")
        chat.fakes["anthropic"].reply("Take *this*.")
        await chat.submit("Hello")
        await chat.wait_until_idle()
        await chat.submit("/copy")
        await chat.wait_until(lambda: chat.app.clipboard == "Take *this*.")


async def test_theme_switches_between_light_and_dark(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/theme light")
        await chat.wait_until(lambda: not chat.app.current_theme.dark)
        await chat.submit("/theme")
        await chat.wait_until(lambda: chat.app.current_theme.dark)
        await chat.submit("/theme plaid")
        await chat.wait_for_text("unknown theme 'plaid'")


async def test_quit_ends_the_app(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/quit")
        await chat.wait_until(lambda: not chat.app.is_running)


async def test_quit_with_open_approval_runs_no_tool(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", tools=[burn]) as chat:
        chat.fakes["anthropic"].call("burn", {"what": "letters"})
        await chat.submit("Burn the letters")
        await chat.wait_for_dialog()
        await chat.press("ctrl+q")
        await chat.wait_until(lambda: not chat.app.is_running)
        await chat.app.agent.close()
        assert BURNED == []


def test_commands_and_their_documentation_match() -> None:
    page = (ROOT / "docs" / "chat.md").read_text("utf-8")
    documented = re.findall(r"^\| `/(\w+)", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(name.removeprefix("do_") for name in vars(Commands) if name.startswith("do_"))
