"""Tests of the workspace: no path leads out of it, also during concurrent changes of the folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dragoman.errors import ToolFailedError
from dragoman.tools import Workspace
from dragoman.tools.files import list_files, read_file, search_files, write_file
from tests.tools.tool_fixtures import result_of, text_of

HOSTILE = [
    "..",
    "../outside/secret.txt",
    "a/../../outside/secret.txt",
    "./../outside/secret.txt",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "{root}/../outside/secret.txt",
    "{root}suffix/secret.txt",
    "link_out/secret.txt",
    "link_out",
    "link_file",
    "link_up/outside/secret.txt",
    "deep/link_up/outside/secret.txt",
    "chain",
    "loop",
    "loop/x",
    "absolute_link/secret.txt",
    "a\0b",
    "link_out/new.txt",
    "dangling_out",
]


@pytest.fixture
def traps(root: Path) -> Path:
    outside = root.parent / "outside"
    (root / "deep").mkdir()
    (root / "inside").mkdir()
    (root / "inside" / "good.txt").write_text("good")
    (root / "link_out").symlink_to("../outside")
    (root / "link_file").symlink_to("../outside/secret.txt")
    (root / "link_up").symlink_to("..")
    (root / "deep" / "link_up").symlink_to("../..")
    (root / "chain").symlink_to("chain2")
    (root / "chain2").symlink_to("link_file")
    (root / "loop").symlink_to("loop2")
    (root / "loop2").symlink_to("loop")
    (root / "absolute_link").symlink_to(outside)
    (root / "dangling_out").symlink_to("../outside/new.txt")
    (root / "link_in").symlink_to("inside")
    (root / "absolute_in").symlink_to(root / "inside")
    (root / "deep" / "link_round").symlink_to("../inside/../inside")
    return root


@pytest.mark.parametrize("path", HOSTILE)
async def test_hostile_path_is_not_read_listed_searched_or_written(traps: Path, path: str) -> None:
    workspace = Workspace(traps)
    path = path.format(root=traps)
    outside = sorted(traps.parent.rglob("*"))
    with pytest.raises(ToolFailedError) as caught:
        workspace.check_path(path)
    assert caught.value.error_class == "permission_denied"
    for tool, arguments in (
        (read_file, {"path": path}),
        (list_files, {"path": path}),
        (search_files, {"path": path, "pattern": "."}),
        (write_file, {"path": path, "content": "taken over"}),
    ):
        result = await result_of(tool, workspace, **arguments)
        assert result.is_error
        assert "secret" not in text_of(result).replace(path, "").replace(repr(path), "")
    assert (traps.parent / "outside" / "secret.txt").read_text() == "secret"
    assert sorted(traps.parent.rglob("*")) == outside


@pytest.mark.parametrize(
    "path",
    [
        "inside/good.txt",
        "./inside//good.txt",
        "{root}/inside/good.txt",
        "link_in/good.txt",
        "absolute_in/good.txt",
        "deep/link_round/good.txt",
    ],
)
async def test_path_inside_is_read_also_through_links(traps: Path, path: str) -> None:
    assert text_of(await result_of(read_file, Workspace(traps), path=path.format(root=traps))) == "good"


def test_root_may_be_a_link(traps: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(traps)
    workspace = Workspace(other)
    assert workspace.root == traps
    assert workspace.read(f"{other}/inside/good.txt", 10) == (b"good", 4)
    assert workspace.read(f"{traps}/inside/good.txt", 10) == (b"good", 4)


def test_workspace_must_be_an_existing_folder(root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(NotADirectoryError):
        Workspace(root / "file")
    with pytest.raises(FileNotFoundError):
        Workspace(root / "missing")


def test_no_file_descriptor_stays_open(traps: Path) -> None:
    workspace = Workspace(traps)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else None
    for path in (*HOSTILE, "inside/good.txt", "missing/x", "inside/good.txt/x", "x" * 300):
        try:
            workspace.check_path(path.format(root=traps))
        except ToolFailedError:
            continue
    after = len(os.listdir("/proc/self/fd")) if before is not None else None
    assert after == before


def test_folder_that_becomes_a_link_during_a_read_does_not_lead_outside(root: Path) -> None:
    """A folder is swapped for a link to the outside: the file is read inside the workspace or not at all."""
    outside = root.parent / "outside"
    (root / "folder").mkdir()
    (root / "folder" / "secret.txt").write_text("harmless")
    (root / "other").symlink_to(outside)
    workspace = Workspace(root)
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            os.rename(root / "folder", root / "aside")
            os.rename(root / "other", root / "folder")
            os.rename(root / "folder", root / "other")
            os.rename(root / "aside", root / "folder")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = []
    try:
        for _ in range(3_000):
            try:
                seen.append(workspace.read("folder/secret.txt", 100)[0])
            except (ToolFailedError, OSError):
                continue
    finally:
        is_over.set()
        thread.join()
    assert set(seen) == {b"harmless"}
