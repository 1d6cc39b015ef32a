"""Helpers for chats: the chunks of a stream, and the AI SDK in the versions that use this stream.

chunks = await post_chat(server, chat_body("Hello"))        the chunks of a run
status, output = await run_judge("conversation", "ai-6", url)
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

from tests.server.conftest import ServerFixture, chat_server, keyed_server
from tests.server.runs.conftest import install_packages, run_node
from tests.store.conftest import pytest_pyfunc_call, runner

__all__ = ["chat_server", "keyed_server", "pytest_pyfunc_call", "runner"]

JUDGES = Path(__file__).parent / "judges"
CHAT = "/api/v1/agent/chat"
VERSIONS = ("ai-5", "ai-6", "ai")
_NUMBERS = itertools.count(1)


def ui_message(text: str, message_id: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a question."""
    parts = [{"type": "text", "text": text}]
    return {"id": message_id or f"ui-{next(_NUMBERS)}", "role": "user", "parts": parts, **fields}


def chat_body(*messages: Any, **fields: Any) -> dict[str, Any]:
    """Return the request of the chat transport. Texts become questions."""
    wires = [ui_message(message) if isinstance(message, str) else message for message in messages]
    return {"id": f"chat-{next(_NUMBERS)}", "messages": wires, "trigger": "submit-message", **fields}


def parse_chunks(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a complete stream."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert all(frame.startswith("data: ") for frame in frames), text
    assert frames[-1] == "data: [DONE]", text
    return [json.loads(frame[6:]) for frame in frames[:-1]]


async def post_chat(server: ServerFixture, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Post a question and return the chunks of the run."""
    async with server.client.post(CHAT, json=body) as response:
        text = await response.text()
        assert response.status == 200, text
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        return parse_chunks(text)


async def run_judge(script: str, *arguments: str) -> tuple[int, str]:
    """Run a script with the packages of the AI SDK, and return its status and its output."""
    folder = install_packages("ai-sdk", JUDGES / "ai-sdk")
    shutil.copy(JUDGES / "chat.mjs", folder)
    return await run_node(folder, JUDGES / f"{script}.mjs", *arguments)
