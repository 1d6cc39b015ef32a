"""How SQLite is written to: where a commit is done, what becomes of the log beside the file, and how it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from dragoman.store import Store, open_store
from dragoman.store.engines import sqlite
from dragoman.store.operation import BulkOperation, Operation, VolatileOperation
from tests.store.talk import answered, said, texts, used

_SOON_S = 0.5
_WORDS = "of a message that takes some room " * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> int:
    """A log that is copied into the database early, beside a disk that is taken for quick; how long it may be."""
    monkeypatch.setattr(sqlite, "_CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(sqlite, "_WAL_SIZE_LIMIT", 50 * 2048)
    monkeypatch.setattr(sqlite, "_QUICK_S", 60.0)
    return 50 * 2048


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is quick unless it takes so long that it is no accident."""
    monkeypatch.setattr(sqlite, "_QUICK_S", _SOON_S)
    monkeypatch.setattr(sqlite, "_UNKNOWN_S", 2 * _SOON_S)


def log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program is writing."""
    lock = os.open(f"{path}-lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


async def thread_of(store: Store, kind: type[Operation[Any]] = Operation, takes_s: float = 0.0) -> threading.Thread:
    """The thread in which something is written."""

    def steps() -> Any:
        yield "SELECT 1", ()
        time.sleep(takes_s)
        return threading.current_thread()

    thread: threading.Thread = await store._write(kind(steps))
    return thread


async def until_here(store: Store) -> int:
    """How many things were written in another thread before one was written in this one."""
    for number in range(1_000):
        if await thread_of(store) is threading.current_thread():
            return number
    raise AssertionError("never")


@pytest.mark.usefixtures("patient")
async def test_a_disk_that_is_not_known_yet_is_written_to_in_the_writers_thread(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        assert await thread_of(store) is not threading.current_thread()
        await until_here(store)


@pytest.mark.usefixtures("patient")
async def test_what_many_ask_for_together_is_written_in_the_writers_thread(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await until_here(store)
        first, *threads = await asyncio.gather(*(thread_of(store) for _ in range(16)))
        assert first is threading.current_thread()  # nobody could know that others would come
        assert threading.current_thread() not in threads
        assert len(set(threads)) == 1
        threads = await asyncio.gather(*(thread_of(store) for _ in range(16)))
        assert threading.current_thread() not in threads


@pytest.mark.parametrize("refused", [2**63, "\ud800", object()], ids=["a large number", "half a character", "no value"])
async def test_what_one_of_many_may_not_write_fails_none_of_the_others(path: Path, refused: Any) -> None:
    def ask(value: Any) -> Operation[None]:
        def steps() -> Iterator[Any]:
            yield "UPDATE sessions SET title = ?", (value,)

        return Operation(steps)  # type: ignore[arg-type]

    async with open_store(f"sqlite:///{path}") as store:
        await store.create_session()
        asked = [store._write(ask("good")), store._write(ask(refused)), *(store._write(ask("good")) for _ in range(20))]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [number for number, outcome in enumerate(outcomes) if outcome is not None] == [1]


@pytest.mark.usefixtures("patient")
async def test_what_few_ask_for_together_is_one_commit_where_it_was_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = counted_here(monkeypatch)
    async with open_store(f"sqlite:///{path}") as store:
        await until_here(store)
        await asyncio.gather(*(thread_of(store) for _ in range(3)))
        here.clear()
        threads = await asyncio.gather(*(thread_of(store) for _ in range(3)))
        assert set(threads) == {threading.current_thread()}
        assert len(here) == 1


@pytest.mark.usefixtures("patient")
async def test_others_have_their_turn_while_somebody_writes_one_thing_after_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_PATIENCE_S", 0.0)
    done: list[int] = []

    async def write() -> None:
        for number in range(40):
            await thread_of(store)
            done.append(number)

    async with open_store(f"sqlite:///{path}") as store:
        await until_here(store)
        writing = asyncio.create_task(write())
        seen = []
        while not writing.done():
            await asyncio.sleep(0)
            seen.append(len(done))
        assert max(after - before for before, after in itertools.pairwise(seen)) <= 3


@pytest.mark.usefixtures("patient")
async def test_a_little_is_read_where_it_is_asked_for_until_that_was_slow(path: Path) -> None:
    def steps(takes_s: float) -> Any:
        yield "SELECT 1", ()
        time.sleep(takes_s)
        return threading.current_thread()

    async with open_store(f"sqlite:///{path}") as store:

        async def is_here(takes_s: float = 0.0) -> bool:
            thread = await store._read_inline(Operation(lambda: steps(takes_s)))
            return thread is threading.current_thread()

        assert await is_here()
        assert await is_here(2 * _SOON_S)  # nobody could know
        assert [await is_here() for _ in range(3)] == [False] * 3
        assert any([await is_here() for _ in range(20)])  # it is forgotten after a while


@pytest.mark.usefixtures("patient")
async def test_a_slow_commit_sends_those_after_it_to_the_writers_thread(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await until_here(store)
        assert await thread_of(store, takes_s=2 * _SOON_S) is threading.current_thread()  # nobody could know
        assert await until_here(store) >= 3  # it is forgotten after a while, and not at once


@pytest.mark.usefixtures("patient")
async def test_a_lease_says_nothing_about_the_disk(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await until_here(store)
        await thread_of(store, takes_s=2 * _SOON_S)
        for _ in range(20):
            await thread_of(store, VolatileOperation)
        assert await thread_of(store) is not threading.current_thread()


@pytest.mark.usefixtures("patient")
async def test_what_takes_many_steps_is_done_in_the_writers_thread_and_says_nothing_about_the_disk(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await until_here(store)
        assert await thread_of(store, BulkOperation, takes_s=2 * _SOON_S) is not threading.current_thread()
        assert await thread_of(store) is threading.current_thread()


async def test_a_statement_is_planned_once_whatever_it_is_asked_with(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        assert isinstance(store, sqlite.SqliteStore)
        for worker in (store._writer, store._reader):
            assert worker is not None
            assert worker._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)


async def test_only_leases_are_committed_without_a_sync(path: Path, short_log: int) -> None:
    def level() -> Any:
        return (yield "PRAGMA synchronous", ())[0][0]

    async with open_store(f"sqlite:///{path}") as store:
        kinds = (Operation, VolatileOperation, VolatileOperation, Operation, VolatileOperation, Operation)
        assert [await store._write(kind(level)) for kind in kinds] == [2, 1, 1, 2, 1, 2]
        for _ in range(2):  # at first the one is written before anybody knows of the other
            together = await asyncio.gather(store._write(VolatileOperation(level)), store._write(Operation(level)))
        assert together == [2, 2]


async def test_the_log_stays_short_while_everything_is_written_where_it_is_asked_for(
    path: Path, short_log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = counted_here(monkeypatch)
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        longest = 0
        for number in range(400):
            await store.append(session.id, said(f"{number} {_WORDS}"))
            longest = max(longest, log_size(path))
        assert len(here) > 200
        assert path.stat().st_size > 10 * short_log  # so much went through the log
        assert longest < 5 * short_log
        assert len(await store.read(session.id, limit=1_000)) == 400


def counted_here(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each commit in the thread that asks for it."""
    done: list[object] = []
    committed_here: Callable[..., Any] = sqlite._Writer.commit_inline

    def counted(self: Any, jobs: Any) -> Any:
        outcomes = committed_here(self, jobs)
        if outcomes is not None:
            done.append(outcomes)
        return outcomes

    done_here: Callable[..., Any] = sqlite._Writer.execute_inline

    def at_once(self: Any, sql: str, arguments: Any) -> Any:
        rows = done_here(self, sql, arguments)
        if rows is not None:
            done.append(rows)
        return rows

    monkeypatch.setattr(sqlite._Writer, "commit_inline", counted)
    monkeypatch.setattr(sqlite._Writer, "execute_inline", at_once)
    return done


