"""Tests of the commands on every engine with a URL."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dragoman.cli.tour import example_conversation
from tests import cli_runner
from tests.store.conftest import StoreLocation
from tests.test_cli import write_messages


async def test_commands_behave_alike_on_every_engine(database_location: StoreLocation, tmp_path: Path) -> None:
    messages = example_conversation()
    is_file = database_location.url.startswith("sqlite:")
    session_id = messages[0].session_id

    def run_command(*arguments: str | Path, exit_code: int = 0) -> Any:
        result = cli_runner.run_text(*arguments, "--store", database_location.url, "--json", environment=os.environ)
        assert (result.returncode, result.stderr) == (exit_code, "")
        return json.loads(result.stdout)

    assert (
        run_command("import", write_messages(tmp_path / "example.jsonl", messages))["sessions"][0]["id"] == session_id
    )
    assert [session_item["id"] for session_item in run_command("sessions")["sessions"]] == [session_id]
    assert len(run_command("show", session_id[-6:].lower())["messages"]) == 4
    assert [hit["seq"] for hit in run_command("search", "project", "foo", "--role", "assistant")["hits"]] == [4]
    fork = run_command("fork", "last", "--at", "2")
    assert run_command("verify")["messages"] == 4
    stats = run_command("stats", "--by", "day")
    assert (stats["sizes"]["sessions"], stats["totals"][0]["cost_usd"]) == (2, "0.001308")
    assert run_command("export", "--all", "--to", tmp_path / "all.jsonl.gz")["sessions"] == 2
    assert run_command("backup", tmp_path / "copy.db")["messages"] == 4
    deleted = run_command("delete", session_id, "--yes")
    assert (deleted["deleted"]["id"], deleted["attachments"]) == (session_id, 0 if is_file else None)
    assert [row["seq"] for row in run_command("show", fork["id"])["messages"]] == [1, 2]
    assert len(run_command("retain", "--older-than", "0s", "--dry-run")["sessions"]) == 1
    assert run_command("erase", "--user", "nobody", "--yes")["sessions"] == 0
    deleted = run_command("retain", "--older-than", "0s", "--yes")
    assert (len(deleted["sessions"]), deleted["attachments"], deleted["left"]) == (1, 0 if is_file else None, [])
    assert run_command("search", "foo", exit_code=1)["hits"] == []


async def test_delete_reports_unknown_attachment_location(database_location: StoreLocation) -> None:
    async with database_location.open() as store:
        for name in ("s1", "s2"):
            await store.create_session(name)

    def run_command(*arguments: str) -> tuple[str, ...]:
        result = cli_runner.run_text(*arguments, "--yes", "--store", database_location.url, environment=os.environ)
        return tuple(result.stdout.splitlines())

    message, hint = "deleted s1 with 0 messages", "attachments were not deleted: set their location with --attachments"
    is_file = database_location.url.startswith("sqlite:")
    assert run_command("delete", "s1") == ((f"{message} and 0 attachments",) if is_file else (message, hint))
    *_, last = run_command("retain", "--older-than", "0s")
    assert last == ("deleted 1 session with 0 attachments" if is_file else hint)
    async with database_location.open() as store:
        assert await store.list_sessions() == []
