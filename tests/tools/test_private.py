"""Tests of private files of Dragoman in a workspace: no tool reads, lists, searches or writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.errors import SettingsError, ToolFailedError
from dragoman.store import open_store
from dragoman.tools import Workspace
from dragoman.tools.files import list_files, read_file, search_files, write_file
from tests.tools.tool_fixtures import result_of, text_of

SECRET = "hush-hush"
PRIVATE = [
    "chats.db",
    "CHATS.DB",
    "chats.db-wal",
    "chats.db-shm",
    "chats.db-journal",
    "chats.db-lock",
    "chats.db-pepper.json",
    ".chats.db-pepper.json.0a1b",
    "chats.db.schema-7",
    "chats.db-blobs/ab/abcd",
    "chats.db-attachments/agent-files/x.txt",
    "config.toml",
    "config.toml.bak",
    "{root}/config.toml",
    "link_to_file",
    "link_to_folder/ab/abcd",
    "hard_link.txt",
    "hard_link_to_blob.txt",
    "backup.db",
    "backup.db-blobs/ab/abcd",
]


@pytest.fixture
def workspace_with_private_files(root: Path) -> Workspace:
    """A workspace that contains a store, a backup, keys, a configuration and links to them."""
    for name in ("chats.db-blobs/ab", "chats.db-attachments/agent-files", "backup.db-blobs/ab", "plain"):
        (root / name).mkdir(parents=True)
    for path in (
        "chats.db",
        "chats.db-wal",
        "chats.db-pepper.json",
        "chats.db-blobs/ab/abcd",
        "chats.db-attachments/agent-files/x.txt",
        "config.toml",
        "backup.db-blobs/ab/abcd",
    ):
        (root / path).write_text(SECRET)
    (root / "backup.db").write_bytes(b"SQLite format 3\0" + bytes(52) + b"DRAG" + SECRET.encode())
    (root / "plain" / "chats.db-notes.txt").write_text("nothing private")
    (root / "link_to_file").symlink_to("config.toml")
    (root / "link_to_folder").symlink_to("chats.db-blobs")
    os.link(root / "config.toml", root / "hard_link.txt")
    os.link(root / "chats.db-blobs" / "ab" / "abcd", root / "hard_link_to_blob.txt")
    return Workspace(root, private=[root / "chats.db", root / "config.toml"])


@pytest.mark.parametrize("path", PRIVATE)
async def test_no_private_file_is_read_or_written(workspace_with_private_files: Workspace, path: str) -> None:
    path = path.format(root=workspace_with_private_files.root)
    before = {file: file.read_bytes() for file in workspace_with_private_files.root.rglob("*") if file.is_file()}
    for tool, arguments in ((read_file, {"path": path}), (write_file, {"path": path, "content": "taken over"})):
        result = await result_of(tool, workspace_with_private_files, **arguments)
        assert result.is_error
        assert SECRET not in text_of(result)
    assert {
        file: file.read_bytes() for file in workspace_with_private_files.root.rglob("*") if file.is_file()
    } == before


async def test_private_files_are_neither_listed_nor_searched(workspace_with_private_files: Workspace) -> None:
    names = text_of(await result_of(list_files, workspace_with_private_files, recursive=True)).splitlines()
    links = ["hard_link.txt", "hard_link_to_blob.txt", "link_to_file", "link_to_folder"]
    assert [name for name in names if name not in links] == ["backup.db", "plain/", "plain/chats.db-notes.txt"]
    assert text_of(await result_of(search_files, workspace_with_private_files, pattern="hush|nothing")) == (
        "plain/chats.db-notes.txt:1: nothing private"
    )
    for path in ("chats.db-blobs", "link_to_folder", "backup.db-blobs"):
        assert (await result_of(list_files, workspace_with_private_files, path=path)).is_error


async def test_private_file_that_does_not_exist_yet_cannot_be_created(root: Path) -> None:
    workspace = Workspace(root, private=[root / "chats.db", root / "keys" / "pepper.json"])
    (root / "keys").mkdir()
    for path in ("chats.db", "Chats.db-WAL", "chats.db-blobs/ab/x", "keys/pepper.json"):
        assert (await result_of(write_file, workspace, path=path, content="x")).is_error
    assert [str(path.relative_to(root)) for path in root.rglob("*")] == ["keys"]


async def test_store_is_recognized_by_its_content_under_any_name(root: Path, runner: object) -> None:
    del runner
    async with open_store(f"sqlite:///{root / 'elsewhere'}"):
        pass
    (root / "elsewhere").rename(root / "notes.txt")
    result = await result_of(read_file, Workspace(root), path="notes.txt")
    assert result.is_error
    assert "private file of Dragoman" in text_of(result)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")
def test_process_environment_cannot_be_read_through_a_workspace() -> None:
    for path in ("proc/self/environ", "/proc/self/environ", f"proc/{os.getpid()}/environ", "proc/1/cmdline"):
        with pytest.raises((ToolFailedError, PermissionError)):
            Workspace("/").read(path, 10)


@pytest.mark.parametrize("inside", ["chats.db-blobs", "chats.db-blobs/ab", "link"])
def test_workspace_within_private_files_is_rejected(root: Path, inside: str) -> None:
    (root / "chats.db-blobs" / "ab").mkdir(parents=True)
    (root / "link").symlink_to("chats.db-blobs")
    with pytest.raises(SettingsError) as caught:
        Workspace(root / inside, private=[root / "chats.db"])
    assert caught.value.code == "unsafe_workspace"
