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
from dragoman.terminal import dollars, safe, safe_line

_NAMES: Final = {Role.USER: "You", Role.SYSTEM: "System", Role.TOOL: "Tool"}
_MOST: Final = 4_000  # characters of a call or a result that are shown
_MOST_IN_TITLE: Final = 60
_DRAWN_EVERY_S: Final = 0.05


def heading(message: Message) -> str:
    """Who speaks."""
    if message.role is Role.ASSISTANT:
        return message.metadata.model or "Assistant"
    return _NAMES[message.role]


def footing(message: Message) -> str:
    """How an answer ended and what it cost; empty if there is nothing to say."""
    usage, status = message.metadata.usage, message.metadata.status
    told = []
    if usage is not None:
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        told.append(f"{prompt:,} → {usage.output_tokens:,} tokens · {dollars(usage.amount_usd)}")
    if status is not MessageStatus.COMPLETE:
        told.append(status.value)
    return " · ".join(told)


def words_of(message: Message) -> str:
    """What a message says, without what surrounds it."""
    return "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def shortened(text: str) -> str:
    """A long text with its end left out, safe to show."""
    shown = safe(text)
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}\n… {len(shown) - _MOST:,} characters more"


def _title(text: str) -> str:
    """A title that is no markup: its brackets are escaped."""
    line = safe_line(text)
    return Content(line if len(line) <= _MOST_IN_TITLE else f"{line[:_MOST_IN_TITLE]}…").markup


class CallView(Collapsible):
    """A call of a tool, and later its result."""

    def __init__(self, name: str) -> None:
        self._told = Static("", markup=False)
        self._result = Static("", markup=False, classes="result")
        self._result.display = False
        super().__init__(self._told, self._result, title=_title(f"⚙ {name}"), collapsed=True)
        self._name = name
        self._about = ""

    def tell_input(self, text: str) -> None:
        """What the tool is called with, as far as it has arrived."""
        self._told.update(shortened(text))
        self._about = text
        self.title = _title(f"⚙ {self._name} {text}")

    def tell_result(self, result: ToolResultBlock) -> None:
        """What it gave."""
        self.title = _title(f"{'✗' if result.is_error else '✓'} {self._name} {self._about}")
        self._result.set_class(result.is_error, "error")
        _tell(self._result, shortened("\n".join(_words(result.content))))


def _words(blocks: tuple[ContentBlock, ...]) -> Iterator[str]:
    for block in blocks:
        yield block.text if isinstance(block, TextBlock) else f"[{block.type}]"


def _tell(line: Static, text: str) -> None:
    line.update(text)
    line.display = bool(text)


class MessageView(Vertical):
    """One message."""

    def __init__(self, who: str, role: Role) -> None:
        super().__init__(classes=f"message {role.value}")
        self._who = who
        self._role = role
        self._foot = Static("", markup=False, classes="foot")
        self._fault = Static("", markup=False, classes="error")
        self._texts: dict[int, Markdown] = {}
        self._thoughts: dict[int, Static] = {}
        self.calls: dict[int, CallView] = {}
        self._arrived: dict[int, list[str]] = {}  # by block: the pieces of a text that are not drawn yet; all of others
        self._changed: set[int] = set()
        self._drawing: Timer | None = None
        self._pen = asyncio.Lock()  # whoever draws has it

    def compose(self) -> ComposeResult:
        yield Static(safe_line(self._who), markup=False, classes="who")
        for line in (self._fault, self._foot):
            line.display = False
            yield line

    # --- as it arrives -----------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Pieces come faster than they can be drawn; what came in a while is drawn at once."""
        self._drawing = self.set_interval(_DRAWN_EVERY_S, self._draw)

    async def _draw(self) -> None:
        async with self._pen:
            changed, self._changed = self._changed, set()
            for index in sorted(changed):
                if index in self._texts:
                    parts, self._arrived[index] = self._arrived[index], []
                    await self._texts[index].append(safe("".join(parts)))
                elif index in self._thoughts:
                    self._thoughts[index].update(safe("".join(self._arrived[index])))
                else:
                    self.calls[index].tell_input("".join(self._arrived[index]))

    def _add(self, index: int, piece: str) -> None:
        self._arrived.setdefault(index, []).append(piece)
        self._changed.add(index)

    async def add_text(self, index: int, text: str) -> None:
        """More words of a block."""
        if index not in self._texts:
            self._texts[index] = Markdown("", open_links=False)
            await self.mount(self._texts[index], before=self._fault)
        self._add(index, text)

    async def add_thought(self, index: int, text: str) -> None:
        """More of what the model thinks, folded."""
        if index not in self._thoughts:
            self._thoughts[index] = Static("", markup=False, classes="thought")
            folded = Collapsible(self._thoughts[index], title="thinking", collapsed=True)
            await self.mount(folded, before=self._fault)
        self._add(index, text)

    async def add_call(self, index: int, name: str) -> None:
        """A call begins."""
        self.calls[index] = CallView(name)
        await self.mount(self.calls[index], before=self._fault)

    def add_input(self, index: int, fragment: str) -> None:
        """More of a call's input."""
        self._add(index, fragment)

    async def ended(self, message: Message | None = None, *, note: str = "", fault: str = "") -> None:
        """Nothing more comes."""
        async with self._pen:  # to stop the timer is to stop it in the middle of what it does
            if self._drawing is not None:
                self._drawing.stop()
        await self._draw()
        told = " · ".join(one for one in (footing(message) if message is not None else "", note) if one)
        _tell(self._foot, told)
        _tell(self._fault, safe(fault))

    # --- whole -------------------------------------------------------------------------------------------------------

    async def show(self, message: Message) -> None:
        """A message that is whole."""
        for index, block in enumerate(message.content):
            await self.show_block(index, block)
        await self.ended(message)

    async def show_block(self, index: int, block: ContentBlock) -> None:
        """A block that is whole. What a person wrote is shown as it was written, and not as Markdown."""
        match block:
            case TextBlock(text=text) if self._role is Role.ASSISTANT:
                await self.add_text(index, text)
            case TextBlock(text=text):
                await self._add_line(safe(text), "said")
            case ThinkingBlock(text=text):
                await self.add_thought(index, text)
            case ToolUseBlock(name=name, input=value):
                await self.add_call(index, name)
                self.add_input(index, msgspec.json.encode(value).decode())
            case InvalidToolUseBlock(name=name, input_text=text):
                await self.add_call(index, name)
                self.add_input(index, text)
            case ImageBlock(media_type=kind):
                await self._add_line(f"▣ {safe_line(kind)}", "thought")
            case ToolResultBlock():
                pass  # it is told where its call stands
            case _:
                await self._add_line(f"▣ {safe_line(block.type)}", "thought")

    async def _add_line(self, text: str, kind: str) -> None:
        await self.mount(Static(text, markup=False, classes=kind), before=self._fault)
