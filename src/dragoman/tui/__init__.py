"""The terminal chat (extra ``tui``): a conversation in a terminal, with slash commands.

Invariant: the screen shows what is stored; the chat has no state of its own.
"""

from __future__ import annotations

from dragoman.tui.app import ChatApp

__all__ = ["ChatApp"]
