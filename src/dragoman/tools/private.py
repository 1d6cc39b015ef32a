"""Dragoman's own files, which no tool may read, list or write when they lie in a workspace.

    private = PrivateFiles([store_file, configuration_folder])
    private.covers(folder, name)      whether an entry of an open folder is private; it need not exist yet
    private.covers_open(descriptor)   whether an open file or folder is private, under whatever name it was opened
    is_store(data)                    whether a file is a store of Dragoman, for example a backup

A path is private together with everything beside it whose name begins with its name: ``chats.db`` covers
``chats.db-wal``, ``chats.db-blobs`` and ``chats.db.schema-7``. Names are compared without case, and folders and files
by device and inode, so that links, mounts and other spellings do not help. A store that nobody named, such as a backup,
is recognised by its first bytes, and what belongs to it by its name. ``/proc`` is always private: it shows the
environment and the memory of this process.
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
_SUFFIX_START: Final = re.compile(r"[-.]")  # where what is added to the name of a store may begin
_CLOCK_STEP_NS: Final = 2_000_000_000  # by which the time of a file may differ from ours
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class PrivateFiles:
    """Paths that are private, whether they exist or not."""

    def __init__(self, paths: Iterable[Path | str] = ()) -> None:
        absolute = [Path(os.path.abspath(path)) for path in paths]
        self._paths = tuple(dict.fromkeys((*absolute, *(Path(os.path.realpath(path)) for path in absolute))))
        self._proc = _proc_device()
        self._linked_ids: frozenset[Identity] = frozenset()  # private files that have more than one name
        self._checked_at_ns = 0  # when

    def is_private(self, folder: int, name: str) -> bool:
        """Whether the entry of an open folder is private.

        Nothing that was named is opened for this: to close a database file releases the locks of this process on it.
        """
        folder_id = _identity(os.fstat(folder))
        if any(_matches_name(name, path.name) and _identity_of(path.parent) == folder_id for path in self._paths):
            return True
        try:
            if self._is_private(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return True
        except OSError:
            pass  # it does not exist
        return any(_is_store_file(folder, name[: end.start()]) for end in _SUFFIX_START.finditer(name, 1))

    def is_private_descriptor(self, descriptor: int) -> bool:
        """Whether an open file or folder is private, under whatever name it was opened."""
        return self._is_private(os.fstat(descriptor))

    def _is_private(self, facts: os.stat_result) -> bool:
        if facts.st_dev == self._proc or _identity(facts) in map(_identity_of, self._paths):
            return True
        return stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1 and self._is_linked(facts)

    def first_within(self, folder: Path) -> Path | None:
        """The first private path that lies in a folder, or would if it existed."""
        folder_id = _identity_of(folder)
        for path in self._paths:
            if any(_identity_of(parent) == folder_id for parent in path.parents):
                return path
        return None

    def first_around(self, folder: Path) -> Path | None:
        """The first private path that a folder is, lies in or belongs to."""
        for ancestor in (folder, *folder.parents):
            for path in self._paths:
                if _identity_of(ancestor) is not None and _identity_of(ancestor) == _identity_of(path):
                    return path
                is_sibling = _identity_of(path.parent) == _identity_of(ancestor.parent)
                if is_sibling and _matches_name(ancestor.name, path.name) and not path.is_dir():
                    return path
        return None

    def _is_linked(self, facts: os.stat_result) -> bool:
        """Whether a file with several names has a private one.

        A link changes the time of its file, so an earlier look at the private files still holds for a file that has
        not changed since.
        """
        if facts.st_ctime_ns >= self._checked_at_ns - _CLOCK_STEP_NS:
            self._checked_at_ns = time.time_ns()
            self._linked_ids = frozenset(_hard_links(self._paths))
        return _identity(facts) in self._linked_ids


def is_store(data: bytes) -> bool:
    """Whether these first bytes are those of a store of Dragoman in a SQLite file."""
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
    """Whether a name is that of a private file, of something that belongs to it, or of what becomes it."""
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
    """The device of ``/proc``, where the system has one."""
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
