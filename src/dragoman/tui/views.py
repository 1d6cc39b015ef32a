"""What a conversation looks like: one widget for each message, which grows while it arrives.

The one rule: no text of a conversation is taken for markup, and no control character of it reaches the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Collapsible, Markdown, Static
from textual.widgets.markdown import MarkdownStream

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
        told.append(f"{prompt:,} → {usage.output_tokens:,} tokens · {dollars(usage.cost_usd)}")
    if status is not MessageStatus.COMPLETE:
        told.append(status.value)
    return " · ".join(told)


def shortened(text: str) -> str:
    """A long text with its end left out, safe to show."""
    shown = safe(text)
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}\n… {len(shown) - _MOST:,} characters more"


class CallView(Collapsible):
    """A call of a tool, and later its result."""

    def __init__(self, name: str, told: str) -> None:
        self._told = Static(Text(shortened(told)))
        self._result = Static("")
        super().__init__(self._told, self._result, title=f"⚙ {safe_line(name)} …", collapsed=True)
        self._name = safe_line(name)

    def tell_input(self, text: str) -> None:
        """What the tool is called with, as far as it has arrived."""
        self._told.update(Text(shortened(text)))

    def tell_result(self, result: ToolResultBlock) -> None:
        """What it gave."""
        self.title = f"{'✗' if result.is_error else '✓'} {self._name}"
        words = "\n".join(_words(result.content))
        self._result.update(Text(shortened(words), style="red" if result.is_error else ""))


def _words(blocks: tuple[ContentBlock, ...]) -> Iterator[str]:
    for block in blocks:
        yield block.text if isinstance(block, TextBlock) else f"[{block.type}]"


class MessageView(Vertical):
    """One message."""

    def __init__(self, who: str, role: Role) -> None:
        super().__init__(classes=f"message {role.value}")
        self._who = who
        self._foot = Static("", classes="foot")
        self._texts: dict[int, MarkdownStream] = {}
        self._thoughts: dict[int, tuple[Static, list[str]]] = {}
        self._inputs: dict[int, list[str]] = {}
        self.calls: dict[int, CallView] = {}

    def compose(self) -> ComposeResult:
        yield Static(Text(self._who), classes="who")
        yield self._foot

    async def add_text(self, index: int, text: str) -> None:
        """More words of a block."""
        if index not in self._texts:
            shown = Markdown("", open_links=False)
            await self.mount(shown, before=self._foot)
            self._texts[index] = Markdown.get_stream(shown)
        await self._texts[index].write(safe(text))

    async def add_thought(self, index: int, text: str) -> None:
        """More of what the model thinks, folded."""
        if index not in self._thoughts:
            shown = Static("")
            await self.mount(Collapsible(shown, title="thinking", collapsed=True), before=self._foot)
            self._thoughts[index] = (shown, [])
        shown, parts = self._thoughts[index]
        parts.append(text)
        shown.update(Text(safe("".join(parts)), style="dim"))

    async def add_call(self, index: int, name: str) -> None:
        """A call begins."""
        self.calls[index] = CallView(name, "")
        self._inputs[index] = []
        await self.mount(self.calls[index], before=self._foot)

    def add_input(self, index: int, fragment: str) -> None:
        """More of a call's input."""
        self._inputs[index].append(fragment)
        self.calls[index].tell_input("".join(self._inputs[index]))

    async def ended(self, message: Message | None = None, note: str = "") -> None:
        """Nothing more comes."""
        for stream in self._texts.values():
            await stream.stop()
        told = " · ".join(one for one in (footing(message) if message is not None else "", safe_line(note)) if one)
        self._foot.update(Text(told, style="dim"))

    async def show(self, message: Message) -> None:
        """A message that is whole."""
        for index, block in enumerate(message.content):
            match block:
                case TextBlock(text=text):
                    await self.add_text(index, text)
                case ThinkingBlock(text=text):
                    await self.add_thought(index, text)
                case ToolUseBlock(name=name, input=value):
                    await self.add_call(index, name)
                    self.calls[index].tell_input(msgspec.json.encode(value).decode())
                case InvalidToolUseBlock(name=name, input_text=text):
                    await self.add_call(index, name)
                    self.calls[index].tell_input(text)
                case ImageBlock(media_type=kind):
                    await self.mount(Static(Text(f"🖼 {kind}", style="dim")), before=self._foot)
                case ToolResultBlock():
                    pass  # it is told where its call stands
                case _:
                    await self.mount(Static(Text(f"[{block.type}]", style="dim")), before=self._foot)
        await self.ended(message)
