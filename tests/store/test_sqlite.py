"""Tests of writes to SQLite: threads, group commits, the write-ahead log, locks and closing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman import decode, encode
from dragoman.errors import (
    ConflictError,
    CorruptDataError,
    FormatError,
    StorageError,
    StoreUnusableError,
    UnknownSessionError,
)
from dragoman.store import open_store
from dragoman.store.engines import sqlite, write_scheduler
from dragoman.store.operation import Operation, VolatileOperation
from tests.store.messages import answer_message, create_usage, list_texts, text_message

_WORDS = "of a message that takes some room " * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> int:
    """A log that is checkpointed early. The value is its length in bytes."""
    monkeypatch.setattr(write_scheduler, "_CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(sqlite, "_WAL_SIZE_LIMIT", 50 * 2048)
    return 50 * 2048


def log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the write lock of another program."""
    lock = os.open(f"{path}-lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


@pytest.mark.parametrize("invalid", [2**63, "\ud800", object()], ids=["a large number", "half a character", "no value"])
async def test_failed_operation_does_not_affect_its_group(path: Path, invalid: Any) -> None:
    def create_operation(value: Any) -> Operation[None]:
        def steps() -> Iterator[Any]:
            yield "UPDATE sessions SET title = ?", (value,)

        return Operation(steps)  # type: ignore[arg-type]

    async with open_store(f"sqlite:///{path}") as store:
        await store.create_session()
        writes = [
            store._write(create_operation("good")),
            store._write(create_operation(invalid)),
            *(store._write(create_operation("good")) for _ in range(20)),
        ]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [1]


async def test_reads_and_writes_run_outside_event_loop(path: Path) -> None:
    def steps() -> Any:
        yield "SELECT 1", ()
        return threading.current_thread()

    async with open_store(f"sqlite:///{path}") as store:
        writers = await asyncio.gather(*(store._write(Operation(steps)) for _ in range(16)))
        readers = await asyncio.gather(*(store._read(Operation(steps)) for _ in range(16)))
        assert len(set(writers)) == 1
        assert not {threading.current_thread(), *writers} & set(readers)
        assert threading.current_thread() not in writers


async def test_queued_operations_share_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    commit = write_scheduler.WriteScheduler._commit

    def count(self: Any, operations: Any) -> Any:
        groups.append(len(operations))
        return commit(self, operations)

    monkeypatch.setattr(write_scheduler.WriteScheduler, "_commit", count)
    async with open_store(f"sqlite:///{path}") as store:
        assert isinstance(store, sqlite.SqliteStore)
        session = await store.create_session()
        with hold_lock(path):  # the first operation waits and the others queue behind it
            appends = [asyncio.create_task(store.append(session.id, text_message(str(number)))) for number in range(20)]
            while store._write_queue.qsize() + sum(groups) < 21:
                await asyncio.sleep(0)
        rows = await asyncio.gather(*appends)
        assert sorted(row.seq for (row,) in rows) == list(range(1, 21))
        assert len(groups) <= 3  # the session, the first operation, and the queue


async def test_statement_is_planned_once(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    assert isinstance(store, sqlite.SqliteStore)
    async with store:
        connection = store._connect()
        assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)
        connection.close()


async def test_only_leases_are_committed_without_sync(path: Path, short_log: int) -> None:
    def level() -> Any:
        return (yield "PRAGMA synchronous", ())[0][0]

    async with open_store(f"sqlite:///{path}") as store:
        kinds = (Operation, VolatileOperation, VolatileOperation, Operation, VolatileOperation, Operation)
        assert [await store._write(kind(level)) for kind in kinds] == [2, 1, 1, 2, 1, 2]
        with hold_lock(path):  # both are in one group behind the first
            waiting = [store._write(kind(level)) for kind in (Operation, VolatileOperation, Operation)]
            tasks = [asyncio.create_task(operation) for operation in waiting]
            await asyncio.sleep(0)
        assert await asyncio.gather(*tasks) == [2, 2, 2]


async def test_log_stays_short_during_appends(path: Path, short_log: int) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        longest = 0
        for number in range(400):
            await store.append(session.id, text_message(f"{number} {_WORDS}"))
            longest = max(longest, log_size(path))
        assert path.stat().st_size > 10 * short_log  # written through the log
        assert longest < 5 * short_log
        assert len(await store.read(session.id, limit=1_000)) == 400


async def test_log_shrinks_after_long_reader_ends(path: Path, short_log: int) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, text_message("before"))
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]
            for number in range(200):
                await store.append(session.id, text_message(f"{number} {_WORDS}"))
            assert log_size(path) > 5 * short_log
            assert reader.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]  # its snapshot is unchanged
        finally:
            reader.close()
        for number in range(100):
            await store.append(session.id, text_message(f"{number} {_WORDS}"))
        assert log_size(path) < 5 * short_log
        assert len(await store.read(session.id, limit=1_000)) == 301