async def test_a_log_that_somebody_keeps_reading_grows_and_is_short_again_afterwards(
    path: Path, short_log: int
) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, said("before"))
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]
            for number in range(200):
                await store.append(session.id, said(f"{number} {_WORDS}"))
            assert log_size(path) > 5 * short_log
            assert reader.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]  # its view stays
        finally:
            reader.close()
        for number in range(100):
            await store.append(session.id, said(f"{number} {_WORDS}"))
        assert log_size(path) < 5 * short_log
        assert len(await store.read(session.id, limit=1_000)) == 301


async def until_idle() -> None:
    """Wait for what goes on behind a store: to close one that is idle is to wait for nothing."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def test_what_waits_when_a_store_is_closed_is_written_first(path: Path) -> None:
    for number, is_idle in ((1, False), (30, False), (1, True), (30, True)):
        store = open_store(f"sqlite:///{path}")
        await store.open()
        session = await store.create_session()
        if is_idle:
            await until_idle()
        writing = [asyncio.create_task(store.append(session.id, said(str(one)))) for one in range(number)]
        reading = asyncio.create_task(store.get_session(session.id))
        await asyncio.sleep(0)
        await store.close()
        rows = [row for done in await asyncio.gather(*writing) for row in done]
        assert (await reading).id == session.id
        with pytest.raises(StoreUnusableError, match="not open"):
            await store.append(session.id, said("too late"))
        assert asyncio.all_tasks() == {asyncio.current_task()}  # nothing goes on behind it
        async with open_store(f"sqlite:///{path}") as again:
            assert await again.read(session.id) == rows
            assert texts(rows) == [str(one) for one in range(number)]


@pytest.mark.usefixtures("short_log")
async def test_a_store_is_closed_when_what_waits_for_another_program_is_written(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    session = await store.create_session()
    with locked(path):
        writing = asyncio.create_task(store.append(session.id, said("waits")))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.05)
        assert not writing.done()
        assert not closing.done()
    await closing
    (row,) = await writing
    async with open_store(f"sqlite:///{path}") as again:
        assert await again.read(session.id) == [row]


async def test_a_write_waits_for_other_programs_without_stopping_the_event_loop(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        for number in range(40):  # until the disk is known to be quick, if it is
            await store.append(session.id, said(f"{number}"))
        with locked(path):
            waiting = asyncio.create_task(store.append(session.id, [said("behind our lock"), said("together")]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        assert (await waiting)[0].seq == 41
        stranger = apsw.Connection(str(path))
        stranger.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.append(session.id, said("behind a stranger")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        stranger.execute("ROLLBACK")
        stranger.close()
        assert (await waiting)[0].seq == 43


@pytest.mark.parametrize("amount", ["x'00'", "'0.1.2'"])
async def test_an_amount_that_is_no_number_is_damage(path: Path, amount: str) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, [answered(text, usage=used(1, 1, "0.1")) for text in ("one", "two")])
        other = apsw.Connection(str(path))
        other.execute(f"UPDATE usage SET cost_usd = {amount} WHERE seq = 2")
        other.close()
        with pytest.raises(CorruptDataError, match="no number"):
            await store.costs.totals("session")


@pytest.fixture
def put_at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each message that could be put at a known end was; the disk is taken for quick, and nobody hurries."""
    monkeypatch.setattr(sqlite, "_QUICK_S", 60.0)
    monkeypatch.setattr(sqlite, "_PATIENCE_S", 60.0)
    told: list[bool] = []
    done_here: Callable[..., Any] = sqlite._Writer.execute_inline

    def at_once(self: Any, sql: str, arguments: Any) -> Any:
        rows = done_here(self, sql, arguments)
        told.append(rows is not None)
        return rows

    monkeypatch.setattr(sqlite._Writer, "execute_inline", at_once)
    return told


