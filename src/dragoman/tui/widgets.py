"""Widgets of the conversation: one per message, updated while the message streams.

Invariant: conversation text is never interpreted as markup, and its control characters are escaped.
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
_MAX_CHARACTERS: Final = 4_000  # of a call or a result
_MAX_TITLE: Final = 60
_REDRAW_S: Final = 0.05


def heading(message: Message) -> str:
    """Return the author of a message."""
    if message.role is Role.ASSISTANT:
        return message.metadata.model or "Assistant"
    return _NAMES[message.role]


def footer(message: Message) -> str:
    """Return the status, usage and cost of an answer; empty if there is none."""
    usage, status = message.metadata.usage, message.metadata.status
    parts = []
    if usage is not None:
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        parts.append(f"{prompt:,} → {usage.output_tokens:,} tokens · {format_usd(usage.amount_usd)}")
    if status is not MessageStatus.COMPLETE:
        parts.append(status.value)
    return " · ".join(parts)


def text_of(message: Message) -> str:
    """Return the text blocks of a message."""
    return "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def truncate(text: str) -> str:
    """Return a safe text, with the end of a long one omitted."""
    content = escape_controls(text)
    return (
        content
        if len(content) <= _MAX_CHARACTERS
        else f"{content[:_MAX_CHARACTERS]}\n… {len(content) - _MAX_CHARACTERS:,} more characters"
    )


def _title(text: str) -> str:
    """Return a one-line title with escaped markup."""
    line = escape_line(text)
    return Content(line if len(line) <= _MAX_TITLE else f"{line[:_MAX_TITLE]}…").markup


class CallView(Collapsible):
    """A tool call with its result."""

    def __init__(self, name: str) -> None:
        self._input = Static("", markup=False)
        self._result = Static("", markup=False, classes="result")
        self._result.display = False
        super().__init__(self._input, self._result, title=_title(f"⚙ {name}"), collapsed=True)
        self._name = name
        self._about = ""

    def show_input(self, text: str) -> None:
        """Show the arguments received so far."""
        self._input.update(truncate(text))
        self._about = text
        self.title = _title(f"⚙ {self._name} {text}")

    def show_result(self, result: ToolResultBlock) -> None:
        """Show the result."""
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
        self._pending: dict[int, list[str]] = {}  # by block: text deltas not drawn yet; all deltas of other blocks
        self._dirty: set[int] = set()
        self._timer: Timer | None = None
        self._draw_lock = asyncio.Lock()  # held while drawing

    def compose(self) -> ComposeResult:
        yield Static(escape_line(self._author), markup=False, classes="who")
        for line in (self._fault, self._footer):
            line.display = False
            yield line

    # --- streaming ---------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Redraw at intervals, because deltas arrive faster than they can be drawn."""
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
        """Append text to a block."""
        if index not in self._texts:
            self._texts[index] = Markdown("", open_links=False)
            await self.mount(self._texts[index], before=self._fault)
        self._add(index, text)

    async def add_thinking(self, index: int, text: str) -> None:
        """Append thinking to a folded block."""
        if index not in self._thinking:
            self._thinking[index] = Static("", markup=False, classes="thought")
            section = Collapsible(self._thinking[index], title="thinking", collapsed=True)
            await self.mount(section, before=self._fault)
        self._add(index, text)

    async def add_call(self, index: int, name: str) -> None:
        """Add a tool call."""
        self.calls[index] = CallView(name)
        await self.mount(self.calls[index], before=self._fault)

    def add_input(self, index: int, fragment: str) -> None:
        """Append arguments to a tool call."""
        self._add(index, fragment)

    async def finish(self, message: Message | None = None, *, note: str = "", fault: str = "") -> None:
        """Stop redrawing, and show the footer."""
        async with self._draw_lock:  # stopping the timer cancels a running redraw
            if self._timer is not None:
                self._timer.stop()
        await self._draw()
        line = " · ".join(part for part in (footer(message) if message is not None else "", note) if part)
        _set_text(self._footer, line)
        _set_text(self._fault, escape_controls(fault))

    # --- complete ----------------------------------------------------------------------------------------------------

    async def show(self, message: Message) -> None:
        """Show a complete message."""
        for index, block in enumerate(message.content):
            await self.show_block(index, block)
        await self.finish(message)

    async def show_block(self, index: int, block: ContentBlock) -> None:
        """Show a complete block. User text is shown as written, not as Markdown."""
        match block:
            case TextBlock(text=text) if self._role is Role.ASSISTANT:
                await self.add_text(index, text)
            case TextBlock(text=text):
                await self._add_line(escape_controls(text), "user-text")
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
                pass  # shown with its call
            case _:
                await self._add_line(f"▣ {escape_line(block.type)}", "thought")

    async def _add_line(self, text: str, kind: str) -> None:
        await self.mount(Static(text, markup=False, classes=kind), before=self._fault)
