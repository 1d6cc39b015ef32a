"""Large content, kept once under its SHA-256, outside the rows that name it.

    FolderBlobs(folder)      in a folder, which is the default beside a store
    MemoryBlobs()            in memory, for a store in memory

What is put is safe when ``put`` returns; what is got has been checked against its hash. The one rule: nothing is
deleted that somebody may be about to name, which is why ``put`` touches what is there already.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from dragoman.errors import DamagedError


class Blob(msgspec.Struct, frozen=True):
    """One that is kept."""

    sha256: str
    size: int
    touched_at: float  # when it was last put, in seconds since 1970


class Blobs(Protocol):
    """Where large content is kept."""

    async def put(self, sha256: str, data: bytes) -> None:
        """Keep it. If it is there already, note that somebody wants it."""

    async def get(self, sha256: str) -> bytes:
        """What is kept under that hash; ``DamagedError`` if it is gone or another one."""

    async def delete(self, sha256: str) -> None:
        """Let it go."""

    def list(self) -> AsyncIterator[Blob]:
        """Everything that is kept."""


def checked(sha256: str, data: bytes | None, where: str) -> bytes:
    """The content, if it is what its name says."""
    if data is None:
        raise DamagedError("large content that a message names is gone", where=f"{where}/{sha256}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedError("large content is not what was stored", where=f"{where}/{sha256}")
    return data


class MemoryBlobs:
    """In memory, for stores that are."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, float]] = {}

    async def put(self, sha256: str, data: bytes) -> None:
        self._kept[sha256] = data, time.time()

    async def get(self, sha256: str) -> bytes:
        data, _ = self._kept.get(sha256, (None, 0.0))
        return checked(sha256, data, "memory")

    async def delete(self, sha256: str) -> None:
        self._kept.pop(sha256, None)

    async def list(self) -> AsyncIterator[Blob]:
        for sha256, (data, touched) in tuple(self._kept.items()):
            yield Blob(sha256, len(data), touched)


class FolderBlobs:
    """In a folder, by the first two digits of their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def put(self, sha256: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, sha256, data)

    async def get(self, sha256: str) -> bytes:
        return checked(sha256, await asyncio.to_thread(self._get, sha256), str(self.folder))

    async def delete(self, sha256: str) -> None:
        await asyncio.to_thread(self._path(sha256).unlink, missing_ok=True)

    async def list(self) -> AsyncIterator[Blob]:
        for path in await asyncio.to_thread(lambda: sorted(self.folder.glob("??/" + "?" * 64))):
            status = path.stat()
            yield Blob(path.name, status.st_size, status.st_mtime)

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def _get(self, sha256: str) -> bytes | None:
        try:
            return self._path(sha256).read_bytes()
        except FileNotFoundError:
            return None

    def _put(self, sha256: str, data: bytes) -> None:
        path = self._path(sha256)
        try:
            os.utime(path)
            return
        except FileNotFoundError:
            pass
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{secrets.token_hex(8)}")
        try:
            with made.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
        for folder in (path.parent, self.folder):
            _sync(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
