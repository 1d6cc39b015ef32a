"""Files and folders that only their owner can read: how they are made, and how older ones are restricted.

    create_file(path)      a new, empty file of mode 0600
    open_new(path)         the same, open for writing
    make_folder(path)      a folder of mode 0700, and those above it that are missing
    restrict(path, …)      take all rights of others from files and folders of ours, with a warning for each

Modes are set when a file is created, so there is no moment at which others can open it. On systems without POSIX modes
nothing is changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import IO, Final

_OTHERS: Final = 0o077
_POSIX: Final = os.name == "posix"
_log: Final = logging.getLogger("dragoman.permissions")


def create_file(path: Path) -> None:
    """Make an empty file that only we can read, unless something is there already."""
    with contextlib.suppress(FileExistsError):
        os.close(_descriptor(path))


def open_new(path: Path) -> IO[bytes]:
    """A file that did not exist, open for writing, that only we can read."""
    return os.fdopen(_descriptor(path), "wb")


def _descriptor(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o600)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder, and those above it that are missing, that only we can look into. The folders that were made."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return missing


def restrict(*paths: Path) -> None:
    """Take the rights of others from what is ours and exists. What cannot be changed, as on read-only media, stays."""
    for path in paths if _POSIX else ():
        try:
            status = path.stat()
            if not status.st_mode & _OTHERS or status.st_uid != os.geteuid():
                continue
            path.chmod(status.st_mode & 0o7777 & ~_OTHERS)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("others on this machine can read %s, and that cannot be changed: %s", path, error.strerror)
        else:
            _log.warning("others on this machine could read %s; from now on only its owner can", path)
