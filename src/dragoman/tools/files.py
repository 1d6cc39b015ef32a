"""Four tools for files of the workspace: read, list, search and write.

Every output is bounded and states what it leaves out; listings respect ``.gitignore``. All files are opened through the
workspace. The tools run in threads and check for cancellation. Invariant: a write is atomic.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects
from dragoman.media_types import detect_media_type
from dragoman.message import ImageBlock, ImageSource
from dragoman.tools.gitignore import GitIgnore, compile_glob, compile_pattern
from dragoman.tools.tool import Preview, ToolContext, ToolOutput, tool, truncate_middle
from dragoman.tools.workspace import SAFE_FLAGS, Workspace, failure_from

_MAX_FILE: Final = 10_000_000  # bytes of a file that are read
_MAX_SEARCH_FILE: Final = 4_000_000
_MAX_IMAGE: Final = 4_000_000
_MAX_OUTPUT: Final = 100_000  # characters in one result
_MAX_FOLDER_DEPTH: Final = 100
_MAX_ENTRIES: Final = 1_000
_MAX_MATCHES: Final = 200
_MAX_LINE: Final = 400
_MAX_DIFF_INPUT: Final = 2_000  # lines to compare line by line
_MAX_DIFF: Final = 80  # changed lines in a result

Path = Annotated[str, msgspec.Meta(min_length=1, description="Relative to the workspace.")]
Folder = Annotated[str, msgspec.Meta(min_length=1, description="A folder, relative to the workspace.")]
Glob = Annotated[str, "Only files like *.py or docs/**/*.md. Empty: all."]


# --- reading ---------------------------------------------------------------------------------------------------------


@tool(side_effects=SideEffects.READ, requires_workspace=True)
def read_file(
    context: ToolContext,
    path: Path,
    first_line: Annotated[int, msgspec.Meta(ge=1, description="The first line to read, counted from 1.")] = 1,
    lines: Annotated[int, msgspec.Meta(ge=1, le=20_000, description="Maximum number of lines.")] = 2_000,
) -> Any:
    """Read a text file or an image of the workspace."""
    with _translate_os_errors(path):
        data, size = context.files.read(path, _MAX_FILE)
    media_type = _image_type(data)
    if media_type is not None and size <= _MAX_IMAGE:
        return ImageBlock(ImageSource("base64", base64.b64encode(data).decode()), media_type)
    text = _decode_text(data)
    if text is None:
        raise ToolFailedError(f"{path!r} is not a text file ({size} bytes)")
    all_lines = text.splitlines(keepends=True)
    return _format_lines(all_lines, first_line, lines, size)


def _format_lines(all_lines: list[str], first_line: int, lines: int, size: int) -> str:
    selected = all_lines[first_line - 1 : first_line - 1 + lines]
    if not selected and all_lines:
        raise ToolFailedError(f"The file has {len(all_lines)} lines; there is no line {first_line}")
    sizes = itertools.accumulate(len(line) for line in selected)
    line_count = max(1, sum(1 for used in sizes if used <= _MAX_OUTPUT))
    text = truncate_middle("".join(selected[:line_count]), _MAX_OUTPUT)
    last = first_line - 1 + min(line_count, len(selected))
    if first_line == 1 and last >= len(all_lines) and size <= _MAX_FILE:
        return text
    note = f", only the first {_MAX_FILE} of {size} bytes were read" if size > _MAX_FILE else ""
    return f"{text}\n[lines {first_line} to {last} of {len(all_lines)}{note}]"


def _image_type(data: bytes) -> str | None:
    media_type = detect_media_type(data)
    return media_type if media_type is not None and media_type.startswith("image/") else None


def _decode_text(data: bytes) -> str | None:
    if b"\0" in data[:8_192]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start > len(data) - 4 and len(data) == _MAX_FILE:  # cut within a character
            return data[: error.start].decode("utf-8")
        return None


@contextlib.contextmanager
def _translate_os_errors(path: str) -> Iterator[None]:
    """Raise errors of the operating system as ``ToolFailedError``."""
    try:
        yield
    except OSError as error:
        raise failure_from(error, path) from None


# --- listing and searching -------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, frozen=True):
    path: str  # from the root of the workspace
    name: str
    folder: int  # an open descriptor
    is_folder: bool


@tool(side_effects=SideEffects.READ, requires_workspace=True)
def list_files(context: ToolContext, path: Folder = ".", glob: Glob = "", recursive: bool = False) -> str:
    """List files and folders of the workspace that .gitignore does not exclude. Folders end in a slash."""
    pattern = _compile_glob(glob)
    lines: list[str] = []
    for entry in _list_entries(context, path, recursive=recursive or bool(glob)):
        if pattern is not None and (entry.is_folder or pattern.search(entry.path) is None):
            continue
        if len(lines) == _MAX_ENTRIES:
            lines.append(f"[more: only the first {_MAX_ENTRIES} are listed]")
            break
        lines.append(f"{entry.path}/" if entry.is_folder else entry.path)
    return "\n".join(lines) or "[nothing]"


@tool(side_effects=SideEffects.READ, requires_workspace=True)
def search_files(
    context: ToolContext,
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="A regular expression, without look-around.")],
    path: Folder = ".",
    glob: Glob = "",
    ignore_case: bool = False,
) -> str:
    """Search the lines of text files of the workspace that .gitignore does not exclude."""
    try:
        expression = compile_pattern(pattern, ignore_case=ignore_case)
    except ValueError as error:
        raise ToolFailedError(f"{pattern!r} is not a supported regular expression: {error}") from None
    file_pattern = _compile_glob(glob)
    lines: list[str] = []
    for entry in _list_entries(context, path, recursive=True):
        if entry.is_folder or (file_pattern is not None and file_pattern.search(entry.path) is None):
            continue
        matches = _find_matches(context.files, entry, expression)
        lines.extend(itertools.islice(matches, _MAX_MATCHES + 1 - len(lines)))
        if len(lines) > _MAX_MATCHES:
            lines[_MAX_MATCHES:] = [f"[more: only the first {_MAX_MATCHES} are shown]"]
            break
    return "\n".join(lines) or "[nothing]"


def _find_matches(workspace: Workspace, entry: _Entry, expression: Any) -> Iterator[str]:
    try:
        data, size = workspace.read_at(entry.folder, entry.name, _MAX_SEARCH_FILE)
    except (OSError, ToolFailedError):
        return  # a pipe, a link, deleted, or private
    text = None if size > _MAX_SEARCH_FILE else _decode_text(data)
    for number, line in enumerate((text or "").splitlines(), start=1):
        if expression.search(line) is not None:
            yield f"{entry.path}:{number}: {truncate_middle(line.strip(), _MAX_LINE)}"


def _compile_glob(glob: str) -> Any:
    if not glob:
        return None
    try:
        return compile_glob(glob)
    except ValueError as error:
        raise ToolFailedError(f"{glob!r} is not a supported pattern: {error}") from None


def _list_entries(context: ToolContext, path: str, *, recursive: bool) -> Iterator[_Entry]:
    """The entries of a folder, sorted. Links are listed and not followed."""
    with _translate_os_errors(path), context.files.open_folder(path) as start:
        base = "/".join(context.files.parts_of(path))
        gitignore = _parent_gitignore(context, base)
        yield from _walk(context, start, base, gitignore, recursive=recursive)


def _walk(context: ToolContext, folder: int, base: str, gitignore: GitIgnore, *, recursive: bool) -> Iterator[_Entry]:
    gitignore = gitignore.extend(base, _read_gitignore(context.files, folder))
    for name in sorted(os.listdir(folder)):
        if context.stop_event.is_set():
            raise ToolFailedError("The call was cancelled", error_class="cancelled")
        entry_path = f"{base}/{name}" if base else name
        is_folder = _is_folder(folder, name)
        if not _is_encodable(name) or gitignore.is_ignored(entry_path, is_folder=is_folder):
            continue
        if context.files.private.is_private(folder, name):
            continue
        yield _Entry(entry_path, name, folder, is_folder)
        if is_folder and recursive and entry_path.count("/") < _MAX_FOLDER_DEPTH:
            with contextlib.suppress(OSError), context.files.open_folder_at(folder, name) as inner:
                yield from _walk(context, inner, entry_path, gitignore, recursive=True)


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _is_encodable(name: str) -> bool:
    return name.isascii() or name.encode("utf-8", "replace") == name.encode("utf-8", "surrogateescape")


def _read_gitignore(workspace: Workspace, folder: int) -> str:
    try:
        return workspace.read_at(folder, ".gitignore", 100_000)[0].decode("utf-8", "replace")
    except (OSError, ToolFailedError):
        return ""


def _parent_gitignore(context: ToolContext, base: str) -> GitIgnore:
    gitignore = GitIgnore()
    steps = base.split("/") if base else []
    for count in range(len(steps)):
        above = "/".join(steps[:count])
        with contextlib.suppress(OSError), context.files.open_folder(above or ".") as folder:
            gitignore = gitignore.extend(above, _read_gitignore(context.files, folder))
    return gitignore


# --- writing ---------------------------------------------------------------------------------------------------------


def _preview_write(input: dict[str, Any], _context: ToolContext) -> Preview:  # noqa: A002
    return Preview(projected_modifications=(str(input["path"]),))


@tool(side_effects=SideEffects.WRITE, requires_workspace=True, preview=_preview_write)
def write_file(
    context: ToolContext, path: Path, content: Annotated[str, "The new text of the whole file."]
) -> ToolOutput:
    """Write a text file of the workspace: create it with missing folders, or replace it."""
    with _translate_os_errors(path), context.files.open_parent(path, make_folders=True) as (folder, name):
        before = _read_current(context.files, folder, name)
        _replace(folder, name, content.encode("utf-8"), None if before is None else before[1])
    summary = _summarize_change(path, None if before is None else _decode_text(before[0]), content)
    return ToolOutput(content=summary, files_modified=(path,))


def _read_current(workspace: Workspace, folder: int, name: str) -> tuple[bytes, int] | None:
    """The current content and mode of a file."""
    try:
        data, _ = workspace.read_at(folder, name, _MAX_FILE)
    except FileNotFoundError:
        return None
    return data, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _replace(folder: int, name: str, data: bytes, mode: int | None) -> None:
    if name == ".":
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    temporary = f".{name[:60]}.{secrets.token_hex(6)}.tmp"
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | SAFE_FLAGS, 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _summarize_change(path: str, before: str | None, after: str) -> str:
    """A summary of the change, with the changed lines if they are few."""
    new = after.splitlines()
    if before is None:
        return f"Wrote {path}: {_format_count(new)}."
    old = before.splitlines()
    if before == after:
        return f"{path} is unchanged."
    head = _count_equal_lines(old, new)
    tail = _count_equal_lines(old[head:][::-1], new[head:][::-1])
    old_part, new_part = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(old_part) > _MAX_DIFF_INPUT or len(new_part) > _MAX_DIFF_INPUT:
        return f"Changed {path}: {_format_count(old_part)} became {_format_count(new_part)}, from line {head + 1}."
    lines = list(difflib.unified_diff(old_part, new_part, n=0, lineterm=""))[2:]
    changes = [truncate_middle(line, _MAX_LINE) for line in lines if not line.startswith("@@")]
    added = sum(1 for line in changes if line.startswith("+"))
    note = [f"[{len(changes) - _MAX_DIFF} more]"] if len(changes) > _MAX_DIFF else []
    summary = f"Changed {path}: {_format_count(changes[:added])} added, {len(changes) - added} removed."
    return "\n".join([summary, *changes[:_MAX_DIFF], *note])


def _count_equal_lines(old: list[str], new: list[str]) -> int:
    """The number of equal lines at the start."""
    pairs = zip(old, new, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _format_count(lines: list[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"
