"""Tests of deletion, retention and erasure on the command line, run as a user runs them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.attachments import Owner, open_attachments
from dragoman.message import Attachment
from dragoman.store import Store
from tests.cli_store import EXAMPLE, expect_error, fill_store, run, run_json, with_store
from tests.store.messages import text_message

# --- delete, retain, erase -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("delete", "last"), ("retain", "--older-than", "0s"), ("erase", "--user", "ada")]
)
def test_deletion_without_a_terminal_requires_yes(chats: Path, arguments: Sequence[str]) -> None:
    assert "--yes" in expect_error(run(*arguments, store=chats), "invalid_input")
    assert len(run_json("sessions", store=chats)["sessions"]) == 1
    assert run(*arguments, "--yes", store=chats).returncode == 0
    assert run_json("sessions", store=chats)["sessions"] == []


@pytest.mark.parametrize(("answer", "remaining"), [("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0), ("yes\n", 0)])
def test_deletion_prompts_and_accepts_only_yes(chats: Path, answer: str, remaining: int) -> None:
    master, slave = pty.openpty()
    try:
        os.write(master, answer.encode() or b"\x04")
        done = run("delete", "last", store=chats, stdin=Path(os.ttyname(slave)))
    finally:
        os.close(slave)
        os.close(master)
    assert done.stderr.startswith(f"Delete {EXAMPLE[0].session_id} 'What the README says' with 4 messages? [y/N] ")
    assert done.returncode == (2 if remaining else 0)
    assert len(run_json("sessions", store=chats)["sessions"]) == remaining


def test_forks_of_a_deleted_session_keep_their_history(chats: Path) -> None:
    fork = run_json("fork", "QQD", "--at", "2", store=chats)
    assert run_json("delete", "QQD", "--yes", store=chats)["deleted"]["id"] == EXAMPLE[0].session_id
    assert [row["seq"] for row in run_json("show", fork["id"], store=chats)["messages"]] == [1, 2]
    expect_error(run("delete", "QQD", "--yes", store=chats), "session_not_found")


def test_retain_lists_sessions_before_it_deletes_them(chats: Path) -> None:
    output = run("retain", "--older-than", "0s", "--dry-run", store=chats).stdout
    assert EXAMPLE[0].session_id in output
    assert "would delete 1 session" in output
    assert run("retain", "--older-than", "90d", "--yes", store=chats).stdout == "deleted 0 sessions\n"
    report = run_json("retain", "--older-than", "0s", "--user", "bob", "--yes", store=chats)
    assert report == {"dry_run": False, "sessions": [], "attachments": 0, "large_pieces": 0, "left": []}
    report = run_json("retain", "--older-than", "0s", "--user", "ada", "--yes", store=chats)
    assert [session["id"] for session in report["sessions"]] == [EXAMPLE[0].session_id]
    assert run("retain", "--older-than", "soon", store=chats).returncode == 2
    expect_error(run("retain", "--older-than=-1d", "--yes", store=chats), "invalid_input")


def test_erase_prints_a_receipt(chats: Path) -> None:
    fill_store(chats, [text_message("hello")], user_id="bob")
    receipt = run_json("erase", "--user", "ada", "--yes", store=chats)
    assert (receipt["user_id"], receipt["sessions"], receipt["messages"], receipt["tool_calls"]) == ("ada", 1, 4, 1)
    assert [session["user_id"] for session in run_json("sessions", store=chats)["sessions"]] == ["bob"]
    assert b"Project Foo" not in chats.read_bytes()


def upload_files(place: str, *users: str) -> None:
    """Upload two files for each of these users."""

    async def put() -> None:
        async with open_attachments(place, base_url="http://127.0.0.1") as attachments:
            for user in users:
                for thread in ("t1", "t2"):
                    await attachments.put(Owner(user, "team"), thread, "r", b"hello", declared_type="text/plain")

    asyncio.run(put())


def read_owners(folder: Path) -> set[str]:
    """Return the owners of the remaining files."""
    return {path.parts[-4] for path in folder.rglob("*.txt")}


def test_erase_deletes_the_files_beside_the_store(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    upload_files(folder.as_uri(), "ada", "bob")
    result = run("erase", "--user", "ada", "--yes", store=chats)
    assert (result.returncode, result.stderr) == (0, "")
    assert "1 session, 4 messages, 1 tool call, 0 large objects, 2 attachments\n" in result.stdout
    assert read_owners(folder) == {"bob"}
    assert run_json("erase", "--user", "ada", "--yes", store=chats)["attachments"] == 0


def test_erase_reports_an_unknown_user(chats: Path) -> None:
    result = run("erase", "--user", "adda", "--yes", store=chats)
    assert result.stdout.startswith("no data of user 'adda' found; check the id\n")


@pytest.mark.parametrize("origin", ["option", "variable", "file"])
def test_erase_finds_files_in_the_location_of_the_server(chats: Path, tmp_path: Path, origin: str) -> None:
    location = (tmp_path / "files of others").as_uri()
    upload_files(location, "ada", "bob")
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nattachments = "{location if origin == "file" else "file:///nowhere"}"\n')
    config.chmod(0o600)
    variables = {"DRAGOMAN_SERVE_ATTACHMENTS": location} if origin == "variable" else {}
    option = ("--attachments", location) if origin == "option" else ()
    result = run(
        "erase",
        "--user",
        "ada",
        "--yes",
        "--json",
        *option,
        store=chats,
        env={"DRAGOMAN_CONFIG": str(config), **variables},
    )
    assert json.loads(result.stdout)["attachments"] == 2
    assert read_owners(tmp_path / "files of others") == {"bob"}


def test_erase_reports_remaining_files_and_can_be_repeated(chats: Path, tmp_path: Path) -> None:
    closed = "s3://bucket?endpoint=http://127.0.0.1:1"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    result = run("erase", "--user", "ada", "--yes", "--json", "--attachments", closed, store=chats, env=keys)
    receipt = json.loads(result.stdout)
    assert (result.returncode, receipt["sessions"], receipt["attachments"]) == (2, 1, None)
    assert "cannot be reached" in receipt["attachments_fault"]
    assert result.stderr.startswith("dragoman: some attachments of 'ada' were not deleted")
    assert "Run the command again" in result.stderr
    location = (tmp_path / "files").as_uri()
    upload_files(location, "ada")
    again = run_json("erase", "--user", "ada", "--yes", "--attachments", location, store=chats)
    assert (again["sessions"], again["attachments"], again["attachments_fault"]) == (0, 2, None)


@pytest.mark.parametrize(
    "arguments", [("delete", "last"), ("retain", "--older-than", "0s"), ("erase", "--user", "ada")]
)
def test_invalid_location_of_attachments_deletes_nothing(chats: Path, arguments: Sequence[str]) -> None:
    expect_error(run(*arguments, "--yes", "--attachments", "ftp://x", store=chats), "not_a_store")
    assert len(run_json("sessions", store=chats)["sessions"]) == 1


def attach_files(location: str, file: Path, user_id: str | None, *, title: str | None = None, count: int = 1) -> str:
    """Create a session that names ``count`` uploaded files, and return its id."""

    async def put(store: Store) -> str:
        session = await store.create_session(user_id=user_id, title=title)
        async with open_attachments(location, base_url="http://127.0.0.1") as attachments:
            owner = Owner(user_id or "local")
            files = [await attachments.put(owner, session.id, "r", b"hello") for _ in range(count)]
        blocks = tuple(Attachment(stored.bucket, stored.path, stored.mime_type) for stored in files)
        await store.append(session.id, text_message("look", user_message_attachments=blocks))
        return session.id

    session_id: str = with_store(file, put)
    return session_id


def read_threads(folder: Path) -> set[str]:
    """Return the ids of the sessions with remaining files."""
    return {path.parts[-3] for path in folder.rglob("*.txt")}


@pytest.mark.parametrize("user_id", ["ada", None])
def test_session_is_deleted_with_files_beside_the_store(chats: Path, user_id: str | None) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    first, second = (attach_files(folder.as_uri(), chats, user_id, title="Pictures", count=2) for _ in range(2))
    result = run("delete", first, "--yes", store=chats)
    assert (result.stdout, result.stderr) == (f"deleted {first} 'Pictures' with 1 message and 2 attachments\n", "")
    assert read_threads(folder) == {second}
    report = run_json("delete", second, "--yes", store=chats)
    assert (report["deleted"]["id"], report["attachments"]) == (second, 2)
    assert read_threads(folder) == set()


@pytest.mark.parametrize("origin", ["option", "variable", "file"])
@pytest.mark.parametrize("command", [("delete", "last"), ("retain", "--older-than", "0s")])
def test_delete_finds_files_in_the_location_of_the_server(
    chats: Path, tmp_path: Path, origin: str, command: Sequence[str]
) -> None:
    location = (tmp_path / "files of others").as_uri()
    attach_files(location, chats, "ada")
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nattachments = "{location if origin == "file" else "file:///nowhere"}"\n')
    config.chmod(0o600)
    variables = {"DRAGOMAN_SERVE_ATTACHMENTS": location} if origin == "variable" else {}
    option = ("--attachments", location) if origin == "option" else ()
    result = run(*command, "--yes", "--json", *option, store=chats, env={"DRAGOMAN_CONFIG": str(config), **variables})
    assert json.loads(result.stdout)["attachments"] == 1
    assert read_threads(tmp_path / "files of others") == set()


@pytest.mark.parametrize("command", [("delete", "last"), ("retain", "--older-than", "0s")])
def test_delete_creates_no_folder_of_attachments(chats: Path, command: Sequence[str]) -> None:
    before = {path.name for path in chats.parent.iterdir()}
    assert run_json(*command, "--yes", store=chats)["attachments"] == 0
    assert {path.name for path in chats.parent.iterdir()} == before


def test_session_with_a_running_turn_is_not_deleted(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    session_id = attach_files(folder.as_uri(), chats, "ada")

    async def delete_during_turn(store: Store) -> None:
        async with store.turns.lease(session_id):
            result = await asyncio.to_thread(run, "delete", session_id, "--yes", store=chats)
            assert "a turn is running" in expect_error(result, "turn_in_flight")
            result = await asyncio.to_thread(run, "retain", "--older-than", "0s", "--yes", store=chats)
            assert result.stdout.endswith("deleted 1 session with 0 attachments\n")

    with_store(chats, delete_during_turn)
    assert [session["id"] for session in run_json("sessions", store=chats)["sessions"]] == [session_id]
    assert read_threads(folder) == {session_id}


def test_session_remains_if_its_files_cannot_be_deleted(chats: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    closed = "s3://bucket?endpoint=http://127.0.0.1:1"
    error = expect_error(
        run("delete", "last", "--yes", "--attachments", closed, store=chats, env=keys), "attachments_left"
    )
    assert f"session {EXAMPLE[0].session_id}: cannot delete its attachments, so the session is kept" in error
    assert "cannot be reached" in error
    assert len(run_json("sessions", store=chats)["sessions"]) == 1


def test_retain_deletes_files_and_dry_run_does_not(chats: Path) -> None:
    folder = chats.with_name(f"{chats.name}-attachments")
    adas, local = (attach_files(folder.as_uri(), chats, user_id) for user_id in ("ada", None))
    output = run("retain", "--older-than", "0s", "--dry-run", store=chats).stdout
    assert output.endswith("would delete 3 sessions\n")
    assert read_threads(folder) == {adas, local}
    assert run_json("retain", "--older-than", "0s", "--dry-run", store=chats)["attachments"] is None
    report = run_json("retain", "--older-than", "0s", "--user", "ada", "--yes", store=chats)
    assert (len(report["sessions"]), report["attachments"], report["left"]) == (2, 1, [])
    assert read_threads(folder) == {local}
    output = run("retain", "--older-than", "0s", "--yes", store=chats).stdout
    assert output.endswith("deleted 1 session with 1 attachment\n")
    assert read_threads(folder) == set()
