"""The published client of AG-UI, of 1.0 and of the version before it, talks to the server and finds nothing wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from dragoman.exchange import SideEffects
from dragoman.tools import tool
from tests.conftest import CORPUS
from tests.server.conftest import Serving, serving
from tests.server.runs.conftest import CLIENTS, RUNS, client_environment, node

CHECKER = CORPUS.parent / "checkers" / "agui-check.mjs"
JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080001000101011100ffd9")


@tool(side_effects=SideEffects.EXECUTE, requires_workspace=False)
async def delete_database(name: str) -> str:
    """Delete a database."""
    return f"{name} is gone."


@pytest.fixture
def deleting_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Serving]:
    made = serving(tmp_path, of_agent={"tools": [delete_database]})
    yield runner.run(made.__aenter__())
    runner.run(made.__aexit__(None, None, None))


async def uploaded(server: Serving) -> str:
    """The signed URL of a picture."""
    form = aiohttp.FormData()
    form.add_field("file", JPEG, filename="dot.jpg", content_type="image/jpeg")
    async with server.client.post("/api/v1/agent/attachments", data=form) as answer:
        assert answer.status in (200, 201), await answer.text()
        return str((await answer.json())["url"])


@pytest.mark.parametrize("version", CLIENTS)
async def test_the_checker_finds_nothing_wrong(deleting_server: Serving, version: str) -> None:
    if not CHECKER.exists():
        pytest.skip(f"no checker at {CHECKER}; DRAGOMAN_CORPUS names another place")
    server, fake = deleting_server, deleting_server.fake
    for words in ("Hello.", "Again.", "A dot.", "A dot.", "A dot."):
        fake.say(words, thinking="Hm.")
    fake.call("get_weather", {"city": "Berlin"}, thinking="I should look.")
    fake.say("21 degrees.")
    fake.call("delete_database", {"name": "production"})
    fake.say("It is gone.")
    fake.say("Hello.")
    url = await uploaded(server)
    status, said = await node(client_environment(CLIENTS[version]), CHECKER, server.base_url + RUNS, "--image-url", url)
    assert status == 0, said
    assert "FAIL " not in said, said
    assert said.count("NOT EXERCISED") == 2, said  # protobuf, which is told twice, and nothing else
    assert fake.refused == []
