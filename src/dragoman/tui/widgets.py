"""What a conversation looks like: one widget for each message, which grows while it arrives.

The one rule: no text of a conversation is taken for markup, and no control character of it reaches the terminal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Collapsible, Markdown, Static

from dragoman.humanize import escape_controls, escape_line, format_usd
from dragoman.message import (
    ContentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

_NAMES: Final = {Role.USER: "You", Role.SYSTEM: "System", Role.TOOL: "Tool"}
_MAX_CHARACTERS: Final = 4_000  # characters of a call or a result that are shown
_MAX_TITLE: Final = 60
_REDRAW_S: Final = 0.05


def heading(message: Message) -> str:
    """Who speaks."""
    if message.role is Role.ASSISTANT:
        return message.metadata.model or "Assistant"
    return _NAMES[message.role]


def footer(message: Message) -> str:
    """How an answer ended and what it cost; empty if there is nothing to say."""
    usage, status = message.metadata.usage, message.metadata.status
    parts = []
    if usage is not None:
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        parts.append(f"{prompt:,} → {usage.output_tokens:,} tokens · {format_usd(usage.amount_usd)}")
    if status is not MessageStatus.COMPLETE:
        parts.append(status.value)
    return " · ".join(parts)


def text_of(message: Message) -> str:
    """What a message says, without what surrounds it."""
    return "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def truncate(text: str) -> str:
    """A long text with its end left out, safe to show."""
    content = escape_controls(text)
    return (
        content
        if len(content) <= _MAX_CHARACTERS
        else f"{content[:_MAX_CHARACTERS]}\n… {len(content) - _MAX_CHARACTERS:,} characters more"
    )


def _title(text: str) -> str:
    """A title that is no markup: its brackets are escaped."""
    line = escape_line(text)
    return Content(line if len(line) <= _MAX_TITLE else f"{line[:_MAX_TITLE]}…").markup


class CallView(Collapsible):
    """A call of a tool, and later its result."""

    def __init__(self, name: str) -> None:
        self._input = Static("", markup=False)
        self._result = Static("", markup=False, classes="result")
        self._result.display = False
        super().__init__(self._input, self._result, title=_title(f"⚙ {name}"), collapsed=True)
        self._name = name
        self._about = ""

    def show_input(self, text: str) -> None:
        """What the tool is called with, as far as it has arrived."""
        self._input.update(truncate(text))
        self._about = text
        self.title = _title(f"⚙ {self._name} {text}")

    def show_result(self, result: ToolResultBlock) -> None:
        """What it gave."""
        self.title = _title(f"{'✗' if result.is_error else '✓'} {self._name} {self._about}")
        self._result.set_class(result.is_error, "error")
        _set_text(self._result, truncate("\n".join(_block_texts(result.content))))


def _block_texts(blocks: tuple[ContentBlock, ...]) -> Iterator[str]:
    for block in blocks:
        yield block.text if isinstance(block, TextBlock) else f"[{block.type}]"


def _set_text(line: Static, text: str) -> None:
    line.update(text)
    line.display = bool(text)


class MessageView(Vertical):
    """One message."""

    def __init__(self, author: str, role: Role) -> None:
        super().__init__(classes=f"message {role.value}")
        self._author = author
        self._role = role
        self._footer = Static("", markup=False, classes="foot")
        self._fault = Static("", markup=False, classes="error")
        self._texts: dict[int, Markdown] = {}
        self._thinking: dict[int, Static] = {}
        self.calls: dict[int, CallView] = {}
        self._pending: dict[int, list[str]] = {}  # by block: the pieces of a text that are not drawn yet; all of others
        self._dirty: set[int] = set()
        self._timer: Timer | None = None
        self._draw_lock = asyncio.Lock()  # whoever draws has it

    def compose(self) -> ComposeResult:
        yield Static(escape_line(self._author), markup=False, classes="who")
        for line in (self._fault, self._footer):
            line.display = False
            yield line

    # --- as it arrives -----------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Pieces come faster than they can be drawn; what came in a while is drawn at once."""
        self._timer = self.set_interval(_REDRAW_S, self._draw)

    async def _draw(self) -> None:
        async with self._draw_lock:
            indexes, self._dirty = self._dirty, set()
            for index in sorted(indexes):
                if index in self._texts:
                    parts, self._pending[index] = self._pending[index], []
                    await self._texts[index].append(escape_controls("".join(parts)))
                elif index in self._thinking:
                    self._thinking[index].update(escape_controls("".join(self._pending[index])))
                else:
                    self.calls[index].show_input("".join(self._pending[index]))

    def _add(self, index: int, piece: str) -> None:
        self._pending.setdefault(index, []).append(piece)
        self._dirty.add(index)

    async def add_text(self, index: int, text: str) -> None:
        """More words of a block."""
        if index not in self._texts:
            self._texts[index] = Markdown("", open_links=False)
            await self.mount(self._texts[index], before=self._fault)
        self._add(index, text)

    async def add_thinking(self, index: int, text: str) -> None:
        """More of what the model thinks, folded."""
        if index not in self._thinking:
            self._thinking[index] = Static("", markup=False, classes="thought")
            section = Collapsible(self._thinking[index], title="thinking", collapsed=True)
            await self.mount(section, before=self._fault)
        self._add(index, text)

    async def add_call(self, index: int, name: str) -> None:
        """A call begins."""
        self.calls[index] = CallView(name)
        await self.mount(self.calls[index], before=self._fault)

    def add_input(self, index: int, fragment: str) -> None:
        """More of a call's input."""
        self._add(index, fragment)

    async def finish(self, message: Message | None = None, *, note: str = "", fault: str = "") -> None:
        """Nothing more comes."""
        async with self._draw_lock:  # to stop the timer is to stop it in the middle of what it does
            if self._timer is not None:
                self._timer.stop()
        await self._draw()
        line = " · ".join(part for part in (footer(message) if message is not None else "", note) if part)
        _set_text(self._footer, line)
        _set_text(self._fault, escape_controls(fault))

    # --- whole -------------------------------------------------------------------------------------------------------

    async def show(self, message: Message) -> None:
        """A message that is whole."""
        for index, block in enumerate(message.content):
            await self.show_block(index, block)
        await self.finish(message)

    async def show_block(self, index: int, block: ContentBlock) -> None:
        """A block that is whole. What a person wrote is shown as it was written, and not as Markdown."""
        match block:
            case TextBlock(text=text) if self._role is Role.ASSISTANT:
                await self.add_text(index, text)
            case TextBlock(text=text):
                await self._add_line(escape_controls(text), "said")
            case ThinkingBlock(text=text):
                await self.add_thinking(index, text)
            case ToolUseBlock(name=name, input=value):
                await self.add_call(index, name)
                self.add_input(index, msgspec.json.encode(value).decode())
            case InvalidToolUseBlock(name=name, input_text=text):
                await self.add_call(index, name)
                self.add_input(index, text)
            case ImageBlock(media_type=kind):
                await self._add_line(f"▣ {escape_line(kind)}", "thought")
            case ToolResultBlock():
                pass  # it is told where its call stands
            case _:
                await self._add_line(f"▣ {escape_line(block.type)}", "thought")

    async def _add_line(self, text: str, kind: str) -> None:
        await self.mount(Static(text, markup=False, classes=kind), before=self._fault)
