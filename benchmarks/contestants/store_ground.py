"""What every store is measured on: the texts, the folder, the threads. Nothing but the standard library."""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.bodies import prose
from benchmarks.worker import Operation

SIZES = (10, 1_000, 20_000)
WRITERS = (16, 64)
PER_WRITER = 8
IN_A_ROW = 20
TURNS = 200
_numbers = itertools.count()
_connect = sqlite3.connect


def text() -> str:
    """Two kilobytes, never the same twice, so that nobody stores it once."""
    number = next(_numbers)
    return f"{number:09d} {prose(2_000, number % 1_000)}"[:2_000]


def safe_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """A connection that syncs every commit, whatever the library would have chosen."""
    connection = _connect(*arguments, **options)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


sqlite3.connect = sqlite3.dbapi2.connect = safe_connect  # type: ignore[attr-defined]


class Contestant(Protocol):
    """A store with the few things that are measured."""

    def seed(self, session: str, texts: list[str]) -> None: ...
    def append(self, session: str, text: str) -> None: ...
    def last(self, session: str, count: int) -> int: ...
    def close(self) -> None: ...


def operations_of(opened: Callable[[Path], Contestant]) -> dict[str, Operation]:
    """What can be measured of a store."""
    folder = Path(tempfile.mkdtemp(prefix="store-bench-", dir=os.environ.get("BENCH_FOLDER")))
    made: dict[str, Operation] = {}
    store = opened(folder / "row.db")
    store.seed("one", [text() for _ in range(10)])
    made["appends in a row"] = (
        lambda: [text() for _ in range(IN_A_ROW)],
        getattr(store, "append_in_a_row", None) or one_by_one(store),
        lambda _: None,
    )
    for size in SIZES:
        store = opened(folder / f"{size}.db")
        store.seed("one", [text() for _ in range(size)])
        made[f"append {size}"] = (text, lambda said, store=store: store.append("one", said), lambda _: None)
    made["last 50"] = (  # of the longest
        lambda: 50,
        lambda count, store=store: store.last("one", count),
        lambda count: None if count == 50 else f"{count} messages",
    )
    for writers in WRITERS:
        store = opened(folder / f"writers-{writers}.db")
        for number in range(writers):
            store.seed(f"of {number}", [text()])
        made[f"writers {writers}"] = (
            lambda writers=writers: writers,
            getattr(store, "written_by", None) or in_threads(store),
            lambda _: None,
        )
    made["size"] = (lambda: folder / f"size-{next(_numbers)}.db", lambda path: _ratio(opened, path), lambda _: None)
    return made


def one_by_one(store: Contestant) -> Callable[[list[str]], None]:
    """So many appends, one after another."""

    def append(texts: list[str]) -> None:
        for said in texts:
            store.append("one", said)

    return append


def in_threads(store: Contestant) -> Callable[[int], None]:
    """So many writers, each in a thread and a session of its own."""

    def written_by(writers: int) -> None:
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

    return written_by


def _ratio(opened: Callable[[Path], Contestant], path: Path) -> float:
    """Bytes on disk for each byte of content, after so many turns of two messages."""
    store = opened(path)
    for _ in range(TURNS):
        store.append("one", text())
        store.append("one", text())
    store.close()
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / (TURNS * 2 * 2_000)
