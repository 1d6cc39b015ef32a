"""Create private files and folders, and restrict existing ones.

    create_file(path)      a new, empty file with mode 0600
    open_new(path)         the same, open for writing
    replace_file(path, …)  write a file with mode 0600 atomically and durably
    make_folder(path)      a folder with mode 0700, and its missing parents
    sync_folder(path)      make the names in a folder durable
    restrict(path, …)      remove the permissions of other users, with a warning for each path

Modes are set on creation, so other users can never open the file. On systems without POSIX modes nothing is changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path
from typing import IO, Final

_OTHERS: Final = 0o077
_POSIX: Final = os.name == "posix"
_log: Final = logging.getLogger("dragoman.permissions")


def create_file(path: Path) -> None:
    """Create an empty file with mode 0600, unless it exists."""
    with contextlib.suppress(FileExistsError):
        os.close(_descriptor(path))


def open_new(path: Path) -> IO[bytes]:
    """Create a file with mode 0600 and open it for writing. It must not exist."""
    return os.fdopen(_descriptor(path), "wb")


def replace_file(path: Path, data: bytes) -> None:
    """Write a file with mode 0600 under a temporary name, sync it, and rename it to ``path``."""
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with open_new(temporary) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to disk. Windows cannot open a folder; nothing is done there."""
    if not _POSIX:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _descriptor(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o600)


def make_folder(folder: Path) -> list[Path]:
    """Create a folder and its missing parents with mode 0700. Return the created folders."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return missing


def restrict(*paths: Path) -> None:
    """Remove the permissions of other users from our own files. A failure, as on read-only media, is logged."""
    for path in paths if _POSIX else ():
        try:
            status = path.stat()
            if not status.st_mode & _OTHERS or status.st_uid != os.geteuid():
                continue
            path.chmod(status.st_mode & 0o7777 & ~_OTHERS)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("other users can read %s, and its permissions cannot be changed: %s", path, error.strerror)
        else:
            _log.warning("removed the permissions of other users from %s", path)
