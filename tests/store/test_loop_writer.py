"""Writes of a few rows on the event loop: acknowledged after the log is synced, and never waited for."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.errors import FormatError, StorageError
from dragoman.store import Store, open_store
from dragoman.store.engines import loop_writer
from dragoman.store.engines.sqlite import SqliteStore
from dragoman.store.operation import Operation, VolatileOperation, quick


@contextlib.asynccontextmanager
async def open_ready(path: Path) -> AsyncIterator[SqliteStore]:
    """A store whose writer on the event loop is ready."""
    async with open_store(f"sqlite:///{path}") as store:
        assert isinstance(store, SqliteStore)
        await store.create_session("s1")
        while store._loop_writer is None or not store._loop_writer.is_ready:
            await asyncio.sleep(0.005)
        yield store


def set_title(title: Any) -> Any:
    yield "UPDATE sessions SET title = ?", (title,)
    return threading.current_thread()


def rename(title: Any, kind: type[Operation[Any]] = Operation) -> Operation[Any]:
    return quick(kind(lambda: set_title(title)))


class BlockedSync:
    """A sync that waits until it is allowed."""

    def __init__(self) -> None:
        self.count = 0
        self.allowed = threading.Event()

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        assert self.allowed.wait(30)
        os.fdatasync(descriptor)


@pytest.fixture
def blocked_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockedSync]:
    sync = BlockedSync()
    monkeypatch.setattr(loop_writer, "_sync_file", sync)
    yield sync
    sync.allowed.set()


def title_steps() -> Any:
    return (yield "SELECT title FROM sessions", ())[0][0]


async def read_title(store: Store) -> Any:
    return await store._read(Operation(title_steps))


async def test_a_quick_operation_is_committed_on_the_loop_and_acknowledged_after_the_sync(
    tmp_path: Path, blocked_sync: BlockedSync
) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        write = asyncio.create_task(store._write(rename("new")))
        while await read_title(store) != "new":  # other connections see it before the sync
            await asyncio.sleep(0)
        while not blocked_sync.count:
            await asyncio.sleep(0.001)
        assert not write.done()
        blocked_sync.allowed.set()
        assert await write is threading.current_thread()


async def test_the_result_of_a_commit_is_known_before_its_sync(tmp_path: Path, blocked_sync: BlockedSync) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        thread, synced = await store._commit(rename("new"))
        assert thread is threading.current_thread()
        assert isinstance(synced, asyncio.Future)
        assert not synced.done()
        blocked_sync.allowed.set()
        assert await synced is thread


async def test_a_volatile_operation_does_not_wait_for_a_sync(tmp_path: Path, blocked_sync: BlockedSync) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        await store._write(rename("new", VolatileOperation))
        assert (await read_title(store), blocked_sync.count) == ("new", 0)


async def test_one_sync_covers_everything_that_was_committed_before_it(
    tmp_path: Path, blocked_sync: BlockedSync
) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        first = asyncio.create_task(store._write(rename("0")))
        while not blocked_sync.count:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(store._write(rename(str(number)))) for number in range(1, 9)]
        while await read_title(store) != "8":
            await asyncio.sleep(0)
        blocked_sync.allowed.set()
        await asyncio.gather(first, *others)
        assert blocked_sync.count == 2


async def test_an_operation_that_fails_leaves_the_others_of_its_group(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        writes = [store._write(rename(title)) for title in ("good", "\ud800", "better")]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[1:2]] == [FormatError]
        assert await read_title(store) == "better"


async def test_while_another_process_writes_the_thread_waits_and_not_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with open_ready(path) as store:
        lock = os.open(f"{path}-lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        write = asyncio.create_task(store._write(rename("new")))
        await asyncio.sleep(0.01)
        assert not write.done()
        os.close(lock)
        assert await write is not threading.current_thread()
        assert await read_title(store) == "new"


async def test_while_another_program_locks_the_database_the_thread_waits(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with open_ready(path) as store:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(store._write(rename("new")))
        await asyncio.sleep(0.01)
        assert not write.done()
        other.execute("ROLLBACK")
        other.close()
        assert await write is not threading.current_thread()


async def test_after_a_failed_sync_the_outcome_is_unknown_and_the_connection_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    async with open_ready(tmp_path / "chats.db") as store:
        writer = store._loop_writer
        assert writer is not None
        connection = writer._connection
        with monkeypatch.context() as patch:
            patch.setattr(loop_writer, "_sync_file", fail)
            with pytest.raises(StorageError, match="unknown whether"):
                await store._write(rename("lost?"))
        while writer._connection in (None, connection):
            await asyncio.sleep(0.005)
        await store._write(rename("next"))
        assert await read_title(store) == "next"


async def test_closing_syncs_what_was_submitted(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with open_ready(path) as store:
        write = asyncio.create_task(store._write(rename("last")))
        await asyncio.sleep(0)
    await write
    async with open_store(f"sqlite:///{path}") as store:
        assert await read_title(store) == "last"
