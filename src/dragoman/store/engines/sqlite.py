"""SQLite: one file, one writer at a time, power-safe.

``write_scheduler`` commits the writes of a process from one thread, ``loop_writer`` those of a few rows on the event
loop. Reads have two threads with connections of their own, and never wait for a write; reads of a few rows run on the
event loop. A store in memory has one connection and one thread for everything.

Invariant: nothing but volatile operations is acknowledged before its commit is synced. A setting or a file system that
would break this is detected at the start, and the store is not opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
import os
import queue
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from pathlib import Path
from typing import Any, Final, cast

import apsw

from dragoman import permissions
from dragoman.errors import CorruptDataError, StorageError, StoreError, StoreUnusableError
from dragoman.message import is_possible_cost
from dragoman.store import high_water
from dragoman.store.blobs import Blobs
from dragoman.store.engines.loop_writer import LoopWriter
from dragoman.store.engines.tables import check_version, migrations
from dragoman.store.engines.write_scheduler import (
    DISK_FULL_ERRNOS,
    HAS_LOCKS,
    Failure,
    Job,
    Jobs,
    WriterLock,
    WriteScheduler,
    is_disk_full,
    resolve,
    run_operation,
    run_read,
    transaction,
    translate_error,
)
from dragoman.store.high_water import HighWaterMark
from dragoman.store.lease_clock import boot_id, restart_leases
from dragoman.store.operation import AnyOperation, Operation, Outcome
from dragoman.store.row_hash import CALL_FIELDS, call_hash
from dragoman.store.store import Store, now_utc

_log: Final = logging.getLogger("dragoman.store")
_HEADER: Final = 72  # bytes; the last four are the application id
_APPLICATION_ID: Final = 0x44524147  # "DRAG"
_MIN_VERSION: Final = (3, 51, 3)  # older versions may corrupt a file: a concurrent write and checkpoint
_ENDS: Final = "SELECT id, last_seq FROM sessions"
_MIGRATION_COPY: Final = re.compile(r"\.schema-\d+")
_PAGE_SIZE: Final = 2048  # small pages waste less space at the end of a message
_LOCK_TIMEOUT_S: Final = 60  # wait for the lock of another program
_READERS: Final = 2
_WAL_SIZE_LIMIT: Final = 8 * 1024 * 1024  # of the log after a restart
_SETTINGS: Final = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "mmap_size": 0}
_EXACT_CONTEXT: Final = Context(prec=5_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_MOUNTS: Final = Path("/proc/self/mounts")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # the escape of a space in a path
_NETWORK_FILE_SYSTEMS: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "glusterfs", "ceph")


class SqliteStore(Store):
    """Sessions in a SQLite file, or in memory."""

    engine = "sqlite"

    def __init__(
        self,
        path: Path | None,
        blobs: Blobs,
        clock: Callable[[], Any] = now_utc,
        *,
        synchronous: str = "FULL",
    ) -> None:
        super().__init__(blobs, clock)
        self.path = path
        self._name = str(path)
        self._read_copy: tempfile.TemporaryDirectory[str] | None = None  # a copy that is read instead of the file
        self.mark = HighWaterMark(path)
        self.durability = "power-safe" if path is not None else "memory"
        self._synchronous = synchronous
        self._write_queue: Jobs = queue.SimpleQueue()
        self._read_queue: Jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop_writer: LoopWriter | None = None

    @property
    def local_paths(self) -> tuple[Path, ...]:
        return super().local_paths if self.path is None else (self.path, *super().local_paths)

    async def open(self) -> None:
        if self.path is not None and _is_read_only(self.path):
            await asyncio.to_thread(self._make_read_copy, self.path)
        connection = await asyncio.to_thread(self._open_and_migrate)
        if self._read_copy is None:
            await asyncio.to_thread(self.mark.compact)
        self._start(WriteScheduler(connection, self._write_queue, self._lock(), self._connect))
        if self.path is None:
            self._read_queue = self._write_queue
        for _ in range(_READERS if self.path is not None else 0):
            self._start(_Reader(await asyncio.to_thread(self._connect), self._read_queue))
        if self.path is not None and self._read_copy is None and HAS_LOCKS:
            log = self.path.with_name(f"{self.path.name}-wal")
            self._loop_writer = LoopWriter(log, self._lock(), self._connect, self._write_queue)
        self.search_index.start()

    def _start(self, worker: WriteScheduler | _Reader) -> None:
        thread = threading.Thread(target=worker.run, name=f"dragoman-{type(worker).__name__.lower()}", daemon=True)
        thread.start()
        self._threads.append(thread)

    async def close(self) -> None:
        await self.search_index.stop()
        loop_writer, self._loop_writer = self._loop_writer, None
        if loop_writer is not None:
            await loop_writer.close()
        self._write_queue.put(None)
        for _ in self._threads[1:]:
            self._read_queue.put(None)
        threads, self._threads = self._threads, []
        for thread in threads:
            await asyncio.to_thread(thread.join)
        self.mark.flush()
        if self._read_copy is not None:
            await asyncio.to_thread(self._read_copy.cleanup)

    def _make_read_copy(self, path: Path) -> None:
        """Copy a store on read-only media and read the copy: reading an existing log needs a writable folder."""
        self._read_copy = tempfile.TemporaryDirectory(prefix="dragoman-", ignore_cleanup_errors=True)
        self.path = Path(self._read_copy.name) / path.name
        try:
            for end in ("", "-wal"):
                if (file := path.with_name(path.name + end)).exists():
                    copy = self.path.with_name(self.path.name + end)
                    permissions.create_file(copy)
                    shutil.copyfile(file, copy)
        except OSError as error:
            self._read_copy.cleanup()
            raise StoreUnusableError(f"it cannot be copied to be read ({error})", where=str(path)) from None

    async def _write(self, operation: AnyOperation[Outcome]) -> Outcome:
        if self._read_copy is not None:
            raise StorageError(
                "it lies on media that can only be read; nothing was stored",
                where=self._name,
                remedy="Copy it to a folder that can be written, with dragoman backup",
                code="read_only",
            )
        return await self._write_index(operation)

    def _start_write(self, operation: AnyOperation[Outcome]) -> asyncio.Future[Outcome]:
        writer = self._find_loop_writer(operation)  # a store on read-only media has none
        if writer is None:
            return super()._start_write(operation)
        writer.submit(job := Job(operation))
        return cast("asyncio.Future[Outcome]", job.future)

    async def _write_index(self, operation: AnyOperation[Outcome]) -> Outcome:
        writer = self._find_loop_writer(operation)
        if writer is None:
            return await self._submit(self._write_queue, operation)
        writer.submit(job := Job(operation))
        return cast("Outcome", await job.future)

    async def _commit(self, operation: AnyOperation[Outcome]) -> tuple[Outcome, Awaitable[Any]]:
        writer = self._find_loop_writer(operation)
        if writer is None:
            return await super()._commit(operation)
        job = Job(operation)
        job.committed = asyncio.get_running_loop().create_future()
        job.future.add_done_callback(job.copy_outcome)  # if the writer thread commits it
        writer.submit(job)
        try:
            return cast("Outcome", await job.committed), job.future
        except BaseException:
            job.future.add_done_callback(_note_outcome)
            raise

    async def _read(self, operation: AnyOperation[Outcome]) -> Outcome:
        writer = self._find_loop_writer(operation)
        if writer is not None:
            with contextlib.suppress(apsw.BusyError, apsw.LockedError):
                return cast("Outcome", writer.read(operation))
        return await self._submit(self._read_queue, operation)

    def _find_loop_writer(self, operation: AnyOperation[Any]) -> LoopWriter | None:
        """The writer of this event loop, if it may run the operation."""
        writer = self._loop_writer
        is_quick = isinstance(operation, Operation) and operation.is_quick
        return writer if is_quick and writer is not None and writer.is_ready else None

    def _submit(self, jobs: Jobs, operation: AnyOperation[Outcome]) -> asyncio.Future[Outcome]:
        if not self._threads:
            raise self._not_open_error()
        job = Job(operation)
        jobs.put(job)
        return job.future

    def _not_open_error(self) -> StoreUnusableError:
        return StoreUnusableError("it is not open", where=self._where, remedy="Use it inside 'async with'")

    @property
    def _where(self) -> str:
        return str(self.path) if self.path is not None else "memory"

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open_and_migrate(self) -> apsw.Connection:
        if self.path is not None:
            if tuple(map(int, apsw.sqlite_lib_version().split("."))) < _MIN_VERSION:
                raise self._unsafe_error(
                    f"SQLite {apsw.sqlite_lib_version()} may corrupt a file that two connections write"
                )
            kind = _file_system(self.path.parent)
            if kind in _NETWORK_FILE_SYSTEMS:
                raise self._unsafe_error(f"it lies on a network file system ({kind}), where locks cannot be relied on")
        lock = self._lock()
        try:
            if self.path is not None:
                permissions.make_folder(self.path.parent)
                self._check_file(self.path)
            with lock:
                if self.path is not None:
                    _restrict_files(self.path)
                connection = self._connect()
                try:
                    self._migrate(connection)
                    self._restart_leases(connection)
                    if self._read_copy is None:
                        self.mark.start(lambda: connection.execute(_ENDS).fetchall(), self.clock())
                        self._record_losses(connection)
                except apsw.Error as error:
                    raise self._open_error(error, is_full=is_disk_full(error, connection)) from None
                return connection
        except OSError as error:
            raise self._open_error(error, is_full=error.errno in DISK_FULL_ERRNOS) from None
        finally:
            lock.close()

    def _record_losses(self, connection: apsw.Connection) -> None:
        """Record in the mark which sessions lack acknowledged messages, before new messages are appended."""
        state = self.mark.read()
        if state is None:
            return
        try:
            losses = run_read(connection, high_water.compare_ends(state))
        except (apsw.Error, CorruptDataError, UnicodeDecodeError):
            return  # a damaged file; ``verify`` reports where
        self.mark.record_losses(losses)
        if losses or state.is_damaged:
            what = f"messages are missing at the end of {len(losses)} sessions" if losses else "its mark is damaged"
            _log.warning("%s: %s. Run dragoman verify", self._where, what)

    def _check_file(self, path: Path) -> None:
        """Raise unless the file may be a store, before a file is created beside it."""
        try:
            if path.exists() and _header(path)[:16] not in (b"", b"SQLite format 3\0"):
                raise StoreUnusableError("the file is not a SQLite database", where=self._where, code="not_a_store")
        except apsw.Error as error:
            raise self._open_error(error, is_full=False) from None

    def _connect(self) -> apsw.Connection:
        try:
            connection = apsw.Connection(str(self.path) if self.path is not None else ":memory:")
        except apsw.Error as error:
            raise self._open_error(error, is_full=False) from None
        try:
            connection.set_busy_timeout(
                _LOCK_TIMEOUT_S * 1000
            )  # before the first read: another process may be recovering the file
            self._check_ownership(connection)
            self._apply_settings(connection, _SETTINGS if self.path is not None else {"foreign_keys": 1})
            connection.pragma("journal_size_limit", _WAL_SIZE_LIMIT)
        except BaseException as error:
            is_full = isinstance(error, apsw.Error) and is_disk_full(error, connection)
            connection.close()
            if isinstance(error, apsw.NotADBError):
                raise StoreUnusableError(
                    "the file is not a SQLite database", where=self._where, code="not_a_store"
                ) from None
            if isinstance(error, apsw.Error):
                raise self._open_error(error, is_full=is_full) from None
            raise
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # a plan is independent of values and is made once
        connection.create_aggregate_function("decimal_sum", _DecimalSum, 1)
        connection.create_scalar_function("call_hash", call_hash, len(CALL_FIELDS), deterministic=True)
        connection.create_scalar_function("lease_now", lambda *_: time.monotonic_ns() // 1_000, 0, deterministic=True)
        return connection

    def _apply_settings(self, connection: apsw.Connection, settings: Mapping[str, Any]) -> None:
        """Apply the settings, and verify each of them."""
        if not connection.pragma("user_version"):
            connection.pragma("page_size", _PAGE_SIZE)
        for name, expected in settings.items():
            connection.pragma(name, self._synchronous if name == "synchronous" else expected)
        for name, expected in settings.items():
            if (actual := connection.pragma(name)) != expected:
                raise self._unsafe_error(f"{name} is {actual!r} and should be {expected!r}; an answer could be lost")

    def _open_error(self, error: Exception, *, is_full: bool) -> StoreError:
        if is_full:
            what = "it cannot be opened: the disk is full, and even reading needs a little room"
            return StorageError(what, where=self._where, remedy="Make room, and open it again", code="disk_full")
        return StoreUnusableError(f"it cannot be opened ({error})", where=self._where, code="cannot_open")

    def _unsafe_error(self, what: str) -> StoreUnusableError:
        return StoreUnusableError(
            what, where=self._where, remedy="Put the file on a local disk, and leave its settings"
        )

    def _check_ownership(self, connection: apsw.Connection) -> None:
        """Raise unless this version may write the file. No setting is changed before."""
        if connection.readonly("main"):
            remedy = "Make it writable, or name another file"
            raise StoreUnusableError("the file is read-only", where=self._where, remedy=remedy, code="cannot_open")
        is_ours = connection.pragma("application_id") == _APPLICATION_ID
        if not is_ours and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
            raise StoreUnusableError(
                "the SQLite file belongs to another application",
                where=self._where,
                remedy="Name another file",
                code="not_a_store",
            )
        check_version(connection.pragma("user_version"), "sqlite", self._where)

    def _migrate(self, connection: apsw.Connection) -> None:
        version, steps = connection.pragma("user_version"), migrations("sqlite")
        if 0 < version < len(steps) and self.path is not None:
            _copy(connection, self.path.with_name(f"{self.path.name}.schema-{version}"))
        for number in range(version, len(steps)):
            with transaction(connection):
                connection.execute(steps[number]).fetchall()
                connection.pragma("user_version", number + 1)
                connection.pragma("application_id", _APPLICATION_ID)

    def _restart_leases(self, connection: apsw.Connection) -> None:
        clock_id = boot_id()
        if connection.execute("SELECT id FROM lease_clock").fetchall() != [(clock_id,)]:
            with transaction(connection):
                run_operation(connection, restart_leases(clock_id))

    def _lock(self) -> WriterLock:
        return WriterLock(self.path.with_name(f"{self.path.name}-lock") if self.path is not None else None)

    # --- erasing -----------------------------------------------------------------------------------------------------

    async def _scrub(self) -> None:
        if self.path is not None:
            await asyncio.to_thread(self._vacuum)

    def _vacuum(self) -> None:
        """Rewrite the file without its free pages, and truncate the log."""
        lock, connection = self._lock(), self._connect()
        try:
            with lock:
                connection.execute("VACUUM").fetchall()
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        except apsw.Error as error:
            raise translate_error(error, connection) from error
        finally:
            connection.close()
            lock.close()
        if is_busy:
            raise StorageError(
                "deleted content is still in the log beside the database, because another program reads from it",
                where=self._where,
                remedy="End it, and do the same again",
            )

    def _find_copies(self, *, delete: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.path is None:
            return (), ()
        self.mark.compact(force=True)  # it contains session ids
        deleted: list[str] = []
        remaining: list[str] = []
        for file in sorted(self.path.parent.iterdir()):
            if file.name == self.path.name or not _is_store_file(file):
                continue
            if delete and _MIGRATION_COPY.fullmatch(file.name.removeprefix(self.path.name)) is not None:
                file.unlink()
                deleted.append(file.name)
            else:
                remaining.append(file.name)
        return tuple(deleted), tuple(remaining)

    # --- backup ------------------------------------------------------------------------------------------------------

    async def copy_to(self, target: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy a snapshot of the database to another file. ``progress`` receives the copied pages and all pages."""
        connection = await asyncio.to_thread(self._connect)
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            if progress is not None:
                loop.call_soon_threadsafe(progress, done, total)

        try:
            await asyncio.to_thread(_copy, connection, target, report)
        finally:
            await asyncio.to_thread(connection.close)