async def wait_until_idle() -> None:
    """Wait until the background work of a store ends, so that closing it does not wait."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def test_close_writes_queued_operations(path: Path) -> None:
    for number, is_idle in ((1, False), (30, False), (1, True), (30, True)):
        store = open_store(f"sqlite:///{path}")
        await store.open()
        session = await store.create_session()
        if is_idle:
            await wait_until_idle()
        writing = [asyncio.create_task(store.append(session.id, text_message(str(item)))) for item in range(number)]
        reading = asyncio.create_task(store.get_session(session.id))
        await asyncio.sleep(0)
        await store.close()
        rows = [row for done in await asyncio.gather(*writing) for row in done]
        assert (await reading).id == session.id
        with pytest.raises(StoreUnusableError, match="not open"):
            await store.append(session.id, text_message("too late"))
        assert asyncio.all_tasks() == {asyncio.current_task()}  # no background task remains
        async with open_store(f"sqlite:///{path}") as again:
            assert await again.read(session.id) == rows
            assert list_texts(rows) == [str(item) for item in range(number)]


@pytest.mark.usefixtures("short_log")
async def test_close_waits_for_lock_of_other_program(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    session = await store.create_session()
    with hold_lock(path):
        writing = asyncio.create_task(store.append(session.id, text_message("waits")))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.05)
        assert not writing.done()
        assert not closing.done()
    await closing
    (row,) = await writing
    async with open_store(f"sqlite:///{path}") as again:
        assert await again.read(session.id) == [row]


async def test_write_waits_for_lock_without_blocking_loop(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        with hold_lock(path):
            waiting = asyncio.create_task(
                store.append(session.id, [text_message("behind our lock"), text_message("together")])
            )
            await asyncio.sleep(0.05)
            assert not waiting.done()
        assert (await waiting)[0].seq == 1
        stranger = apsw.Connection(str(path))
        stranger.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.append(session.id, text_message("behind a stranger")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        stranger.execute("ROLLBACK")
        stranger.close()
        assert (await waiting)[0].seq == 3


@pytest.mark.parametrize("amount", ["x'00'", "'0.1.2'"])
async def test_invalid_amount_is_damage(path: Path, amount: str) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(
            session.id, [answer_message(text, usage=create_usage(1, 1, "0.1")) for text in ("one", "two")]
        )
        other = apsw.Connection(str(path))
        other.execute(f"UPDATE usage SET cost_usd = {amount} WHERE seq = 2")
        other.close()
        with pytest.raises(CorruptDataError, match="not a number"):
            await store.costs.totals("session")


async def test_cached_end_is_validated_against_database(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as first_store, open_store(f"sqlite:///{path}") as other:
        session = await first_store.create_session()
        await first_store.append(session.id, text_message("1"))
        await other.append(session.id, text_message("2"))
        await first_store.append(session.id, text_message("3"))
        await other.append(session.id, text_message("4"))
        with pytest.raises(ConflictError):
            await first_store.append(session.id, text_message("x"), expected_seq=3)
        assert list_texts(await first_store.read(session.id)) == ["1", "2", "3", "4"]
        await other.delete_session(session.id)
        with pytest.raises(UnknownSessionError):
            await first_store.append(session.id, text_message("5"))


@pytest.mark.parametrize(
    ("error", "code"), [(apsw.FullError("full"), "disk_full"), (apsw.IOError("gone"), "storage_failed")]
)
async def test_disk_failure_raises_and_replaces_connection(
    path: Path, error: apsw.Error, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, errors, connections = write_scheduler.run_operation, [error], list[apsw.Connection]()

    def fail_once(connection: apsw.Connection, operation: Any) -> Any:
        connections.append(connection)
        if errors:
            raise errors.pop()
        return run(connection, operation)

    async with open_store(f"sqlite:///{path}") as store:
        assert isinstance(store, sqlite.SqliteStore)
        session = await store.create_session()
        await store.append(session.id, text_message("1"))
        monkeypatch.setattr(write_scheduler, "run_operation", fail_once)
        with pytest.raises(StorageError) as caught:
            await store.append(session.id, text_message("2"))
        assert caught.value.code == code
        await store.append(session.id, text_message("3"))
        assert connections[0] is not connections[-1]
        await store.append(session.id, text_message("4"))
        assert list_texts(await store.read(session.id)) == ["1", "3", "4"]
        assert (await store.verify()).is_sound


async def test_role_with_nul_is_rejected(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        (row,) = await store.append(session.id, text_message("1"))
        invalid = decode(
            encode(row.message.replace(id=store.new_id())).replace(b'"role":"user"', b'"role":"a\\u0000b"')
        )
        with pytest.raises(FormatError, match="NUL"):
            await store.append(session.id, invalid)


@pytest.mark.skipif(sys.platform != "linux", reason="the locks of a process are read from /proc")
async def test_second_store_keeps_locks_of_first(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    def locks() -> list[str]:
        number = f":{path.stat().st_ino} "
        return [line for line in Path("/proc/locks").read_text().splitlines() if number in line]

    async with open_store(f"sqlite:///{path}") as first:
        await first.create_session("s1")
        held = locks()
        assert held
        async with open_store(f"sqlite:///{path}"):
            assert len(locks()) >= len(held)
        assert len(locks()) >= len(held)


@pytest.mark.parametrize("version", [-1, -16777202])
async def test_negative_schema_number_is_damaged_header(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", version)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnusableError, match="the header of the store is damaged"):
        async with open_store(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == before
