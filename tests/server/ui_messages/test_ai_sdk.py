"""Tests with the AI SDK, versions 5 to 7: conversations with the server, validated by the SDK."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.tools import builtin_tools
from tests.fake_providers.script import call_part, text_part
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.test_agui_client import JPEG, delete_database
from tests.server.runs.test_questions import ORDER
from tests.server.ui_messages.conftest import CHAT, VERSIONS, run_judge

IMAGE_URL = f"data:image/jpeg;base64,{base64.b64encode(JPEG).decode()}"


@pytest.fixture
def tool_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    tools = [delete_database, *builtin_tools(["ask_user"])]
    context = run_test_server(tmp_path, agent_options={"tools": tools})
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize("version", VERSIONS)
async def test_chat_converses_with_files_tools_approvals_and_versions(tool_server: ServerFixture, version: str) -> None:
    fake = tool_server.fake
    fake.reply("A dot.", thinking="A picture.")
    fake.answer_with(text_part("I will look."), call_part("get_weather", {"city": "Berlin"}))
    fake.reply("21 degrees.")
    if version != "ai-5":  # AI SDK 5 has no approvals
        fake.call("delete_database", {"name": "production"})
        fake.reply("It is gone.")
        fake.call("delete_database", {"name": "staging"})
        fake.reply("I left it.")
    fake.call("ask_user", ORDER)
    fake.reply("Size M.")
    fake.reply("Size M, again.")
    fake.reply("Another answer.")
    status, output = await run_judge("conversation", version, tool_server.base_url + CHAT, IMAGE_URL)
    assert status == 0, output
    result = json.loads(output)
    assert fake.refusals == []
    assert result["statuses"] == []
    waits = ["tool-calls", "stop"]
    approvals = [] if version == "ai-5" else [*waits, *waits]
    assert result["finishes"] == ["stop", *waits, *approvals, *waits, "stop", "stop"]
    assert result["isNew"]
    steps = [["step-start", state, "step-start", "done"] for state in ("output-available", "output-denied")]
    assert result["answers"] == ([] if version == "ai-5" else steps)
    received, stored = comparable(result["messages"]), comparable(result["stored"])
    assert received == stored
    assert [part["text"] for part in stored[-2]["parts"] + stored[-1]["parts"] if "text" in part] == [
        "Another question.",
        "Another answer.",
    ]
    metadata = result["messages"][1]["metadata"]
    assert (metadata["model"], metadata["status"]) == ("fake-anthropic:model", "complete")
    assert metadata["usage"] == result["stored"][1]["metadata"]["usage"]
    images = [part for part in fake.bodies[-1]["messages"][0]["content"] if part["type"] == "image"]
    assert len(images) == 1  # the image is in the request to the model


def comparable(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without values that differ between stream and history: URLs of files and rejected calls."""
    return [
        {**message, "metadata": None, "parts": [comparable_part(part) for part in message["parts"]]}
        for message in messages
    ]


def comparable_part(part: dict[str, Any]) -> dict[str, Any]:
    names = ("type", "text", "toolCallId", "input", "output", "mediaType")
    return {name: part[name] for name in names if name in part}
