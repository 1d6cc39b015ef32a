"""Dragoman's own files, which tools must not read, list or write.

    private = PrivateFiles([store_file, configuration_folder])
    private.is_private(folder, name)              an entry of an open folder, which need not exist
    private.is_private_descriptor(descriptor)     an open file or folder, under any name
    is_store(data)                                whether a file is a store of Dragoman, for example a backup

A private path includes its siblings whose names begin with its name: ``chats.db`` includes ``chats.db-wal``,
``chats.db-blobs`` and ``chats.db.schema-7``. Names are compared without case, and files and folders by device and
inode, so that links, mounts and other spellings are recognized. Any other store, for example a backup, is recognized by
its first bytes, and its companion files by their names. ``/proc`` is always private: it exposes the environment and the
memory of this process.
"""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

Identity = tuple[int, int]  # device and inode
_SQLITE: Final = b"SQLite format 3\0"
_DRAGOMAN: Final = b"DRAG"  # the application id in the header of a store
_HEADER_BYTES: Final = 72
_SUFFIX_START: Final = re.compile(r"[-.]")  # where the suffix of a companion file begins
_CLOCK_STEP_NS: Final = 2_000_000_000  # tolerance between file times and our clock
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class PrivateFiles:
    """Private paths, which need not exist."""

    def __init__(self, paths: Iterable[Path | str] = ()) -> None:
        absolute = [Path(os.path.abspath(path)) for path in paths]
        self._paths = tuple(dict.fromkeys((*absolute, *(Path(os.path.realpath(path)) for path in absolute))))
        self._proc = _proc_device()
        self._linked_ids: frozenset[Identity] = frozenset()  # private files with more than one hard link
        self._checked_at_ns = 0

    def is_private(self, folder: int, name: str) -> bool:
        """Whether the entry of an open folder is private.

        It does not open the private files: closing a database file releases this process's locks on it.
        """
        folder_id = _identity(os.fstat(folder))
        if any(_matches_name(name, path.name) and _identity_of(path.parent) == folder_id for path in self._paths):
            return True
        try:
            if self._is_private(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return True
        except OSError:
            pass  # not there
        return any(_is_store_file(folder, name[: end.start()]) for end in _SUFFIX_START.finditer(name, 1))

    def is_private_descriptor(self, descriptor: int) -> bool:
        """Whether an open file or folder is private, under any name."""
        return self._is_private(os.fstat(descriptor))

    def _is_private(self, facts: os.stat_result) -> bool:
        if facts.st_dev == self._proc or _identity(facts) in map(_identity_of, self._paths):
            return True
        return stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1 and self._is_linked(facts)

    def first_within(self, folder: Path) -> Path | None:
        """The first private path inside a folder; it need not exist."""
        folder_id = _identity_of(folder)
        for path in self._paths:
            if any(_identity_of(parent) == folder_id for parent in path.parents):
                return path
        return None

    def first_around(self, folder: Path) -> Path | None:
        """The first private path that is a folder, contains it, or has it as a companion."""
        for ancestor in (folder, *folder.parents):
            for path in self._paths:
                if _identity_of(ancestor) is not None and _identity_of(ancestor) == _identity_of(path):
                    return path
                is_sibling = _identity_of(path.parent) == _identity_of(ancestor.parent)
                if is_sibling and _matches_name(ancestor.name, path.name) and not path.is_dir():
                    return path
        return None

    def _is_linked(self, facts: os.stat_result) -> bool:
        """Whether a file with several hard links is private.

        A new link changes the time of its file, so the cached ids are valid for a file that has not changed since.
        """
        if facts.st_ctime_ns >= self._checked_at_ns - _CLOCK_STEP_NS:
            self._checked_at_ns = time.time_ns()
            self._linked_ids = frozenset(_hard_links(self._paths))
        return _identity(facts) in self._linked_ids


def is_store(data: bytes) -> bool:
    """Whether a file with these first bytes is a SQLite store of Dragoman."""
    return data.startswith(_SQLITE) and data[68:_HEADER_BYTES] == _DRAGOMAN


def _is_store_file(folder: int, name: str) -> bool:
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and is_store(os.read(descriptor, _HEADER_BYTES))
    finally:
        os.close(descriptor)


def _matches_name(name: str, private: str) -> bool:
    """Whether a name is that of a private file, a companion file, or a temporary file of it."""
    normal, private_normal = _normalize(name), _normalize(private)
    return bool(private_normal) and normal.startswith((private_normal, f".{private_normal}"))


def _normalize(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _identity(facts: os.stat_result) -> Identity:
    return facts.st_dev, facts.st_ino


def _identity_of(path: Path) -> Identity | None:
    try:
        return _identity(os.stat(path))
    except OSError:
        return None


def _proc_device() -> int | None:
    """The device of ``/proc``, if it is mounted."""
    proc, root = _identity_of(Path("/proc")), _identity_of(Path("/"))
    return proc[0] if proc is not None and root is not None and proc[0] != root[0] else None


def _hard_links(paths: Iterable[Path]) -> Iterator[Identity]:
    for path in paths:
        for entry in _list_entries(path.parent):
            if _matches_name(entry.name, path.name):
                yield from _hard_links_below(entry)


def _hard_links_below(entry: os.DirEntry[str]) -> Iterator[Identity]:
    try:
        facts = entry.stat(follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISDIR(facts.st_mode):
        for inner in _list_entries(entry.path):
            yield from _hard_links_below(inner)
    elif facts.st_nlink > 1:
        yield _identity(facts)


def _list_entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
