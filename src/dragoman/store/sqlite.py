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
from dragoman.blobs import Blobs
from dragoman.errors import DamagedError, FormatError, StorageError, StoreError, StoreUnusableError
from dragoman.message import is_possible_cost
from dragoman.store import at_once, high_water
from dragoman.store.high_water import HighWaterMark
from dragoman.store.lease_clock import boot_id, machine_now, restart
from dragoman.store.operation import LOCKED, Bulk, Passing, Rows, bindable
from dragoman.store.row_hash import CALL, call_hash
from dragoman.store.schema import check_version, migrations
from dragoman.store.store import Operation, Result, Store, now_utc

try:
    import fcntl
except ImportError:  # not a POSIX system: SQLite's own waiting has to do
    fcntl = None  # type: ignore[assignment]

_log: Final = logging.getLogger("dragoman.store")
_HEADER: Final = 72  # bytes at the beginning of a file, of which the last four are the application id
_APPLICATION_ID: Final = 0x44524147  # "DRAG"
_OLDEST: Final = (3, 51, 3)  # before it, two connections that write and checkpoint at once may corrupt the file
_ENDS: Final = "SELECT id, last_seq FROM sessions"
_MIGRATED: Final = re.compile(r"\.schema-\d+")
_PAGE_SIZE: Final = 2048  # a message seldom fills a whole number of pages: with small ones, little stays empty
_LONG_S: Final = 60  # that a program may keep the database locked
_SHORTLY_S: Final = 0.000_05  # between two looks whether somebody still writes without our lock,
_OFTEN: Final = 100  # of which there are so many, and after them
_BRIEFLY_S: Final = 0.005
_MOST_AT_ONCE: Final = 512
_FEW: Final = 4  # that are written where they were asked for, rather than while the others of the loop go on
_PATIENCE_S: Final = 0.002  # for which others wait while one writes; one more write may begin until then
_CROWDED: Final = 2  # turns of the loop, after one in which several have written
_READERS: Final = 2
_LOG_PAGES: Final = 1_000  # in the log beside the database, before they are copied into it
_UNSEEN: Final = 15  # statements that are done without a look at the log: each of them fills a few pages
_LOG_BYTES: Final = 8 * 1024 * 1024  # that the log keeps of the disk when it begins anew, after it had to grow
_QUICK_S: Final = 0.001  # a commit that blocks nobody for longer than a message takes to be translated
_SYNC_LATER: Final = "PRAGMA synchronous=NORMAL"  # with the next commit that is synced
_UNKNOWN_S: Final = 0.05  # what is assumed of a disk at first
_FORGETTING: Final = 0.8  # what a slow commit still counts for, at each one after it
_SETTINGS: Final = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "mmap_size": 0}
_EXACT: Final = Context(prec=5_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_MOUNTS: Final = Path("/proc/self/mounts")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # how a space in a path is written there
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_FAR_AWAY: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "glusterfs", "ceph")

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
        self._copied: tempfile.TemporaryDirectory[str] | None = None  # what is read in place of it
        self.mark = HighWaterMark(path)
        self.durability = "power-safe" if path is not None else "memory"
        self._synchronous = synchronous
        self._writing: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._reading: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
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
            await asyncio.to_thread(self._copy_to_read, self.path)
        connection = await asyncio.to_thread(self._opened)
        if self._copied is None:
            await asyncio.to_thread(self.mark.shorten)
        self._writer = _Writer(connection, self._writing, self._lock(), self._connection)
        self._start(self._writer)
        if self.path is None:
            self._reading = self._writing
        for _ in range(_READERS if self.path is not None else 0):
            self._reader = _Reader(await asyncio.to_thread(self._connection), self._reading)
            self._start(self._reader)
        self.searching.start()

    def _start(self, worker: _Writer | _Reader) -> None:
        thread = threading.Thread(target=worker.work, name=f"dragoman-{type(worker).__name__.lower()}", daemon=True)
        thread.start()
        self._threads.append(thread)

    async def close(self) -> None:
        await self.searching.stop()
        if self._asked_now:
            self._hand_over()
        self._writing.put(None)
        for _ in self._threads[1:]:
            self._reading.put(None)
        threads, self._threads, self._writer = self._threads, [], None
        for thread in threads:
            await asyncio.to_thread(thread.join)
        self.mark.flush()
        if self._copied is not None:
            await asyncio.to_thread(self._copied.cleanup)

    def _copy_to_read(self, path: Path) -> None:
        """Read a copy of a store on media that cannot be written: even reading a log that is there needs a file."""
        self._copied = tempfile.TemporaryDirectory(prefix="dragoman-", ignore_cleanup_errors=True)
        self.path = Path(self._copied.name) / path.name
        try:
            for end in ("", "-wal"):
                if (file := path.with_name(path.name + end)).exists():
                    copy = self.path.with_name(self.path.name + end)
                    permissions.create_file(copy)
                    shutil.copyfile(file, copy)
        except OSError as error:
            self._copied.cleanup()
            raise StoreUnusableError(f"it cannot be copied to be read ({error})", where=str(path)) from None

    async def _write(self, operation: Operation[Result]) -> Result:
        if self._copied is not None:
            raise StorageError(
                "it lies on media that can only be read; nothing was stored",
                where=self._name,
                remedy="Copy it to a folder that can be written, with dragoman backup",
                code="read_only",
            )
        return await self._write_index(operation)

    async def _write_index(self, operation: Operation[Result]) -> Result:
        if not self._threads:
            raise self._not_open()
        loop = asyncio.get_running_loop()
        if not (self._crowded or self._asked_now) and self._may_wait(loop):
            outcomes = self._writer.committed_here([operation])  # type: ignore[union-attr]
            if outcomes is not None:
                return cast("Result", _outcome(outcomes[0]))
        future = loop.create_future()
        waiting = self._asked_now
        if not waiting:
            loop.call_soon(self._hand_over)  # whoever else is about to write comes first
        elif waiting[0][1] is not loop:
            self._writing.put([(operation, loop, future)])
            return cast("Result", await future)
        waiting.append((operation, loop, future))
        return cast("Result", await future)

    def _may_write_at_once(self) -> bool:
        writer = self._writer
        if self._crowded or self._asked_now or writer is None or not writer.is_quick or self._copied is not None:
            return False
        return self._may_wait(asyncio.get_running_loop())

    def _write_at_once(self, sql: str, arguments: Sequence[Any]) -> Rows | None:
        return self._writer.done_here(sql, arguments) if self._writer is not None else None

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
        if is_here and (outcomes := self._writer.committed_here(asked)) is not None:  # type: ignore[union-attr]
            _resolve([(future, outcome) for (_, _, future), outcome in zip(jobs, outcomes, strict=True)])
            return
        self._writing.put(jobs)  # together, so that the thread does not begin with the first one alone

    async def _read(self, operation: Operation[Result]) -> Result:
        if not self._threads:
            raise self._not_open()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._reading.put((operation, loop, future))
        return cast("Result", await future)

    async def _read_little(self, operation: Operation[Result]) -> Result:
        outcome = self._reader.read_here(operation) if self._reader is not None and self._threads else _NOT_HERE
        if outcome is _NOT_HERE:
            return await self._read(operation)
        return cast("Result", _outcome(outcome))

    def _not_open(self) -> StoreUnusableError:
        return StoreUnusableError("it is not open", where=self._where, remedy="Use it inside 'async with'")

    @property
    def _where(self) -> str:
        return str(self.path) if self.path is not None else "memory"

    # --- opening -----------------------------------------------------------------------------------------------------

    def _opened(self) -> apsw.Connection:
        if self.path is not None:
            if tuple(map(int, apsw.sqlite_lib_version().split("."))) < _OLDEST:
                raise self._unsafe(f"SQLite {apsw.sqlite_lib_version()} may corrupt a file that two connections write")
            kind = _file_system(self.path.parent)
            if kind in _FAR_AWAY:
                raise self._unsafe(f"it lies on a network file system ({kind}), where locks cannot be relied on")
        lock = self._lock()
        try:
            if self.path is not None:
                permissions.make_folder(self.path.parent)
                self._check_file(self.path)
            with lock.held():
                if self.path is not None:
                    _keep_private(self.path)
                connection = self._connection()
                try:
                    self._migrate(connection)
                    self._restart_leases(connection)
                    if self._copied is None:
                        self.mark.start(lambda: connection.execute(_ENDS).fetchall(), self.clock())
                        self._record_losses(connection)
                except apsw.Error as error:
                    raise self._not_opened(error, is_full=_is_full(error, connection)) from None
                return connection
        except OSError as error:
            raise self._not_opened(error, is_full=error.errno in _NO_ROOM) from None
        finally:
            lock.close()

    def _record_losses(self, connection: apsw.Connection) -> None:
        """Keep in the mark which sessions end before what was acknowledged, before they grow again."""
        marked = self.mark.read()
        if marked is None:
            return
        try:
            losses = _read(connection, high_water.compare(marked))
        except (apsw.Error, DamagedError, UnicodeDecodeError):
            return  # the file is damaged, and verify says where
        self.mark.record(losses)
        if losses or marked.is_damaged:
            what = f"messages are missing at the end of {len(losses)} sessions" if losses else "its mark is damaged"
            _log.warning("%s: %s. Run dragoman verify", self._where, what)

    def _check_file(self, path: Path) -> None:
        """Whether it may be ours, before anything is written beside it."""
        try:
            if path.exists() and _header(path)[:16] not in (b"", b"SQLite format 3\0"):
                raise StoreUnusableError("it is not a SQLite file", where=self._where, code="not_a_store")
        except apsw.Error as error:
            raise self._not_opened(error, is_full=False) from None

    def _connection(self) -> apsw.Connection:
        try:
            connection = apsw.Connection(str(self.path) if self.path is not None else ":memory:")
        except apsw.Error as error:
            raise self._not_opened(error, is_full=False) from None
        try:
            connection.set_busy_timeout(_LONG_S * 1000)  # before anything is read: somebody may be recovering the file
            self._check_ours(connection)
            self._set(connection, _SETTINGS if self.path is not None else {"foreign_keys": 1})
            connection.pragma("journal_size_limit", _LOG_BYTES)
        except BaseException as error:
            is_full = isinstance(error, apsw.Error) and _is_full(error, connection)
            connection.close()
            if isinstance(error, apsw.NotADBError):
                raise StoreUnusableError("it is not a SQLite file", where=self._where, code="not_a_store") from None
            if isinstance(error, apsw.Error):
                raise self._not_opened(error, is_full=is_full) from None
            raise
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # a plan does not depend on values, and is made once
        connection.create_aggregate_function("decimal_sum", _DecimalSum, 1)
        connection.create_scalar_function("call_hash", call_hash, len(CALL), deterministic=True)
        connection.create_scalar_function("lease_now", lambda *_: machine_now(), 0, deterministic=True)
        return connection

    def _set(self, connection: apsw.Connection, settings: Mapping[str, Any]) -> None:
        """Choose the settings, and see that they were taken."""
        if not connection.pragma("user_version"):
            connection.pragma("page_size", _PAGE_SIZE)
        for name, wanted in settings.items():
            connection.pragma(name, self._synchronous if name == "synchronous" else wanted)
        for name, wanted in settings.items():
            if (found := connection.pragma(name)) != wanted:
                raise self._unsafe(f"{name} is {found!r} and should be {wanted!r}; an answer could be lost")

    def _not_opened(self, error: Exception, *, is_full: bool) -> StoreError:
        if is_full:
            what = "it cannot be opened: the disk is full, and even reading needs a little room"
            return StorageError(what, where=self._where, remedy="Make room, and open it again", code="disk_full")
        return StoreUnusableError(f"it cannot be opened ({error})", where=self._where)

    def _unsafe(self, what: str) -> StoreUnusableError:
        return StoreUnusableError(
            what, where=self._where, remedy="Put the file on a local disk, and leave its settings"
        )

    def _check_ours(self, connection: apsw.Connection) -> None:
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
                _ran(connection, restart(clock_id))

    def _lock(self) -> _WriterLock:
        return _WriterLock(self.path.with_name(f"{self.path.name}-lock") if self.path is not None else None)

    # --- erasing -----------------------------------------------------------------------------------------------------

    async def _scrub(self) -> None:
        if self.path is not None:
            await asyncio.to_thread(self._rewrite)

    def _rewrite(self) -> None:
        """Write the file anew without what is free in it, and empty the log beside it."""
        lock, connection = self._lock(), self._connection()
        try:
            with lock.held():
                connection.execute("VACUUM").fetchall()
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        except apsw.Error as error:
            raise _translated(error, connection) from error
        finally:
            connection.close()
            lock.close()
        if is_busy:
            raise StorageError(
                "what was deleted is still in the log beside the database: another program keeps reading",
                where=self._where,
                remedy="End it, and do the same again",
            )

    def _copies(self, *, delete: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.path is None:
            return (), ()
        self.mark.shorten(is_any_length=True)  # which names sessions
        deleted: list[str] = []
        left: list[str] = []
        for file in sorted(self.path.parent.iterdir()):
            if file.name == self.path.name or not _is_ours(file):
                continue
            if delete and _MIGRATED.fullmatch(file.name.removeprefix(self.path.name)) is not None:
                file.unlink()
                deleted.append(file.name)
            else:
                left.append(file.name)
        return tuple(deleted), tuple(left)

    # --- backup ------------------------------------------------------------------------------------------------------

    async def copy_to(self, target: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """A consistent copy of the database in another file, made while it is in use; pages done, and of how many."""
        connection = await asyncio.to_thread(self._connection)
        loop = asyncio.get_running_loop()

        def tell(done: int, of: int) -> None:
            if progress is not None:
                loop.call_soon_threadsafe(progress, done, of)

        try:
            await asyncio.to_thread(_copy, connection, target, tell)
        finally:
            await asyncio.to_thread(connection.close)


def _copy(source: apsw.Connection, target: Path, tell: Callable[[int, int], object] | None = None) -> None:
    target.unlink(missing_ok=True)
    permissions.create_file(target)
    copy = apsw.Connection(str(target))
    try:
        with _transaction(source, "DEFERRED"), copy.backup("main", source, "main") as backup:
            source.execute("SELECT 1 FROM sqlite_schema").fetchall()  # what others write from now on does not matter
            while not backup.done:
                backup.step(1024)
                if tell is not None:
                    tell(backup.page_count - backup.remaining, backup.page_count)
        copy.pragma("journal_mode", "delete")  # one file and nothing beside it
    finally:
        copy.close()


def _keep_private(path: Path) -> None:
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


def _is_ours(file: Path) -> bool:
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
    opened = apsw.VFSFile("", str(file.absolute()), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return opened.xRead(min(_HEADER, opened.xFileSize()), 0)
    finally:
        opened.xClose()


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
                self._sum = _EXACT.add(self._sum, amount)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise DamagedError(f"an amount is no number ({error})", remedy="Run dragoman verify") from None

    def final(self) -> str:
        return str(self._sum)


class _WriterLock:
    """Whose turn it is to write, among processes. SQLite alone would have them poll."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self, *, wait: bool = True) -> bool:
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

    def give_back(self) -> None:
        if self._descriptor is not None and fcntl is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.give_back()

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


def _ran(connection: apsw.Connection, operation: Operation[Any]) -> Any:
    execute, steps = connection.execute, iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            sql, arguments = steps.send(execute(sql.removesuffix(LOCKED), bindable(arguments)).fetchall())
    except StopIteration as done:
        return done.value


def _read(connection: apsw.Connection, operation: Operation[Any]) -> Any:
    """Run an operation that reads. What it cannot make sense of is damage: it was written in good order."""
    execute, steps = connection.execute, iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            rows = execute(sql, bindable(arguments)).fetchall()
            try:
                sql, arguments = steps.send(rows)
            except (TypeError, ValueError, ArithmeticError, LookupError) as error:
                raise DamagedError(f"what is stored makes no sense ({error})", remedy="Run dragoman verify") from error
    except StopIteration as done:
        return done.value


_NOT_HERE: Final = object()


class _Reader:
    """A thread that reads."""

    def __init__(self, connection: apsw.Connection, jobs: queue.SimpleQueue[Item | None]) -> None:
        self._connection = connection
        self._jobs = jobs

        self._busy = threading.Lock()
        self._slowest_s = 0.0  # that a little took lately

    def work(self) -> None:
        while (job := self._jobs.get()) is not None:
            assert not isinstance(job, list)  # who reads asks for one thing
            operation, loop, future = job
            with self._busy:
                outcome = self._outcome(operation)
            _tell(loop, [(future, outcome)])
        self._connection.close()

    def read_here(self, operation: Operation[Any]) -> Any:
        """What was read, in the thread that asks; ``_NOT_HERE`` if that could take long: see ``committed_here``."""
        if self._slowest_s > _QUICK_S:
            self._slowest_s *= _FORGETTING
            return _NOT_HERE
        if not self._busy.acquire(blocking=False):
            return _NOT_HERE
        began = perf_counter()
        try:
            return self._outcome(operation)
        finally:
            self._busy.release()
            self._slowest_s = max(perf_counter() - began, self._slowest_s * _FORGETTING)

    def _outcome(self, operation: Operation[Any]) -> Any:
        try:
            with _transaction(self._connection, "DEFERRED"):
                return _read(self._connection, operation)
        except Exception as error:  # noqa: BLE001  it is raised where it was asked for
            return _Failed(_translated(error, self._connection))


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
        self._is_lost = False
        self._sync_at_once = f"PRAGMA synchronous={connection.pragma('synchronous')}"
        self._is_synced_later = False
        self._busy = threading.Lock()
        self._slowest_s = _UNKNOWN_S  # that a commit took lately; what is long ago counts less and less
        self._unseen = 0  # statements since somebody has looked at how long the log beside the database is
        self._follow(connection)

    def _follow(self, connection: apsw.Connection) -> None:
        """Copy the log into the database when nobody waits for it, rather than in the middle of a commit."""
        connection.set_busy_timeout(0)  # but where somebody wants to wait
        connection.execute(at_once.PREPARE).fetchall()
        connection.wal_autocheckpoint(0)

    def work(self) -> None:
        is_over = False
        while not is_over:
            jobs, is_over = self._waiting(self._jobs.get())
            if jobs:
                with self._busy:
                    outcomes = self._committed([operation for operation, _, _ in jobs]) or []
                by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
                for (_, loop, future), outcome in zip(jobs, outcomes, strict=True):
                    by_loop.setdefault(loop, []).append((future, outcome))
                for loop, told in by_loop.items():
                    _tell(loop, told)
            with self._busy, contextlib.suppress(apsw.Error):  # what cannot be copied now stays in the log
                if self._is_log_long():
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._connection.close()
        self._lock.close()

    def _waiting(self, item: Item | None) -> tuple[list[Job], bool]:
        """What was asked for and whatever waits behind it, and whether that was all there will ever be."""
        jobs: list[Job] = []
        while item is not None:
            jobs.extend(item if isinstance(item, list) else [item])
            if len(jobs) >= _MOST_AT_ONCE:
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
        return pages - copied >= _LOG_PAGES

    def committed_here(self, asked: list[Operation[Any]]) -> list[Any] | None:
        """What came of each, done in the thread that asks; ``None``, and nothing is done, if that could take long.

        A disk that was quick so far may be slow for once, and then the event loop waits for it, once: from then on the
        writer's thread does it, until the disk has been quick for a while. What only passes does not wait for it.
        """
        if self._is_lost or _has_long(asked) or (self._slowest_s > _QUICK_S and not _is_passing(asked)):
            return None
        if not self._jobs.empty() or not self._busy.acquire(blocking=False):
            return None
        try:
            outcomes = self._committed(asked, wait=False)
            if self._is_log_long():
                self._jobs.put([])  # to look around
            return outcomes
        finally:
            self._busy.release()

    @property
    def is_quick(self) -> bool:
        """Whether what is asked for now would take no longer than it may take in the thread that asks."""
        return self._slowest_s <= _QUICK_S and not self._is_lost and self._jobs.empty()

    def done_here(self, sql: str, arguments: Sequence[Any]) -> Rows | None:
        """The rows of one statement, in the thread that asks; see ``committed_here``.

        It is a transaction by itself, for which nobody needs our lock: whoever has it looks again. ``None``, and
        nothing has changed, if the statement refuses, or if others write.
        """
        if not self._busy.acquire(False):
            return None
        began = perf_counter()
        try:
            if self._is_lost or self._connection.in_transaction:
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
            raise self._failed(error).error from error
        finally:
            self._busy.release()
        self._slowest_s = max(perf_counter() - began, self._slowest_s * _FORGETTING)
        return rows

    def _failed(self, error: Exception) -> _Failed:
        """What is told of a failure."""
        failed = _Failed(_translated(error, self._connection))
        if isinstance(failed.error, StorageError):
            self._start_anew()
        return failed

    def _committed(self, asked: list[Operation[Any]], *, wait: bool = True) -> list[Any] | None:
        """What came of each; if the commit fails, nothing did. ``None`` if others write and we do not wait."""
        began = perf_counter()
        is_passing = _is_passing(asked)
        try:
            if self._is_lost:
                self._connection, self._is_lost, self._is_synced_later = self._reconnect(), False, False
                self._follow(self._connection)
            if not self._lock.take(wait=wait):
                return None
            try:
                if is_passing is not self._is_synced_later:
                    self._sync(later=is_passing)
                if not self._begun(wait=wait):
                    return None
                outcomes = self._ended(asked)
            finally:
                self._lock.give_back()
        except Exception as error:  # noqa: BLE001  it is raised where it was asked for
            return [self._failed(error)] * len(asked)
        if not (is_passing or _has_long(asked)):  # which say nothing of the disk
            self._slowest_s = max(perf_counter() - began, self._slowest_s * _FORGETTING)
        return outcomes

    def _sync(self, *, later: bool) -> None:
        """Have what is committed next on the disk when the commit returns, or with the commit after it."""
        self._connection.execute(_SYNC_LATER if later else self._sync_at_once)
        self._is_synced_later = later

    def _ended(self, asked: list[Operation[Any]]) -> list[Any]:
        """Do everything in the transaction that has begun, and commit it."""
        connection = self._connection
        try:
            outcomes = [_ran(connection, asked[0])] if len(asked) == 1 else list(map(self._alone, asked))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _begun(self, *, wait: bool) -> bool:
        """Whether it is our turn to write, among single statements and programs that do not know our lock."""
        if wait:
            self._connection.set_busy_handler(_waited)
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

    def _alone(self, operation: Operation[Any]) -> Any:
        """One of several jobs of a transaction: what fails takes nothing of the others with it."""
        self._connection.execute("SAVEPOINT job")
        try:
            outcome = _ran(self._connection, operation)
        except Exception as error:
            if isinstance(error, apsw.Error | OSError) and not isinstance(error, apsw.ConstraintError):
                raise  # the database failed, and with it every job
            self._connection.execute("ROLLBACK TO job")
            outcome = _Failed(_translated(error, self._connection))
        self._connection.execute("RELEASE job")
        return outcome

    def _start_anew(self) -> None:
        """After a failure of the disk nothing that the connection believes is to be trusted."""
        self._is_lost = True
        with contextlib.suppress(apsw.Error):
            self._connection.close()


def _waited(times: int) -> bool:
    """Wait a little for somebody who writes without our lock; whether to look again.

    A statement of another process is over in no time, and the next one begins as soon.
    """
    sleep(_SHORTLY_S if times < _OFTEN else _BRIEFLY_S)
    return times < _OFTEN + _LONG_S / _BRIEFLY_S


def _is_passing(asked: list[Operation[Any]]) -> bool:
    return isinstance(asked[0], Passing) and all(isinstance(one, Passing) for one in asked)


def _has_long(asked: list[Operation[Any]]) -> bool:
    return any(isinstance(one, Bulk) for one in asked) if len(asked) > 1 else isinstance(asked[0], Bulk)


class _Failed:
    """An outcome that is an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _outcome(given: Any) -> Any:
    """What came of it, where it was asked for."""
    if isinstance(given, _Failed):
        raise given.error
    return given


def _is_full(error: Exception, connection: apsw.Connection) -> bool:
    """Whether it is for want of room. Not everything that SQLite writes says so by itself."""
    if isinstance(error, apsw.IOError):
        with contextlib.suppress(apsw.ConnectionClosedError):
            return connection.system_errno in _NO_ROOM
    return isinstance(error, apsw.FullError)


def _translated(error: Exception, connection: apsw.Connection) -> Exception:
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
            return DamagedError(f"the database file is damaged ({error})", remedy="Run dragoman verify")
        case apsw.SQLError():  # our statements are good: it is the tables that are not those that we made
            return DamagedError(f"the tables are not as they were made ({error})", remedy="Run dragoman verify")
        case UnicodeDecodeError() | msgspec.DecodeError() | InvalidOperation():
            return DamagedError(f"what is stored cannot be read ({error})", remedy="Run dragoman verify")
        case UnicodeEncodeError():
            return FormatError(f"a lone surrogate at character {error.start} of a text")
        case OverflowError():
            return FormatError(f"a number is too large to be stored ({error})")
        case _:
            return error


def _tell(loop: asyncio.AbstractEventLoop, told: list[tuple[asyncio.Future[Any], Any]]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everybody who asked
        loop.call_soon_threadsafe(functools.partial(_resolve, told))


def _resolve(told: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in told:
        if future.done():
            continue  # who asked has given up waiting
        if isinstance(outcome, _Failed):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)
