"""The writer thread of a SQLite database, with group commit.

The writes of a process go through one connection in one thread, but for those of ``loop_writer``. The thread runs every
operation that waits in its queue in one transaction, each in a savepoint, and commits them together: while one commit
syncs, the next group gathers, so many writers share the cost of one sync, and no event loop waits for the disk.

Processes take turns by a lock file beside the database, on which they block without polling. Other programs are waited
for with SQLite's busy timeout.

Invariants: an operation is acknowledged only after its commit has returned with ``synchronous=FULL``; a group of
volatile operations alone (leases) is committed without a sync. After an I/O error the connection is closed, and the
next group opens a new one.

``Job``, ``run_group`` and the functions around them are shared with ``loop_writer`` and the readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import os
import queue
from collections.abc import Callable, Iterable, Sequence
from decimal import InvalidOperation
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from dragoman.errors import CorruptDataError, FormatError, StorageError
from dragoman.store.operation import (
    FOR_KEY_SHARE,
    FOR_UPDATE,
    RETURNING_ONE,
    AnyOperation,
    BatchOperation,
    Operation,
    VolatileOperation,
    validate_arguments,
)

try:
    import fcntl
except ImportError:  # not a POSIX system: SQLite's own locks have to do
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS: Final = fcntl is not None
_MAX_GROUP: Final = 512  # operations per transaction
_CHECKPOINT_PAGES: Final = 4_000  # pages in the log before they are copied into the database
DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


class WriterLock:
    """A lock file that one process holds at a time, during a block. SQLite alone would have the processes poll."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        """Wait for the lock."""
        if self._path is not None and fcntl is not None:
            fcntl.flock(self._open(self._path), fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self, path: Path) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        return self._descriptor

    def acquire(self) -> bool:
        """Acquire the lock if nothing holds it."""
        if self._path is None or fcntl is None:
            return True
        try:
            fcntl.flock(self._open(self._path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None and fcntl is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class WriteScheduler:
    """The writer of one database. ``run`` is the body of its thread."""

    def __init__(
        self, connection: apsw.Connection, jobs: Jobs, lock: WriterLock, connect: Callable[[], apsw.Connection]
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self._lock = lock
        self._connect = connect
        self._is_broken = False
        self._log_pages = _CHECKPOINT_PAGES  # in the log after the last commit
        self._sync_on = f"PRAGMA synchronous={connection.pragma('synchronous')}"
        self._prepare()

    def _prepare(self) -> None:
        self._is_synced = True
        self._connection.set_wal_hook(self._note_log)  # replaces SQLite's own, which copies the log within a commit
        self._connection.execute("PRAGMA temp_store=MEMORY")  # statements of many rows write to files otherwise

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def run(self) -> None:
        """Commit groups of jobs until the queue yields ``None``."""
        is_last = False
        while not is_last:
            jobs, is_last = self._next_group()
            if jobs:
                resolve(jobs, self._commit([job.operation for job in jobs]))
            if not jobs or self._log_pages >= _CHECKPOINT_PAGES:
                self._checkpoint()
        self._connection.close()
        self._lock.close()

    def _next_group(self) -> tuple[list[Job], bool]:
        """Wait for a job; return it with all others that wait, and whether they are the last ones."""
        jobs: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            if isinstance(job, Job):
                jobs.append(job)
            if len(jobs) >= _MAX_GROUP:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _commit(self, operations: Sequence[AnyOperation[Any]]) -> list[Any]:
        """Run operations in one transaction and return their outcomes; if the commit fails, all of them failed."""
        try:
            if self._is_broken:
                self._connection, self._is_broken = self._connect(), False
                self._prepare()
            with self._lock:
                self._set_sync(not all(isinstance(operation, VolatileOperation) for operation in operations))
                return run_group(self._connection, operations)
        except Exception as error:  # noqa: BLE001  it is raised where the operation is awaited
            return [self._failure_from(error)] * len(operations)

    def _set_sync(self, is_synced: bool) -> None:
        """Choose whether the next commit is synced. It is set before each commit, so that no failure can skip it."""
        if is_synced is not self._is_synced:
            self._connection.execute(self._sync_on if is_synced else "PRAGMA synchronous=NORMAL")
            self._is_synced = is_synced

    def _failure_from(self, error: Exception) -> Failure:
        translated = translate_error(error, self._connection)
        if isinstance(translated, StorageError):  # the state of the connection is unknown
            self._is_broken = True
            with contextlib.suppress(apsw.Error):
                self._connection.close()
        return Failure(translated)

    def _checkpoint(self) -> None:
        """Copy the log into the database if it is long, whichever process has written it."""
        with contextlib.suppress(apsw.Error):  # what cannot be copied now stays in the log
            pages, copied = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            if pages - copied >= _CHECKPOINT_PAGES:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


# --- jobs ------------------------------------------------------------------------------------------------------------


class Job:
    """An operation in the queue of a thread, and the future of its result."""

    def __init__(self, operation: AnyOperation[Any]) -> None:
        self.operation = operation
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.committed: asyncio.Future[Any] | None = None  # set when the operation is committed, before it is synced

    def set_committed(self, outcome: Any) -> None:
        """Note the outcome of a commit."""
        if self.committed is not None:
            set_results([(self.committed, outcome)])

    def copy_outcome(self, future: asyncio.Future[Any]) -> None:
        """Copy the outcome of an operation that another thread committed and synced."""
        if self.committed is None or self.committed.done() or future.cancelled():
            return
        if (error := future.exception()) is not None:
            self.committed.set_exception(error)
        else:
            self.committed.set_result(future.result())


class _Wake:
    """Wakes an idle thread."""


WAKE: Final = _Wake()
Jobs = queue.SimpleQueue[Job | _Wake | None]  # None ends the thread


class Failure:
    """The outcome of an operation that raised an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def resolve(jobs: Sequence[Job], outcomes: Sequence[Any]) -> None:
    """Return outcomes to the loops that wait for them, with one wake-up per loop."""
    if len(jobs) == 1:
        _return_results(jobs[0].future.get_loop(), [(jobs[0].future, outcomes[0])])
        return
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, results in by_loop.items():
        _return_results(loop, results)


