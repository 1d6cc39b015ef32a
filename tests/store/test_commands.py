"""The commands, on every engine that they can be given by a URL."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dragoman.cli.tour import example_conversation
from tests import cli_runner
from tests.store.conftest import StoreLocation
from tests.test_cli import write_messages


async def test_every_command_does_the_same_on_every_engine(database_location: StoreLocation, tmp_path: Path) -> None:
    messages = example_conversation()
    is_file = database_location.url.startswith("sqlite:")
    session_id = messages[0].session_id

    def told(*arguments: str | Path, exit_code: int = 0) -> Any:
        done = cli_runner.run_text(*arguments, "--store", database_location.url, "--json", environment=os.environ)
        assert (done.returncode, done.stderr) == (exit_code, "")
        return json.loads(done.stdout)

    assert told("import", write_messages(tmp_path / "example.jsonl", messages))["sessions"][0]["id"] == session_id
    assert [one["id"] for one in told("sessions")["sessions"]] == [session_id]
    assert len(told("show", session_id[-6:].lower())["messages"]) == 4
    assert [hit["seq"] for hit in told("search", "project", "foo", "--role", "assistant")["hits"]] == [4]
    fork = told("fork", "last", "--at", "2")
    assert told("verify")["messages"] == 4
    stats = told("stats", "--by", "day")
    assert (stats["sizes"]["sessions"], stats["totals"][0]["cost_usd"]) == (2, "0.001308")
    assert told("export", "--all", "--to", tmp_path / "all.jsonl.gz")["sessions"] == 2
    assert told("backup", tmp_path / "copy.db")["messages"] == 4
    gone = told("delete", session_id, "--yes")
    assert (gone["deleted"]["id"], gone["attachments"]) == (session_id, 0 if is_file else None)
    assert [row["seq"] for row in told("show", fork["id"])["messages"]] == [1, 2]
    assert len(told("retain", "--older-than", "0s", "--dry-run")["sessions"]) == 1
    assert told("erase", "--user", "nobody", "--yes")["sessions"] == 0
    gone = told("retain", "--older-than", "0s", "--yes")
    assert (len(gone["sessions"]), gone["attachments"], gone["left"]) == (1, 0 if is_file else None, [])
    assert told("search", "foo", exit_code=1)["hits"] == []


async def test_where_nobody_knows_where_files_are_who_deletes_is_told_so(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        for name in ("s1", "s2"):
            await store.create_session(name)

    def told(*arguments: str) -> tuple[str, ...]:
        done = cli_runner.run_text(*arguments, "--yes", "--store", database_location.url, environment=os.environ)
        return tuple(done.stdout.splitlines())

    known, hint = "deleted s1 with 0 messages", "attachments were not deleted: set their location with --attachments"
    is_file = database_location.url.startswith("sqlite:")
    assert told("delete", "s1") == ((f"{known} and 0 attachments",) if is_file else (known, hint))
    *_, last = told("retain", "--older-than", "0s")
    assert last == ("deleted 1 session with 0 attachments" if is_file else hint)
    async with database_location.open() as store:
        assert await store.list_sessions() == []
