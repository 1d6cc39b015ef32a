"""A disk that is full: it is said clearly, reading goes on, and writing too as soon as there is room."""

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
    """A file system of a few megabytes, in memory."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk, and only on Linux")
    place = tmp_path / "disk"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(place), b"tmpfs", 0, f"size={SIZE}".encode()) != 0:
        pytest.skip(f"a small disk cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        libc.umount2(bytes(place), 2)  # lazily: whatever a failed test has left open goes with it


def short() -> Message:
    return text_message(secrets.token_hex(1_000))


def long() -> Message:
    """One that is kept outside its row."""
    return text_message(secrets.token_hex(20_000))


async def _fill(store: Store, session_id: str, made: Callable[[], Message]) -> tuple[list[Message], str]:
    """Append until there is no room: what was acknowledged, and how the end of it was called."""
    stored: list[Message] = []
    for _ in range(10_000):
        try:
            stored.extend(row.message for row in await store.append(session_id, made()))
        except StorageError as error:
            return stored, error.code
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("made", [short, long])
async def test_a_full_disk_raises_an_error_and_loses_no_acknowledged_message(
    made: Callable[[], Message], small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\1" * (SIZE // 3))
    url = f"sqlite:///{small_disk / 'store.db'}"
    async with open_store(url) as store:
        session = await store.create_session()
        stored, code = await _fill(store, session.id, made)
        assert stored
        assert code == "disk_full"
        for _ in range(3):
            with pytest.raises(StorageError, match="disk is full") as caught:
                await store.append(session.id, made())
            assert caught.value.code == "disk_full"
            assert caught.value.remedy
            assert [row.message async for row in store.history(session.id)] == stored

        ballast.unlink()  # somebody makes room, and nobody starts anything anew
        stored.extend(row.message for row in await store.append(session.id, made(), idempotency_key="after"))
        stored.extend(row.message for row in await store.append(session.id, short()))
        assert [row.message async for row in store.history(session.id)] == stored
    async with open_store(url) as store:
        rows = [row async for row in store.history(session.id)]
        assert [row.message for row in rows] == stored
        assert [row.seq for row in rows] == list(range(1, len(stored) + 1))


def _filled(folder: Path) -> Path:
    """A file that takes up all the room there is."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), b"\1" * 4096)
    assert shutil.disk_usage(folder).free == 0
    return ballast


async def test_a_store_on_a_full_disk_cannot_be_opened_until_there_is_room(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk / 'store.db'}"
    async with open_store(url) as store:
        session = await store.create_session()
        stored = [row.message for row in await store.append(session.id, [short() for _ in range(20)])]
    ballast = _filled(small_disk)
    with pytest.raises(StorageError, match="disk is full") as caught:
        async with open_store(url):
            pass
    assert caught.value.code == "disk_full"
    ballast.unlink()
    async with open_store(url) as store:
        assert [row.message async for row in store.history(session.id)] == stored


async def test_a_store_that_finds_no_room_for_itself_is_said_so(small_disk: Path) -> None:
    ballast = _filled(small_disk)
    with pytest.raises(StorageError, match="disk is full") as caught:
        async with open_store(f"sqlite:///{small_disk / 'store.db'}"):
            pass
    assert caught.value.code == "disk_full"
    ballast.unlink()
    async with open_store(f"sqlite:///{small_disk / 'store.db'}") as store:
        assert await store.list_sessions() == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits the size of a file")
async def test_a_file_that_may_not_grow_is_said_so_too(tmp_path: Path) -> None:
    import resource
    import signal

    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        session = await store.create_session()
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # or else the system ends us
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, before[1]))
        try:
            stored, code = await _fill(store, session.id, short)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert code in ("disk_full", "storage_failed")
        stored.extend(row.message for row in await store.append(session.id, short()))
        found = [row.message async for row in store.history(session.id)]
        assert [one for one in found if one in stored] == stored
        assert len(found) - len(stored) <= 1  # the one whose outcome is not known
