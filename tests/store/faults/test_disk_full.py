"""Tests of a full disk: writes raise a clear error, reads continue, and writes resume with free space."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.errors import StorageError
from dragoman.message import Message
from dragoman.store import Store, open_store
from tests.store.messages import text_message

SIZE = 3 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes in memory."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk, and only on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={SIZE}".encode()) != 0:
        pytest.skip(f"a small disk cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        libc.umount2(bytes(folder), 2)  # lazy unmount, because a failed test may leave files open


def create_short_message() -> Message:
    return text_message(secrets.token_hex(1_000))


def create_long_message() -> Message:
    """Return a message that is stored as a blob."""
    return text_message(secrets.token_hex(20_000))


async def _fill(store: Store, session_id: str, create: Callable[[], Message]) -> tuple[list[Message], str]:
    """Append until the disk is full. Return the acknowledged messages and the error code."""
    stored: list[Message] = []
    for _ in range(10_000):
        try:
            stored.extend(row.message for row in await store.append(session_id, create()))
        except StorageError as error:
            return stored, error.code
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("create", [create_short_message, create_long_message])
async def test_full_disk_raises_and_loses_no_acknowledged_message(
    create: Callable[[], Message], small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\1" * (SIZE // 3))
    url = f"sqlite:///{small_disk / 'store.db'}"
    async with open_store(url) as store:
        session = await store.create_session()
        stored, code = await _fill(store, session.id, create)
        assert stored
        assert code == "disk_full"
        for _ in range(3):
            with pytest.raises(StorageError, match="disk is full") as caught:
                await store.append(session.id, create())
            assert caught.value.code == "disk_full"
            assert caught.value.remedy
            assert [row.message async for row in store.history(session.id)] == stored

        ballast.unlink()  # frees space without a restart
        stored.extend(row.message for row in await store.append(session.id, create(), idempotency_key="after"))
        stored.extend(row.message for row in await store.append(session.id, create_short_message()))
        assert [row.message async for row in store.history(session.id)] == stored
    async with open_store(url) as store:
        rows = [row async for row in store.history(session.id)]
        assert [row.message for row in rows] == stored
        assert [row.seq for row in rows] == list(range(1, len(stored) + 1))


def _fill_disk(folder: Path) -> Path:
    """Create a file that fills the disk."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), b"\1" * 4096)
    assert shutil.disk_usage(folder).free == 0
    return ballast


async def test_store_on_full_disk_opens_after_space_is_freed(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk / 'store.db'}"
    async with open_store(url) as store:
        session = await store.create_session()
        stored = [row.message for row in await store.append(session.id, [create_short_message() for _ in range(20)])]
    ballast = _fill_disk(small_disk)
    with pytest.raises(StorageError, match="disk is full") as caught:
        async with open_store(url):
            pass
    assert caught.value.code == "disk_full"
    ballast.unlink()
    async with open_store(url) as store:
        assert [row.message async for row in store.history(session.id)] == stored


async def test_creation_on_full_disk_raises(small_disk: Path) -> None:
    ballast = _fill_disk(small_disk)
    with pytest.raises(StorageError, match="disk is full") as caught:
        async with open_store(f"sqlite:///{small_disk / 'store.db'}"):
            pass
    assert caught.value.code == "disk_full"
    ballast.unlink()
    async with open_store(f"sqlite:///{small_disk / 'store.db'}") as store:
        assert await store.list_sessions() == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits the size of a file")
async def test_file_size_limit_raises(tmp_path: Path) -> None:
    import resource
    import signal

    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await store.create_session()
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the default action ends the process
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, before[1]))
        try:
            stored, code = await _fill(store, session.id, create_short_message)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert code in ("disk_full", "storage_failed")
        stored.extend(row.message for row in await store.append(session.id, create_short_message()))
        found = [row.message async for row in store.history(session.id)]
        assert [item for item in found if item in stored] == stored
        assert len(found) - len(stored) <= 1  # the append with an unknown outcome
