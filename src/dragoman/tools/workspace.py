"""The workspace: the folder that tools may access.

A path is relative to the root, or absolute within it. ``..`` is rejected, and so is a symbolic link that leads out of
the workspace; other links are followed. A path is opened step by step, each step relative to the open parent folder and
with ``O_NOFOLLOW``, so that it cannot change between the check and the open. Dragoman's own files (see ``private``) are
rejected like paths outside. Invariant: this package never opens a file of the workspace by its whole path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from dragoman.errors import SettingsError, ToolFailedError
from dragoman.tools.private import PrivateFiles, is_store

_MAX_LINKS: Final = 40
# Do not follow links, do not block on a pipe, do not pass descriptors to commands.
_FOLDER_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
SAFE_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class Workspace:
    """A folder without the paths in ``private`` and their companion files."""

    def __init__(self, root: str | os.PathLike[str], *, private: Iterable[Path | str] = ()) -> None:
        if os.open not in os.supports_dir_fd:
            raise NotImplementedError("a workspace needs an operating system with openat()")
        self._unresolved_root = Path(os.path.abspath(root))
        self.root = self._unresolved_root.resolve(strict=True)
        if not self.root.is_dir():
            raise NotADirectoryError(f"{root}: not a folder")
        self.private = PrivateFiles(private)
        if (around := self.private.first_around(self.root)) is not None:
            raise SettingsError(
                f"the workspace is inside {around}, which has Dragoman's own files",
                where=str(root),
                remedy="Choose another folder with --workspace",
                code="unsafe_workspace",
            )

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def check_path(self, path: str) -> None:
        """Raise ``ToolFailedError`` for a path outside of the workspace. The path need not exist."""
        try:
            with self.open_parent(path):
                pass
        except FileNotFoundError:
            pass
        except OSError as error:
            raise failure_from(error, path) from None

    @contextlib.contextmanager
    def open_parent(self, path: str, *, make_folders: bool = False) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a path. Yields it with the name of the path; ``.`` for the root. Resolves links."""
        walk = _Walk(self, path, make_folders=make_folders)
        try:
            yield walk.folder, walk.name
        finally:
            walk.close()

    @contextlib.contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """Open a folder of the workspace."""
        with self.open_parent(path) as (parent, name), self.open_folder_at(parent, name) as descriptor:
            yield descriptor

    @contextlib.contextmanager
    def open_folder_at(self, parent: int, name: str) -> Iterator[int]:
        """Open a folder in an open folder."""
        descriptor = self.open_step(parent, name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open_step(self, parent: int, name: str) -> int:
        """Open a folder in an open folder; the caller closes it."""
        descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        if self.private.is_private_descriptor(descriptor):
            os.close(descriptor)
            raise PermissionError(errno.EACCES, "private file of Dragoman", name)
        return descriptor

    def read(self, path: str, limit: int) -> tuple[bytes, int]:
        """The first bytes of a file, and its size."""
        with self.open_parent(path) as (folder, name):
            return self.read_at(folder, name, limit)

    def read_at(self, folder: int, name: str, limit: int) -> tuple[bytes, int]:
        """The first bytes of a file in an open folder, and its size. Rejects pipes and devices."""
        if self.private.is_private(folder, name):
            raise _private_error(name)
        descriptor = os.open(name, os.O_RDONLY | SAFE_FLAGS, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if self.private.is_private_descriptor(descriptor):  # another file has its name now
                raise _private_error(name)
            if stat.S_ISDIR(facts.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder", name)
            if not stat.S_ISREG(facts.st_mode):
                raise ToolFailedError(f"{_quote_path(name)} is not a file")
            data = file.read(limit)
            if is_store(data):
                raise _private_error(name)
            return data, facts.st_size

    def parts_of(self, path: str) -> list[str]:
        """The parts of a path below the root; raises ``ToolFailedError`` for a path outside."""
        if "\0" in path:
            raise _path_error(path, "it contains a NUL")
        pure = PurePosixPath(path)
        if ".." in pure.parts:
            raise _path_error(path, "it contains '..'")
        inside = self.relative_parts(pure)
        if inside is None:
            raise _path_error(path, "it is outside of the workspace")
        return inside

    def relative_parts(self, path: PurePosixPath) -> list[str] | None:
        """The parts of a path below the root; none if it is outside."""
        if not path.is_absolute():
            return list(path.parts)
        for root in (self.root, self._unresolved_root):
            if path.is_relative_to(root.as_posix()):
                return list(path.relative_to(root.as_posix()).parts)
        return None


class _Walk:
    """The folders from the root to a path, held open until it is closed."""

    def __init__(self, workspace: Workspace, path: str, *, make_folders: bool) -> None:
        self._workspace = workspace
        self._path = path
        self._make_folders = make_folders
        self._links = 0
        self._remaining = deque(workspace.parts_of(path))
        self._open = [os.open(workspace.root, _FOLDER_FLAGS & ~getattr(os, "O_NOFOLLOW", 0))]
        try:
            self.name = self._walk()
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> int:
        return self._open[-1]

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _walk(self) -> str:
        while self._remaining:
            name = self._remaining.popleft()
            if name == "..":  # only from a link
                self._go_up()
            elif (target := self._read_link(name)) is not None:
                self._follow(target)
            elif self._workspace.private.is_private(self.folder, name):
                raise _private_error(self._path)
            elif not self._remaining:
                return name
            else:
                self._open.append(self._step(name))
        return "."

    def _go_up(self) -> None:
        if len(self._open) == 1:
            raise _path_error(self._path, "a link in it leads out of the workspace")
        os.close(self._open.pop())

    def _read_link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # not a link, or not there
                return None
            raise

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise _path_error(self._path, "it has too many links")
        inside = self._workspace.relative_parts(PurePosixPath(target))
        if inside is None:
            raise _path_error(self._path, "a link in it leads out of the workspace")
        if target.startswith("/"):
            while len(self._open) > 1:
                os.close(self._open.pop())
        self._remaining.extendleft(reversed(inside))

    def _step(self, name: str) -> int:
        if self._make_folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.folder)
        return self._workspace.open_step(self.folder, name)


def _private_error(path: str) -> ToolFailedError:
    return _path_error(path, "it is a private file of Dragoman")


def _path_error(path: str, reason: str) -> ToolFailedError:
    return ToolFailedError(f"{_quote_path(path)} is not allowed: {reason}", error_class="permission_denied")


def failure_from(error: OSError, path: str) -> ToolFailedError:
    """The error of the operating system for a model, without paths outside of the workspace."""
    match error.errno:
        case errno.ENOENT:
            return ToolFailedError(f"{_quote_path(path)} does not exist", error_class="not_found")
        case errno.ELOOP:  # replaced by a link after the check
            return _path_error(path, "it is a link")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return ToolFailedError(f"{_quote_path(path)}: {os.strerror(error.errno)}", error_class="permission_denied")
        case None:
            return ToolFailedError(f"{_quote_path(path)}: cannot be opened")
        case _:
            return ToolFailedError(f"{_quote_path(path)}: {os.strerror(error.errno)}")


def _quote_path(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:200]}…")
