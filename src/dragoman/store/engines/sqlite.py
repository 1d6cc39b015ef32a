"""SQLite: one file, one writer at a time, power-safe.

All writing of a process goes through one connection, and as a rule through one thread. What waits while a commit is
under way is committed together with the next one, so that many writers share the price of one sync. A write or two on a
disk that has been quick so far are done where they were asked for, because to change threads would take longer, and so
is reading a little. Several processes take turns by a lock file beside the database, at which they wait without
polling; a single statement goes in between, and only whoever has the lock has to look again. Reading has connections of
its own and never waits.

The one rule: nothing is acknowledged before the commit that holds it has returned with ``synchronous=FULL``, but for
leases, which matter only while the machine runs. A setting that would make this a lie is found at the start, and the
store is not opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import glob
import logging
import os
import queue
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, cast

import apsw
import msgspec

from dragoman import permissions
from dragoman.errors import CorruptDataError, FormatError, StorageError, StoreError, StoreUnusableError
from dragoman.message import is_possible_cost
from dragoman.store import high_water
from dragoman.store.blobs import Blobs
from dragoman.store.engines import single_statement
from dragoman.store.engines.tables import check_version, migrations
from dragoman.store.high_water import HighWaterMark
from dragoman.store.lease_clock import boot_id, machine_now, restart_leases
from dragoman.store.operation import (
    FOR_KEY_SHARE,
    FOR_UPDATE,
    BulkOperation,
    Rows,
    VolatileOperation,
    validate_arguments,
)
from dragoman.store.row_hash import CALL_FIELDS, call_hash
from dragoman.store.store import Operation, Result, Store, now_utc

try:
    import fcntl
except ImportError:  # not a POSIX system: SQLite's own waiting has to do
    fcntl = None  # type: ignore[assignment]

_log: Final = logging.getLogger("dragoman.store")
_HEADER: Final = 72  # bytes at the beginning of a file, of which the last four are the application id
_APPLICATION_ID: Final = 0x44524147  # "DRAG"
_MIN_VERSION: Final = (3, 51, 3)  # before it, two connections that write and checkpoint at once may corrupt the file
_ENDS: Final = "SELECT id, last_seq FROM sessions"
_MIGRATION_COPY: Final = re.compile(r"\.schema-\d+")
_PAGE_SIZE: Final = 2048  # a message seldom fills a whole number of pages: with small ones, little stays empty
_LOCK_TIMEOUT_S: Final = 60  # that a program may keep the database locked
_SHORTLY_S: Final = 0.000_05  # between two looks whether somebody still writes without our lock,
_OFTEN: Final = 100  # of which there are so many, and after them
_BRIEFLY_S: Final = 0.005
_MAX_BATCH: Final = 512
_FEW: Final = 4  # that are written where they were asked for, rather than while the others of the loop go on
_PATIENCE_S: Final = 0.002  # for which others wait while one writes; one more write may begin until then
_CROWDED: Final = 2  # turns of the loop, after one in which several have written
_READERS: Final = 2
_CHECKPOINT_PAGES: Final = 1_000  # in the log beside the database, before they are copied into it
_UNSEEN: Final = 15  # statements that are done without a look at the log: each of them fills a few pages
_WAL_SIZE_LIMIT: Final = 8 * 1024 * 1024  # that the log keeps of the disk when it begins anew, after it had to grow
_QUICK_S: Final = 0.001  # a commit that blocks nobody for longer than a message takes to be translated
_SYNC_LATER: Final = "PRAGMA synchronous=NORMAL"  # with the next commit that is synced
_UNKNOWN_S: Final = 0.05  # what is assumed of a disk at first
_FORGETTING: Final = 0.8  # what a slow commit still counts for, at each one after it
_SETTINGS: Final = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "mmap_size": 0}
_EXACT_CONTEXT: Final = Context(prec=5_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_MOUNTS: Final = Path("/proc/self/mounts")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # how a space in a path is written there
_DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
_NETWORK_FILE_SYSTEMS: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "glusterfs", "ceph")

Job = tuple[Operation[Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
Item = Job | list[Job]  # what is put into a queue: one job, or several that are to be done together


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
        self._read_copy: tempfile.TemporaryDirectory[str] | None = None  # what is read in place of it
        self.mark = HighWaterMark(path)
        self.durability = "power-safe" if path is not None else "memory"
        self._synchronous = synchronous
        self._write_queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._read_queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._writer: _Writer | None = None
        self._reader: _Reader | None = None  # that reads where it is asked
        self._asked_now: list[Job] = []  # what one turn of the event loop has asked to be written
        self._crowded = 0  # turns of the loop in which several are expected to write
        self._kept_by: asyncio.Task[Any] | None = None  # who has written where it was asked for in this turn of it, and
        self._kept_since = 0.0

    @property
    def local_paths(self) -> tuple[Path, ...]:
        return super().local_paths if self.path is None else (self.path, *super().local_paths)

    async def open(self) -> None:
        if self.path is not None and _is_read_only(self.path):
            await asyncio.to_thread(self._make_read_copy, self.path)
        connection = await asyncio.to_thread(self._open_and_migrate)
        if self._read_copy is None:
            await asyncio.to_thread(self.mark.compact)
        self._writer = _Writer(connection, self._write_queue, self._lock(), self._connect)
        self._start(self._writer)
        if self.path is None:
            self._read_queue = self._write_queue
        for _ in range(_READERS if self.path is not None else 0):
            self._reader = _Reader(await asyncio.to_thread(self._connect), self._read_queue)
            self._start(self._reader)
        self.search_index.start()

    def _start(self, worker: _Writer | _Reader) -> None:
        thread = threading.Thread(target=worker.run, name=f"dragoman-{type(worker).__name__.lower()}", daemon=True)
        thread.start()
        self._threads.append(thread)

    async def close(self) -> None:
        await self.search_index.stop()
        if self._asked_now:
            self._hand_over()
        self._write_queue.put(None)
        for _ in self._threads[1:]:
            self._read_queue.put(None)
        threads, self._threads, self._writer = self._threads, [], None
        for thread in threads:
            await asyncio.to_thread(thread.join)
        self.mark.flush()
        if self._read_copy is not None:
            await asyncio.to_thread(self._read_copy.cleanup)

    def _make_read_copy(self, path: Path) -> None:
        """Read a copy of a store on media that cannot be written: even reading a log that is there needs a file."""
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

    async def _write(self, operation: Operation[Result]) -> Result:
        if self._read_copy is not None:
            raise StorageError(
                "it lies on media that can only be read; nothing was stored",
                where=self._name,
                remedy="Copy it to a folder that can be written, with dragoman backup",
                code="read_only",
            )
        return await self._write_index(operation)

    async def _write_index(self, operation: Operation[Result]) -> Result:
        if not self._threads:
            raise self._not_open_error()
        loop = asyncio.get_running_loop()
        if not (self._crowded or self._asked_now) and self._may_wait(loop):
            outcomes = self._writer.commit_inline([operation])  # type: ignore[union-attr]
            if outcomes is not None:
                return cast("Result", _unwrap(outcomes[0]))
        future = loop.create_future()
        waiting = self._asked_now
        if not waiting:
            loop.call_soon(self._hand_over)  # whoever else is about to write comes first
        elif waiting[0][1] is not loop:
            self._write_queue.put([(operation, loop, future)])
            return cast("Result", await future)
        waiting.append((operation, loop, future))
        return cast("Result", await future)

    def _may_write_at_once(self) -> bool:
        writer = self._writer
        if self._crowded or self._asked_now or writer is None or not writer.is_quick or self._read_copy is not None:
            return False
        return self._may_wait(asyncio.get_running_loop())

    def _write_at_once(self, sql: str, arguments: Sequence[Any]) -> Rows | None:
        return self._writer.execute_inline(sql, arguments) if self._writer is not None else None

    def _are_others_due(self) -> bool:
        if self._kept_by is None or perf_counter() - self._kept_since < _PATIENCE_S:
            return False
        return self._kept_by is asyncio.current_task()

    def _may_wait(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the loop may be kept waiting for one write more: of one task, and not for long before it goes on."""
        task = asyncio.current_task(loop)
        if self._kept_by is None:
            loop.call_soon(self._go_on)
            self._kept_by, self._kept_since = task, perf_counter()
            return True
        if self._kept_by is not task:
            self._crowded = _CROWDED
            return False
        return perf_counter() - self._kept_since < _PATIENCE_S

    def _go_on(self) -> None:
        self._kept_by = None

    def _hand_over(self) -> None:
        """Write what was asked for: here, if it is little and will not take long, or else in the writer's thread."""
        jobs, self._asked_now = self._asked_now, []
        self._crowded = _CROWDED if len(jobs) > 1 else max(0, self._crowded - 1)
        is_here = len(jobs) <= _FEW and self._writer is not None
        asked = [operation for operation, _, _ in jobs]
        if is_here and (outcomes := self._writer.commit_inline(asked)) is not None:  # type: ignore[union-attr]
            _resolve([(future, outcome) for (_, _, future), outcome in zip(jobs, outcomes, strict=True)])
            return
        self._write_queue.put(jobs)  # together, so that the thread does not begin with the first one alone

    async def _read(self, operation: Operation[Result]) -> Result:
        if not self._threads:
            raise self._not_open_error()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._read_queue.put((operation, loop, future))
        return cast("Result", await future)

    async def _read_inline(self, operation: Operation[Result]) -> Result:
        outcome = self._reader.read_inline(operation) if self._reader is not None and self._threads else _WOULD_BLOCK
        if outcome is _WOULD_BLOCK:
            return await self._read(operation)
        return cast("Result", _unwrap(outcome))

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
            with lock.hold():
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
                    raise self._open_error(error, is_full=_is_full(error, connection)) from None
                return connection
        except OSError as error:
            raise self._open_error(error, is_full=error.errno in _DISK_FULL_ERRNOS) from None
        finally:
            lock.close()

    def _record_losses(self, connection: apsw.Connection) -> None:
        """Keep in the mark which sessions end before what was acknowledged, before they grow again."""
        state = self.mark.read()
        if state is None:
            return
        try:
            losses = _run_read(connection, high_water.compare_ends(state))
        except (apsw.Error, CorruptDataError, UnicodeDecodeError):
            return  # the file is damaged, and verify says where
        self.mark.record_losses(losses)
        if losses or state.is_damaged:
            what = f"messages are missing at the end of {len(losses)} sessions" if losses else "its mark is damaged"
            _log.warning("%s: %s. Run dragoman verify", self._where, what)

    def _check_file(self, path: Path) -> None:
        """Whether it may be ours, before anything is written beside it."""
        try:
            if path.exists() and _header(path)[:16] not in (b"", b"SQLite format 3\0"):
                raise StoreUnusableError("it is not a SQLite file", where=self._where, code="not_a_store")
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
            )  # before anything is read: somebody may be recovering the file
            self._check_ownership(connection)
            self._apply_settings(connection, _SETTINGS if self.path is not None else {"foreign_keys": 1})
            connection.pragma("journal_size_limit", _WAL_SIZE_LIMIT)
        except BaseException as error:
            is_full = isinstance(error, apsw.Error) and _is_full(error, connection)
            connection.close()
            if isinstance(error, apsw.NotADBError):
                raise StoreUnusableError("it is not a SQLite file", where=self._where, code="not_a_store") from None
            if isinstance(error, apsw.Error):
                raise self._open_error(error, is_full=is_full) from None
            raise
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # a plan does not depend on values, and is made once
        connection.create_aggregate_function("decimal_sum", _DecimalSum, 1)
        connection.create_scalar_function("call_hash", call_hash, len(CALL_FIELDS), deterministic=True)
        connection.create_scalar_function("lease_now", lambda *_: machine_now(), 0, deterministic=True)
        return connection

    def _apply_settings(self, connection: apsw.Connection, settings: Mapping[str, Any]) -> None:
        """Choose the settings, and see that they were taken."""
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
        return StoreUnusableError(f"it cannot be opened ({error})", where=self._where)

    def _unsafe_error(self, what: str) -> StoreUnusableError:
        return StoreUnusableError(
            what, where=self._where, remedy="Put the file on a local disk, and leave its settings"
        )

    def _check_ownership(self, connection: apsw.Connection) -> None:
        """Whether this version may write it. Not even a setting is changed before that is known."""
        if connection.readonly("main"):
            raise StoreUnusableError("it may be read and not written", where=self._where, remedy="Ask for permission")
        is_ours = connection.pragma("application_id") == _APPLICATION_ID
        if not is_ours and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
            raise StoreUnusableError(
                "it is a SQLite file of something else",
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
            with _transaction(connection):
                connection.execute(steps[number]).fetchall()
                connection.pragma("user_version", number + 1)
                connection.pragma("application_id", _APPLICATION_ID)

    def _restart_leases(self, connection: apsw.Connection) -> None:
        clock_id = boot_id()
        if connection.execute("SELECT id FROM lease_clock").fetchall() != [(clock_id,)]:
            with _transaction(connection):
                _run_operation(connection, restart_leases(clock_id))

    def _lock(self) -> _WriterLock:
        return _WriterLock(self.path.with_name(f"{self.path.name}-lock") if self.path is not None else None)

    # --- erasing -----------------------------------------------------------------------------------------------------

    async def _scrub(self) -> None:
        if self.path is not None:
            await asyncio.to_thread(self._vacuum)

    def _vacuum(self) -> None:
        """Write the file anew without what is free in it, and empty the log beside it."""
        lock, connection = self._lock(), self._connect()
        try:
            with lock.hold():
                connection.execute("VACUUM").fetchall()
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        except apsw.Error as error:
            raise _translate_error(error, connection) from error
        finally:
            connection.close()
            lock.close()
        if is_busy:
            raise StorageError(
                "what was deleted is still in the log beside the database: another program keeps reading",
                where=self._where,
                remedy="End it, and do the same again",
            )

    def _find_copies(self, *, delete: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.path is None:
            return (), ()
        self.mark.compact(force=True)  # which names sessions
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
        """A consistent copy of the database in another file, made while it is in use; pages done, and of how many."""
        connection = await asyncio.to_thread(self._connect)
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            if progress is not None:
                loop.call_soon_threadsafe(progress, done, total)

        try:
            await asyncio.to_thread(_copy, connection, target, report)
        finally:
            await asyncio.to_thread(connection.close)


def _copy(source: apsw.Connection, target: Path, report: Callable[[int, int], object] | None = None) -> None:
    target.unlink(missing_ok=True)
    permissions.create_file(target)
    copy = apsw.Connection(str(target))
    try:
        with _transaction(source, "DEFERRED"), copy.backup("main", source, "main") as backup:
            source.execute("SELECT 1 FROM sqlite_schema").fetchall()  # what others write from now on does not matter
            while not backup.done:
                backup.step(1024)
                if report is not None:
                    report(backup.page_count - backup.remaining, backup.page_count)
        copy.pragma("journal_mode", "delete")  # one file and nothing beside it
    finally:
        copy.close()


def _restrict_files(path: Path) -> None:
    """Make the file, if there is none, so that only we can read it; restrict what is there.

    SQLite gives its log and its index of the log the mode of the database file.
    """
    permissions.create_file(path)
    real = Path(os.path.realpath(path))
    beside = [path.with_name(f"{path.name}-lock"), *path.parent.glob(f"{glob.escape(path.name)}.schema-*")]
    logs = (real.with_name(real.name + end) for end in ("-wal", "-shm", "-journal"))
    permissions.restrict(path, *logs, *beside)


def _is_read_only(path: Path) -> bool:
    """Whether a store is there and nothing can be written beside it."""
    return path.is_file() and not os.access(path.parent, os.W_OK)


def _is_store_file(file: Path) -> bool:
    """Whether a file is a store, by what stands at its beginning."""
    try:
        header = _header(file)
    except apsw.Error:
        return False
    return header.startswith(b"SQLite format 3\0") and header[_HEADER - 4 :] == _APPLICATION_ID.to_bytes(4)


def _header(file: Path) -> bytes:
    """Return the first bytes of a file, the last four of which are the application id of a SQLite file.

    SQLite's own layer of files reads them: to close a descriptor of our own would release the locks of every connection
    that this process has to the same file (POSIX).
    """
    vfs_file = apsw.VFSFile("", str(file.absolute()), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return vfs_file.xRead(min(_HEADER, vfs_file.xFileSize()), 0)
    finally:
        vfs_file.xClose()


def _file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on, where the machine tells."""
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
    """SQLite adds texts as floats; money is added as it is. An amount that no call can have cost adds nothing."""

    def __init__(self) -> None:
        self._sum = Decimal(0)

    def step(self, *amounts: Any) -> None:
        try:
            amount = Decimal(amounts[0])
            if is_possible_cost(amount):
                self._sum = _EXACT_CONTEXT.add(self._sum, amount)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise CorruptDataError(f"an amount is no number ({error})", remedy="Run dragoman verify") from None

    def final(self) -> str:
        return str(self._sum)


class _WriterLock:
    """Whose turn it is to write, among processes. SQLite alone would have them poll."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: bool = True) -> bool:
        """Wait for it to be ours, or say whether it is."""
        if self._path is None or fcntl is None:
            return True
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self._descriptor is not None and fcntl is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# --- threads ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _transaction(connection: apsw.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _run_operation(connection: apsw.Connection, operation: Operation[Any]) -> Any:
    execute, steps = connection.execute, iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            sql, arguments = steps.send(
                execute(
                    sql.removesuffix(FOR_UPDATE).removesuffix(FOR_KEY_SHARE), validate_arguments(arguments)
                ).fetchall()
            )
    except StopIteration as stop:
        return stop.value


def _run_read(connection: apsw.Connection, operation: Operation[Any]) -> Any:
    """Run an operation that reads. What it cannot make sense of is damage: it was written in good order."""
    execute, steps = connection.execute, iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            rows = execute(sql, validate_arguments(arguments)).fetchall()
            try:
                sql, arguments = steps.send(rows)
            except (TypeError, ValueError, ArithmeticError, LookupError) as error:
                raise CorruptDataError(
                    f"what is stored makes no sense ({error})", remedy="Run dragoman verify"
                ) from error
    except StopIteration as done:
        return done.value


_WOULD_BLOCK: Final = object()


class _Reader:
    """A thread that reads."""

    def __init__(self, connection: apsw.Connection, jobs: queue.SimpleQueue[Item | None]) -> None:
        self._connection = connection
        self._jobs = jobs

        self._busy = threading.Lock()
        self._slowest_s = 0.0  # that a little took lately

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            assert not isinstance(job, list)  # who reads asks for one thing
            operation, loop, future = job
            with self._busy:
                outcome = self._outcome(operation)
            _deliver(loop, [(future, outcome)])
        self._connection.close()

    def read_inline(self, operation: Operation[Any]) -> Any:
        """What was read, in the thread that asks; ``_WOULD_BLOCK`` if that could take long: see ``committed_here``."""
        if self._slowest_s > _QUICK_S:
            self._slowest_s *= _FORGETTING
            return _WOULD_BLOCK
        if not self._busy.acquire(blocking=False):
            return _WOULD_BLOCK
        started = perf_counter()
        try:
            return self._outcome(operation)
        finally:
            self._busy.release()
            self._slowest_s = max(perf_counter() - started, self._slowest_s * _FORGETTING)

    def _outcome(self, operation: Operation[Any]) -> Any:
        try:
            with _transaction(self._connection, "DEFERRED"):
                return _run_read(self._connection, operation)
        except Exception as error:  # noqa: BLE001  it is raised where it was asked for
            return _Failure(_translate_error(error, self._connection))


class _Writer:
    """The thread that writes. What waits together is committed together."""

    def __init__(
        self,
        connection: apsw.Connection,
        jobs: queue.SimpleQueue[Item | None],
        lock: _WriterLock,
        reconnect: Callable[[], apsw.Connection],
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self._lock = lock
        self._reconnect = reconnect
        self._is_broken = False
        self._sync_at_once = f"PRAGMA synchronous={connection.pragma('synchronous')}"
        self._is_synced_later = False
        self._busy = threading.Lock()
        self._slowest_s = _UNKNOWN_S  # that a commit took lately; what is long ago counts less and less
        self._unseen = 0  # statements since somebody has looked at how long the log beside the database is
        self._prepare(connection)

    def _prepare(self, connection: apsw.Connection) -> None:
        """Copy the log into the database when nobody waits for it, rather than in the middle of a commit."""
        connection.set_busy_timeout(0)  # but where somebody wants to wait
        connection.execute(single_statement.PREPARE).fetchall()
        connection.wal_autocheckpoint(0)

    def run(self) -> None:
        is_last = False
        while not is_last:
            jobs, is_last = self._collect_jobs(self._jobs.get())
            if jobs:
                with self._busy:
                    outcomes = self._commit([operation for operation, _, _ in jobs]) or []
                by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
                for (_, loop, future), outcome in zip(jobs, outcomes, strict=True):
                    by_loop.setdefault(loop, []).append((future, outcome))
                for loop, results in by_loop.items():
                    _deliver(loop, results)
            with self._busy, contextlib.suppress(apsw.Error):  # what cannot be copied now stays in the log
                if self._is_log_long():
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._connection.close()
        self._lock.close()

    def _collect_jobs(self, item: Item | None) -> tuple[list[Job], bool]:
        """What was asked for and whatever waits behind it, and whether that was all there will ever be."""
        jobs: list[Job] = []
        while item is not None:
            jobs.extend(item if isinstance(item, list) else [item])
            if len(jobs) >= _MAX_BATCH:
                return jobs, False
            try:
                item = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _is_log_long(self) -> bool:
        """Whether so much is in the log, by whomever, that it should be copied into the database."""
        self._unseen = 0
        try:
            pages, copied = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.Error:
            return False
        return pages - copied >= _CHECKPOINT_PAGES

    def commit_inline(self, operations: list[Operation[Any]]) -> list[Any] | None:
        """What came of each, done in the thread that asks; ``None``, and nothing is done, if that could take long.

        A disk that was quick so far may be slow for once, and then the event loop waits for it, once: from then on the
        writer's thread does it, until the disk has been quick for a while. What only passes does not wait for it.
        """
        if self._is_broken or _has_bulk(operations) or (self._slowest_s > _QUICK_S and not _is_volatile(operations)):
            return None
        if not self._jobs.empty() or not self._busy.acquire(blocking=False):
            return None
        try:
            outcomes = self._commit(operations, wait=False)
            if self._is_log_long():
                self._jobs.put([])  # to look around
            return outcomes
        finally:
            self._busy.release()

    @property
    def is_quick(self) -> bool:
        """Whether what is asked for now would take no longer than it may take in the thread that asks."""
        return self._slowest_s <= _QUICK_S and not self._is_broken and self._jobs.empty()

    def execute_inline(self, sql: str, arguments: Sequence[Any]) -> Rows | None:
        """The rows of one statement, in the thread that asks; see ``committed_here``.

        It is a transaction by itself, for which nobody needs our lock: whoever has it looks again. ``None``, and
        nothing has changed, if the statement refuses, or if others write.
        """
        if not self._busy.acquire(False):
            return None
        started = perf_counter()
        try:
            if self._is_broken or self._connection.in_transaction:
                return None
            if self._is_synced_later:
                self._sync(later=False)
            rows: Rows = self._connection.execute(sql, arguments).fetchall()
            self._unseen += 1
            if self._unseen > _UNSEEN and self._is_log_long():
                self._jobs.put([])  # to look around
        except (apsw.ConstraintError, apsw.BusyError):
            return None
        except Exception as error:
            raise self._failure_from(error).error from error
        finally:
            self._busy.release()
        self._slowest_s = max(perf_counter() - started, self._slowest_s * _FORGETTING)
        return rows

    def _failure_from(self, error: Exception) -> _Failure:
        """What is told of a failure."""
        failure = _Failure(_translate_error(error, self._connection))
        if isinstance(failure.error, StorageError):
            self._drop_connection()
        return failure

    def _commit(self, operations: list[Operation[Any]], *, wait: bool = True) -> list[Any] | None:
        """What came of each; if the commit fails, nothing did. ``None`` if others write and we do not wait."""
        started = perf_counter()
        is_volatile = _is_volatile(operations)
        try:
            if self._is_broken:
                self._connection, self._is_broken, self._is_synced_later = self._reconnect(), False, False
                self._prepare(self._connection)
            if not self._lock.acquire(wait=wait):
                return None
            try:
                if is_volatile is not self._is_synced_later:
                    self._sync(later=is_volatile)
                if not self._begin(wait=wait):
                    return None
                outcomes = self._run_and_commit(operations)
            finally:
                self._lock.release()
        except Exception as error:  # noqa: BLE001  it is raised where it was asked for
            return [self._failure_from(error)] * len(operations)
        if not (is_volatile or _has_bulk(operations)):  # which say nothing of the disk
            self._slowest_s = max(perf_counter() - started, self._slowest_s * _FORGETTING)
        return outcomes

    def _sync(self, *, later: bool) -> None:
        """Have what is committed next on the disk when the commit returns, or with the commit after it."""
        self._connection.execute(_SYNC_LATER if later else self._sync_at_once)
        self._is_synced_later = later

    def _run_and_commit(self, operations: list[Operation[Any]]) -> list[Any]:
        """Do everything in the transaction that has begun, and commit it."""
        connection = self._connection
        try:
            outcomes = (
                [_run_operation(connection, operations[0])]
                if len(operations) == 1
                else list(map(self._run_in_savepoint, operations))
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _begin(self, *, wait: bool) -> bool:
        """Whether it is our turn to write, among single statements and programs that do not know our lock."""
        if wait:
            self._connection.set_busy_handler(_wait_for_lock)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            if wait:
                raise
            return False
        finally:
            if wait:
                self._connection.set_busy_handler(None)
        return True

    def _run_in_savepoint(self, operation: Operation[Any]) -> Any:
        """One of several jobs of a transaction: what fails takes nothing of the others with it."""
        self._connection.execute("SAVEPOINT job")
        try:
            outcome = _run_operation(self._connection, operation)
        except Exception as error:
            if isinstance(error, apsw.Error | OSError) and not isinstance(error, apsw.ConstraintError):
                raise  # the database failed, and with it every job
            self._connection.execute("ROLLBACK TO job")
            outcome = _Failure(_translate_error(error, self._connection))
        self._connection.execute("RELEASE job")
        return outcome

    def _drop_connection(self) -> None:
        """After a failure of the disk nothing that the connection believes is to be trusted."""
        self._is_broken = True
        with contextlib.suppress(apsw.Error):
            self._connection.close()


def _wait_for_lock(times: int) -> bool:
    """Wait a little for somebody who writes without our lock; whether to look again.

    A statement of another process is over in no time, and the next one begins as soon.
    """
    sleep(_SHORTLY_S if times < _OFTEN else _BRIEFLY_S)
    return times < _OFTEN + _LOCK_TIMEOUT_S / _BRIEFLY_S


def _is_volatile(operations: list[Operation[Any]]) -> bool:
    return isinstance(operations[0], VolatileOperation) and all(
        isinstance(one, VolatileOperation) for one in operations
    )


def _has_bulk(operations: list[Operation[Any]]) -> bool:
    return (
        any(isinstance(one, BulkOperation) for one in operations)
        if len(operations) > 1
        else isinstance(operations[0], BulkOperation)
    )


class _Failure:
    """An outcome that is an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _unwrap(given: Any) -> Any:
    """What came of it, where it was asked for."""
    if isinstance(given, _Failure):
        raise given.error
    return given


def _is_full(error: Exception, connection: apsw.Connection) -> bool:
    """Whether it is for want of room. Not everything that SQLite writes says so by itself."""
    if isinstance(error, apsw.IOError):
        with contextlib.suppress(apsw.ConnectionClosedError):
            return connection.system_errno in _DISK_FULL_ERRNOS
    return isinstance(error, apsw.FullError)


def _translate_error(error: Exception, connection: apsw.Connection) -> Exception:
    match error:
        case apsw.FullError():
            return StorageError(
                "the disk is full; nothing was stored", remedy="Make room, and try again", code="disk_full"
            )
        case apsw.IOError() if _is_full(error, connection):
            what = "the disk is full; whether it was stored is not known"
            return StorageError(what, remedy="Make room, and ask again with the same key", code="disk_full")
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.ConnectionClosedError() | OSError():
            return StorageError(f"the disk failed ({error}); whether it was stored is not known")
        case apsw.BusyError() | apsw.LockedError():
            return StorageError("another program keeps the database locked; nothing was stored", code="storage_failed")
        case apsw.CorruptError() | apsw.NotADBError():
            return CorruptDataError(f"the database file is damaged ({error})", remedy="Run dragoman verify")
        case apsw.SQLError():  # our statements are good: it is the tables that are not those that we made
            return CorruptDataError(f"the tables are not as they were made ({error})", remedy="Run dragoman verify")
        case UnicodeDecodeError() | msgspec.DecodeError() | InvalidOperation():
            return CorruptDataError(f"what is stored cannot be read ({error})", remedy="Run dragoman verify")
        case UnicodeEncodeError():
            return FormatError(f"a lone surrogate at character {error.start} of a text")
        case OverflowError():
            return FormatError(f"a number is too large to be stored ({error})")
        case _:
            return error


def _deliver(loop: asyncio.AbstractEventLoop, results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everybody who asked
        loop.call_soon_threadsafe(functools.partial(_resolve, results))


def _resolve(results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in results:
        if future.done():
            continue  # who asked has given up waiting
        if isinstance(outcome, _Failure):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)
