"""Tests of the file tools: results, ignored files, and atomic writes."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from dragoman import ImageBlock
from dragoman.errors import UnknownToolError
from dragoman.tools import BUILTIN, ToolRegistry, Workspace, builtin_tools
from dragoman.tools.files import list_files, read_file, search_files, write_file
from dragoman.tools.gitignore import GitIgnore, compile_glob
from tests.tools.tool_fixtures import result_of, text_of

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_builtin_tools_are_selected_by_name() -> None:
    assert [tool.name for tool in builtin_tools(["read_file"])] == ["read_file"]
    assert builtin_tools([]) == ()
    with pytest.raises(UnknownToolError, match="Use one of: list_files"):
        builtin_tools(["rm_rf"])
    assert len(ToolRegistry(builtin_tools(BUILTIN))) == 6


# --- read ------------------------------------------------------------------------------------------------------------


async def test_file_is_read_whole_or_from_a_line(root: Path, workspace: Workspace) -> None:
    (root / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    assert text_of(await result_of(read_file, workspace, path="a.txt")).splitlines()[9] == "line 10"
    part = await result_of(read_file, workspace, path="a.txt", first_line=4, lines=2)
    assert text_of(part) == "line 4\nline 5\n\n[lines 4 to 5 of 10]"
    beyond = await result_of(read_file, workspace, path="a.txt", first_line=11)
    assert beyond.is_error
    assert "10 lines" in text_of(beyond)


async def test_long_file_is_truncated_at_a_line_with_a_note(root: Path, workspace: Workspace) -> None:
    (root / "a.txt").write_text("x" * 999 + "\n" + ("y" * 999 + "\n") * 400)
    text = text_of(await result_of(read_file, workspace, path="a.txt"))
    assert len(text) < 101_000
    assert text.endswith("[lines 1 to 100 of 401]")


async def test_empty_file_is_an_empty_text(root: Path, workspace: Workspace) -> None:
    (root / "empty").touch()
    result = await result_of(read_file, workspace, path="empty")
    assert (text_of(result), result.is_error) == ("", False)


async def test_image_is_an_image_block_and_other_bytes_are_rejected(root: Path, workspace: Workspace) -> None:
    (root / "pixel").write_bytes(PIXEL)
    (root / "bytes").write_bytes(b"\x00\x01\x02")
    (root / "latin").write_bytes("é".encode("latin-1"))
    (block,) = (await result_of(read_file, workspace, path="pixel")).content
    assert isinstance(block, ImageBlock)
    assert (block.media_type, base64.b64decode(block.source.data)) == ("image/png", PIXEL)
    for name in ("bytes", "latin"):
        assert "is not a text" in text_of(await result_of(read_file, workspace, path=name))


async def test_pipe_folder_or_missing_file_is_rejected_without_blocking(root: Path, workspace: Workspace) -> None:
    os.mkfifo(root / "pipe")
    assert text_of(await result_of(read_file, workspace, path="pipe")) == "'pipe' is not a file"
    assert text_of(await result_of(read_file, workspace, path=".")) == "'.': Is a directory"
    assert text_of(await result_of(read_file, workspace, path="missing")) == "'missing' does not exist"


# --- list and search -------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(root: Path) -> Path:
    (root / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n/only_here\n# a comment\n")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("needle")
    for name in ("build/out.txt", "src/a.py", "src/deep/b.py", "src/only_here", "only_here", "x.log", "keep.log"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"one\nthe Needle in {name}\n")
    (root / "src" / ".gitignore").write_text("deep/\n")
    (root / "link").symlink_to("src")
    (root / "data.bin").write_bytes(b"needle\x00")
    return root


async def test_listing_is_sorted_and_follows_gitignore(tree: Path, workspace: Workspace) -> None:
    assert text_of(await result_of(list_files, workspace)).splitlines() == [
        ".gitignore",
        "data.bin",
        "keep.log",
        "link",
        "src/",
    ]
    assert text_of(await result_of(list_files, workspace, path="src", recursive=True)).splitlines() == [
        "src/.gitignore",
        "src/a.py",
        "src/only_here",
    ]
    assert text_of(await result_of(list_files, workspace, glob="*.py")) == "src/a.py"
    assert text_of(await result_of(list_files, workspace, glob="*.rs")) == "[nothing]"


async def test_gitignore_applies_to_folders_below(tree: Path, workspace: Workspace) -> None:
    (tree / "src" / "y.log").write_text("needle")
    assert "y.log" not in text_of(await result_of(list_files, workspace, path="src"))


async def test_long_listing_is_truncated_with_a_note(root: Path, workspace: Workspace) -> None:
    for number in range(1_005):
        (root / f"{number:04}").touch()
    lines = text_of(await result_of(list_files, workspace)).splitlines()
    assert len(lines) == 1_001
    assert "only the first 1000" in lines[-1]


async def test_search_returns_locations_and_lines(tree: Path, workspace: Workspace) -> None:
    matches = text_of(await result_of(search_files, workspace, pattern="n[e]+dle", ignore_case=True)).splitlines()
    assert matches == [
        "keep.log:2: the Needle in keep.log",
        "src/a.py:2: the Needle in src/a.py",
        "src/only_here:2: the Needle in src/only_here",
    ]
    assert text_of(await result_of(search_files, workspace, pattern="needle")) == "[nothing]"
    assert text_of(await result_of(search_files, workspace, pattern="Needle", glob="*.py", path="src")) == (
        "src/a.py:2: the Needle in src/a.py"
    )


async def test_search_with_many_matches_is_truncated_with_a_note(root: Path, workspace: Workspace) -> None:
    (root / "a").write_text("x\n" * 1_000)
    lines = text_of(await result_of(search_files, workspace, pattern="x")).splitlines()
    assert len(lines) == 201
    assert "only the first 200" in lines[-1]


async def test_search_pattern_is_matched_in_linear_time(root: Path, workspace: Workspace) -> None:
    (root / "a").write_text("a" * 50_000)
    assert text_of(await result_of(search_files, workspace, pattern="(a+)+$b")) == "[nothing]"


@pytest.mark.parametrize("pattern", ["(?=x)", "(", "\\1"])
async def test_unsupported_pattern_is_rejected_with_a_reason(workspace: Workspace, pattern: str) -> None:
    result = await result_of(search_files, workspace, pattern=pattern)
    assert result.is_error
    assert "is not a supported regular expression: " in text_of(result)


@pytest.mark.parametrize(
    ("patterns", "path", "is_folder", "is_ignored"),
    [
        ("*.o", "a/b.o", False, True),
        ("*.o", "a/b.oo", False, False),
        ("/a.txt", "a.txt", False, True),
        ("/a.txt", "b/a.txt", False, False),
        ("doc/*.txt", "doc/a.txt", False, True),
        ("doc/*.txt", "doc/b/a.txt", False, False),
        ("doc/**/*.txt", "doc/b/c/a.txt", False, True),
        ("**/foo", "a/b/foo", False, True),
        ("foo/**", "foo/a/b", False, True),
        ("foo/", "foo", True, True),
        ("foo/", "foo", False, False),
        ("a?c", "abc", False, True),
        ("a?c", "a/c", False, False),
        ("[ab].txt", "a.txt", False, True),
        ("[!ab].txt", "a.txt", False, False),
        ("*.txt\n!keep.txt", "keep.txt", False, False),
        ("!keep.txt\n*.txt", "keep.txt", False, True),
        ("\\!bang", "!bang", False, True),
        ("\\#hash", "#hash", False, True),
        ("trailing   ", "trailing", False, True),
        ("a.b", "axb", False, False),
        ("[", "[", False, True),
        ("", "anything", False, False),
        ("nothing", ".git", True, True),
    ],
)
def test_gitignore_patterns_are_supported(patterns: str, path: str, is_folder: bool, is_ignored: bool) -> None:
    assert GitIgnore().extend("", patterns).is_ignored(path, is_folder=is_folder) is is_ignored


def test_glob_matches_a_whole_path() -> None:
    assert compile_glob("*.py").search("a/b.py")
    assert not compile_glob("*.py").search("a/b.pyc")
    assert not compile_glob("src/*.py").search("lib/src/b.py")
    assert compile_glob("src/**/*.py").search("src/a/b/c.py")


# --- write -----------------------------------------------------------------------------------------------------------


async def test_file_is_created_with_its_folders_and_then_changed(root: Path, workspace: Workspace) -> None:
    created = await result_of(write_file, workspace, path="new/deep/a.txt", content="one\ntwo\nthree\n")
    assert text_of(created) == "Wrote new/deep/a.txt: 3 lines."
    changed = await result_of(write_file, workspace, path="new/deep/a.txt", content="one\n2\nthree\nfour\n")
    assert text_of(changed) == "Changed new/deep/a.txt: 2 lines added, 1 removed.\n-two\n+2\n+four"
    assert (root / "new/deep/a.txt").read_text() == "one\n2\nthree\nfour\n"
    same = await result_of(write_file, workspace, path="new/deep/a.txt", content="one\n2\nthree\nfour\n")
    assert text_of(same) == "new/deep/a.txt is unchanged."


async def test_large_change_is_summarized(root: Path, workspace: Workspace) -> None:
    (root / "a").write_text("".join(f"{number}\n" for number in range(5_000)))
    changed = await result_of(
        write_file, workspace, path="a", content="".join(f"x{number}\n" for number in range(9_000))
    )
    assert text_of(changed) == "Changed a: 5000 lines became 9000 lines, from line 1."


async def test_write_preserves_the_mode_and_leaves_no_temporary_file(root: Path, workspace: Workspace) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o750)
    await result_of(write_file, workspace, path="run.sh", content="new")
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o750
    assert os.listdir(root) == ["run.sh"]


async def test_link_inside_the_workspace_stays_a_link(root: Path, workspace: Workspace) -> None:
    (root / "real").write_text("old")
    (root / "link").symlink_to("real")
    await result_of(write_file, workspace, path="link", content="new")
    assert (root / "link").is_symlink()
    assert (root / "real").read_text() == "new"


async def test_failed_write_leaves_the_old_file_unchanged(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")

    def raise_disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    result = await result_of(write_file, workspace, path="a", content="new")
    assert text_of(result) == "'a': No space left on device"
    assert (root / "a").read_text() == "old"
    assert os.listdir(root) == ["a"]


async def test_folder_is_not_overwritten(root: Path, workspace: Workspace) -> None:
    (root / "folder").mkdir()
    for path in ("folder", "."):
        result = await result_of(write_file, workspace, path=path, content="x")
        assert "Is a directory" in text_of(result)
    assert os.listdir(root) == ["folder"]
