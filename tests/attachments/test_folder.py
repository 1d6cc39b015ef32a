"""Tests of attachments in a folder: permissions, symbolic links, full disks and deletion."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.attachments import Attachments
from dragoman.attachments.folder import FolderStorage
from dragoman.errors import StorageError, UnknownAttachmentError
from tests.attachments.conftest import ANN
from tests.attachments.samples import png


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "files" / "agent-files"


async def test_files_and_folders_are_private_to_owner(in_folder: Attachments, root: Path) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    file = root / stored.path
    assert file.stat().st_mode & 0o777 == 0o600
    for folder in (file.parent, *file.parent.parents):
        if folder == root.parent.parent:
            break
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_put_leaves_no_temporary_file(in_folder: Attachments, root: Path) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    assert [path for path in root.rglob("*") if path.is_file()] == [root / stored.path]


@pytest.mark.parametrize("step", ["agent-inputs", "agent-inputs/ann", "agent-inputs/ann/t", "agent-inputs/ann/t/r"])
async def test_symlink_in_place_of_folder_is_not_followed(
    in_folder: Attachments, root: Path, tmp_path: Path, step: str
) -> None:
    outside = tmp_path / "outside"
    rest = Path("agent-inputs/ann/t/r/x.png").relative_to(step)
    (outside / rest).parent.mkdir(parents=True)
    (outside / rest).write_bytes(png())
    (root / step).parent.mkdir(parents=True)
    (root / step).symlink_to(outside)
    for operation in (
        in_folder.open("agent-files", "agent-inputs/ann/t/r/x.png", ANN),
        in_folder.signed_url("agent-files", "agent-inputs/ann/t/r/x.png", ANN),
    ):
        with pytest.raises(UnknownAttachmentError):
            await operation
    await in_folder.delete("agent-files", "agent-inputs/ann/t/r/x.png", ANN)
    assert (outside / rest).exists()
    before = sorted(outside.rglob("*"))
    with pytest.raises(StorageError):
        await in_folder.put(ANN, "t", "r", png())
    assert sorted(outside.rglob("*")) == before


async def test_symlink_in_place_of_file_is_not_followed(in_folder: Attachments, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = root / "agent-inputs/ann/t/r/x.png"
    link.parent.mkdir(parents=True)
    link.symlink_to(secret)
    with pytest.raises(UnknownAttachmentError):
        await in_folder.open("agent-files", "agent-inputs/ann/t/r/x.png", ANN)
    await in_folder.delete("agent-files", "agent-inputs/ann/t/r/x.png", ANN)
    assert secret.read_text() == "secret"


async def test_folder_and_pipe_are_not_attachments(in_folder: Attachments, root: Path) -> None:
    folder = root / "agent-inputs/ann/t/r"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.png")
    for path in ("agent-inputs/ann/t", "agent-inputs/ann/t/r/pipe.png", "agent-inputs/ann/t/r/pipe.png/x"):
        with pytest.raises(UnknownAttachmentError):
            await in_folder.open("agent-files", path, ANN)


async def test_root_folder_may_be_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    storage = FolderStorage(tmp_path / "link" / "files", "b")
    await storage.write("agent-inputs/x", b"x", {})
    assert await storage.size("agent-inputs/x") == 1
    assert (tmp_path / "real/files/b/agent-inputs/x").read_bytes() == b"x"


async def test_full_disk_leaves_no_file(in_folder: Attachments, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(StorageError) as caught:
        await in_folder.put(ANN, "t", "r", png())
    assert caught.value.code == "disk_full"
    assert [path for path in root.rglob("*") if path.is_file()] == []


async def test_error_does_not_contain_local_path(in_folder: Attachments, root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("a file where the bucket should be")
    with pytest.raises(StorageError) as caught:
        await in_folder.put(ANN, "t", "r", png())
    assert caught.value.code == "storage_failed"
    assert str(root) not in str(caught.value)


async def test_delete_all_removes_partial_files_and_ignores_symlinks(
    in_folder: Attachments, root: Path, tmp_path: Path
) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    (root / stored.path).with_name(".0123456789abcdef").write_bytes(b"half")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("x")
    (root / "agent-inputs/ann/link").symlink_to(outside)
    (root / "agent-inputs/ann/t/file").symlink_to(outside / "x")
    assert await in_folder.delete_all(ANN) == 1
    assert (outside / "x").read_text() == "x"
    assert list((root / "agent-inputs").iterdir()) == []


async def test_delete_all_does_not_follow_symlink_of_user(in_folder: Attachments, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "t"
    outside.mkdir(parents=True)
    (outside / "x").write_text("x")
    (root / "agent-inputs").mkdir(parents=True)
    (root / "agent-inputs/ann").symlink_to(outside.parent)
    assert await in_folder.delete_all(ANN) == 0
    assert (outside / "x").exists()
