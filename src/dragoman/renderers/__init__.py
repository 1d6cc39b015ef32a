"""Render a conversation for people, as Markdown or as one HTML page.

    write_head(format, title), write_conversation(format, messages, about=…), write_foot(format) -> bytes

The output is not read back. The HTML page is self-contained: it loads nothing and runs no script. Invariant: every text
is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Final

from dragoman.message import Message
from dragoman.renderers import html, markdown
from dragoman.renderers.metadata import About

_RENDERERS: Final[dict[str, ModuleType]] = {"markdown": markdown, "html": html}


def write_head(name: str, title: str) -> bytes:
    """Return the text before the first conversation."""
    return _encode(_RENDERERS[name].write_head(title))


def write_conversation(name: str, messages: Sequence[Message], about: About | None = None) -> bytes:
    """Return one conversation."""
    return _encode(_RENDERERS[name].write_conversation(messages, about or About.from_messages(messages)))


def write_foot(name: str) -> bytes:
    """Return the text after the last conversation."""
    return _encode(_RENDERERS[name].write_foot())


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


__all__ = ["About", "write_conversation", "write_foot", "write_head"]
