"""Tests of useChat, CopilotKit, assistant-ui and AG-UI clients: conversations with a tool, and the examples of the docs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dragoman.message import Role
from dragoman.store import open_store
from tests.server.front_ends.conftest import (
    ANSWER,
    KINDS,
    ask,
    count_answers,
    needs_front_ends,
    open_page,
    read_examples,
    run_weather_server,
    wait_for_answers,
)
from tests.server.runs.conftest import CLIENTS, install_client, run_node


@needs_front_ends
@pytest.mark.slow
async def test_every_front_end_uses_tool_and_restores_thread_after_restart(
    program: Callable[[str, str], str], tmp_path: Path
) -> None:
    chromium = program("chromium", "chromium")
    problems: list[str] = []
    async with run_weather_server(tmp_path, "--port", "0") as address:
        query = "&".join(f"{kind}=1" for kind in KINDS)
        async with open_page(chromium, address, query) as page:
            page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
            for kind in KINDS:
                await ask(page, f"{kind}-1")
    assert problems == []
    port = str(urlsplit(address).port)
    async with run_weather_server(tmp_path, "--port", port) as address, open_page(chromium, address, query) as page:
        for kind in KINDS:
            await wait_for_answers(page, f"{kind}-1", 1)
            assert await count_answers(page, f"{kind}-1") == 1, f"{kind} shows an answer twice"
        for kind in KINDS:
            await ask(page, f"{kind}-1")
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        for kind in KINDS:
            roles = [row.message.role for row in await store.read(f"{kind}-1")]
            assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT] * 2, kind


@pytest.mark.parametrize("version", CLIENTS)
async def test_agui_client_example_runs_and_restores_thread(tmp_path: Path, version: str) -> None:
    script = tmp_path / "agent.mjs"
    script.write_text(read_examples()["agent.mjs"], "utf-8")
    async with run_weather_server(tmp_path, "--port", "0") as address:
        for _ in range(2):
            status, output = await run_node(install_client(CLIENTS[version]), script, f"{address}/api/v1/agent")
            assert (status, ANSWER in output) == (0, True), output
    async with open_store(f"sqlite:///{tmp_path / 'chats.db'}") as store:
        roles = [row.message.role for row in await store.read("thread-1")]
    assert roles.count(Role.USER) == 2
