"""Runs over the UI message stream of the AI SDK, for ``useChat`` and for what is built on it.

    POST /api/v1/agent/chat                      start a run: a stream of UI message chunks
    GET  /api/v1/agent/chat/{id}/stream          the active run from its start, or 204
    GET  /api/v1/agent/chat/{id}/messages        the conversation as UI messages
    POST /api/v1/agent/chat/{id}/cancel          cancel the active run

A chat is a thread, and its runs are those of ``server.runs``: ``chat_request`` translates the request to the input of
a run, and finds the thread that continues a chat after an answer was replaced. ``ui_message_encoder`` translates the
stored events to chunks, ``ui_history`` the history to UI messages.
"""

from __future__ import annotations

from dragoman.server.ui_messages.endpoints import ENDPOINTS

__all__ = ["ENDPOINTS"]
