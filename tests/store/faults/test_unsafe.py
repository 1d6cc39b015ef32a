"""Tests that an unsafe store is not opened and that the error states the reason."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import apsw
import pytest

from dragoman.errors import StoreUnusableError
from dragoman.store import open_store
from dragoman.store.engines import sqlite
from dragoman.store.engines.tables import migrations
from tests.fork_server import processes


async def _expect_rejection(path: Path) -> StoreUnusableError:
    with pytest.raises(StoreUnusableError) as caught:
        async with open_store(f"sqlite:///{path}"):
            pass
    assert str(path) in str(caught.value)
    return caught.value


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.is_file()}


async def test_unsafe_sqlite_version_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    error = await _expect_rejection(tmp_path / "store.db")
    assert (error.code, "3.51.2" in error.what) == ("unsafe_store", True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.3")
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert store.durability == "power-safe"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
async def test_network_file_system_is_rejected(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = tmp_path / "far away"
    mounts = tmp_path / "mounts"
    named = str(far.parent.resolve()) + "/far\\040away"  # as the kernel writes a space
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {named} {kind} rw 0 0\n")
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    error = await _expect_rejection(far / "below" / "store.db")
    assert (error.code, kind in error.what) == ("unsafe_store", True)
    assert not far.exists()
    async with open_store(f"sqlite:///{tmp_path / 'near' / 'store.db'}") as store:
        assert await store.list_sessions() == []


async def test_file_without_wal_support_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = apsw.Connection

    def without_shared_memory(name: str) -> apsw.Connection:
        return real(name, vfs="unix-dotfile")

    monkeypatch.setattr(apsw, "Connection", without_shared_memory)
    error = await _expect_rejection(tmp_path / "store.db")
    assert (error.code, "journal_mode" in error.what) == ("unsafe_store", True)


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
async def test_unsafe_synchronous_setting_is_rejected(synchronous: str, tmp_path: Path) -> None:
    from dragoman.store.blobs import MemoryBlobs

    store = sqlite.SqliteStore(tmp_path / "store.db", MemoryBlobs(), synchronous=synchronous)
    with pytest.raises(StoreUnusableError, match="synchronous") as caught:
        await store.open()
    assert caught.value.code == "unsafe_store"


async def test_store_of_newer_version_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create_session("sess_1")
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 999)
    connection.close()
    before = _digests(tmp_path)
    error = await _expect_rejection(path)
    assert (error.code, "newer Dragoman" in error.what) == ("newer_store", True)
    assert _digests(tmp_path) == before


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_file_of_other_program_is_rejected_and_unchanged(journal: str, tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    content = path.read_bytes()
    error = await _expect_rejection(path)
    assert (error.code, "another application" in error.what) == ("not_a_store", True)
    assert path.read_bytes() == content


async def test_text_file_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 100)
    before = _digests(tmp_path)
    error = await _expect_rejection(path)
    assert (error.code, "not a SQLite database" in error.what) == ("not_a_store", True)
    assert _digests(tmp_path) == before


async def test_folder_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert (await _expect_rejection(folder)).code == "cannot_open"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


async def test_path_through_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert (await _expect_rejection(tmp_path / "file" / "store.db")).code == "cannot_open"


def _open_as_nobody(path: Path, says: Connection) -> None:
    migrations("sqlite")
    asyncio.run(asyncio.to_thread(int))  # imports before the privileges are dropped
    os.setgid(65534)
    os.setuid(65534)

    async def main() -> str:
        try:
            async with open_store(f"sqlite:///{path}"):
                return "opened"
        except StoreUnusableError as error:
            return f"{error.code}: {error}"

    says.send(asyncio.run(main()))


@pytest.mark.skipif(sys.platform == "win32", reason="permissions as POSIX has them")
@pytest.mark.parametrize("what", ["folder", "file", "lock"])
async def test_unwritable_path_is_rejected(what: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else, who may not write")
    temporary = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if folder != temporary and folder.is_relative_to(temporary):
            folder.chmod(0o755)
    folder = tmp_path / "place"
    folder.mkdir()
    path = folder / "store.db"
    if what != "folder":
        async with open_store(f"sqlite:///{path}") as store:
            await store.create_session("sess_1")
        folder.chmod(0o777)
        (folder / "store.db-lock").chmod(0o600 if what == "lock" else 0o666)
        path.chmod(0o666 if what == "lock" else 0o444)
    hears, says = processes.Pipe(duplex=False)
    process = processes.Process(target=_open_as_nobody, args=(path, says))
    process.start()
    says.close()
    error = hears.recv()
    process.join(30)
    assert error.startswith("cannot_open: ")
    assert str(path) in error
    if what == "file":
        assert "the file is read-only. Make it writable" in error
