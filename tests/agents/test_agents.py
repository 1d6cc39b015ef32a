"""Tests of coding agents that complete a turn with their own tools through the gateway, on a provider of another API."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.message import Role, ToolResultBlock, ToolUseBlock
from tests.agents import programs
from tests.agents.conftest import NODE
from tests.agents.model_player import ModelPlayer
from tests.agents.programs import AGENTS, NOTE, Place
from tests.agents.relay import Relay, RelayedRequest
from tests.agents.shapes import shape, shape_request
from tests.gateway.sdk_clients import CLIENTS
from tests.server.conftest import ServerFixture, run_test_server

GOLDEN = Path(__file__).parent / "golden"
TIMEOUT_S = 180
# The provider whose requests are in the golden file of an agent, by dialect.
UPSTREAMS = {
    "anthropic": "openai_chat",
    "openai_responses": "anthropic",
    "gemini": "anthropic",
    "openai_chat": "gemini",
}
THOROUGH = ("claude-code", "codex", "gemini-cli")  # with every provider; the others are slow, or differ little
RUNS = [
    (name, upstream)
    for name, (dialect, _) in AGENTS.items()
    for upstream in CLIENTS
    if upstream == UPSTREAMS[dialect] or (name in THOROUGH and upstream != dialect)
]


class Run(msgspec.Struct, frozen=True):
    """The output of an agent, and the requests of the agent and the gateway."""

    output: str
    errors: str
    requests: list[RelayedRequest]
    place: Place
    player: ModelPlayer


async def run_agent(server: ServerFixture, folder: Path, bin_folder: Path, start: Any, upstream: str) -> Run:
    """Run an agent until it exits."""
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    (project / "note.txt").write_text(f"{NOTE}\n")
    async with Relay(int(server.base_url.rpartition(":")[2])) as relay:
        place = Place(relay.base_url, home, project)
        prepared = start(place)
        player = ModelPlayer(upstream, prepared.choose)
        server.fakes[upstream].play = player.play
        path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"}
        process = await asyncio.create_subprocess_exec(
            str(bin_folder / prepared.command[0]),
            *prepared.command[1:],
            cwd=project,
            env=environment | prepared.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        run = Run(output.decode(), errors.decode(), relay.requests, place, player)
    assert process.returncode == 0, (run.output, run.errors)
    return run


def route_all(upstream: str) -> str:
    """Return the configuration that routes every model name to one provider."""
    return f'[gateway.models]\n"*" = "{upstream}"\n'


@pytest.mark.parametrize(("name", "upstream"), RUNS)
async def test_agent_completes_turn_with_tool(tmp_path: Path, programs_folder: Path, name: str, upstream: str) -> None:
    dialect, start = AGENTS[name]
    async with run_test_server(tmp_path, *CLIENTS, rows=route_all(upstream)) as server:
        run = await run_agent(server, tmp_path, programs_folder, start, upstream)
        fake = server.fakes[upstream]
        assert NOTE in run.output, run.errors
        assert [NOTE in result for result in run.player.results] == [True]
        assert fake.refusals == []
        failed = [
            (request.method, request.path, request.status) for request in run.requests if (request.status or 200) >= 400
        ]
        assert failed == []
        await check_recording(server, has_title=name != "qwen-code")  # Qwen Code starts with its own message
    if UPSTREAMS[dialect] == upstream:
        compare_golden(name, run, fake.bodies)


async def test_codex_edits_file_with_text_input_tool(tmp_path: Path, programs_folder: Path) -> None:
    async with run_test_server(tmp_path, *CLIENTS, rows=route_all("anthropic")) as server:
        run = await run_agent(server, tmp_path, programs_folder, programs.start_codex_with_patch, "anthropic")
        assert server.fakes["anthropic"].refusals == []
    assert Path(run.place.note).read_text() == "Edited.\n"


async def check_recording(server: ServerFixture, *, has_title: bool) -> None:
    """Check that the turn is stored as one session with one question, call, result and answer."""
    sessions = await server.store.list_sessions()
    found = []
    for session in sessions:
        messages = [row.message for row in await server.store.read(session.id, limit=100)]
        calls = [block for message in messages for block in message.content if isinstance(block, ToolUseBlock)]
        results = [block for message in messages for block in message.content if isinstance(block, ToolResultBlock)]
        if calls:
            found.append((len(calls), len(results), messages[-1].role, session.title))
    ((calls_count, results_count, last, title),) = found
    assert (calls_count, results_count, last) == (1, 1, Role.ASSISTANT)
    assert ("Read note.txt" in (title or "")) == has_title


def encode_sorted(value: Any) -> bytes:
    """Return JSON with sorted keys. Their order differs between runs of Codex."""
    return msgspec.json.encode(value, order="sorted")


def compare_golden(name: str, run: Run, bodies: list[Any]) -> None:
    """Compare the shapes of all requests with the golden file. ``make test-agents GOLDEN=write`` writes it."""
    requests = [shape_request(request.method, request.path, request.headers, request.json) for request in run.requests]
    actual = {
        "requests": sorted(requests, key=encode_sorted),
        "upstream": sorted((shape(body) for body in bodies), key=encode_sorted),
    }
    text = msgspec.json.format(encode_sorted(actual), indent=1).decode() + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("DRAGOMAN_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text
