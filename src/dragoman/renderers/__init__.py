"""Pages: a conversation as people read it, in Markdown or as one HTML page.

    begin(format, title), conversation(format, messages, about=…), end(format) -> bytes

A page is for reading, and nothing reads it back. The HTML page is whole in itself: it fetches nothing and runs nothing,
whatever somebody wrote into a conversation. The one rule: no text reaches a page but through ``words``.
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
    """What stands before the first conversation."""
    return _encode(_RENDERERS[name].write_head(title))


def write_conversation(name: str, messages: Sequence[Message], about: About | None = None) -> bytes:
    """One conversation."""
    return _encode(_RENDERERS[name].write_conversation(messages, about or About.from_messages(messages)))


def write_foot(name: str) -> bytes:
    """What stands after the last one."""
    return _encode(_RENDERERS[name].write_foot())


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


__all__ = ["About", "write_conversation", "write_foot", "write_head"]
