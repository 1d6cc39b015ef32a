"""Tests of shutdown: active runs finish or end with an error, and new requests are rejected."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.message import MessageStatus, TextBlock
from dragoman.tools import tool
from tests.server.conftest import ServerFixture, run_test_server

RUNS = "/api/v1/agent/runs"


class BlockingTool:
    """A tool that runs until the test releases it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait."""
            self.started.set()
            await self.may_end.wait()
            return "It is done."

        self.tool = wait


def _input(run: str) -> dict[str, Any]:
    return {"threadId": f"of-{run}", "runId": run, "messages": [{"id": f"m-{run}", "role": "user", "content": "Wait."}]}


@contextlib.asynccontextmanager
async def run_blocking_server(folder: Path, grace_s: float) -> AsyncIterator[tuple[ServerFixture, BlockingTool]]:
    blocking_tool = BlockingTool()
    async with run_test_server(folder, grace_s=grace_s, agent_options={"tools": [blocking_tool.tool]}) as server:
        server.fake.call("wait")
        server.fake.reply("I have waited.")
        yield server, blocking_tool


async def _events(server: ServerFixture, run: str) -> list[dict[str, Any]]:
    async with server.client.post(RUNS, json=_input(run), headers={"accept": "text/event-stream"}) as response:
        text = await response.text()
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def test_active_turn_finishes_before_shutdown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with run_blocking_server(tmp_path, grace_s=30) as (server, blocking_tool):
        follower = asyncio.create_task(_events(server, "r1"))
        await blocking_tool.started.wait()
        server.server.should_exit = True
        while server.server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        with contextlib.suppress(aiohttp.ClientError):
            async with server.client.post(RUNS, json=_input("r2")) as response:
                assert response.status == 503
        blocking_tool.may_end.set()
        events = await follower
        assert events[-1]["type"] == "RUN_FINISHED"
        assert [text for text in caplog.messages if "stopping" in text] == [
            "stopping; in progress: requests 1, runs 1; they have 30 s to end; press Ctrl-C again to stop now"
        ]
        rows = await server.store.tail("of-r1")
        assert rows[-1].message.content == (TextBlock("I have waited."),)
        assert len(await server.store.list_sessions()) == 1


async def test_turn_beyond_grace_period_ends_with_error_and_is_kept(tmp_path: Path) -> None:
    async with run_blocking_server(tmp_path, grace_s=0.2) as (server, blocking_tool):
        follower = asyncio.create_task(_events(server, "r1"))
        await blocking_tool.started.wait()
        server.server.should_exit = True
        events = await follower
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "server_stopping")
        rows = await server.store.tail("of-r1")
        assert [row.message.role.value for row in rows][:2] == ["user", "assistant"]
        assert all(row.message.metadata.status is not MessageStatus.PARTIAL for row in rows)


async def test_second_interrupt_skips_grace_period(tmp_path: Path) -> None:
    async with run_blocking_server(tmp_path, grace_s=3600) as (server, blocking_tool):
        async with server.client.post(RUNS, json=_input("r1")) as response:
            assert response.status == 202
        await blocking_tool.started.wait()
        for _ in range(2):
            server.server.handle_exit(signal.SIGINT, None)
        while (run := await server.store.runs.latest("of-r1")) is not None and run.is_running:
            await asyncio.sleep(0.05)
        assert run is not None
        assert run.status == "error"
