"""Tests of the terminal chat: messages are sent, answered, shown and stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.widgets import Collapsible, Markdown

from dragoman.exchange import SideEffects
from dragoman.message import ImageBlock, MessageStatus, Role
from dragoman.tools import tool
from dragoman.tui import ChatApp
from dragoman.tui.app import BUSY
from dragoman.tui.input_line import image_paths
from dragoman.tui.widgets import MessageView, text_of
from tests.fake_providers import call_part, text_part, thinking_part
from tests.tui.chat_fixture import PIXEL, open_chat


async def test_message_is_answered_shown_and_stored(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].reply("It is **three**.\n\n```python\n1 + 2\n```")
        await chat.submit("What is 1 + 2?")
        await chat.wait_for_text("You", "What is 1 + 2?", "fake-anthropic:model", "It is three.", "1 + 2", "tokens")
        await chat.wait_until_idle()
        question, answer = await chat.read_messages()
        assert (text_of(question), answer.role) == ("What is 1 + 2?", Role.ASSISTANT)
        assert chat.app.session.title == "What is 1 + 2?"
        assert chat.line.text == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
async def test_layout_fits_terminals_of_any_size(size: tuple[int, int], tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic", size=size) as chat:
        chat.fakes["anthropic"].reply("first\n\n" + "word " * 3000 + "\n\nthe end")
        await chat.submit("Tell me a lot")
        await chat.wait_until_idle()
        await chat.wait_for_text("the end", "tokens · unpriced")
        width, height = size
        rows = chat.screen.split("\n")
        assert len(rows) == height
        assert max(len(row) for row in rows) <= width
        assert rows[-1].startswith(" fake-anthro")
        await chat.press("pageup")
        await chat.wait_until(lambda: "the end" not in chat.screen)
        await chat.press("pagedown", "pagedown")
        await chat.wait_for_text("the end")


async def test_thinking_is_collapsed_and_expands_with_keyboard(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].answer_with(thinking_part("They want a sum."), text_part("Three."))
        await chat.submit("What is 1 + 2?")
        await chat.wait_until_idle()
        await chat.wait_for_text("thinking", "Three.")
        assert "They want a sum." not in chat.screen
        await chat.press("shift+tab", "enter")
        await chat.wait_for_text("They want a sum.")
        await chat.press("escape")
        assert chat.app.focused is chat.line


async def test_user_message_is_shown_without_markup_rendering(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("# no heading\n[red]*no* markup[/red] \x1b[31m")
        await chat.wait_until_idle()
        await chat.wait_for_text("# no heading", "[red]*no* markup[/red] ␛[31m")


async def test_control_characters_of_model_are_escaped(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].answer_with(
            thinking_part("\x1b]0;gotcha\x07"), text_part("\x1b[2Jgone \u202eevil [red]x[/red]")
        )
        await chat.submit("Hello")
        await chat.wait_until_idle()
        chat.app.query_one(Collapsible).collapsed = False
        await chat.wait_for_text("␛[2Jgone", "␛]0;gotcha␇", "[red]x[/red]")
        assert "\x1b" not in chat.screen
        assert "\u202e" not in chat.screen


async def test_message_can_have_several_lines(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.press("o", "n", "e", "ctrl+j", "t", "w", "o", "enter")
        await chat.wait_until_idle()
        assert text_of((await chat.read_messages())[0]) == "one\ntwo"


async def test_arrow_keys_recall_earlier_messages(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        for text in ("first", "second"):
            await chat.submit(text)
            await chat.wait_until_idle()
        await chat.press("up")
        assert chat.line.text == "second"
        await chat.press("up", "up")
        assert chat.line.text == "first"
        await chat.press("down", "down")
        assert chat.line.text == ""


async def test_resumed_session_shows_its_messages_and_continues(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].reply("The **first** answer.")
        await chat.submit("The first question")
        await chat.wait_until_idle()
        resumed = ChatApp(chat.app.agent, chat.app.session)
        async with resumed.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            chat.app, chat.pilot = resumed, pilot
            await chat.wait_for_text("The first question", "The first answer.", "fake-anthropic:model")
            await chat.press("up")
            assert chat.line.text == "The first question"
            await chat.submit("The second question")
            await chat.wait_until_idle()
            assert len(await chat.read_messages()) == 4


async def test_long_session_shows_its_last_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.tui.app.MAX_MESSAGES", 20)
    async with open_chat(tmp_path, "anthropic", size=(80, 24)) as chat:
        session = await chat.store.create_session()
        for number in range(15):
            await chat.app.agent.run(session.id, f"question {number}")
        await chat.app.open(session)
        await chat.wait_for_text("question 14")
        assert len(chat.app.query(MessageView)) == 20
        chat.app.query_one("#talk").scroll_home(animate=False)
        await chat.wait_for_text("10 older messages are not shown", "question 5")


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_escape_stops_answer_and_keeps_received_text(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(600)
        return "never"

    async with open_chat(tmp_path, "anthropic", tools=[wait]) as chat:
        chat.fakes["anthropic"].answer_with(text_part("So far."), call_part("wait", {}))
        await chat.submit("Wait for it")
        await started.wait()
        await chat.wait_for_text("So far.", "answering; Escape stops")
        await chat.submit("And another one")
        await chat.wait_until(lambda: chat.notices == [BUSY])
        assert chat.line.text == "And another one"
        await chat.press("escape")
        await chat.wait_until_idle()
        messages = await chat.read_messages()
        assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
        assert text_of(messages[1]) == "So far."
        await chat.submit("And now?")
        await chat.wait_until_idle()
        assert (await chat.read_messages())[-1].metadata.status is MessageStatus.COMPLETE
        assert chat.fakes["anthropic"].refusals == []


async def test_text_being_rendered_at_end_of_answer_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    append: Callable[..., Awaitable[None]] = Markdown.append

    async def append_slowly(self: Markdown, markdown: str) -> None:
        started.set()
        await release.wait()
        await append(self, markdown)

    async with open_chat(tmp_path, "anthropic") as chat:
        monkeypatch.setattr(Markdown, "append", append_slowly)
        view = await chat.app.add_answer_view("somebody")
        await view.add_text(0, "So far.")
        await started.wait()
        ending = asyncio.create_task(view.finish(note="the end"))
        await chat.pilot.pause(0.05)
        release.set()
        await ending
        await chat.wait_for_text("So far.", "the end")


async def test_quit_during_answer_keeps_received_text(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(600)
        return "never"

    async with open_chat(tmp_path, "anthropic", tools=[wait]) as chat:
        chat.fakes["anthropic"].answer_with(text_part("So far."), call_part("wait", {}))
        await chat.submit("Wait for it")
        await started.wait()
        await chat.press("ctrl+q")
        await chat.wait_until(lambda: not chat.app.is_running)
        await chat.app.agent.close()
        messages = await chat.read_messages()
        assert text_of(messages[1]) == "So far."
        assert messages[2].role is Role.TOOL


async def test_session_commands_are_rejected_during_answer(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(600)
        return "never"

    async with open_chat(tmp_path, "anthropic", tools=[wait]) as chat:
        chat.fakes["anthropic"].call("wait")
        session = chat.app.session
        await chat.submit("Wait for it")
        await started.wait()
        await chat.submit("/new")
        await chat.wait_for_text(
            "/new is not available while an answer arrives. Press Escape to stop the answer [invalid_input]"
        )
        assert chat.app.session.id == session.id
        await chat.press("escape")
        await chat.wait_until_idle()


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_provider_error_is_shown_and_chat_continues(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].fail(401, "that key is not known here")
        await chat.submit("Hello?")
        await chat.wait_for_text("that key is not known here", "[unauthorized]")
        await chat.wait_until_idle()
        chat.fakes["anthropic"].reply("Hello again.")
        await chat.submit("Hello!")
        await chat.wait_for_text("Hello again.")


async def test_broken_stream_is_shown_as_error(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].cut(900, text_part("These words will never be finished. " * 20))
        await chat.submit("Hello?")
        await chat.wait_until_idle()
        await chat.wait_for_text("These words", "[stream_broken]", "· error")


async def test_unknown_model_is_an_error_and_input_is_recalled(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/model nonsense")
        await chat.wait_for_text("no model is called 'nonsense'", "[unknown_model]")
        await chat.press("up")
        assert chat.line.text == "/model nonsense"


async def test_unknown_command_is_an_error(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit("/nonsense")
        await chat.wait_for_text("unknown command /nonsense. List the commands with /help [invalid_input]")
        await chat.submit("/help")
        await chat.wait_for_text("/model [NAME]", "/export FORMAT PATH", "Ctrl+Q quits")


# --- images ----------------------------------------------------------------------------------------------------------


async def test_image_is_sent_with_next_message(tmp_path: Path) -> None:
    file = tmp_path / "a picture.png"
    file.write_bytes(PIXEL)
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit(f"/image '{file}'")
        await chat.wait_for_text("1 image attached")
        await chat.submit("What is this?")
        await chat.wait_until_idle()
        await chat.wait_for_text("▣ image/png")
        question, _ = await chat.read_messages()
        assert [type(block) for block in question.content][1:] == [ImageBlock]
        assert chat.app.images == []
        assert chat.fakes["anthropic"].refusals == []


async def test_image_path_pasted_into_terminal_is_attached(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(PIXEL)
    async with open_chat(tmp_path, "anthropic") as chat:
        from textual.events import Paste

        chat.app.post_message(Paste(f"'{file}' "))
        await chat.wait_for_text("1 image attached")
        chat.app.post_message(Paste("only words"))
        await chat.wait_until(lambda: chat.line.text == "only words")


def test_only_image_paths_are_recognized_as_images(tmp_path: Path) -> None:
    file = tmp_path / "a b.png"
    file.write_bytes(PIXEL)
    assert image_paths(f"'{file}'") == [file]
    assert image_paths(str(file).replace(" ", "\\ ")) == [file]
    assert image_paths(f"file://{str(file).replace(' ', chr(92) + ' ')}") == [file]
    for other in ("", "look at picture.png", f"{tmp_path}/none.png", "it's", str(tmp_path), "x" * 5000 + ".png"):
        assert image_paths(other) == [], other


async def test_non_image_file_is_rejected(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit(f"/image {tmp_path / 'notes.txt'}")
        await chat.wait_for_text("not an image file", "[invalid_input]")
        await chat.submit(f"/image {tmp_path / 'none.png'}")
        await chat.wait_for_text("cannot read the file")


async def test_unsupported_image_is_rejected_and_stays_attached(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(PIXEL)
    async with open_chat(tmp_path, "anthropic") as chat:
        await chat.submit(f"/image {file}")
        await chat.wait_for_text("1 image attached")
        await chat.submit("@blind-anthropic what is this?")
        await chat.wait_for_text("[routing_constraint_failure]")
        await chat.submit("@anthropic what is this?")
        await chat.wait_until_idle()
        await chat.wait_for_text("▣ image/png")


async def test_answer_is_rendered_as_markdown(tmp_path: Path) -> None:
    async with open_chat(tmp_path, "anthropic") as chat:
        chat.fakes["anthropic"].reply("# Title\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
        await chat.submit("Show me")
        await chat.wait_until_idle()
        (view,) = chat.app.query(Markdown)
        kinds = {type(child).__name__ for child in view.walk_children()}
        assert {"MarkdownH1", "MarkdownBulletList", "MarkdownTable"} <= kinds
