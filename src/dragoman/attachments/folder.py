"""Attachments in a folder on this machine: ``{folder}/{bucket}/{path}``.

A write is atomic, and the file is on disk when ``write`` returns. Only the current user can read it. Invariant: no link
inside the folder is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from dragoman import permissions
from dragoman.attachments.paths import not_found_error, validate_bucket
from dragoman.attachments.types import Chunks
from dragoman.errors import StorageError

_CHUNK: Final = 256 * 1024
_SAFE_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_FOUND: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG)


class FolderStorage:
    """A folder, which is created at the first write."""

    def __init__(self, folder: Path, bucket: str) -> None:
        self.bucket = validate_bucket(bucket)
        self._root = Path(os.path.abspath(folder)) / bucket
        permissions.restrict(self._root)

    async def write(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:  # noqa: ARG002
        await asyncio.to_thread(self._write, path, data)

    async def size(self, path: str) -> int:
        return await asyncio.to_thread(self._size, path)

    async def stream(self, path: str) -> tuple[int, Chunks]:
        file, size = await asyncio.to_thread(self._open, path)
        return size, Chunks(_chunks(file), file.close)

    async def delete(self, path: str) -> bool:
        try:
            return await asyncio.to_thread(self._unlink, path)
        except OSError as error:
            raise _storage_error(error) from error

    async def delete_under(self, prefix: str) -> int:
        try:
            return await asyncio.to_thread(self._delete_under, prefix)
        except OSError as error:
            raise _storage_error(error) from error

    async def direct_url(self, path: str, ttl_s: int) -> str | None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        """Nothing to close."""

    def _locate(self, path: str) -> Path | None:
        """The file of a path; none if a parent folder is a link."""
        location = self._root / path
        parent = location.parent
        return (
            location
            if parent.resolve() == self._root.parent.resolve() / parent.relative_to(self._root.parent)
            else None
        )

    def _write(self, path: str, data: bytes) -> None:
        try:
            location = self._locate(path)
            if location is None:
                raise StorageError("a link is in place of a folder of attachments", where=str(self._root))
            folders = permissions.make_folder(location.parent)
            permissions.replace_file(location, data)
            for folder in (location.parent, *(created.parent for created in folders)):
                permissions.sync_folder(folder)
        except OSError as error:
            raise _storage_error(error) from error

    def _size(self, path: str) -> int:
        file, size = self._open(path)
        file.close()
        return size

    def _open(self, path: str) -> tuple[BinaryIO, int]:
        location = self._locate(path)
        if location is None:
            raise not_found_error()
        try:
            descriptor = os.open(location, os.O_RDONLY | _SAFE_FLAGS)
        except OSError as error:
            if error.errno in _NOT_FOUND:
                raise not_found_error() from None
            raise _storage_error(error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise not_found_error()
        return os.fdopen(descriptor, "rb"), status.st_size

    def _unlink(self, path: str) -> bool:
        location = self._locate(path)
        if location is None or not location.is_file() or location.is_symlink():
            return False
        location.unlink(missing_ok=True)
        return True

    def _delete_under(self, prefix: str) -> int:
        """Also delete temporary files, folders and links, but not the targets of links."""
        top = self._locate(f"{prefix}x")
        deleted = 0
        for folder, inner, names in (
            os.walk(top.parent, topdown=False, onerror=_raise_unless_missing) if top is not None else ()
        ):
            links = [name for name in (*inner, *names) if Path(folder, name).is_symlink()]
            for name in {*names, *links}:
                Path(folder, name).unlink(missing_ok=True)
                deleted += name not in links and not name.startswith(".")
            with contextlib.suppress(OSError):  # another process writes to it
                os.rmdir(folder)
        return deleted


def _raise_unless_missing(error: OSError) -> None:
    """Raise the error of a folder that cannot be read, unless it does not exist."""
    if error.errno not in _NOT_FOUND:
        raise error


async def _chunks(file: BinaryIO) -> AsyncGenerator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


def _storage_error(error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            "the disk is full; nothing was stored", remedy="Free disk space and try again", code="disk_full"
        )
    return StorageError(f"cannot read or write an attachment ({error.strerror})")
