"""Ground for runs: what a client sends, and how its stream is read.

events = await post(chat_server, run_input("Hello"))        the events of a run, as a client gets them
frames = frames_of(text)                                    id, event and data of each frame
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

from tests.server.conftest import ServerFixture, chat_server, keyed_server, postgres_chat_server
from tests.store.conftest import pytest_pyfunc_call, runner
from tests.transcripts.conftest import ENVIRONMENTS, NODE, NPM
from tests.transcripts.conftest import _made_once as made_once
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
    """The frames of a stream, each as its fields."""
    assert "\r" not in text
    assert text == "" or text.endswith("\n\n")
    result = []
    for frame in text.split("\n\n")[:-1]:
        lines = [line for line in frame.split("\n") if not line.startswith(":")]
        if lines:
            result.append(dict(line.split(": ", 1) for line in lines))
    return result


def parse_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each of which has its number as ``id``."""
    result = []
    for frame in parse_frames(text):
        event = json.loads(frame["data"])
        assert frame["event"] == event["type"]
        result.append({**event, "number": int(frame["id"])})
    return result


async def post_run(server: ServerFixture, body: Any, **headers: str) -> list[dict[str, Any]]:
    """The events of a run, from its beginning to its end."""
    async with server.client.post(RUNS, json=body, headers={**SSE, **headers}) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        return parse_events(text)


async def post_error(server: ServerFixture, payload: Any, **headers: str) -> tuple[int, str]:
    """The status and the code of a refusal."""
    async with server.client.post(RUNS, json=payload, headers={**SSE, **headers}) as answer:
        body = await answer.json()
        return answer.status, body["error"]["code"]


def event_types(events: list[dict[str, Any]]) -> list[str]:
    """The types of events, each one that is repeated only once."""
    return [name for name, _ in itertools.groupby(event["type"] for event in events)]


# --- the published client --------------------------------------------------------------------------------------------

CLIENTS = {"1.0": "ag-ui-client", "before 1.0": "ag-ui-client-before-1"}


def install_client(name: str) -> Path:
    """A folder with the published client in it, made on first use."""
    return install_packages(name, JUDGES / name)


def install_packages(name: str, pins: Path) -> Path:
    """A folder with the packages that a lock file pins, made on first use."""
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
    """Run a script beside the packages of a folder; its status and what it printed."""
    copy = folder / script.name  # where its imports are looked for
    if not copy.exists() or copy.read_bytes() != script.read_bytes():
        shutil.copy(script, copy)
    pipe = asyncio.subprocess.PIPE
    command = [str(NODE), str(copy), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    printed, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    assert process.returncode is not None
    return process.returncode, printed.decode()
