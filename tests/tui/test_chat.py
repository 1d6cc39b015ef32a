"""A conversation in the terminal: messages are sent, answered, shown and stored."""

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
from dragoman.tui.app import BUSY, MAX_MESSAGES
from dragoman.tui.input_line import image_paths
from dragoman.tui.widgets import MessageView, text_of
from tests.strict import call, say, think
from tests.tui.chat_fixture import PIXEL, chat


async def test_a_message_is_answered_shown_and_stored(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].say("It is **three**.\n\n```python\n1 + 2\n```")
        await it.write("What is 1 + 2?")
        await it.shows("You", "What is 1 + 2?", "fake-anthropic:model", "It is three.", "1 + 2", "tokens")
        await it.is_over()
        question, answer = await it.kept()
        assert (text_of(question), answer.role) == ("What is 1 + 2?", Role.ASSISTANT)
        assert it.app.session.title == "What is 1 + 2?"
        assert it.line.text == ""


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
async def test_everything_has_its_place_in_terminals_of_any_size(size: tuple[int, int], tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", size=size) as it:
        it.fakes["anthropic"].say("first\n\n" + "word " * 3000 + "\n\nthe end")
        await it.write("Tell me a lot")
        await it.is_over()
        await it.shows("the end", "tokens · unpriced")
        width, height = size
        rows = it.screen.split("\n")
        assert len(rows) == height
        assert max(len(row) for row in rows) <= width
        assert rows[-1].startswith(" fake-anthro")
        await it.press("pageup")
        await it.until(lambda: "the end" not in it.screen)
        await it.press("pagedown", "pagedown")
        await it.shows("the end")


async def test_thoughts_are_folded_and_can_be_unfolded_with_the_keyboard(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].answer_with(think("They want a sum."), say("Three."))
        await it.write("What is 1 + 2?")
        await it.is_over()
        await it.shows("thinking", "Three.")
        assert "They want a sum." not in it.screen
        await it.press("shift+tab", "enter")
        await it.shows("They want a sum.")
        await it.press("escape")
        assert it.app.focused is it.line


async def test_what_a_person_writes_is_shown_as_it_was_written(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("# no heading\n[red]*no* markup[/red] \x1b[31m")
        await it.is_over()
        await it.shows("# no heading", "[red]*no* markup[/red] ␛[31m")


async def test_no_word_of_a_model_is_taken_for_an_order_to_the_terminal(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].answer_with(think("\x1b]0;gotcha\x07"), say("\x1b[2Jgone \u202eevil [red]x[/red]"))
        await it.write("Hello")
        await it.is_over()
        it.app.query_one(Collapsible).collapsed = False
        await it.shows("␛[2Jgone", "␛]0;gotcha␇", "[red]x[/red]")
        assert "\x1b" not in it.screen
        assert "\u202e" not in it.screen


async def test_several_lines_are_written_before_they_are_sent(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.press("o", "n", "e", "ctrl+j", "t", "w", "o", "enter")
        await it.is_over()
        assert text_of((await it.kept())[0]) == "one\ntwo"


async def test_the_arrows_bring_back_what_was_written(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        for text in ("first", "second"):
            await it.write(text)
            await it.is_over()
        await it.press("up")
        assert it.line.text == "second"
        await it.press("up", "up")
        assert it.line.text == "first"
        await it.press("down", "down")
        assert it.line.text == ""


async def test_a_conversation_that_is_resumed_shows_what_was_said_and_goes_on(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].say("The **first** answer.")
        await it.write("The first question")
        await it.is_over()
        again = ChatApp(it.app.agent, it.app.session)
        async with again.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            it.app, it.pilot = again, pilot
            await it.shows("The first question", "The first answer.", "fake-anthropic:model")
            await it.press("up")
            assert it.line.text == "The first question"
            await it.write("The second question")
            await it.is_over()
            assert len(await it.kept()) == 4


async def test_of_a_long_conversation_the_end_is_shown(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic", size=(80, 24)) as it:
        session = await it.store.create_session()
        for number in range(MAX_MESSAGES // 2 + 5):
            await it.app.agent.run(session.id, f"question {number}")
        await it.app.open(session)
        await it.shows(f"question {MAX_MESSAGES // 2 + 4}")
        assert len(it.app.query(MessageView)) == MAX_MESSAGES
        it.app.query_one("#talk").scroll_home(animate=False)
        await it.shows("10 older messages are not shown", "question 5")


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_escape_stops_an_answer_and_what_had_arrived_stays(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(600)
        return "never"

    async with chat(tmp_path, "anthropic", tools=[wait]) as it:
        it.fakes["anthropic"].answer_with(say("So far."), call("wait", {}))
        await it.write("Wait for it")
        await begun.wait()
        await it.shows("So far.", "answering; Escape stops")
        await it.write("And another one")
        await it.until(lambda: it.notices == [BUSY])
        assert it.line.text == "And another one"
        await it.press("escape")
        await it.is_over()
        kept = await it.kept()
        assert [message.role for message in kept] == [Role.USER, Role.ASSISTANT, Role.TOOL]
        assert text_of(kept[1]) == "So far."
        await it.write("And now?")
        await it.is_over()
        assert (await it.kept())[-1].metadata.status is MessageStatus.COMPLETE
        assert it.fakes["anthropic"].refused == []


async def test_words_that_are_being_drawn_when_an_answer_ends_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    append: Callable[..., Awaitable[None]] = Markdown.append

    async def slowly(self: Markdown, markdown: str) -> None:
        begun.set()
        await go_on.wait()
        await append(self, markdown)

    async with chat(tmp_path, "anthropic") as it:
        monkeypatch.setattr(Markdown, "append", slowly)
        view = await it.app.add_answer_view("somebody")
        await view.add_text(0, "So far.")
        await begun.wait()
        ending = asyncio.create_task(view.finish(note="the end"))
        await it.pilot.pause(0.05)
        go_on.set()
        await ending
        await it.shows("So far.", "the end")


async def test_whoever_leaves_in_the_middle_of_an_answer_keeps_what_had_arrived(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(600)
        return "never"

    async with chat(tmp_path, "anthropic", tools=[wait]) as it:
        it.fakes["anthropic"].answer_with(say("So far."), call("wait", {}))
        await it.write("Wait for it")
        await begun.wait()
        await it.press("ctrl+q")
        await it.until(lambda: not it.app.is_running)
        await it.app.agent.close()
        kept = await it.kept()
        assert text_of(kept[1]) == "So far."
        assert kept[2].role is Role.TOOL


async def test_commands_that_lead_elsewhere_wait_for_the_answer(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(side_effects=SideEffects.NONE)
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(600)
        return "never"

    async with chat(tmp_path, "anthropic", tools=[wait]) as it:
        it.fakes["anthropic"].call("wait")
        session = it.app.session
        await it.write("Wait for it")
        await begun.wait()
        await it.write("/new")
        await it.shows("/new is not available while an answer arrives. Press Escape to stop the answer [invalid_input]")
        assert it.app.session.id == session.id
        await it.press("escape")
        await it.is_over()


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_an_error_of_the_provider_is_shown_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].fail(401, "that key is not known here")
        await it.write("Hello?")
        await it.shows("that key is not known here", "[unauthorized]")
        await it.is_over()
        it.fakes["anthropic"].say("Hello again.")
        await it.write("Hello!")
        await it.shows("Hello again.")


async def test_a_stream_that_breaks_off_is_shown_as_what_it_is(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].cut(900, say("These words will never be finished. " * 20))
        await it.write("Hello?")
        await it.is_over()
        await it.shows("These words", "[stream_broken]", "· error")


async def test_a_model_that_nobody_knows_is_an_error_and_the_line_can_be_had_back(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/model nonsense")
        await it.shows("no model is called 'nonsense'", "[unknown_model]")
        await it.press("up")
        assert it.line.text == "/model nonsense"


async def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write("/nonsense")
        await it.shows("unknown command /nonsense. List the commands with /help [invalid_input]")
        await it.write("/help")
        await it.shows("/model [NAME]", "/export FORMAT PATH", "Ctrl+Q quits")


# --- pictures --------------------------------------------------------------------------------------------------------


async def test_a_picture_goes_with_the_next_message(tmp_path: Path) -> None:
    file = tmp_path / "a picture.png"
    file.write_bytes(PIXEL)
    async with chat(tmp_path, "anthropic") as it:
        await it.write(f"/image '{file}'")
        await it.shows("1 image attached")
        await it.write("What is this?")
        await it.is_over()
        await it.shows("▣ image/png")
        question, _ = await it.kept()
        assert [type(block) for block in question.content][1:] == [ImageBlock]
        assert it.app.images == []
        assert it.fakes["anthropic"].refused == []


async def test_a_picture_that_is_dropped_on_the_terminal_goes_with_the_next_message(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(PIXEL)
    async with chat(tmp_path, "anthropic") as it:
        from textual.events import Paste

        it.app.post_message(Paste(f"'{file}' "))
        await it.shows("1 image attached")
        it.app.post_message(Paste("only words"))
        await it.until(lambda: it.line.text == "only words")


def test_only_paths_of_pictures_are_taken_for_pictures(tmp_path: Path) -> None:
    file = tmp_path / "a b.png"
    file.write_bytes(PIXEL)
    assert image_paths(f"'{file}'") == [file]
    assert image_paths(str(file).replace(" ", "\\ ")) == [file]
    assert image_paths(f"file://{str(file).replace(' ', chr(92) + ' ')}") == [file]
    for other in ("", "look at picture.png", f"{tmp_path}/none.png", "it's", str(tmp_path), "x" * 5000 + ".png"):
        assert image_paths(other) == [], other


async def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        await it.write(f"/image {tmp_path / 'notes.txt'}")
        await it.shows("not an image file", "[invalid_input]")
        await it.write(f"/image {tmp_path / 'none.png'}")
        await it.shows("cannot read the file")


async def test_a_picture_that_the_model_cannot_see_is_refused_and_stays_for_another_try(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(PIXEL)
    async with chat(tmp_path, "anthropic") as it:
        await it.write(f"/image {file}")
        await it.shows("1 image attached")
        await it.write("@blind-anthropic what is this?")
        await it.shows("[routing_constraint_failure]")
        await it.write("@anthropic what is this?")
        await it.is_over()
        await it.shows("▣ image/png")


async def test_an_answer_is_drawn_as_markdown(tmp_path: Path) -> None:
    async with chat(tmp_path, "anthropic") as it:
        it.fakes["anthropic"].say("# Title\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
        await it.write("Show me")
        await it.is_over()
        (shown,) = it.app.query(Markdown)
        kinds = {type(child).__name__ for child in shown.walk_children()}
        assert {"MarkdownH1", "MarkdownBulletList", "MarkdownTable"} <= kinds