def _note_outcome(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of an operation, which the commit has raised in the caller."""
    if not future.cancelled():
        future.exception()


def _copy(source: apsw.Connection, target: Path, report: Callable[[int, int], object] | None = None) -> None:
    target.unlink(missing_ok=True)
    permissions.create_file(target)
    copy = apsw.Connection(str(target))
    try:
        with transaction(source, "DEFERRED"), copy.backup("main", source, "main") as backup:
            source.execute("SELECT 1 FROM sqlite_schema").fetchall()  # starts the snapshot
            while not backup.done:
                backup.step(1024)
                if report is not None:
                    report(backup.page_count - backup.remaining, backup.page_count)
        copy.pragma("journal_mode", "delete")  # one file, without a log
    finally:
        copy.close()


def _restrict_files(path: Path) -> None:
    """Create the file with mode 0600 if it does not exist, and restrict existing files.

    SQLite creates the log and its index with the mode of the database file.
    """
    permissions.create_file(path)
    real = Path(os.path.realpath(path))
    beside = [path.with_name(f"{path.name}-lock"), *path.parent.glob(f"{glob.escape(path.name)}.schema-*")]
    logs = (real.with_name(real.name + end) for end in ("-wal", "-shm", "-journal"))
    permissions.restrict(path, *logs, *beside)


def _is_read_only(path: Path) -> bool:
    """Whether the file exists and its folder is read-only."""
    return path.is_file() and not os.access(path.parent, os.W_OK)


def _is_store_file(file: Path) -> bool:
    """Whether a file is a store, by its header."""
    try:
        header = _header(file)
    except apsw.Error:
        return False
    return header.startswith(b"SQLite format 3\0") and header[_HEADER - 4 :] == _APPLICATION_ID.to_bytes(4)


def _header(file: Path) -> bytes:
    """Return the first bytes of a file, the last four of which are the application id of a SQLite file.

    They are read through SQLite: closing our own descriptor would release the POSIX locks of every connection of this
    process to the same file.
    """
    vfs_file = apsw.VFSFile("", str(file.absolute()), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return vfs_file.xRead(min(_HEADER, vfs_file.xFileSize()), 0)
    finally:
        vfs_file.xClose()


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder; empty if unknown."""
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    fields = (line.split(" ") for line in mounts)
    kinds = {_OCTAL.sub(lambda found: chr(int(found[1], 8)), field[1]): field[2] for field in fields if len(field) > 2}
    return next(
        (kinds[str(place)] for place in (folder.resolve(), *folder.resolve().parents) if str(place) in kinds), ""
    )


class _DecimalSum:
    """An exact sum of decimal texts, which SQLite would add as floats. Impossible amounts are left out."""

    def __init__(self) -> None:
        self._sum = Decimal(0)

    def step(self, *amounts: Any) -> None:
        try:
            amount = Decimal(amounts[0])
            if is_possible_cost(amount):
                self._sum = _EXACT_CONTEXT.add(self._sum, amount)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise CorruptDataError(f"an amount is not a number ({error})", remedy="Run dragoman verify") from None

    def final(self) -> str:
        return str(self._sum)


class _Reader:
    """The body of a reader thread."""

    def __init__(self, connection: apsw.Connection, jobs: Jobs) -> None:
        self._connection = connection
        self._jobs = jobs

    def run(self) -> None:
        """Run the jobs of the queue until it yields ``None``."""
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Job):
                resolve([job], [self._read(job.operation)])
        self._connection.close()

    def _read(self, operation: AnyOperation[Any]) -> Any:
        try:
            with transaction(self._connection, "DEFERRED"):
                return run_read(self._connection, operation)
        except Exception as error:  # noqa: BLE001  it is raised where the operation is awaited
            return Failure(translate_error(error, self._connection))
