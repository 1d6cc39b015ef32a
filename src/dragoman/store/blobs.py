"""Blob storage: large content, stored once under its SHA-256, outside the rows that refer to it.

    FolderBlobs(folder)      in a folder, the default beside a SQLite file
    S3Blobs(url)             in a bucket of an S3-compatible service, with the extra "s3"
    MemoryBlobs()            in memory, for a store in memory
    blobs_from_url(url)      file:///folder, s3://bucket/prefix?endpoint=…&region=…, or memory:

``put`` returns when the content is safe; ``get`` verifies it against its hash. A location belongs to one store: blobs
without a reference in that store are collected. Invariant: a name is a SHA-256, so no name leads out of the location.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from dragoman import permissions
from dragoman.errors import CorruptDataError, StorageError, StoreUnusableError
from dragoman.s3_bucket import open_bucket

if TYPE_CHECKING:
    pass

_is_name: Final = re.compile("[0-9a-f]{64}").fullmatch


class Blob(msgspec.Struct, frozen=True):
    """A stored blob."""

    sha256: str
    size: int
    touched_at: float  # the time of the last put, in seconds since 1970


class Blobs(Protocol):
    """A location of blobs."""

    async def put(self, sha256: str, data: bytes) -> None:
        """Store a blob. If it exists, update its time."""

    async def get(self, sha256: str) -> bytes:
        """Return a blob; ``CorruptDataError`` if it is missing or does not match its hash."""

    async def delete(self, sha256: str) -> None:
        """Delete a blob."""

    def list(self) -> AsyncIterator[Blob]:
        """Yield all blobs."""


def blobs_from_url(url: str) -> Blobs:
    """Return the blob location of a URL."""
    if url == "memory:":
        return MemoryBlobs()
    if url.startswith("s3://"):
        return S3Blobs(url)
    if url.startswith("file:///"):
        return FolderBlobs(Path(unquote(urlsplit(url).path)))
    raise StoreUnusableError(
        f"{url!r} is not a location for blobs",
        remedy="Use file:///folder or s3://bucket/prefix",
        code="not_a_store",
    )


def validate_name(sha256: str) -> str:
    """Return the name; ``CorruptDataError`` if it is not a SHA-256."""
    if not _is_name(sha256):
        raise CorruptDataError("it is not a SHA-256", where=repr(sha256[:80]))
    return sha256


def verify_blob(sha256: str, data: bytes | None, where: str) -> bytes:
    """Return the content if its hash is its name."""
    if data is None:
        raise CorruptDataError("a blob that a message refers to is missing", where=f"{where}/{sha256}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptDataError("a blob does not match its hash", where=f"{where}/{sha256}")
    return data


class MemoryBlobs:
    """Blobs in memory, for a store in memory."""

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[bytes, float]] = {}

    async def put(self, sha256: str, data: bytes) -> None:
        self._blobs[validate_name(sha256)] = data, time.time()

    async def get(self, sha256: str) -> bytes:
        data, _ = self._blobs.get(validate_name(sha256), (None, 0.0))
        return verify_blob(sha256, data, "memory")

    async def delete(self, sha256: str) -> None:
        self._blobs.pop(sha256, None)

    async def list(self) -> AsyncIterator[Blob]:
        for sha256, (data, touched) in tuple(self._blobs.items()):
            yield Blob(sha256, len(data), touched)


# --- a folder --------------------------------------------------------------------------------------------------------


class FolderBlobs:
    """Blobs in a folder, in sub-folders by the first two digits of their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        permissions.restrict(folder)

    async def put(self, sha256: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, sha256, data)

    async def get(self, sha256: str) -> bytes:
        return await asyncio.to_thread(lambda: verify_blob(sha256, self._get(sha256), str(self.folder)))

    async def delete(self, sha256: str) -> None:
        await asyncio.to_thread(self._path(sha256).unlink, missing_ok=True)

    async def list(self) -> AsyncIterator[Blob]:
        for path in await asyncio.to_thread(lambda: sorted(self.folder.glob("??/" + "?" * 64))):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            if _is_name(path.name):
                yield Blob(path.name, status.st_size, status.st_mtime)

    async def remove_partial_files(self, older_than_s: float) -> None:
        """Delete files of interrupted writes that are older than ``older_than_s`` by the clock of the file system."""
        await asyncio.to_thread(self._remove_partial_files, time.time() - older_than_s)

    def _remove_partial_files(self, cutoff: float) -> None:
        for path in self.folder.glob("??/.*"):
            with contextlib.suppress(FileNotFoundError):  # the write has just finished
                if path.stat().st_mtime < cutoff:
                    path.unlink()

    def _path(self, sha256: str) -> Path:
        return self.folder / validate_name(sha256)[:2] / sha256

    def _get(self, sha256: str) -> bytes | None:
        try:
            return self._path(sha256).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error(error) from error

    def _put(self, sha256: str, data: bytes) -> None:
        path = self._path(sha256)
        try:
            if not self._touch(path, len(data)):
                self._write(path, data)
            for folder in (path.parent, self.folder):  # also if another process has written it and not synced it yet
                permissions.sync_folder(folder)
        except OSError as error:
            raise _storage_error(error) from error

    def _touch(self, path: Path, size: int) -> bool:
        try:
            os.utime(path)
            return path.stat().st_size == size
        except FileNotFoundError:
            return False

    def _write(self, path: Path, data: bytes) -> None:
        is_new = not self.folder.exists()
        permissions.make_folder(path.parent)
        permissions.replace_file(path, data)
        if is_new:
            permissions.sync_folder(self.folder.parent)


