"""The terminal chat: a conversation in a terminal, with every verb of the command line behind a slash.

``run(store, session)`` opens it. It is imported only when it is used, and needs the extra ``tui``. The one rule: what
is on the screen is what is in the store; the chat keeps nothing of its own.
"""

from __future__ import annotations

from dragoman.tui.app import ChatApp

__all__ = ["ChatApp"]
