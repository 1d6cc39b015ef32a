"""Four tools for files of the workspace: read, list, search and write.

They do little and say what they left out: every output is bounded, and a listing follows ``.gitignore``. All of them
open files through the workspace, so none can be led out of it. They run in threads, and look now and then whether
somebody still waits. The one rule: a write is whole or it is not there.
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
from dragoman.message import ImageBlock, ImageSource
from dragoman.tools.declaring import Preview, ToolContext, ToolOutput, shortened, tool
from dragoman.tools.ignoring import Ignoring, glob_pattern, linear_pattern
from dragoman.tools.workspace import SAFELY, Workspace, failure_from

_MAX_FILE: Final = 10_000_000  # bytes of a file that are looked at
_MAX_SEARCHED_FILE: Final = 4_000_000
_MAX_IMAGE: Final = 4_000_000
_MAX_OUTPUT: Final = 100_000  # characters of a file that are shown at once
_MAX_FOLDERS_DEEP: Final = 100
_MAX_ENTRIES: Final = 1_000
_MAX_MATCHES: Final = 200
_MAX_LINE: Final = 400
_MAX_COMPARED: Final = 2_000  # lines that two versions may differ in to be compared line by line
_MAX_DIFF: Final = 80  # lines of a difference that are shown

Path = Annotated[str, msgspec.Meta(min_length=1, description="Relative to the workspace.")]
Folder = Annotated[str, msgspec.Meta(min_length=1, description="A folder, relative to the workspace.")]
Glob = Annotated[str, "Only these files, like *.py or docs/**/*.md. Empty: all."]


# --- reading ---------------------------------------------------------------------------------------------------------


@tool(side_effects=SideEffects.READ, requires_workspace=True)
def read_file(
    context: ToolContext,
    path: Path,
    first_line: Annotated[int, msgspec.Meta(ge=1, description="Where to begin, counted from 1.")] = 1,
    lines: Annotated[int, msgspec.Meta(ge=1, le=20_000, description="How many lines at most.")] = 2_000,
) -> Any:
    """Read a text file or a picture of the workspace."""
    with _told_of(path):
        data, size = context.files.read(path, _MAX_FILE)
    medium = _picture(data)
    if medium is not None and size <= _MAX_IMAGE:
        return ImageBlock(ImageSource("base64", base64.b64encode(data).decode()), medium)
    text = _text(data)
    if text is None:
        raise ToolFailedError(f"{path!r} is not a text: {size} bytes of something else")
    every = text.splitlines(keepends=True)
    return _shown(every, first_line, lines, size)


def _shown(every: list[str], first_line: int, lines: int, size: int) -> str:
    shown = every[first_line - 1 : first_line - 1 + lines]
    if not shown and every:
        raise ToolFailedError(f"The file has {len(every)} lines, and none from {first_line} on")
    room = itertools.accumulate(len(line) for line in shown)
    fitting = max(1, sum(1 for used in room if used <= _MAX_OUTPUT))
    text = shortened("".join(shown[:fitting]), _MAX_OUTPUT)
    last = first_line - 1 + min(fitting, len(shown))
    if first_line == 1 and last >= len(every) and size <= _MAX_FILE:
        return text
    more = f", and only the first {_MAX_FILE} of {size} bytes were looked at" if size > _MAX_FILE else ""
    return f"{text}\n[lines {first_line} to {last} of {len(every)}{more}]"


def _picture(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None


def _text(data: bytes) -> str | None:
    if b"\0" in data[:8_192]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start > len(data) - 4 and len(data) == _MAX_FILE:  # cut within a character
            return data[: error.start].decode("utf-8")
        return None


@contextlib.contextmanager
def _told_of(path: str) -> Iterator[None]:
    """What the system says about a path, in words for the model."""
    try:
        yield
    except OSError as error:
        raise failure_from(error, path) from None


# --- listing and searching -------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, frozen=True):
    path: str  # from the root of the workspace
    name: str
    folder: int  # open, while it is looked at
    is_folder: bool


@tool(side_effects=SideEffects.READ, requires_workspace=True)
def list_files(context: ToolContext, path: Folder = ".", glob: Glob = "", recursive: bool = False) -> str:
    """List files and folders of the workspace, but for those that .gitignore names. Folders end in a slash."""
    wanted = _glob(glob)
    found: list[str] = []
    for entry in _entries(context, path, recursive=recursive or bool(glob)):
        if wanted is not None and (entry.is_folder or wanted.search(entry.path) is None):
            continue
        if len(found) == _MAX_ENTRIES:
            found.append(f"[and more: only the first {_MAX_ENTRIES} are listed]")
            break
        found.append(f"{entry.path}/" if entry.is_folder else entry.path)
    return "\n".join(found) or "[nothing]"


@tool(side_effects=SideEffects.READ, requires_workspace=True)
def search_files(
    context: ToolContext,
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="A regular expression, without look-around.")],
    path: Folder = ".",
    glob: Glob = "",
    ignore_case: bool = False,
) -> str:
    """Search the lines of the text files of the workspace, but for those that .gitignore names."""
    try:
        expression = linear_pattern(pattern, ignore_case=ignore_case)
    except ValueError as error:
        raise ToolFailedError(f"{pattern!r} is no regular expression that can be used: {error}") from None
    wanted = _glob(glob)
    found: list[str] = []
    for entry in _entries(context, path, recursive=True):
        if entry.is_folder or (wanted is not None and wanted.search(entry.path) is None):
            continue
        matches = _matches(context.files, entry, expression)
        found.extend(itertools.islice(matches, _MAX_MATCHES + 1 - len(found)))
        if len(found) > _MAX_MATCHES:
            found[_MAX_MATCHES:] = [f"[and more: only the first {_MAX_MATCHES} are shown]"]
            break
    return "\n".join(found) or "[nothing]"


def _matches(workspace: Workspace, entry: _Entry, expression: Any) -> Iterator[str]:
    try:
        data, size = workspace.read_at(entry.folder, entry.name, _MAX_SEARCHED_FILE)
    except (OSError, ToolFailedError):
        return  # a pipe, a link, gone meanwhile, or not to be read
    text = None if size > _MAX_SEARCHED_FILE else _text(data)
    for number, line in enumerate((text or "").splitlines(), start=1):
        if expression.search(line) is not None:
            yield f"{entry.path}:{number}: {shortened(line.strip(), _MAX_LINE)}"


def _glob(glob: str) -> Any:
    if not glob:
        return None
    try:
        return glob_pattern(glob)
    except ValueError as error:
        raise ToolFailedError(f"{glob!r} is no pattern that can be used: {error}") from None


def _entries(context: ToolContext, path: str, *, recursive: bool) -> Iterator[_Entry]:
    """Everything in a folder, sorted; links are listed and not followed."""
    with _told_of(path), context.files.folder(path) as start:
        base = "/".join(context.files.parts_of(path))
        ignoring = _ignoring_above(context, base)
        yield from _walk(context, start, base, ignoring, recursive=recursive)


def _walk(context: ToolContext, folder: int, base: str, ignoring: Ignoring, *, recursive: bool) -> Iterator[_Entry]:
    ignoring = ignoring.within(base, _gitignore(context.files, folder))
    for name in sorted(os.listdir(folder)):
        if context.stopping.is_set():
            raise ToolFailedError("Nobody waits for this any more", error_class="cancelled")
        place = f"{base}/{name}" if base else name
        is_folder = _is_folder(folder, name)
        if not _can_be_said(name) or ignoring.leaves_out(place, is_folder=is_folder):
            continue
        if context.files.private.covers(folder, name):
            continue
        yield _Entry(place, name, folder, is_folder)
        if is_folder and recursive and place.count("/") < _MAX_FOLDERS_DEEP:
            with contextlib.suppress(OSError), context.files.folder_at(folder, name) as inner:
                yield from _walk(context, inner, place, ignoring, recursive=True)


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _can_be_said(name: str) -> bool:
    return name.isascii() or name.encode("utf-8", "replace") == name.encode("utf-8", "surrogateescape")


def _gitignore(workspace: Workspace, folder: int) -> str:
    try:
        return workspace.read_at(folder, ".gitignore", 100_000)[0].decode("utf-8", "replace")
    except (OSError, ToolFailedError):
        return ""


def _ignoring_above(context: ToolContext, base: str) -> Ignoring:
    ignoring = Ignoring()
    steps = base.split("/") if base else []
    for count in range(len(steps)):
        above = "/".join(steps[:count])
        with contextlib.suppress(OSError), context.files.folder(above or ".") as folder:
            ignoring = ignoring.within(above, _gitignore(context.files, folder))
    return ignoring


# --- writing ---------------------------------------------------------------------------------------------------------


def _changes_its_path(input: dict[str, Any], _context: ToolContext) -> Preview:  # noqa: A002
    return Preview(projected_modifications=(str(input["path"]),))


@tool(side_effects=SideEffects.WRITE, requires_workspace=True, preview=_changes_its_path)
def write_file(
    context: ToolContext, path: Path, content: Annotated[str, "The whole new text of the file."]
) -> ToolOutput:
    """Write a text file of the workspace: create it, with the folders it needs, or replace all of it."""
    with _told_of(path), context.files.place(path, make_folders=True) as (folder, name):
        before = _present(context.files, folder, name)
        _replace(folder, name, content.encode("utf-8"), None if before is None else before[1])
    summary = _difference(path, None if before is None else _text(before[0]), content)
    return ToolOutput(content=summary, files_modified=(path,))


def _present(workspace: Workspace, folder: int, name: str) -> tuple[bytes, int] | None:
    """What is there now, and its mode."""
    try:
        data, _ = workspace.read_at(folder, name, _MAX_FILE)
    except FileNotFoundError:
        return None
    return data, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _replace(folder: int, name: str, data: bytes, mode: int | None) -> None:
    if name == ".":
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    beside = f".{name[:60]}.{secrets.token_hex(6)}.tmp"
    opened = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | SAFELY, 0o666, dir_fd=folder)
    try:
        with os.fdopen(opened, "wb") as file:
            if mode is not None:
                os.fchmod(opened, mode)
            file.write(data)
            file.flush()
            os.fsync(opened)
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise


def _difference(path: str, before: str | None, after: str) -> str:
    """What changed, in few words, and the changed lines if they are few."""
    new = after.splitlines()
    if before is None:
        return f"Wrote {path}: {_count(new)}."
    old = before.splitlines()
    if before == after:
        return f"{path} is as it was."
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    old_part, new_part = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(old_part) > _MAX_COMPARED or len(new_part) > _MAX_COMPARED:
        return f"Changed {path}: {_count(old_part)} became {_count(new_part)}, from line {head + 1} on."
    lines = list(difflib.unified_diff(old_part, new_part, n=0, lineterm=""))[2:]
    changed = [shortened(line, _MAX_LINE) for line in lines if not line.startswith("@@")]
    added = sum(1 for line in changed if line.startswith("+"))
    more = [f"[{len(changed) - _MAX_DIFF} more]"] if len(changed) > _MAX_DIFF else []
    told = f"Changed {path}: {_count(changed[:added])} added, {len(changed) - added} removed."
    return "\n".join([told, *changed[:_MAX_DIFF], *more])


def _alike(old: list[str], new: list[str]) -> int:
    """How many lines at the beginning are the same."""
    pairs = zip(old, new, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _count(lines: list[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"