def _storage_error(error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError("the disk is full; nothing was stored", remedy="Make room, and try again", code="disk_full")
    return StorageError(f"a blob could not be read or written ({error})")


# --- S3 --------------------------------------------------------------------------------------------------------------


class S3Blobs:
    """Blobs in a bucket: ``s3://bucket/prefix?endpoint=https://…&region=…``.

    Keys come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, a role), never from the URL, which
    is shown and logged. An object is touched by putting it again; S3 has no other way.
    """

    def __init__(self, url: str) -> None:
        bucket = open_bucket(url)
        self._obstore, self._errors, self._missing_errors = bucket.obstore, bucket.errors, bucket.missing_errors
        self._where = f"s3://{bucket.name}{bucket.path}"
        self._prefix = bucket.path.strip("/")
        self._bucket = bucket.store

    def _key(self, sha256: str) -> str:
        name = f"{validate_name(sha256)[:2]}/{sha256}"
        return f"{self._prefix}/{name}" if self._prefix else name

    async def put(self, sha256: str, data: bytes) -> None:
        try:
            await self._obstore.put_async(self._bucket, self._key(sha256), data)
        except self._errors as error:
            raise self._storage_error(error) from error

    async def get(self, sha256: str) -> bytes:
        data = None
        try:
            answer = await self._obstore.get_async(self._bucket, self._key(sha256))
            data = bytes(await answer.bytes_async())
        except self._missing_errors:
            pass
        except self._errors as error:
            raise self._storage_error(error) from error
        return verify_blob(sha256, data, self._where)

    async def delete(self, sha256: str) -> None:
        try:
            await self._obstore.delete_async(self._bucket, self._key(sha256))
        except self._missing_errors:
            pass
        except self._errors as error:
            raise self._storage_error(error) from error

    async def list(self) -> AsyncIterator[Blob]:
        try:
            async for page in self._obstore.list(self._bucket, self._prefix or None):
                for item in page:
                    name = item["path"].rpartition("/")[2]
                    if _is_name(name):
                        yield Blob(name, item["size"], item["last_modified"].timestamp())
        except self._errors as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: Exception) -> StorageError:
        first = str(error).partition("\n")[0]
        return StorageError(f"the bucket could not be reached ({type(error).__name__}: {first})", where=self._where)
