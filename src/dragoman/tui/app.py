"""The chat itself: the conversation, a line to write in, and a line that says where one stands.

A turn runs in a task of its own (``RunningTurn``) and is followed here; Escape stops it. What begins with a slash is a
command (``commands``), what begins with @ names a model for one message. The one rule: whatever goes wrong is shown
where it happened, in the words of the error, and the chat goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message as UiMessage
from textual.widgets import Static, TextArea

from dragoman.errors import DragomanError
from dragoman.event import BlockComplete, TextDelta, ThinkingDelta, ToolUseInputDelta, ToolUseStart
from dragoman.message import ContentBlock, ImageBlock, Message, Role, TextBlock, ToolResultBlock, ToolUseBlock
from dragoman.store import Session, Store
from dragoman.terminal import dollars, safe_line
from dragoman.tools import Confirmation, ConfirmationRequest
from dragoman.tui import dialogs
from dragoman.tui.commands import Commands
from dragoman.tui.views import CallView, MessageView, heading
from dragoman.turn import Agent, AnswerBegan, AnswerEnded, ResultStored, RunningTurn, TurnBegan, TurnEnded, TurnEvent

SHOWN: Final = 60  # messages of a conversation that is opened
_WELCOME: Final = "Write, and press Enter. /help shows what else there is; Escape stops an answer; Ctrl+Q leaves."


class Line(TextArea):
    """Where a person writes: Enter sends, Ctrl+J begins a new line, the arrows at its edges bring older lines back."""

    class Sent(UiMessage):
        """What was written."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(id="line", show_line_numbers=False, soft_wrap=True, compact=True)
        self._older: list[str] = []
        self._at = 0

    async def _on_key(self, event: events.Key) -> None:
        match event.key:
            case "enter":
                event.stop()
                event.prevent_default()
                self._send()
            case "ctrl+j" | "shift+enter":
                event.stop()
                event.prevent_default()
                self.insert("\n")
            case "up" if self.cursor_location[0] == 0 and self._older:
                event.stop()
                event.prevent_default()
                self._recall(self._at - 1)
            case "down" if self.cursor_location[0] == self.document.line_count - 1 and self._at < len(self._older):
                event.stop()
                event.prevent_default()
                self._recall(self._at + 1)
            case _:
                await super()._on_key(event)

    def _send(self) -> None:
        text = self.text.strip()
        if not text:
            return
        self._older = [*self._older, text][-100:]
        self._at = len(self._older)
        self.text = ""
        self.post_message(self.Sent(text))

    def _recall(self, at: int) -> None:
        self._at = max(0, min(at, len(self._older)))
        self.text = self._older[self._at] if self._at < len(self._older) else ""
        self.move_cursor(self.document.end)


