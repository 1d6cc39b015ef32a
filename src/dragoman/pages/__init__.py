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
from dragoman.pages import html, markdown
from dragoman.pages.facts import About

_ROOMS: Final[dict[str, ModuleType]] = {"markdown": markdown, "html": html}


def begin(name: str, title: str) -> bytes:
    """What stands before the first conversation."""
    return _bytes(_ROOMS[name].begin(title))


def conversation(name: str, messages: Sequence[Message], about: About | None = None) -> bytes:
    """One conversation."""
    return _bytes(_ROOMS[name].conversation(messages, about or About.of(messages)))


def end(name: str) -> bytes:
    """What stands after the last one."""
    return _bytes(_ROOMS[name].end())


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


__all__ = ["About", "begin", "conversation", "end"]
