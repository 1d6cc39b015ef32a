"""A copy of a whole store while it is in use: a SQLite file, and a folder of large content beside it.

SQLite copies its own file page by page. Any other engine is read table by table, on one consistent view, into the same
tables of a new file; the index for searching is left out, and is built when the copy is used. Either way the copy is a
store that opens as any other, and it is looked at before it gets its name. The one rule: the name of a copy never
stands for half of one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from dragoman import permissions
from dragoman.blobs import FolderBlobs
from dragoman.errors import ConflictError, DamagedError
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.sqlite import SqliteStore
from dragoman.store.values import Verification

if TYPE_CHECKING:
    from dragoman.store.store import Store

Progress = Callable[[int, int], None]  # how much is done, and of how much; the unit is the same in both
_PAGE: Final = 500
_SHARES: Final = {"tables": 50, "blobs": 20, "look": 30}  # of a hundred


async def backup(store: Store, target: Path, progress: Progress | None) -> Verification:
    """Copy a store to a file, and look at the copy; ``DamagedError`` if it is not sound, which leaves it there."""
    if target.exists() or _beside(target).exists():
        what = "there is something already"
        raise ConflictError(what, where=str(target), remedy="Name another file", code="target_exists")
    made = target.with_name(f".{target.name}.part")
    _remove(made)
    told = _Told(progress)
    try:
        permissions.make_folder(target.parent)
        await _copy_tables(store, made, told.part("tables"))
        async with SqliteStore(made, FolderBlobs(_beside(made))) as copy:  # which leaves nothing beside the file
            await _copy_blobs(store, copy, told.part("blobs"))
            seen = await copy.verify(progress=told.part("look"))
        _publish(made, target)
    finally:
        _remove(made)
    if not seen.is_intact:
        first = seen.damage[0]
        raise DamagedError(
            f"{len(seen.damage)} things in the copy are not as they were written; the first: {first.what}",
            where=f"{target}, session {first.session_id}, message {first.seq}",
            remedy="The copy is there all the same; verify the store that it was made of",
        )
    return seen


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-blobs")


def _remove(made: Path) -> None:
    for end in ("", "-wal", "-shm", "-lock", "-mark", "-journal"):
        made.with_name(made.name + end).unlink(missing_ok=True)
    shutil.rmtree(_beside(made), ignore_errors=True)


def _publish(made: Path, target: Path) -> None:
    """Give a copy its name: the large content first, so that nothing is missing once the file is there."""
    if _beside(made).exists():
        _beside(made).rename(_beside(target))
    made.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Told:
    """Progress of several parts as one, in thousandths."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._before = 0

    def part(self, name: str) -> Progress:
        first, share = self._before, _SHARES[name]
        self._before += share

        def tell(done: int, of: int) -> None:
            if self._progress is not None:
                self._progress(10 * first + 10 * share * done // max(of, 1), 1000)

        return tell


# --- tables ----------------------------------------------------------------------------------------------------------


async def _copy_tables(store: Store, made: Path, progress: Progress) -> None:
    if isinstance(store, SqliteStore) and store.path is not None:
        await store.copy_to(made, progress)
        return
    connection = await asyncio.to_thread(SqliteStore(made, FolderBlobs(_beside(made)))._opened)
    try:
        await store._read(_copied(connection))
    finally:
        connection.close()
    progress(1, 1)


@operation
def _copied(target: apsw.Connection) -> Generator[Statement, Rows, None]:
    """Read every table in the order of its key, and write it to the target."""
    tables = [str(row[0]) for row in target.execute(_TABLES).fetchall()]
    with target:
        target.execute("PRAGMA defer_foreign_keys = ON")
        for table in tables:
            target.execute(f"DELETE FROM {table}")
        for table in tables:
            yield from _copied_table(target, table)


_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'search%' AND name NOT LIKE 'sqlite%'"
)


def _copied_table(target: apsw.Connection, table: str) -> Generator[Statement, Rows, None]:
    told = target.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
    described = [(str(name), pk) for name, pk in told]
    names = [name for name, _ in described if name != "number" or table != "messages"]
    key = ["session_id", "seq"] if table == "messages" else [name for name, pk in described if pk]
    into = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    columns, order = ", ".join(names), ", ".join(key)
    place = [names.index(name) for name in key]
    where, last = "", tuple[Any, ...]()
    while rows := (yield f"SELECT {columns} FROM {table}{where} ORDER BY {order} LIMIT {_PAGE}", last):
        target.executemany(into, (_unindexed(table, names, row) for row in rows))
        where, last = f" WHERE ({order}) > ({', '.join('?' * len(key))})", tuple(rows[-1][at] for at in place)


def _unindexed(table: str, names: list[str], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A session whose messages the index for searching lacks, which is not copied."""
    if table != "sessions":
        return row
    given = dict(zip(names, row, strict=True))
    is_behind = int(given["last_seq"] > given["parent_seq"])
    return tuple({**given, "indexed_seq": given["parent_seq"], "is_behind": is_behind}.values())


# --- large content ---------------------------------------------------------------------------------------------------


async def _copy_blobs(store: Store, copy: Store, progress: Progress) -> None:
    """Copy what the copy names. What is damaged or gone is found when the copy is looked at."""
    hashes = await copy._read(_named())
    for number, sha256 in enumerate(hashes, 1):
        try:
            await copy.blobs.put(sha256, await store.blobs.get(sha256))
        except DamagedError:
            continue
        progress(number, len(hashes))


@operation
def _named() -> Generator[Statement, Rows, list[str]]:
    rows = yield "SELECT DISTINCT sha256 FROM blob_refs ORDER BY sha256", ()
    return [row[0] for row in rows]
