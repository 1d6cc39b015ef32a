"""Messages as HTML for notebooks. Every text is escaped.

Blocks are read by their attributes, because this module stands below the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_INLINE_IMAGE: Final = re.compile(r"image/(?:png|jpeg|gif|webp)")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\s]*")
_ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_PRE: Final = 'style="white-space:pre-wrap;margin:.3em 0"'


def block_html(block: Any) -> str:
    """A block as HTML."""
    match block.type:
        case "text":
            return f"<div {_PRE}>{_escape(block.text)}</div>"
        case "thinking":
            return _fold("thinking", block.text)
        case "tool_use":
            return _fold(f"call of {block.name}", _format(block.input))
        case "invalid_tool_use":
            return _fold(f"invalid call of {block.name}: {block.reason}", block.input_text)
        case "tool_result":
            title = "error of a tool" if block.is_error else "result of a tool"
            return (
                f"<details><summary>{title}</summary>{''.join(block_html(inner) for inner in block.content)}</details>"
            )
        case "image" if _is_inline_image(block):
            return f'<img alt="" style="max-width:100%" src="data:{block.media_type};base64,{block.source.data}">'
        case "image" | "document" | "audio" | "video":
            return f"<em>{_escape(f'{block.type} ({block.media_type})')}</em>"
        case _:
            return f"<em>{_escape(str(block.type))}</em>"


def message_html(message: Any) -> str:
    """A message as HTML: its role, its model and its blocks."""
    name = " · ".join(part for part in (str(message.role), message.metadata.model) if part)
    return f"<div><strong>{_escape(name)}</strong>{''.join(block_html(block) for block in message.content)}</div>"


def answer_html(messages: Iterable[Any], caption: str) -> str:
    """The messages of a turn as HTML, with a caption below them."""
    return f"{''.join(message_html(message) for message in messages)}<small>{_escape(caption)}</small>"


def _escape(text: str) -> str:
    return text.translate(_ENTITIES)  # the standard library's module loads a table of all entities


def _format(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _fold(title: str, text: str) -> str:
    return f"<details><summary>{_escape(title)}</summary><div {_PRE}>{_escape(text)}</div></details>"


def _is_inline_image(block: Any) -> bool:
    return (
        block.source.kind == "base64"
        and _INLINE_IMAGE.fullmatch(block.media_type) is not None
        and _BASE64.fullmatch(block.source.data) is not None
    )
