"""Write a file that is renamed into place when it is complete and synced, or standard output.

Invariant: an existing file is unchanged until the new one is complete.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from dragoman.errors import InputError

_DATABASE: Final = b"SQLite format 3\0"


def check_target(path: Path, *sources: Path) -> None:
    """Raise ``InputError`` if writing there would replace an input file, a folder or a database.

    A database is detected by the first bytes of the file, so call this before a store is opened.
    """
    if not path.name or path.is_dir():
        raise InputError("it is a folder", where=str(path), remedy="Name a file", code="is_a_directory")
    for source in sources:
        if path == source or (path.exists() and source.exists() and path.samefile(source)):
            raise InputError("it is the input file", where=str(path), remedy="Name another file")
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(_DATABASE)) == _DATABASE:
            raise InputError(
                "it is a database, possibly a store", where=str(path), remedy="Name another file", code="target_exists"
            )


class Target:
    """A file to write. ``-`` is standard output; a name that ends in ``.gz`` is compressed."""

    def __init__(self, path: Path, *, backup_to: Path | None = None, mode_of: Path | None = None) -> None:
        self.path = path
        self.is_standard_output = str(path) == "-"
        self._backup_to = backup_to
        self._mode_of = mode_of or path  # the file whose permissions are copied
        self._is_discarded = False

    def discard(self) -> None:
        """Keep the existing file: the new content has no changes."""
        self._is_discarded = self._backup_to is not None

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Return the stream to write to. The existing file is replaced at the end, or kept as a backup."""
        if self.is_standard_output:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        check_target(self.path)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as raw:
                if self.path.suffix == ".gz":
                    with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed:
                        yield compressed  # type: ignore[misc]
                else:
                    yield raw
                raw.flush()
                os.fsync(raw.fileno())
            if not self._is_discarded:
                self._rename(part)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", where=str(self.path)) from None
        finally:
            part.unlink(missing_ok=True)

    def _rename(self, part: Path) -> None:
        if self._mode_of.exists():
            part.chmod(self._mode_of.stat().st_mode & 0o777)
        if self._backup_to is not None:
            os.link(self.path, self._backup_to)
        part.replace(self.path)


class DocumentStream:
    """A stream that joins lines, each a JSON value, into one JSON document.

    Several values become a list. A single value is the document, unless ``is_list``.
    """

    def __init__(self, out: IO[bytes], *, is_list: bool) -> None:
        self._out = out
        self._is_list = is_list
        self._first_value: bytes | None = None  # the first value, while it is the only one
        self._has_list = False

    def write(self, data: bytes) -> int:
        """Write complete lines."""
        for line in data.splitlines():
            if self._has_list:
                self._out.write(b",\n" + line)
            elif self._first_value is not None or self._is_list:
                first_values = [] if self._first_value is None else [self._first_value]
                self._out.write(b"[" + b",\n".join([*first_values, line]))
                self._has_list = True
            else:
                self._first_value = line
        return len(data)

    def close(self) -> None:
        """Finish the document."""
        if self._has_list:
            self._out.write(b"]\n")
        elif self._first_value is not None:
            self._out.write(self._first_value + b"\n")
        elif self._is_list:
            self._out.write(b"[]\n")
