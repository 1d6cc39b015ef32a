"""Tests of small writes on the event loop: syncs, groups, batches and locks."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.errors import FormatError, StorageError
from dragoman.store import Store, open_store
from dragoman.store.engines import loop_writer
from dragoman.store.engines.sqlite import SqliteStore
from dragoman.store.operation import BatchOperation, Gather, Operation, VolatileOperation, quick


@contextlib.asynccontextmanager
async def open_ready(path: Path) -> AsyncIterator[SqliteStore]:
    """Open a store and wait until its loop writer is ready."""
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


class SyncGate:
    """A sync that waits until it is allowed."""

    def __init__(self) -> None:
        self.count = 0
        self.allowed = threading.Event()

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        assert self.allowed.wait(30)
        os.fdatasync(descriptor)


@pytest.fixture
def sync_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncGate]:
    sync = SyncGate()
    monkeypatch.setattr(loop_writer, "_sync_file", sync)
    yield sync
    sync.allowed.set()


def select_title() -> Any:
    return (yield "SELECT title FROM sessions", ())[0][0]


async def read_title(store: Store) -> Any:
    return await store._read(Operation(select_title))


async def test_quick_operation_is_acknowledged_after_sync(tmp_path: Path, sync_gate: SyncGate) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        write = asyncio.create_task(store._write(rename("new")))
        while await read_title(store) != "new":  # other connections see it before the sync
            await asyncio.sleep(0)
        while not sync_gate.count:
            await asyncio.sleep(0.001)
        assert not write.done()
        sync_gate.allowed.set()
        assert await write is threading.current_thread()


async def test_commit_result_is_available_before_sync(tmp_path: Path, sync_gate: SyncGate) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        thread, synced = await store._commit(rename("new"))
        assert thread is threading.current_thread()
        assert isinstance(synced, asyncio.Future)
        assert not synced.done()
        sync_gate.allowed.set()
        assert await synced is thread


async def test_volatile_operation_does_not_wait_for_sync(tmp_path: Path, sync_gate: SyncGate) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        await store._write(rename("new", VolatileOperation))
        assert (await read_title(store), sync_gate.count) == ("new", 0)


async def test_one_sync_covers_all_earlier_commits(tmp_path: Path, sync_gate: SyncGate) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        first = asyncio.create_task(store._write(rename("0")))
        while not sync_gate.count:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(store._write(rename(str(number)))) for number in range(1, 9)]
        while await read_title(store) != "8":
            await asyncio.sleep(0)
        sync_gate.allowed.set()
        await asyncio.gather(first, *others)
        assert sync_gate.count == 2


async def test_failed_operation_does_not_affect_its_group(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        writes = [store._write(rename(title)) for title in ("good", "\ud800", "better")]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[1:2]] == [FormatError]
        assert await read_title(store) == "better"


async def test_operations_of_later_loop_iterations_share_commit(tmp_path: Path, sync_gate: SyncGate) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        writes = []
        for number in range(loop_writer._TURNS):
            writes.append(asyncio.create_task(store._write(rename(str(number)))))
            await asyncio.sleep(0)
        sync_gate.allowed.set()
        await asyncio.gather(*writes)
        assert sync_gate.count == 1


async def test_deferred_operations_are_committed_at_group_size(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        gather = Gather(size=3, timeout_s=3600)
        writes = [store._start_write(quick(rename(str(number)), gather)) for number in range(2)]
        for _ in range(2 * loop_writer._TURNS):
            await asyncio.sleep(0)
        assert await read_title(store) is None
        writes.append(store._start_write(quick(rename("2"), gather)))
        await asyncio.gather(*writes)
        assert await read_title(store) == "2"


async def test_deferred_operations_are_committed_with_immediate_one(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        waiting = store._start_write(quick(rename("first"), Gather(size=3, timeout_s=3600)))
        await store._write(rename("second"))
        await waiting
        assert await read_title(store) == "second"


async def test_deferred_operation_is_committed_after_timeout(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        await store._start_write(quick(rename("alone"), Gather(size=3, timeout_s=0.001)))
        assert await read_title(store) == "alone"


class Batches:
    """Sets titles and records which titles it sets in one batch."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, ...]] = []

    def steps(self, items: Sequence[str]) -> Any:
        self.runs.append(tuple(items))
        for item in items:
            yield "UPDATE sessions SET title = ?", (item,)
        return [item.upper() for item in items]

    def operation(self, item: str) -> Operation[str]:
        return quick(BatchOperation(self.steps, item))


def test_an_operation_of_a_kind_is_freed_without_the_garbage_collector() -> None:
    operation = Batches().operation("a")
    reference = weakref.ref(operation)
    gc.disable()
    try:
        del operation
        assert reference() is None
    finally:
        gc.enable()


async def test_batched_operations_have_separate_results(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        batches = Batches()
        a, b, c = (batches.operation(item) for item in "abc")
        outcomes = await asyncio.gather(*(store._write(operation_item) for operation_item in (a, b, rename("x"), c)))
        assert [*outcomes[:2], outcomes[3]] == ["A", "B", "C"]
        assert batches.runs == [("a", "b"), ("c",)]
        assert await read_title(store) == "c"


async def test_failed_batch_is_retried_as_single_operations(tmp_path: Path) -> None:
    async with open_ready(tmp_path / "chats.db") as store:
        batches = Batches()
        writes = [store._write(batches.operation(item)) for item in ("a", "\ud800", "c")]
        first, second, third = await asyncio.gather(*writes, return_exceptions=True)
        assert (first, type(second), third) == ("A", FormatError, "C")
        assert batches.runs == [("a", "\ud800", "c"), ("a",), ("\ud800",), ("c",)]
        assert await read_title(store) == "c"


async def test_loop_does_not_block_while_other_process_writes(tmp_path: Path) -> None:
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


async def test_loop_does_not_block_while_database_is_locked(tmp_path: Path) -> None:
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


async def test_failed_sync_raises_and_replaces_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_close_syncs_submitted_operations(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with open_ready(path) as store:
        write = asyncio.create_task(store._write(rename("last")))
        await asyncio.sleep(0)
    await write
    async with open_store(f"sqlite:///{path}") as store:
        assert await read_title(store) == "last"
