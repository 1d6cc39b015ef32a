"""Render a conversation as Markdown.

Texts of messages are written unchanged, because most are Markdown. Inputs and results of tools are fenced. Invariant:
the content of a fence cannot close it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.humanize import escape_controls
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.renderers.metadata import About, format_json, message_facts, placeholder


def write_head(_title: str) -> str:
    """Return nothing: each conversation has its own heading."""
    return ""


def write_foot() -> str:
    """Return nothing."""
    return ""


def write_conversation(messages: Sequence[Message], about: About) -> str:
    """Return a heading, and each message with its own heading."""
    names: dict[str, str] = {}
    parts = [f"# {_line(about.title)}", f"*{_line(' · '.join(about.facts))}*"] if about.facts else [f"# {about.title}"]
    for message in messages:
        parts.append("## " + " · ".join([_line(message.role.value), *map(_line, message_facts(message))]))
        parts.extend(part for block in message.content for part in _block(block, names))
        parts.extend(
            f"*attached: {_line(attachment.path)} ({attachment.mime_type})*"
            for attachment in message.metadata.attachments
        )
    return "\n\n".join(parts) + "\n\n"


def _block(block: ContentBlock, names: dict[str, str]) -> Iterator[str]:
    match block:
        case TextBlock():
            yield escape_controls(block.text).strip("\n")
        case ThinkingBlock() if block.text:
            yield f"<details><summary>thinking</summary>\n\n{_fence(block.text)}\n\n</details>"
        case ToolUseBlock():
            names[block.id] = block.name
            yield f"**→ {_line(block.name)}**"
            yield _fence(format_json(block.input), "json")
        case InvalidToolUseBlock():
            names[block.id] = block.name
            yield f"**→ {_line(block.name)}** was not called: {_line(block.reason)}"
            yield _fence(block.input_text)
        case ToolResultBlock():
            yield f"**{'✗' if block.is_error else '←'} {_line(names.get(block.tool_use_id, block.tool_use_id))}**"
            for inner in block.content:
                yield from [_fence(inner.text)] if isinstance(inner, TextBlock) else _block(inner, names)
        case _:
            yield f"*[{_line(placeholder(block))}]*"


def _fence(text: str, language: str = "") -> str:
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}{language}\n{escape_controls(text).strip(chr(10))}\n{fence}"


def _line(text: str) -> str:
    """Return a text on one line with escaped Markdown characters."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", escape_controls(" ".join(text.split())))
