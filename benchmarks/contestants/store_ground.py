"""Shared parts of the store benchmarks: texts, folder, threads. Standard library only."""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.bodies import prose
from benchmarks.worker import Operation

SIZES = {10: 200, 1_000: 4, 20_000: 1}  # session sizes, and the number of sessions of each
LONGEST = 100_000  # short messages; only for stores that fill quickly
WRITERS = (16, 64)
PER_WRITER = 8
IN_A_ROW = 20  # awaited appends per run
TURNS = 200
_numbers = itertools.count()
_connect = sqlite3.connect


def text() -> str:
    """Return two kilobytes that are never the same twice, so that no store can deduplicate them."""
    number = next(_numbers)
    return f"{number:09d} {prose(2_000, number % 1_000)}"[:2_000]


def safe_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """Return a connection that syncs every commit, regardless of the defaults of a library."""
    connection = _connect(*arguments, **options)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


sqlite3.connect = sqlite3.dbapi2.connect = safe_connect  # type: ignore[attr-defined]


class Contestant(Protocol):
    """A store with the measured operations; an asynchronous store also has ``loop`` and ``append_async``."""

    def seed(self, session: str, texts: list[str]) -> None: ...
    def append(self, session: str, content: str) -> None: ...
    def last(self, session: str, count: int) -> int: ...
    def close(self) -> None: ...


class StoreBench:
    """The stores of one contestant. One is open at a time, so that background work does not disturb others."""

    def __init__(self, open_store: Callable[[Path], Contestant]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-bench-", dir=os.environ.get("BENCH_FOLDER")))
        self._open_store = open_store
        self._name = ""
        self._store: Contestant | None = None

    def store(self, name: str, fill: Callable[[Any], None]) -> Any:
        """Return the store of that name, filled when it is created."""
        if self._name != name:
            self.close()
            path = self.folder / f"{name}.db"
            is_new = not path.exists()
            self._store, self._name = self._open_store(path), name
            if is_new:
                fill(self._store)
        return self._store

    def close(self) -> None:
        """Close the open store."""
        if self._store is not None:
            self._store.close()
        self._store, self._name = None, ""


def make_operations(
    open_store: Callable[[Path], Contestant], *, up_to: int = 20_000
) -> tuple[StoreBench, dict[str, Operation]]:
    """Return the operations of a store."""
    bench = StoreBench(open_store)
    operations: dict[str, Operation] = {}
    for size, sessions in (SIZES | {LONGEST: 1}).items():
        if size <= up_to:
            operations[f"append {size}"] = _append_operation(bench, size, sessions, is_async=True)
    operations["append from outside"] = _append_operation(bench, 10, SIZES[10], is_async=False)
    operations["last 50"] = (
        lambda: store_of_size(bench, 20_000, 1),
        lambda store: store.last("0", 50),
        lambda count: None if count == 50 else f"{count} messages",
    )
    for writers in WRITERS:
        operations[f"writers {writers}"] = (
            lambda writers=writers: (_writers_store(bench, writers), writers),
            lambda given: (getattr(given[0], "write_concurrently", None) or in_threads(given[0]))(given[1]),
            lambda _: None,
        )
    operations["size"] = (
        lambda: bench.folder / f"size-{next(_numbers)}.db",
        lambda path: _disk_ratio(open_store, path),
        lambda _: None,
    )
    return bench, operations


def store_of_size(bench: StoreBench, size: int, sessions: int) -> Any:
    """Return a store with this many sessions of this many messages; their names are numbers."""

    def fill(store: Contestant) -> None:
        for number in range(sessions):
            store.seed(str(number), [text() if size < LONGEST else "a short message" for _ in range(size)])

    return bench.store(str(size), fill)


def _writers_store(bench: StoreBench, writers: int) -> Any:
    def fill(store: Contestant) -> None:
        for number in range(writers):
            store.seed(f"of {number}", [text()])

    return bench.store(f"writers-{writers}", fill)


class _AppendJob:
    """Texts to append to a store, and the time of each append."""

    def __init__(self, store: Any, items: list[tuple[str, str]]) -> None:
        self.store = store
        self.items = items
        self.times_ns: list[int] = []

    async def run_async(self) -> None:
        """Append in a running event loop."""
        for session, content in self.items:
            start = time.perf_counter_ns()
            await self.store.append_async(session, content)
            self.times_ns.append(time.perf_counter_ns() - start)


def _append_operation(bench: StoreBench, size: int, sessions: int, *, is_async: bool) -> Operation:
    """Return an operation that appends to sessions of a size, round robin, so that they keep their size."""
    turns = itertools.count()

    def prepare() -> _AppendJob:
        store = store_of_size(bench, size, sessions)
        count = IN_A_ROW if is_async and hasattr(store, "append_async") else 1
        return _AppendJob(store, [(str(next(turns) % sessions), text()) for _ in range(count)])

    def append(appends: _AppendJob) -> None:
        if len(appends.items) > 1:
            appends.store.loop.run_until_complete(appends.run_async())
        else:
            appends.store.append(*appends.items[0])

    return prepare, append, lambda _: None


def in_threads(store: Contestant) -> Callable[[int], None]:
    """Return a function that runs this many writers, each in its own thread and session."""

    def write_concurrently(writers: int) -> None:
        failures: list[Exception] = []

        def write(number: int) -> None:
            try:
                for _ in range(PER_WRITER):
                    store.append(f"of {number}", text())
            except Exception as error:  # noqa: BLE001  raised below
                failures.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    return write_concurrently


def _disk_ratio(open_store: Callable[[Path], Contestant], path: Path) -> float:
    """Return bytes on disk per byte of content after a number of turns of two messages."""
    store = open_store(path)
    store.seed("one", [text(), text()])
    for _ in range(TURNS - 1):
        store.append("one", text())
        store.append("one", text())
    store.close()
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / (TURNS * 2 * 2_000)
