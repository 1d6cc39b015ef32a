"""A folder of attachments: whole files, for us alone, and no way out of it."""

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


async def test_only_we_can_read_what_is_kept(in_folder: Attachments, root: Path) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    place = root / stored.path
    assert place.stat().st_mode & 0o777 == 0o600
    for folder in (place.parent, *place.parent.parents):
        if folder == root.parent.parent:
            break
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_nothing_else_is_left_beside_a_file(in_folder: Attachments, root: Path) -> None:
    stored = await in_folder.put(ANN, "t", "r", png())
    assert [path for path in root.rglob("*") if path.is_file()] == [root / stored.path]


@pytest.mark.parametrize("step", ["agent-inputs", "agent-inputs/ann", "agent-inputs/ann/t", "agent-inputs/ann/t/r"])
async def test_a_link_in_place_of_a_folder_is_not_followed(
    in_folder: Attachments, root: Path, tmp_path: Path, step: str
) -> None:
    outside = tmp_path / "outside"
    rest = Path("agent-inputs/ann/t/r/x.png").relative_to(step)
    (outside / rest).parent.mkdir(parents=True)
    (outside / rest).write_bytes(png())
    (root / step).parent.mkdir(parents=True)
    (root / step).symlink_to(outside)
    for asked in (
        in_folder.open("agent-files", "agent-inputs/ann/t/r/x.png", ANN),
        in_folder.signed_url("agent-files", "agent-inputs/ann/t/r/x.png", ANN),
    ):
        with pytest.raises(UnknownAttachmentError):
            await asked
    await in_folder.delete("agent-files", "agent-inputs/ann/t/r/x.png", ANN)
    assert (outside / rest).exists()
    before = sorted(outside.rglob("*"))
    with pytest.raises(StorageError):
        await in_folder.put(ANN, "t", "r", png())
    assert sorted(outside.rglob("*")) == before


async def test_a_link_in_place_of_a_file_is_not_followed(in_folder: Attachments, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = root / "agent-inputs/ann/t/r/x.png"
    link.parent.mkdir(parents=True)
    link.symlink_to(secret)
    with pytest.raises(UnknownAttachmentError):
        await in_folder.open("agent-files", "agent-inputs/ann/t/r/x.png", ANN)
    await in_folder.delete("agent-files", "agent-inputs/ann/t/r/x.png", ANN)
    assert secret.read_text() == "secret"


async def test_a_folder_or_a_pipe_is_no_attachment(in_folder: Attachments, root: Path) -> None:
    folder = root / "agent-inputs/ann/t/r"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.png")
    for path in ("agent-inputs/ann/t", "agent-inputs/ann/t/r/pipe.png", "agent-inputs/ann/t/r/pipe.png/x"):
        with pytest.raises(UnknownAttachmentError):
            await in_folder.open("agent-files", path, ANN)


async def test_the_folder_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    storage = FolderStorage(tmp_path / "link" / "files", "b")
    await storage.write("agent-inputs/x", b"x", {})
    assert await storage.size("agent-inputs/x") == 1
    assert (tmp_path / "real/files/b/agent-inputs/x").read_bytes() == b"x"


async def test_a_full_disk_leaves_nothing(in_folder: Attachments, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError) as caught:
        await in_folder.put(ANN, "t", "r", png())
    assert caught.value.code == "disk_full"
    assert [path for path in root.rglob("*") if path.is_file()] == []


async def test_an_error_of_the_system_does_not_name_places_of_this_machine(in_folder: Attachments, root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("a file where the bucket should be")
    with pytest.raises(StorageError) as caught:
        await in_folder.put(ANN, "t", "r", png())
    assert caught.value.code == "storage_failed"
    assert str(root) not in str(caught.value)


async def test_what_an_interrupted_write_left_goes_with_its_owner_and_links_are_not_followed(
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


async def test_a_user_s_folder_that_is_a_link_is_not_emptied(
    in_folder: Attachments, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside" / "t"
    outside.mkdir(parents=True)
    (outside / "x").write_text("x")
    (root / "agent-inputs").mkdir(parents=True)
    (root / "agent-inputs/ann").symlink_to(outside.parent)
    assert await in_folder.delete_all(ANN) == 0
    assert (outside / "x").exists()
