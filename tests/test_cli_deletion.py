"""Deletion, retention and erasure on the command line, run as a user runs them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.attachments import Owner, open_attachments
from dragoman.message import Attachment
from dragoman.store import Store
from tests.cli_store import EXAMPLE, expect_error, fill_store, run, run_json, with_store
from tests.store.messages import said
from tests.test_cli import COMMAND

# --- delete, retain, erase -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("delete", "last"), ("retain", "--older-than", "0s"), ("erase", "--user", "ada")]
)
def test_deletion_without_a_terminal_requires_yes(chats: Path, arguments: Sequence[str]) -> None:
    assert "--yes" in expect_error(run(*arguments, store=chats), "invalid_input")
    assert len(run_json("sessions", store=chats)["sessions"]) == 1
    assert run(*arguments, "--yes", store=chats).returncode == 0
    assert run_json("sessions", store=chats)["sessions"] == []


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0), ("yes\n", 0)])
def test_deletion_prompts_and_accepts_only_yes(chats: Path, answer: str, left: int) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "DRAGOMAN_STORE": str(chats)}
    with subprocess.Popen([COMMAND, "delete", "last"], env=environment, stdin=theirs, stderr=subprocess.PIPE) as asking:
        os.close(theirs)
        os.write(ours, answer.encode() or b"\x04")
        _, told = asking.communicate(timeout=60)
    os.close(ours)
    assert told.startswith(f"Delete {EXAMPLE[0].session_id} 'What the README says' with 4 messages? [y/N] ".encode())
    assert asking.returncode == (2 if left else 0)
    assert len(run_json("sessions", store=chats)["sessions"]) == left


def test_forks_of_a_deleted_session_keep_their_history(chats: Path) -> None:
    fork = run_json("fork", "QQD", "--at", "2", store=chats)
    assert run_json("delete", "QQD", "--yes", store=chats)["deleted"]["id"] == EXAMPLE[0].session_id
    assert [row["seq"] for row in run_json("show", fork["id"], store=chats)["messages"]] == [1, 2]
    expect_error(run("delete", "QQD", "--yes", store=chats), "session_not_found")


def test_retain_lists_sessions_before_it_deletes_them(chats: Path) -> None:
    shown = run("retain", "--older-than", "0s", "--dry-run", store=chats).stdout
    assert EXAMPLE[0].session_id in shown
    assert "would delete 1 session" in shown
    assert run("retain", "--older-than", "90d", "--yes", store=chats).stdout == "deleted 0 sessions\n"
    found = run_json("retain", "--older-than", "0s", "--user", "bob", "--yes", store=chats)
    assert found == {"dry_run": False, "sessions": [], "attachments": 0, "large_pieces": 0, "left": []}
    found = run_json("retain", "--older-than", "0s", "--user", "ada", "--yes", store=chats)
    assert [session["id"] for session in found["sessions"]] == [EXAMPLE[0].session_id]
    assert run("retain", "--older-than", "soon", store=chats).returncode == 2
    expect_error(run("retain", "--older-than=-1d", "--yes", store=chats), "invalid_input")


def test_erase_prints_a_receipt(chats: Path) -> None:
    fill_store(chats, [said("hello")], user_id="bob")
    receipt = run_json("erase", "--user", "ada", "--yes", store=chats)
    assert (receipt["user_id"], receipt["sessions"], receipt["messages"], receipt["tool_calls"]) == ("ada", 1, 4, 1)
    assert [session["user_id"] for session in run_json("sessions", store=chats)["sessions"]] == ["bob"]
    assert b"Project Foo" not in chats.read_bytes()


def uploaded(place: str, *users: str) -> None:
    """Files that these users have uploaded."""

    async def put() -> None:
        async with open_attachments(place, base_url="http://127.0.0.1") as attachments:
            for user in users:
                for thread in ("t1", "t2"):
                    await attachments.put(Owner(user, "team"), thread, "r", b"hello", declared_type="text/plain")

    asyncio.run(put())


def left(folder: Path) -> set[str]:
    """Return the owners of the remaining files."""
    return {path.parts[-4] for path in folder.rglob("*.txt")}


def test_erase_deletes_the_files_beside_the_store(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    uploaded(folder.as_uri(), "ada", "bob")
    told = run("erase", "--user", "ada", "--yes", store=chats)
    assert (told.returncode, told.stderr) == (0, "")
    assert "1 session, 4 messages, 1 tool call, 0 large objects, 2 attachments\n" in told.stdout
    assert left(folder) == {"bob"}
    assert run_json("erase", "--user", "ada", "--yes", store=chats)["attachments"] == 0


def test_erase_reports_an_unknown_user(chats: Path) -> None:
    told = run("erase", "--user", "adda", "--yes", store=chats)
    assert told.stdout.startswith("no data of user 'adda' found; check the id\n")


@pytest.mark.parametrize("how", ["option", "variable", "file"])
def test_erase_finds_files_in_the_location_of_the_server(chats: Path, tmp_path: Path, how: str) -> None:
    place = (tmp_path / "files of others").as_uri()
    uploaded(place, "ada", "bob")
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nattachments = "{place if how == "file" else "file:///nowhere"}"\n')
    config.chmod(0o600)
    named = {"DRAGOMAN_SERVE_ATTACHMENTS": place} if how == "variable" else {}
    option = ("--attachments", place) if how == "option" else ()
    told = run(
        "erase", "--user", "ada", "--yes", "--json", *option, store=chats, env={"DRAGOMAN_CONFIG": str(config), **named}
    )
    assert json.loads(told.stdout)["attachments"] == 2
    assert left(tmp_path / "files of others") == {"bob"}


def test_erase_reports_remaining_files_and_can_be_repeated(chats: Path, tmp_path: Path) -> None:
    closed = "s3://bucket?endpoint=http://127.0.0.1:1"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    told = run("erase", "--user", "ada", "--yes", "--json", "--attachments", closed, store=chats, env=keys)
    receipt = json.loads(told.stdout)
    assert (told.returncode, receipt["sessions"], receipt["attachments"]) == (2, 1, None)
    assert "cannot be reached" in receipt["attachments_fault"]
    assert told.stderr.startswith("dragoman: some attachments of 'ada' were not deleted")
    assert "Run the command again" in told.stderr
    place = (tmp_path / "files").as_uri()
    uploaded(place, "ada")
    again = run_json("erase", "--user", "ada", "--yes", "--attachments", place, store=chats)
    assert (again["sessions"], again["attachments"], again["attachments_fault"]) == (0, 2, None)


@pytest.mark.parametrize(
    "arguments", [("delete", "last"), ("retain", "--older-than", "0s"), ("erase", "--user", "ada")]
)
def test_an_invalid_location_of_attachments_deletes_nothing(chats: Path, arguments: Sequence[str]) -> None:
    expect_error(run(*arguments, "--yes", "--attachments", "ftp://x", store=chats), "not_a_store")
    assert len(run_json("sessions", store=chats)["sessions"]) == 1


def attached(place: str, file: Path, user_id: str | None, *, title: str | None = None, count: int = 1) -> str:
    """A session that names so many files that were uploaded for it; its id."""

    async def put(store: Store) -> str:
        session = await store.create_session(user_id=user_id, title=title)
        async with open_attachments(place, base_url="http://127.0.0.1") as attachments:
            owner = Owner(user_id or "local")
            files = [await attachments.put(owner, session.id, "r", b"hello") for _ in range(count)]
        named = tuple(Attachment(one.bucket, one.path, one.mime_type) for one in files)
        await store.append(session.id, said("look", user_message_attachments=named))
        return session.id

    session_id: str = with_store(file, put)
    return session_id


def threads(folder: Path) -> set[str]:
    """Of which sessions files are still there."""
    return {path.parts[-3] for path in folder.rglob("*.txt")}


@pytest.mark.parametrize("user_id", ["ada", None])
def test_a_session_is_deleted_with_the_files_beside_the_store(chats: Path, user_id: str | None) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    first, second = (attached(folder.as_uri(), chats, user_id, title="Pictures", count=2) for _ in range(2))
    told = run("delete", first, "--yes", store=chats)
    assert (told.stdout, told.stderr) == (f"deleted {first} 'Pictures' with 1 message and 2 attachments\n", "")
    assert threads(folder) == {second}
    found = run_json("delete", second, "--yes", store=chats)
    assert (found["deleted"]["id"], found["attachments"]) == (second, 2)
    assert threads(folder) == set()


@pytest.mark.parametrize("how", ["option", "variable", "file"])
@pytest.mark.parametrize("command", [("delete", "last"), ("retain", "--older-than", "0s")])
def test_delete_finds_files_in_the_location_of_the_server(
    chats: Path, tmp_path: Path, how: str, command: Sequence[str]
) -> None:
    place = (tmp_path / "files of others").as_uri()
    attached(place, chats, "ada")
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nattachments = "{place if how == "file" else "file:///nowhere"}"\n')
    config.chmod(0o600)
    named = {"DRAGOMAN_SERVE_ATTACHMENTS": place} if how == "variable" else {}
    option = ("--attachments", place) if how == "option" else ()
    told = run(*command, "--yes", "--json", *option, store=chats, env={"DRAGOMAN_CONFIG": str(config), **named})
    assert json.loads(told.stdout)["attachments"] == 1
    assert threads(tmp_path / "files of others") == set()


@pytest.mark.parametrize("command", [("delete", "last"), ("retain", "--older-than", "0s")])
def test_delete_creates_no_folder_of_attachments(chats: Path, command: Sequence[str]) -> None:
    before = {path.name for path in chats.parent.iterdir()}
    assert run_json(*command, "--yes", store=chats)["attachments"] == 0
    assert {path.name for path in chats.parent.iterdir()} == before


def test_a_session_with_a_running_turn_is_not_deleted(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    session_id = attached(folder.as_uri(), chats, "ada")

    async def holding(store: Store) -> None:
        async with store.turns.lease(session_id):
            told = await asyncio.to_thread(run, "delete", session_id, "--yes", store=chats)
            assert "a turn is running" in expect_error(told, "turn_in_flight")
            told = await asyncio.to_thread(run, "retain", "--older-than", "0s", "--yes", store=chats)
            assert told.stdout.endswith("deleted 1 session with 0 attachments\n")

    with_store(chats, holding)
    assert [one["id"] for one in run_json("sessions", store=chats)["sessions"]] == [session_id]
    assert threads(folder) == {session_id}


def test_a_session_remains_if_its_files_cannot_be_deleted(chats: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    closed = "s3://bucket?endpoint=http://127.0.0.1:1"
    told = expect_error(
        run("delete", "last", "--yes", "--attachments", closed, store=chats, env=keys), "attachments_left"
    )
    assert f"session {EXAMPLE[0].session_id}: cannot delete its attachments, so the session is kept" in told
    assert "cannot be reached" in told
    assert len(run_json("sessions", store=chats)["sessions"]) == 1


def test_retain_deletes_files_and_a_dry_run_does_not(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    adas, nobodys = (attached(folder.as_uri(), chats, user_id) for user_id in ("ada", None))
    told = run("retain", "--older-than", "0s", "--dry-run", store=chats).stdout
    assert told.endswith("would delete 3 sessions\n")
    assert threads(folder) == {adas, nobodys}
    assert run_json("retain", "--older-than", "0s", "--dry-run", store=chats)["attachments"] is None
    found = run_json("retain", "--older-than", "0s", "--user", "ada", "--yes", store=chats)
    assert (len(found["sessions"]), found["attachments"], found["left"]) == (2, 1, [])
    assert threads(folder) == {nobodys}
    told = run("retain", "--older-than", "0s", "--yes", store=chats).stdout
    assert told.endswith("deleted 1 session with 1 attachment\n")
    assert threads(folder) == set()