class ChatApp(App[None]):
    """A conversation in a terminal."""

    TITLE = "Dragoman"
    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+q", "quit", "Leave", priority=True),
        Binding("pageup", "scroll_talk(-1)", "Back", show=False),
        Binding("pagedown", "scroll_talk(1)", "On", show=False),
    ]

    def __init__(self, agent: Agent, session: Session) -> None:
        super().__init__()
        self.agent = agent
        self.session = session
        self.pictures: list[ImageBlock] = []  # that go with the next message
        self.running: RunningTurn | None = None
        self._commands = Commands(self)
        self._calls: dict[str, CallView] = {}
        agent.confirm = self._confirm

    @property
    def store(self) -> Store:
        return self.agent.store

    def compose(self) -> ComposeResult:
        yield VerticalScroll(id="talk")
        yield Line()
        yield Static("", id="status")

    async def on_mount(self) -> None:
        self.query_one(Line).focus()
        self.query_one("#talk", VerticalScroll).anchor()
        await self.open(self.session)

    # --- what is shown -----------------------------------------------------------------------------------------------

    async def open(self, session: Session) -> None:
        """Show a conversation, and go on with it."""
        self.session = session
        talk = self.query_one("#talk", VerticalScroll)
        await talk.remove_children()
        self._calls.clear()
        rows = await self.store.tail(session.id, SHOWN)
        if not rows:
            await self.say(_WELCOME)
        elif rows[0].seq > 1:
            await self.say(f"{rows[0].seq - 1} older messages are not shown; /search finds words in them")
        for row in rows:
            await self._show(row.message)
        await self.update_status()

    async def _show(self, message: Message) -> None:
        if message.role is Role.TOOL:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    self._tell_result(block)
            return
        view = await self._view(heading(message), message.role)
        await view.show(message)
        for index, block in enumerate(message.content):
            if isinstance(block, ToolUseBlock) and index in view.calls:
                self._calls[block.id] = view.calls[index]

    async def _view(self, who: str, role: Role) -> MessageView:
        view = MessageView(who, role)
        await self.query_one("#talk").mount(view)
        return view

    def _tell_result(self, result: ToolResultBlock) -> None:
        if (shown := self._calls.get(result.tool_use_id)) is not None:
            shown.tell_result(result)

    async def say(self, text: str, style: str = "dim") -> None:
        """Something that is not part of the conversation."""
        await self.query_one("#talk").mount(Static(Text(text, style=style), classes="note"))

    async def update_status(self, note: str = "") -> None:
        """Who answers, where one is, what it cost."""
        self.session = await self.store.get_session(self.session.id)
        totals = await self.store.totals("session", session=self.session.id)
        spent = dollars(totals[0].cost_usd) if totals else "$0.00"
        model = self.session.active_model or f"{self.agent.default_model or 'no model'} (routed)"
        pictures = f" · {len(self.pictures)} picture(s) go with the next message" if self.pictures else ""
        title = safe_line(self.session.title or self.session.id)[:40]
        told = " · ".join(one for one in (note, model, title, f"{self.session.last_seq} messages", spent) if one)
        self.query_one("#status", Static).update(Text(told + pictures, no_wrap=True, overflow="ellipsis"))

    # --- what a person does ------------------------------------------------------------------------------------------

    def on_line_sent(self, event: Line.Sent) -> None:
        """A command, or a message."""
        if event.text.startswith("/"):
            self.run_worker(self._guarded(self._commands.run(event.text)), exclusive=False)
        elif self.running is not None and not self.running.is_over:
            self.notify("Wait for the answer, or stop it with Escape.", severity="warning")
            self.query_one(Line).text = event.text
        else:
            self.run_worker(self._guarded(self._turn(event.text)), exclusive=False)

    def action_stop(self) -> None:
        """Stop the answer that is arriving."""
        if self.running is not None:
            self.running.cancel()

    def action_scroll_talk(self, pages: int) -> None:
        """A page up or down."""
        talk = self.query_one("#talk", VerticalScroll)
        talk.scroll_relative(y=pages * max(1, talk.size.height - 2), animate=False)

    async def _guarded(self, doing: Any) -> None:
        try:
            await doing
        except DragomanError as error:
            await self.say(f"{error} [{error.code}]", "red")
            await self.update_status()

    async def ask(self, dialog: dialogs.Dialog | dialogs.Choice) -> str | None:
        """What a person chooses."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.push_screen(dialog, lambda chosen: None if answer.done() else answer.set_result(chosen))
        return await answer

    async def _confirm(self, request: ConfirmationRequest) -> Confirmation:
        return dialogs.confirmed(await self.ask(dialogs.confirmation(request)))

    # --- a turn ------------------------------------------------------------------------------------------------------

    async def _turn(self, text: str) -> None:
        content: list[ContentBlock] = [TextBlock(text), *self.pictures]
        if self.session.title is None:
            self.session = await self.store.rename_session(self.session.id, " ".join(text.split())[:60])
        self.running = self.agent.begin(self.session.id, content)
        shown = _Shown(self)
        try:
            async for event in self.running:
                await shown.take(event)
        finally:
            self.running = None
            await shown.over()
        await self.update_status()

    async def began(self, event: TurnBegan) -> None:
        """The question is stored: it is shown as it is kept."""
        self.pictures.clear()
        await self._show(event.asked.message)
        await self.update_status("…")

    async def add_view(self, who: str) -> MessageView:
        """A place for an answer."""
        return await self._view(who, Role.ASSISTANT)

    def note_call(self, call_id: str, view: CallView) -> None:
        """Remember where the result of a call is to be shown."""
        self._calls[call_id] = view

    async def stored(self, message: Message) -> None:
        """The result of a tool."""
        await self._show(message)


class _Shown:
    """The events of a turn, as they are shown."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._view: MessageView | None = None

    async def take(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                await self._app.began(event)
            case AnswerBegan(model=model, left_out=left_out, losses=losses):
                self._view = await self._app.add_view(model)
                if left_out or losses:
                    note = f"{left_out} older messages did not fit" if left_out else ""
                    lost = f"{len(losses)} things cannot be told to this model" if losses else ""
                    await self._app.say("; ".join(one for one in (note, lost) if one))
            case AnswerEnded(row=row, fault=fault) if self._view is not None:
                await self._view.ended(row.message, f"{fault.message} [{fault.code}]" if fault else "")
                self._view = None
            case ResultStored(row=row):
                await self._app.stored(row.message)
            case TurnEnded(fault=fault) if fault is not None and fault.code == "too_many_steps":
                await self._app.say(f"{fault.message} [{fault.code}]", "red")
            case _ if self._view is not None:
                await self._take_piece(self._view, event)

    async def _take_piece(self, view: MessageView, event: TurnEvent) -> None:
        match event:
            case TextDelta(index=index, text=text):
                await view.add_text(index, text)
            case ThinkingDelta(index=index, text=text):
                await view.add_thought(index, text)
            case ToolUseStart(index=index, id=call_id, name=name):
                await view.add_call(index, name)
                self._app.note_call(call_id, view.calls[index])
            case ToolUseInputDelta(index=index, partial_json=fragment):
                view.add_input(index, fragment)
            case BlockComplete(block=ToolUseBlock(id=call_id, name=name), index=index):
                await view.add_call(index, name)
                self._app.note_call(call_id, view.calls[index])

    async def over(self) -> None:
        """The turn is over, however it ended."""
        if self._view is not None:
            await self._view.ended(note="stopped")
