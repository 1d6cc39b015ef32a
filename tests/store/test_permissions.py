"""Tests of file permissions: only the owner can read the files of a store, from their creation."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.attachments import Owner, open_attachments
from dragoman.store import open_store
from tests.store import first_version

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no file modes")
NOBODY = 65534


@pytest.fixture
def no_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the umask to 0 and forbid chmod, so that every file keeps the mode it is created with."""

    def forbid_chmod(*_: object, **__: object) -> None:
        raise AssertionError("the mode was changed after the file was made")

    monkeypatch.setattr(Path, "chmod", forbid_chmod)
    before = os.umask(0)
    yield
    os.umask(before)


def list_readable_files(folder: Path) -> list[str]:
    """Return the files and folders that other users can read."""
    modes = [(path, path.lstat().st_mode) for path in folder.rglob("*")]
    return sorted(f"{path.relative_to(folder)} {stat.filemode(mode)}" for path, mode in modes if mode & 0o077)


async def write_store(url: str) -> None:
    async with open_store(url) as store:
        data = b"large" * 10_000
        await store.blobs.put(hashlib.sha256(data).hexdigest(), data)
        await store.create_session()


@pytest.mark.usefixtures("no_umask")
async def test_only_the_owner_can_read_the_files_of_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    async with open_store(f"sqlite:///{folder / 'chats.db'}") as store:
        await store.create_session()
        assert {path.name for path in folder.iterdir()} >= {"chats.db", "chats.db-wal", "chats.db-shm", "chats.db-lock"}
        assert list_readable_files(tmp_path) == []
        await write_store(f"sqlite:///{folder / 'chats.db'}")
        await store.backup(tmp_path / "backups" / "copy.db")
        assert list_readable_files(tmp_path) == []
    async with open_attachments(f"file://{tmp_path / 'files'}", base_url="http://127.0.0.1") as attachments:
        await attachments.put(Owner("ann", None), "t", "r", b"hello", declared_type="text/plain")
    assert list_readable_files(tmp_path) == []


async def test_readable_files_are_restricted_when_a_store_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    shutil.copy(first_version.DATABASE, path)
    shutil.copytree(first_version.BLOBS, f"{path}-blobs")
    (tmp_path / "store.db.schema-0").write_text("an older copy")
    for entry in tmp_path.iterdir():
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    with caplog.at_level(logging.WARNING, "dragoman.permissions"):
        await write_store(f"sqlite:///{path}")
    assert list_readable_files(tmp_path) == [
        line for line in list_readable_files(tmp_path) if line.startswith("store.db-blobs/")
    ]  # their folder is private
    assert {path.name for path in tmp_path.iterdir()} >= {"store.db.schema-0", "store.db.schema-1"}
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert all("removed the permissions" in line for line in warnings)
    caplog.clear()
    await write_store(f"sqlite:///{path}")
    assert caplog.records == []


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can change the owner of a file")
async def test_files_of_other_owner_are_unchanged(tmp_path: Path) -> None:
    await write_store(f"sqlite:///{tmp_path / 'store.db'}")
    (tmp_path / "store.db").chmod(0o644)
    os.chown(tmp_path / "store.db", NOBODY, NOBODY)
    await write_store(f"sqlite:///{tmp_path / 'store.db'}")
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o644
