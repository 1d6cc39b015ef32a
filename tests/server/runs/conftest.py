"""Helpers for runs: requests, parsed streams, and the published AG-UI client.

events = await post_run(chat_server, run_input("Hello"))    the events of a run, as a client receives them
frames = parse_frames(text)                                 id, event and data of each frame
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.server.conftest import ServerFixture, chat_server, keyed_server, postgres_chat_server
from tests.store.conftest import pytest_pyfunc_call, runner
from tests.transcripts.conftest import ENVIRONMENTS, NODE, NPM
from tests.transcripts.conftest import _prepare_environment as made_once
from tests.transcripts.conftest import _run as run_command

__all__ = [
    "chat_server",
    "keyed_server",
    "postgres_chat_server",
    "pytest_pyfunc_call",
    "runner",
]

JUDGES = Path(__file__).parent / "judges"
RUNS = "/api/v1/agent/runs"
SSE = {"accept": "text/event-stream"}
_NUMBERS = itertools.count(1)


def user(text: Any, message_id: str | None = None) -> dict[str, Any]:
    return {"id": message_id or f"msg-{next(_NUMBERS)}", "role": "user", "content": text}


def run_input(*messages: Any, **fields: Any) -> dict[str, Any]:
    """Return the input of a run; texts are messages of the user."""
    number = next(_NUMBERS)
    wire = [user(message) if isinstance(message, str) else message for message in messages]
    return {
        "threadId": f"thread-{number}",
        "runId": f"run-{number}",
        "messages": wire,
        "protocolVersion": "1.0",
        **fields,
    }


def parse_frames(text: str) -> list[dict[str, str]]:
    """Return the fields of each frame of a stream."""
    assert "\r" not in text
    assert text == "" or text.endswith("\n\n")
    result = []
    for frame in text.split("\n\n")[:-1]:
        lines = [line for line in frame.split("\n") if not line.startswith(":")]
        if lines:
            result.append(dict(line.split(": ", 1) for line in lines))
    return result


def parse_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream. The frame id of each is added as ``number``."""
    result = []
    for frame in parse_frames(text):
        event = json.loads(frame["data"])
        assert frame["event"] == event["type"]
        result.append({**event, "number": int(frame["id"])})
    return result


async def post_run(server: ServerFixture, body: Any, **headers: str) -> list[dict[str, Any]]:
    """Post a run and return its events."""
    async with server.client.post(RUNS, json=body, headers={**SSE, **headers}) as response:
        text = await response.text()
        assert response.status == 200, text
        return parse_events(text)


async def post_error(server: ServerFixture, payload: Any, **headers: str) -> tuple[int, str]:
    """Post an invalid run and return the status and the code of the error."""
    async with server.client.post(RUNS, json=payload, headers={**SSE, **headers}) as response:
        body = await response.json()
        return response.status, body["error"]["code"]


def event_types(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of events. Consecutive repetitions are removed."""
    return [name for name, _ in itertools.groupby(event["type"] for event in events)]


# --- published client ------------------------------------------------------------------------------------------------

CLIENTS = {"1.0": "ag-ui-client", "before 1.0": "ag-ui-client-before-1"}


def install_client(name: str) -> Path:
    """Return a folder with the published client, which is installed on first use."""
    return install_packages(name, JUDGES / name)


def install_packages(name: str, pins: Path) -> Path:
    """Return a folder with the packages of a lock file, which are installed on first use."""
    files = [pins / "package.json", pins / "package-lock.json"]
    with made_once(name, files) as folder:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file in files:
                shutil.copy(file, folder)
            quiet = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            run_command([str(NODE), str(NPM), "ci", *quiet, "--prefix", str(folder)])
    return ENVIRONMENTS / name


async def run_node(folder: Path, script: Path, *arguments: str, timeout_s: float = 60) -> tuple[int, str]:
    """Run a script with the packages of a folder, and return its status and its output."""
    copy = folder / script.name  # Node resolves imports from there
    if not copy.exists() or copy.read_bytes() != script.read_bytes():
        temporary = copy.with_name(f"{copy.name}.{os.getpid()}")  # another worker may run the script at this time
        shutil.copy(script, temporary)
        temporary.replace(copy)
    pipe = asyncio.subprocess.PIPE
    command = [str(NODE), str(copy), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    assert process.returncode is not None
    return process.returncode, output.decode()
