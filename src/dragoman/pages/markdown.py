"""A conversation in Markdown.

Words stand as they were written, since that is Markdown mostly; what tools were given and gave stands in fences that
nothing inside can close. The one rule: what is no words never looks like some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.pages.facts import About, aside, facts_of, json_of, plain


def begin(_title: str) -> str:
    """Nothing: each conversation has a heading of its own."""
    return ""


def end() -> str:
    """Nothing."""
    return ""


def conversation(messages: Sequence[Message], about: About) -> str:
    """A heading, and each message under one of its own."""
    names: dict[str, str] = {}
    parts = [f"# {_line(about.title)}", f"*{_line(' · '.join(about.facts))}*"] if about.facts else [f"# {about.title}"]
    for message in messages:
        parts.append("## " + " · ".join([_line(message.role.value), *map(_line, facts_of(message))]))
        parts.extend(part for block in message.content for part in _block(block, names))
        parts.extend(f"*attached: {_line(one.path)} ({one.mime_type})*" for one in message.metadata.attachments)
    return "\n\n".join(parts) + "\n\n"


def _block(block: ContentBlock, names: dict[str, str]) -> Iterator[str]:
    match block:
        case TextBlock():
            yield plain(block.text).strip("\n")
        case ThinkingBlock() if block.text:
            yield f"<details><summary>thinking</summary>\n\n{_fenced(block.text)}\n\n</details>"
        case ToolUseBlock():
            names[block.id] = block.name
            yield f"**→ {_line(block.name)}**"
            yield _fenced(json_of(block.input), "json")
        case InvalidToolUseBlock():
            names[block.id] = block.name
            yield f"**→ {_line(block.name)}** was not called: {_line(block.reason)}"
            yield _fenced(block.input_text)
        case ToolResultBlock():
            yield f"**{'✗' if block.is_error else '←'} {_line(names.get(block.tool_use_id, block.tool_use_id))}**"
            for inner in block.content:
                yield from [_fenced(inner.text)] if isinstance(inner, TextBlock) else _block(inner, names)
        case _:
            yield f"*[{_line(aside(block))}]*"


def _fenced(text: str, language: str = "") -> str:
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}{language}\n{plain(text).strip(chr(10))}\n{fence}"


def _line(text: str) -> str:
    """A text on one line, in which nothing is a mark."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", plain(" ".join(text.split())))