async def test_one_message_more_is_one_statement_and_all_that_belongs_to_it(
    path: Path, put_at_once: list[bool]
) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        rows = [(await store.append(session.id, said(f"number {number}")))[0] for number in range(3)]
        assert put_at_once == [True, True]  # where it ends was not known to the first
        rows += await store.append(session.id, answered("of a model", usage=used(1, 1, "0.1")))
        rows += await store.append(session.id, said("and on"), expected_seq=4)
        assert put_at_once == [True, True, True]  # what was consumed stands in another table
        assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
        assert await store.read(session.id) == rows
        now = await store.get_session(session.id)
        assert (now.last_seq, now.updated_at > session.updated_at) == (5, True)
        assert [hit.seq for hit in await store.search("number")] != []
        again = await store.append(session.id, rows[1].message)
        assert [row.seq for row in again] == [2]
        assert (await store.verify()).is_sound


async def test_an_end_that_others_have_moved_or_deleted_is_not_believed(path: Path, put_at_once: list[bool]) -> None:
    async with open_store(f"sqlite:///{path}") as one, open_store(f"sqlite:///{path}") as other:
        session = await one.create_session()
        await one.append(session.id, said("1"))
        await other.append(session.id, said("2"))
        await one.append(session.id, said("3"))
        await other.append(session.id, said("4"))
        assert put_at_once == [False, False]  # it was tried, and did nothing
        with pytest.raises(ConflictError):
            await one.append(session.id, said("x"), expected_seq=3)
        assert texts(await one.read(session.id)) == ["1", "2", "3", "4"]
        await other.delete_session(session.id)
        with pytest.raises(UnknownSessionError):
            await one.append(session.id, said("5"))


