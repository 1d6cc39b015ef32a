"""Functions for tests of the command line: run commands over a store, and fill a store."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
import pytest

import dragoman
from dragoman.cli.options import resolve_store_url
from dragoman.cli.tour import example_conversation
from dragoman.message import Message
from dragoman.store import Session, Store
from tests import cli_runner

EXAMPLE = example_conversation()


def run(*arguments: str | Path, store: Path | str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONUTF8": "1", **options.pop("env", {})}
    environment.pop("DRAGOMAN_STORE", None)
    if store is not None:
        environment["DRAGOMAN_STORE"] = str(store)
    return cli_runner.run_text(*arguments, environment=environment, **options)


def run_json(*arguments: str | Path, store: Path) -> Any:
    """Return the output of ``--json``, which is exactly one document."""
    done = run(*arguments, "--json", store=store)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def expect_error(done: subprocess.CompletedProcess[str], code: str) -> str:
    """Return the one line of an error with this code."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert done.stderr.startswith("dragoman: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith(f"[{code}]\n"), done.stderr
    return done.stderr


def with_store(file: Path, work: Callable[[Store], Any]) -> Any:
    """Open a store, and return the result of the function."""

    async def work_in_store() -> Any:
        async with dragoman.open_store(resolve_store_url(str(file))) as store:
            return await work(store)

    return asyncio.run(work_in_store())


def fill_store(file: Path, *conversations: Iterable[Message], **fields: Any) -> list[Session]:
    """Create a store with these conversations, and return their sessions."""

    async def fill(store: Store) -> list[Session]:
        sessions = [await store.create_session(**fields) for _ in conversations]
        for session, messages in zip(sessions, conversations, strict=True):
            await store.append(session.id, list(messages))
        return [await store.get_session(session.id) for session in sessions]

    sessions: list[Session] = with_store(file, fill)
    return sessions


def damage_first_message(file: Path) -> None:
    """Change one letter of the first stored message."""
    connection = apsw.Connection(str(file))
    statement = "UPDATE messages SET content_json = replace(content_json, 'Summarize', 'Summarizd') WHERE seq = 1"
    connection.execute(statement)
    connection.close()


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A store with the example conversation."""
    file = tmp_path / "chats.db"

    async def fill(store: Store) -> None:
        session = await store.create_session(EXAMPLE[0].session_id, title="What the README says", user_id="ada")
        await store.append(session.id, EXAMPLE)

    with_store(file, fill)
    return file
