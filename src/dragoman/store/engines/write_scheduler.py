"""The writer thread of a SQLite database, with group commit.

The writes of a process go through one connection in one thread, but for those of ``loop_writer``. The thread runs every
operation that waits in its queue in one transaction, each in a savepoint, and commits them together: while one commit
syncs, the next group gathers, so many writers share the cost of one sync, and no event loop waits for the disk.

Processes take turns by a lock file beside the database, on which they block without polling. Other programs are waited
for with SQLite's busy timeout.

Invariants: an operation is acknowledged only after its commit has returned with ``synchronous=FULL``; a group of
volatile operations alone (leases) is committed without a sync. After an I/O error the connection is closed, and the
next group opens a new one.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from dragoman.errors import StorageError
from dragoman.store.engines.sqlite_jobs import Failure, Job, Jobs, resolve, run_group, translate_error
from dragoman.store.operation import AnyOperation, VolatileOperation

try:
    import fcntl
except ImportError:  # not a POSIX system: SQLite's own locks have to do
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS: Final = fcntl is not None
_MAX_GROUP: Final = 512  # operations per transaction
_CHECKPOINT_PAGES: Final = 4_000  # pages in the log before they are copied into the database


class WriterLock:
    """A lock file that one process holds at a time. SQLite alone would have the processes poll."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the lock, and hold it during a block."""
        if self._path is None or fcntl is None:
            yield
            return
        fcntl.flock(self._open(self._path), fcntl.LOCK_EX)
        try:
            yield
        finally:
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
        self._sync_on = f"PRAGMA synchronous={connection.pragma('synchronous')}"
        self._prepare()

    def _prepare(self) -> None:
        self._is_synced = True
        self._connection.wal_autocheckpoint(0)  # the thread copies the log after it has answered, not within a commit

    def run(self) -> None:
        """Commit groups of jobs until the queue yields ``None``."""
        is_last = False
        while not is_last:
            jobs, is_last = self._next_group()
            if jobs:
                resolve(jobs, self._commit([job.operation for job in jobs]))
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
            with self._lock.hold():
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