async def test_while_another_program_writes_nothing_is_put_at_once(path: Path, put_at_once: list[bool]) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, said("1"))
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.append(session.id, said("2")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        other.execute("ROLLBACK")
        other.close()
        await waiting
        assert put_at_once == [False]
        assert texts(await store.read(session.id)) == ["1", "2"]


class Failing:
    """A connection whose next statement fails."""

    def __init__(self, connection: apsw.Connection, error: apsw.Error) -> None:
        self._connection = connection
        self._error: apsw.Error | None = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, *given: Any) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._connection.execute(*given)


@pytest.mark.parametrize(
    ("error", "code"), [(apsw.FullError("full"), "disk_full"), (apsw.IOError("gone"), "storage_failed")]
)
async def test_a_disk_that_fails_in_one_statement_is_said_so_and_the_next_one_works(
    path: Path, put_at_once: list[bool], error: apsw.Error, code: str
) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        assert isinstance(store, sqlite.SqliteStore)
        session = await store.create_session()
        await store.append(session.id, said("1"))
        assert store._writer is not None
        store._writer._connection = Failing(store._writer._connection, error)  # type: ignore[assignment]
        with pytest.raises(StorageError) as caught:
            await store.append(session.id, said("2"))
        assert caught.value.code == code
        await store.append(session.id, said("3"))
        await store.append(session.id, said("4"))
        assert put_at_once == [True]  # the third was written by the thread, which has connected anew
        assert texts(await store.read(session.id)) == ["1", "3", "4"]
        assert (await store.verify()).is_sound


async def test_a_role_that_not_every_engine_can_hold_is_refused_also_alone(path: Path, put_at_once: list[bool]) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        (row,) = await store.append(session.id, said("1"))
        odd = decode(encode(row.message.replace(id=store.new_id())).replace(b'"role":"user"', b'"role":"a\\u0000b"'))
        with pytest.raises(FormatError, match="NUL"):
            await store.append(session.id, odd)
        assert put_at_once == []


async def test_one_statement_needs_no_lock_of_ours(path: Path, put_at_once: list[bool]) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        await store.append(session.id, said("1"))
        with locked(path):  # by somebody who has not begun to write
            await store.append(session.id, said("2"))
        assert put_at_once == [True]


async def test_whoever_has_the_lock_comes_in_between_single_statements_of_others(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        session = await store.create_session()
        beside = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _ONE_BY_ONE, str(path), session.id, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert beside.stdin is not None
        assert beside.stdout is not None
        assert await beside.stdout.readline() == b"begun\n"
        for number in range(100):
            await store.append(session.id, [said(f"{number}"), said("together")])
        told, at_once = map(int, (await beside.communicate(b"enough\n"))[0].split())
        assert at_once > 10
        rows = await store.read(session.id, limit=1_000_000)
        ours = [row.seq for row in rows if texts([row])[0] == "together"]
        assert len(rows) == 200 + told
        assert len(ours) == 100
        assert all(texts([rows[seq - 2]])[0].isdecimal() for seq in ours)
        assert (await store.verify()).is_sound


_ONE_BY_ONE = """
import asyncio, sys, threading
from dragoman import open_store
from dragoman.store import sqlite
from tests.store.talk import said

sqlite._QUICK_S = sqlite._PATIENCE_S = 60
done_here, at_once = sqlite._Writer.done_here, []

def noted(self, sql, arguments):
    rows = done_here(self, sql, arguments)
    at_once.extend([1] if rows is not None else [])
    return rows

sqlite._Writer.done_here = noted

async def write(path, session_id):
    enough = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), enough.set()), daemon=True).start()
    async with open_store(f"sqlite:///{path}") as store:
        done = 0
        while not enough.is_set():
            await store.append(session_id, said("one by one"))
            done += 1
            if done == 20:
                print("begun", flush=True)
    print(done, len(at_once))

asyncio.run(write(*sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the locks of a process are read from /proc")
async def test_a_second_store_of_the_same_file_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
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
async def test_a_schema_number_below_zero_is_a_damaged_header_and_nothing_is_changed(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", version)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnusableError, match="its header is damaged"):
        async with open_store(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == before
