"""Tests of ``--delegate``, ``--summarize`` and ``--policy`` of the commands that start an agent and keep running."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import urllib.request
from pathlib import Path
from typing import Any

from tests.turn.test_ask_and_swap import COMMAND, Home, open_home

OPTIONS = ("--delegate", "--summarize", "--policy", "policy.yaml")
TIMEOUT_S = 120


def prepare(home: Home) -> None:
    """Write a policy with tiers. The first model delegates to the second one, and then answers."""
    tiers = dict.fromkeys(("fast", "balanced", "deep"), "openai_chat")
    (home.folder / "policy.yaml").write_text(json.dumps({"schema_version": 1, "tiers": tiers}))
    home.fakes["anthropic"].call("delegate", {"tier": "fast", "task": "Add 1 and 2."})
    home.fakes["openai_chat"].reply("3")
    home.fakes["anthropic"].reply("It is 3.")


async def test_serve_supports_delegation(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic", "openai_chat") as home:
        prepare(home)
        server = await home.start("serve", "--port", "0", *OPTIONS)
        try:
            assert server.stdout is not None
            address = (await server.stdout.readline()).decode().split()[-1]
            events = await asyncio.to_thread(_start_run, address)
        finally:
            server.terminate()
            await server.communicate()
        assert events[-1]["type"] == "RUN_FINISHED", events[-1]
        assert "It is 3." in "".join(event.get("delta", "") for event in events)
        assert "Add 1 and 2." in str(home.fakes["openai_chat"].bodies)


def _start_run(address: str) -> list[dict[str, Any]]:
    body = {"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "What is 1 + 2?"}]}
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    request = urllib.request.Request(f"{address}/api/v1/agent/runs", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


async def test_chat_supports_delegation(tmp_path: Path) -> None:
    async with open_home(tmp_path, "anthropic", "openai_chat") as home:
        prepare(home)
        screen, terminal = pty.openpty()
        environment = {**home.environment, "TERM": "xterm-256color"}
        chat = await asyncio.create_subprocess_exec(
            str(COMMAND),
            "chat",
            *OPTIONS,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment,
            cwd=tmp_path,
        )
        os.close(terminal)
        try:
            await _read_until(screen, b"\x1b[?2004h")  # the chat accepts input
            os.write(screen, b"What is 1 + 2?\r")
            await _read_until(screen, b"It is 3.")
            assert "Add 1 and 2." in str(home.fakes["openai_chat"].bodies)
        finally:
            chat.kill()
            await chat.wait()
            os.close(screen)


async def _read_until(screen: int, text: bytes) -> None:
    """Read the output of the program up to this text."""
    output = b""
    async with asyncio.timeout(TIMEOUT_S):
        while text not in output:
            output += await asyncio.to_thread(os.read, screen, 65_536)
