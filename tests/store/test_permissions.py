"""Files of a store: only their owner can read them, from the moment at which they are made."""

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

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no modes of files")
NOBODY = 65534


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the umask to 0 and forbid chmod, so that every file keeps the mode it is created with."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the mode was changed after the file was made")

    monkeypatch.setattr(Path, "chmod", refused)
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return the files and folders that other users can read."""
    found = [(one, one.lstat().st_mode) for one in folder.rglob("*")]
    return sorted(f"{one.relative_to(folder)} {stat.filemode(mode)}" for one, mode in found if mode & 0o077)


async def keep_something(url: str) -> None:
    async with open_store(url) as store:
        data = b"large" * 10_000
        await store.blobs.put(hashlib.sha256(data).hexdigest(), data)
        await store.create_session()


@pytest.mark.usefixtures("careless")
async def test_only_the_owner_can_read_the_files_of_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    async with open_store(f"sqlite:///{folder / 'chats.db'}") as store:
        await store.create_session()
        assert {one.name for one in folder.iterdir()} >= {"chats.db", "chats.db-wal", "chats.db-shm", "chats.db-lock"}
        assert open_to_others(tmp_path) == []
        await keep_something(f"sqlite:///{folder / 'chats.db'}")
        await store.backup(tmp_path / "backups" / "copy.db")
        assert open_to_others(tmp_path) == []
    async with open_attachments(f"file://{tmp_path / 'files'}", base_url="http://127.0.0.1") as attachments:
        await attachments.put(Owner("ann", None), "t", "r", b"hello", declared_type="text/plain")
    assert open_to_others(tmp_path) == []


async def test_readable_files_are_restricted_when_a_store_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    shutil.copy(first_version.DATABASE, path)
    shutil.copytree(first_version.BLOBS, f"{path}-blobs")
    (tmp_path / "store.db.schema-0").write_text("an older copy")
    for one in tmp_path.iterdir():
        one.chmod(0o755 if one.is_dir() else 0o644)
    with caplog.at_level(logging.WARNING, "dragoman.permissions"):
        await keep_something(f"sqlite:///{path}")
    assert open_to_others(tmp_path) == [
        line for line in open_to_others(tmp_path) if line.startswith("store.db-blobs/")
    ]  # these are behind a folder that nobody else can look into
    assert {one.name for one in tmp_path.iterdir()} >= {"store.db.schema-0", "store.db.schema-1"}
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 3
    assert all("removed the permissions" in line for line in warned)
    caplog.clear()
    await keep_something(f"sqlite:///{path}")
    assert caplog.records == []


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can give a file to somebody else")
async def test_files_of_somebody_else_are_left_as_they_are(tmp_path: Path) -> None:
    await keep_something(f"sqlite:///{tmp_path / 'store.db'}")
    (tmp_path / "store.db").chmod(0o644)
    os.chown(tmp_path / "store.db", NOBODY, NOBODY)
    await keep_something(f"sqlite:///{tmp_path / 'store.db'}")
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o644
