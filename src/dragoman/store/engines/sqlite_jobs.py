"""Run operations on a SQLite connection in a thread, and return their outcomes to the event loops that wait.

The writer and the readers of the SQLite engine share these functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
from collections.abc import Iterable, Sequence
from decimal import InvalidOperation
from typing import Any, Final

import apsw
import msgspec

from dragoman.errors import CorruptDataError, FormatError, StorageError
from dragoman.store.operation import FOR_KEY_SHARE, FOR_UPDATE, AnyOperation, Operation, validate_arguments

DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


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
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_loop.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, results in by_loop.items():
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

    __slots__ = ("_connection", "_kind")

    def __init__(self, connection: apsw.Connection, kind: str = "IMMEDIATE") -> None:
        self._connection = connection
        self._kind = kind

    def __enter__(self) -> None:
        self._connection.execute(f"BEGIN {self._kind}")

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
            statement = sql.removesuffix(FOR_UPDATE).removesuffix(FOR_KEY_SHARE)
            sql, arguments = steps.send(execute(statement, validate_arguments(arguments)).fetchall())
    except StopIteration as stop:
        return stop.value


def run_group(connection: apsw.Connection, operations: Sequence[AnyOperation[Any]]) -> list[Any]:
    """Run operations in one transaction and return their outcomes. One that fails leaves the others.

    Few fail: savepoints are set only when the group is run again after a failure.
    """
    if len(operations) == 1 or all(isinstance(operation, Operation) for operation in operations):
        try:
            with transaction(connection):
                return [run_operation(connection, operation) for operation in operations]
        except Exception as error:
            if len(operations) == 1 or _is_database_failure(error):
                raise
    with transaction(connection):
        return [_run_in_savepoint(connection, operation) for operation in operations]


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
