"""Count the files of ``src/dragoman`` that three paths enter at run time.

    python -m scripts.files_entered              count and limit of each path
    python -m scripts.files_entered --list       also the files, each with its functions
    python -m scripts.files_entered --check      exit status 1 if a count is above its limit

The paths are

    conversion    an OpenAI request with a tool call, read and written as an Anthropic request
    run           one streamed ``POST /runs`` without tools, from the socket to the last event
    letter        a letter sent, received and acknowledged

A profile hook notes every function that is called, in any thread. Each path runs three times before it is measured, so
imports and caches do not count. It is then measured five times; a file counts if every measurement entered it, so that
background tasks with a timer do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import dragoman
from dragoman import settings
from dragoman.dialects import anthropic, openai_chat
from dragoman.letters import Letter, task_result_letter
from dragoman.mail import Mail
from dragoman.server.config import ServerConfig
from dragoman.server.server import bind_socket, open_app_state, run_server

LIMITS: Final = {"conversion": 9, "run": 60, "letter": 15}
WARM_UPS: Final = 3
MEASUREMENTS: Final = 5
_ROOT: Final = f"{Path(dragoman.__file__).parent}/"

Functions = dict[str, set[str]]  # by file


class Recorder:
    """Notes the functions that are called while recording is on."""

    def __init__(self) -> None:
        self._recordings: list[Functions] = []
        self._is_on = False
        threading.setprofile(self._note)  # in threads that start later
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._is_on and event == "call" and code.co_filename.startswith(_ROOT) and code.co_name != "<module>":
            self._recordings[-1][code.co_filename.removeprefix(_ROOT)].add(code.co_qualname)

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Note what is called in the block."""
        self._recordings.append(defaultdict(set))
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def pop(self) -> Functions:
        """The functions of the files that every recording since the last call entered."""
        recordings, self._recordings = self._recordings, []
        files = set.intersection(*map(set, recordings))
        return {file: set[str]().union(*(functions[file] for functions in recordings)) for file in files}


# --- conversion ------------------------------------------------------------------------------------------------------

REQUEST: Final[dict[str, Any]] = {
    "model": "gpt-4o",
    "messages": [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "How warm is it in Berlin?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Berlin"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Reads the weather.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ],
}


def measure_conversion(recorder: Recorder) -> Functions:
    """The files entered by a conversion."""
    for _ in range(WARM_UPS):
        anthropic.write_request(openai_chat.read_request(REQUEST))
    for _ in range(MEASUREMENTS):
        with recorder.record():
            anthropic.write_request(openai_chat.read_request(REQUEST))
    return recorder.pop()


# --- run -------------------------------------------------------------------------------------------------------------

EVENTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 9, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "21 "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "degrees."}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 3},
    },
    {"type": "message_stop"},
)
SETTINGS: Final = """
default_model = "anthropic:claude-sonnet-4-5"
[providers.anthropic]
base_url = "http://127.0.0.1:{port}"
api_key = "key"
"""


async def serve_provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request on a connection with the same stream."""
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(stream)}\r\n\r\n".encode()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while request := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
            await reader.readexactly(int(request.partition("content-length:")[2].partition("\r\n")[0]))
            writer.write(head + stream)
            await writer.drain()


@contextlib.asynccontextmanager
async def run_chat_server(folder: Path) -> AsyncIterator[int]:
    """A chat server in front of the provider; its port."""
    async with await asyncio.start_server(serve_provider, "127.0.0.1", 0) as provider:
        file = folder / "config.toml"
        file.touch(mode=0o600)
        file.write_text(SETTINGS.format(port=provider.sockets[0].getsockname()[1]))
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        listener, config = bind_socket(ServerConfig(store=f"sqlite:///{folder / 'chats.db'}", port=0))
        async with open_app_state(config, loaded) as state, run_server(state, listener):
            assert config.port is not None
            yield config.port


async def post_run(port: int, number: int) -> None:
    """Send one run on a connection of its own, and read its events up to the last."""
    message = {"id": f"message-{number}", "role": "user", "content": "How warm is it?"}
    body = {"threadId": f"t-{number}", "runId": f"r-{number}", "protocolVersion": "1.0", "messages": [message]}
    data = json.dumps(body).encode()
    head = (
        "POST /api/v1/agent/runs HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {len(data)}",
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join((*head, "", "")).encode() + data)
    await reader.readuntil(b"event: RUN_FINISHED")
    writer.close()
    await writer.wait_closed()


async def measure_run(recorder: Recorder, folder: Path) -> Functions:
    """The files entered by a run."""
    async with run_chat_server(folder) as port:
        for number in range(WARM_UPS):
            await post_run(port, number)
        for number in range(WARM_UPS, WARM_UPS + MEASUREMENTS):
            with recorder.record():
                await post_run(port, number)
    return recorder.pop()


# --- letter ----------------------------------------------------------------------------------------------------------


def make_letter(number: int) -> Letter:
    """Return a letter without dependencies and evaluation."""
    return task_result_letter(
        sender_id="CA",
        recipient_id="ARCH",
        task_id=f"TASK-{number}",
        timestamp="2026-11-15T12:00:00Z",
        output="The report is written",
    )


async def exchange_letter(mail: Mail, letter: Letter) -> None:
    """Send a letter, receive it and acknowledge it."""
    await mail.send(letter)
    (delivery,) = await mail.receive("ARCH")
    await mail.ack(delivery)


async def measure_letter(recorder: Recorder, folder: Path) -> Functions:
    """Return the files entered by a letter that is sent, received and acknowledged."""
    async with dragoman.open_store(f"sqlite:///{folder / 'mail.db'}") as store:
        mail = Mail(store)
        for number in range(WARM_UPS):
            await exchange_letter(mail, make_letter(number))
        for number in range(WARM_UPS, WARM_UPS + MEASUREMENTS):
            letter = make_letter(number)
            with recorder.record():
                await exchange_letter(mail, letter)
    return recorder.pop()


def measure() -> dict[str, Functions]:
    """The files that each path enters."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        return {
            "conversion": measure_conversion(recorder),
            "run": asyncio.run(measure_run(recorder, Path(folder))),
            "letter": asyncio.run(measure_letter(recorder, Path(folder))),
        }


def main(arguments: list[str]) -> int:
    """Print the counts; 1 if ``--check`` was passed and a count is above its limit."""
    entered = measure()
    for path, files in entered.items():
        functions = sum(map(len, files.values()))
        print(f"{path}: {len(files)} files of at most {LIMITS[path]}, {functions} functions")
        if "--list" in arguments:
            for file, names in sorted(files.items()):
                print(f"    {file}: {' '.join(sorted(names))}")
    is_above = any(len(files) > LIMITS[path] for path, files in entered.items())
    return int(is_above and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