def _return_results(loop: asyncio.AbstractEventLoop, results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits any more
        loop.call_soon_threadsafe(set_results, results)


def set_results(results: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    """Set the results of futures, on their event loop."""
    for future, outcome in results:
        if future.done():
            continue  # the caller was cancelled
        if isinstance(outcome, Failure):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)


class transaction:  # noqa: N801  a context manager, read as a function
    """Commit the statements of a block, or roll them back if it raises."""

    __slots__ = ("_begin", "_connection")

    def __init__(self, connection: apsw.Connection, kind: str = "IMMEDIATE") -> None:
        self._connection = connection
        self._begin = f"BEGIN {kind}"

    def __enter__(self) -> None:
        self._connection.execute(self._begin)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def run_operation(connection: apsw.Connection, operation: AnyOperation[Any]) -> Any:
    """Run an operation in the open transaction."""
    execute, steps = connection.execute, iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            statement, has_count = _to_sqlite(sql)
            rows = execute(statement, validate_arguments(arguments)).fetchall()
            sql, arguments = steps.send([(1,)] * connection.changes() if has_count else rows)
    except StopIteration as stop:
        return stop.value


@functools.cache
def _to_sqlite(sql: str) -> tuple[str, bool]:
    """Return a statement as SQLite runs it, and whether its rows are the changed ones.

    SQLite collects the rows of RETURNING in a table of its own; to count the changed rows is cheaper.
    """
    statement = sql.removesuffix(FOR_UPDATE).removesuffix(FOR_KEY_SHARE)
    return statement.removesuffix(RETURNING_ONE), statement.endswith(RETURNING_ONE)


def run_group(connection: apsw.Connection, operations: Sequence[AnyOperation[Any]]) -> list[Any]:
    """Run operations in one transaction and return their outcomes. One that fails leaves the others.

    Few fail: savepoints are set only when the group is run again after a failure.
    """
    if len(operations) == 1 or all(isinstance(operation, Operation) for operation in operations):
        try:
            with transaction(connection):
                return _run_all(connection, operations)
        except Exception as error:
            if len(operations) == 1 or _is_database_failure(error):
                raise
    with transaction(connection):
        return [_run_in_savepoint(connection, operation) for operation in operations]


def _run_all(connection: apsw.Connection, operations: Sequence[AnyOperation[Any]]) -> list[Any]:
    """Run operations in order; those of one kind that follow each other run as one."""
    outcomes: list[Any] = []
    for steps, group in itertools.groupby(operations, key=_batch_steps):
        if steps is None:
            outcomes += [run_operation(connection, operation) for operation in group]
        else:
            items = [operation.item for operation in group if isinstance(operation, BatchOperation)]
            outcomes += run_operation(connection, steps(items))
    return outcomes


def _batch_steps(operation: AnyOperation[Any]) -> Any:
    return operation.steps if isinstance(operation, BatchOperation) else None


def _is_database_failure(error: Exception) -> bool:
    """Whether the database failed, and with it the whole group."""
    return isinstance(error, apsw.Error | OSError) and not isinstance(error, apsw.ConstraintError)


def _run_in_savepoint(connection: apsw.Connection, operation: AnyOperation[Any]) -> Any:
    connection.execute("SAVEPOINT job")
    try:
        outcome = run_operation(connection, operation)
    except Exception as error:
        if _is_database_failure(error):
            raise
        connection.execute("ROLLBACK TO job")
        outcome = Failure(translate_error(error, connection))
    connection.execute("RELEASE job")
    return outcome


def run_read(connection: apsw.Connection, operation: AnyOperation[Any]) -> Any:
    """Run an operation that reads. A row that it cannot interpret is damage, because valid rows were written."""
    execute, steps = connection.execute, iter(operation)
    try:
        sql, arguments = next(steps)
        while True:
            rows = execute(sql, validate_arguments(arguments)).fetchall()
            try:
                sql, arguments = steps.send(rows)
            except (TypeError, ValueError, ArithmeticError, LookupError) as error:
                what = f"a stored row cannot be interpreted ({error})"
                raise CorruptDataError(what, remedy="Run dragoman verify") from error
    except StopIteration as stop:
        return stop.value


def is_disk_full(error: Exception, connection: apsw.Connection) -> bool:
    """Whether an error is due to a full disk. SQLite reports some of them as a plain I/O error."""
    if isinstance(error, apsw.IOError):
        with contextlib.suppress(apsw.ConnectionClosedError):
            return connection.system_errno in DISK_FULL_ERRNOS
    return isinstance(error, apsw.FullError)


def translate_error(error: Exception, connection: apsw.Connection) -> Exception:
    """Return the error of Dragoman for an error of SQLite."""
    match error:
        case apsw.FullError():
            what = "the disk is full; nothing was stored"
            return StorageError(what, remedy="Make room, and try again", code="disk_full")
        case apsw.IOError() if is_disk_full(error, connection):
            what = "the disk is full; it is unknown whether the change was stored"
            return StorageError(what, remedy="Make room, and try again with the same key", code="disk_full")
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.ConnectionClosedError() | OSError():
            return StorageError(f"the disk failed ({error}); it is unknown whether the change was stored")
        case apsw.BusyError() | apsw.LockedError():
            return StorageError("another program keeps the database locked; nothing was stored", code="storage_failed")
        case apsw.CorruptError() | apsw.NotADBError():
            return CorruptDataError(f"the database file is damaged ({error})", remedy="Run dragoman verify")
        case apsw.SQLError():  # our statements are valid, so the tables are not
            return CorruptDataError(f"the tables are not those of Dragoman ({error})", remedy="Run dragoman verify")
        case UnicodeDecodeError() | msgspec.DecodeError() | InvalidOperation():
            return CorruptDataError(f"a stored value cannot be decoded ({error})", remedy="Run dragoman verify")
        case UnicodeEncodeError():
            return FormatError(f"a lone surrogate at character {error.start} of a text")
        case OverflowError():
            return FormatError(f"a number is too large to be stored ({error})")
        case _:
            return error
