"""Copy a whole store while it is in use: a SQLite file, and a folder of blobs beside it.

SQLite copies its own file page by page. Another engine is read table by table, on one consistent view, into the same
tables of a new file, without the search index, which is rebuilt when the copy is used. The copy is an ordinary store
and is verified before it gets its name.

Invariant: a file with the name of the copy is never incomplete.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from dragoman import permissions
from dragoman.errors import ConflictError, CorruptDataError
from dragoman.store.blobs import FolderBlobs
from dragoman.store.engines.sqlite import SqliteStore
from dragoman.store.operation import Steps, operation
from dragoman.store.types import Verification

if TYPE_CHECKING:
    from dragoman.store.store import Store

Progress = Callable[[int, int], None]  # how much is done, and of how much; the unit is the same in both
_PAGE: Final = 500
_STAGE_PERCENT: Final = {"tables": 50, "blobs": 20, "look": 30}  # of a hundred


async def backup(store: Store, target: Path, progress: Progress | None) -> Verification:
    """Copy a store to a file and verify the copy; ``CorruptDataError`` if the copy is damaged, which keeps the file."""
    if target.exists() or _blob_folder(target).exists():
        what = "the file or its blob folder exists already"
        raise ConflictError(what, where=str(target), remedy="Name another file", code="target_exists")
    partial = target.with_name(f".{target.name}.part")
    _remove_files(partial)
    stages = _BackupProgress(progress)
    try:
        permissions.make_folder(target.parent)
        await _copy_tables(store, partial, stages.stage("tables"))
        async with SqliteStore(partial, FolderBlobs(_blob_folder(partial))) as copy:
            await _copy_blobs(store, copy, stages.stage("blobs"))
            verification = await copy.verify(progress=stages.stage("look"))
        _publish(partial, target)
    finally:
        _remove_files(partial)
    if not verification.is_intact:
        first = verification.damage[0]
        raise CorruptDataError(
            f"{len(verification.damage)} problems were found in the copy; the first: {first.what}",
            where=f"{target}, session {first.session_id}, message {first.seq}",
            remedy="The copy was kept; run dragoman verify on the original store",
        )
    return verification


def _blob_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}-blobs")


def _remove_files(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-lock", "-mark", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    shutil.rmtree(_blob_folder(path), ignore_errors=True)


def _publish(partial: Path, target: Path) -> None:
    """Rename a finished copy: the blobs first, so that the file never refers to missing blobs."""
    if _blob_folder(partial).exists():
        _blob_folder(partial).rename(_blob_folder(target))
    partial.rename(target)
    permissions.sync_folder(target.parent)


class _BackupProgress:
    """Progress of all stages as one figure, in thousandths."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._start = 0

    def stage(self, name: str) -> Progress:
        start, share = self._start, _STAGE_PERCENT[name]
        self._start += share

        def report(done: int, total: int) -> None:
            if self._progress is not None:
                self._progress(10 * start + 10 * share * done // max(total, 1), 1000)

        return report


# --- tables ----------------------------------------------------------------------------------------------------------


async def _copy_tables(store: Store, partial: Path, progress: Progress) -> None:
    if isinstance(store, SqliteStore) and store.path is not None:
        await store.copy_to(partial, progress)
        return
    connection = await asyncio.to_thread(SqliteStore(partial, FolderBlobs(_blob_folder(partial)))._open_and_migrate)
    try:
        await store._read(_copy_rows(connection))
    finally:
        connection.close()
    progress(1, 1)


@operation
def _copy_rows(target: apsw.Connection) -> Steps[None]:
    """Read every table in the order of its key, and write it to the target."""
    tables = [str(row[0]) for row in target.execute(_TABLES).fetchall()]
    with target:
        target.execute("PRAGMA defer_foreign_keys = ON")
        for table in tables:
            target.execute(f"DELETE FROM {table}")
        for table in tables:
            yield from _copy_table(target, table)


_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'search%' AND name NOT LIKE 'sqlite%'"
)


def _copy_table(target: apsw.Connection, table: str) -> Steps[None]:
    info = target.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
    fields = [(str(name), pk) for name, pk in info]
    names = [name for name, _ in fields if name != "number" or table != "messages"]
    key = ["session_id", "seq"] if table == "messages" else [name for name, pk in fields if pk]
    insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    columns, order = ", ".join(names), ", ".join(key)
    key_indexes = [names.index(name) for name in key]
    where, last = "", tuple[Any, ...]()
    while rows := (yield f"SELECT {columns} FROM {table}{where} ORDER BY {order} LIMIT {_PAGE}", last):
        target.executemany(insert, (_reset_index_columns(table, names, row) for row in rows))
        where, last = f" WHERE ({order}) > ({', '.join('?' * len(key))})", tuple(rows[-1][at] for at in key_indexes)


def _reset_index_columns(table: str, names: list[str], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Mark a session as not indexed: the search index is not copied."""
    if table != "sessions":
        return row
    columns = dict(zip(names, row, strict=True))
    is_behind = int(columns["last_seq"] > columns["parent_seq"])
    return tuple({**columns, "indexed_seq": columns["parent_seq"], "is_behind": is_behind}.values())


# --- blobs -----------------------------------------------------------------------------------------------------------


async def _copy_blobs(store: Store, copy: Store, progress: Progress) -> None:
    """Copy the blobs that the copy refers to. Verification reports damaged and missing ones."""
    hashes = await copy._read(_list_blob_refs())
    for number, sha256 in enumerate(hashes, 1):
        try:
            await copy.blobs.put(sha256, await store.blobs.get(sha256))
        except CorruptDataError:
            continue
        progress(number, len(hashes))


@operation
def _list_blob_refs() -> Steps[list[str]]:
    rows = yield "SELECT DISTINCT sha256 FROM blob_refs ORDER BY sha256", ()
    return [row[0] for row in rows]
