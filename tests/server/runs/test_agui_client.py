"""Tests with the published AG-UI client, version 1.0 and the version before it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.exchange import SideEffects
from dragoman.store import Row
from dragoman.tools import tool
from dragoman.transcripts.ag_ui import write_messages
from tests.conftest import CORPUS
from tests.fake_providers.script import call_part, text_part
from tests.server.conftest import ServerFixture, run_test_server
from tests.server.runs.conftest import CLIENTS, JUDGES, RUNS, install_client, run_node

CHECKER = CORPUS.parent / "checkers" / "agui-check.mjs"
JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080001000101011100ffd9")


@tool(side_effects=SideEffects.EXECUTE, requires_workspace=False)
async def delete_database(name: str) -> str:
    """Delete a database."""
    return f"{name} is gone."


@pytest.fixture
def tool_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    context = run_test_server(tmp_path, agent_options={"tools": [delete_database]})
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


async def upload_file(server: ServerFixture) -> str:
    """Upload an image and return its signed URL."""
    form = aiohttp.FormData()
    form.add_field("file", JPEG, filename="dot.jpg", content_type="image/jpeg")
    async with server.client.post("/api/v1/agent/attachments", data=form) as response:
        assert response.status in (200, 201), await response.text()
        return str((await response.json())["url"])


@pytest.mark.parametrize("version", CLIENTS)
async def test_protocol_checker_reports_no_problem(tool_server: ServerFixture, version: str) -> None:
    if not CHECKER.exists():
        pytest.skip(f"no checker at {CHECKER}; set DRAGOMAN_CORPUS to its folder")
    server, fake = tool_server, tool_server.fake
    for text in ("Hello.", "Again.", "A dot.", "A dot.", "A dot."):
        fake.reply(text, thinking="Hm.")
    fake.call("get_weather", {"city": "Berlin"}, thinking="I should look.")
    fake.reply("21 degrees.")
    fake.call("delete_database", {"name": "production"})
    fake.reply("It is gone.")
    fake.reply("Hello.")
    url = await upload_file(server)
    status, output = await run_node(
        install_client(CLIENTS[version]), CHECKER, server.base_url + RUNS, "--image-url", url
    )
    assert status == 0, output
    assert "FAIL " not in output, output
    assert "NOT EXERCISED" not in output, output
    assert fake.refusals == []


@pytest.mark.parametrize("version", CLIENTS)
async def test_client_converses_with_image_tool_and_approval(tool_server: ServerFixture, version: str) -> None:
    server, fake = tool_server, tool_server.fake
    fake.reply("A dot.", thinking="A picture.")
    fake.answer_with(text_part("I will look."), call_part("get_weather", {"city": "Berlin"}))
    fake.reply("21 degrees.")
    fake.call("delete_database", {"name": "production"})
    fake.reply("It is gone.")
    fake.reply("You are welcome.")
    script, folder = JUDGES / "conversation.mjs", install_client(CLIENTS[version])
    status, output = await run_node(folder, script, server.base_url + RUNS, await upload_file(server))
    assert status == 0, output
    result = json.loads(output)
    assert result["warnings"] == []
    pending = "success" if version == "1.0" else "none"  # older clients have no field for pending calls
    assert result["outcomes"] == ["success", pending, "success", "interrupt", "success", "success"]
    rows = await server.store.read("thread-of-the-client")
    history = [{key: value for key, value in wire.items() if key != "metadata"} for wire in write_history(rows)]
    received = [message for message in result["messages"] if message["role"] != "user"]
    assert received == [message for message in history if message["role"] != "user"]  # the ids as well
    assert fake.refusals == []
    images = [part for body in fake.bodies for part in body["messages"][0]["content"] if part["type"] == "image"]
    assert len(images) == len(fake.bodies)  # the image is in every request to the model


@pytest.mark.parametrize("version", CLIENTS)
async def test_client_history_that_ends_with_result_is_answered(chat_server: ServerFixture, version: str) -> None:
    chat_server.fake.reply("21 degrees.")
    script, folder = JUDGES / "whole-history.mjs", install_client(CLIENTS[version])
    status, output = await run_node(folder, script, chat_server.base_url + RUNS)
    assert status == 0, output
    assert json.loads(output) == {
        "roles": ["user", "assistant", "tool", "assistant"],
        "last": "21 degrees.",
        "calls": 1,
    }
    (body,) = chat_server.fake.bodies
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][2]["content"][0]["type"] == "tool_result"
    assert chat_server.fake.refusals == []


def write_history(rows: list[Row]) -> list[dict[str, Any]]:
    wires: list[dict[str, Any]] = write_messages(row.message for row in rows).wire
    return wires
