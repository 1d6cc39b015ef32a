"""Commit quick operations on the event loop, and sync them in a thread.

A statement that touches a few rows takes microseconds. In a thread it takes several times as long, because the thread
and the event loop exchange the interpreter lock for each statement. Quick operations of a few turns of the
event loop are committed together, without a sync; a thread then syncs the log, while further groups are committed. One
sync covers all groups that were committed before it started. A turn of an idle event loop takes microseconds; one of a
busy event loop takes longer and submits more, so groups grow with the load.

If another process or the writer thread holds the lock file, if another program locks the database, or after a failure,
the operations go to the writer thread (``write_scheduler``), so that the event loop never waits for a lock. It waits
for a sync only when SQLite restarts its log, every few megabytes.

Invariants: an operation is acknowledged only after the log was synced, unless it is volatile; after a failed sync every
operation that waits for it fails, and the connection is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from dragoman import permissions
from dragoman.errors import DragomanError, StorageError
from dragoman.store.engines.write_scheduler import (
    WAKE,
    Failure,
    Job,
    Jobs,
    WriterLock,
    resolve,
    run_group,
    run_read,
    set_results,
    translate_error,
)
from dragoman.store.operation import NO_GATHER, AnyOperation, VolatileOperation

_MAX_GROUP: Final = 32  # operations per transaction
_TURNS: Final = 3  # of the event loop between a submit and its commit
_SYNCS_PER_CHECKPOINT: Final = 64  # before the writer thread checks the length of the log
_sync_file: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


class LoopWriter:
    """The writer of one event loop."""

    def __init__(
        self, log_path: Path, lock: WriterLock, connect: Callable[[], apsw.Connection], fallback: Jobs
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._log_path = log_path
        self._lock = lock
        self._connect = connect
        self._fallback = fallback
        self._connection: apsw.Connection | None = None
        self._log: int | None = None  # descriptor of the log
        self._pending: list[Job] = []
        self._timer: asyncio.TimerHandle | None = None  # of operations that wait for others
        self._is_commit_due = False
        self._sync_queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unsynced: list[tuple[Job, Any]] = []  # committed, for the next sync
        self._is_sync_due = False
        self._sync_count = 0
        self._mutex = threading.Lock()  # of the two above
        self._thread = threading.Thread(target=self._run_syncs, name="dragoman-sync", daemon=True)
        self._thread.start()
        self._sync_queue.put(self._open)

    # --- on the event loop -------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the connection is open, and this is its event loop."""
        return self._connection is not None and asyncio.get_running_loop() is self.loop

    def submit(self, job: Job) -> None:
        """Commit an operation with all others that are submitted in the next turns of the event loop.

        One that may wait is committed with those that are submitted meanwhile.
        """
        self._pending.append(job)
        if self._is_commit_due:
            return
        gather = getattr(job.operation, "gather", NO_GATHER)
        if len(self._pending) >= min(gather.size, _MAX_GROUP):
            self._is_commit_due = True
            self.loop.call_soon(self._commit_after, _TURNS - 1)
        elif self._timer is None:
            self._timer = self.loop.call_later(gather.timeout_s, self._commit_pending)

    def _commit_after(self, turns: int) -> None:
        if turns:
            self.loop.call_soon(self._commit_after, turns - 1)
        elif self._pending:
            self._commit_pending()

    def read(self, operation: AnyOperation[Any]) -> Any:
        """Run an operation that reads; ``apsw.BusyError`` if a thread has to wait for it."""
        connection = self._connection
        assert connection is not None
        try:
            return run_read(connection, operation)
        except (apsw.BusyError, apsw.LockedError):
            raise
        except Exception as error:
            raise translate_error(error, connection) from error

    def _commit_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_commit_due = None, False
        jobs, self._pending = self._pending[:_MAX_GROUP], self._pending[_MAX_GROUP:]
        if self._pending:
            self._is_commit_due = True
            self.loop.call_soon(self._commit_pending)
        outcomes = self._commit([job.operation for job in jobs])
        if outcomes is None:
            for job in jobs:
                self._fallback.put(job)
            return
        synced: list[tuple[Job, Any]] = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.set_committed(outcome)
            if isinstance(job.operation, VolatileOperation) or isinstance(outcome, Failure):
                set_results([(job.future, outcome)])
            else:
                synced.append((job, outcome))
        if synced:
            self._request_sync(synced)

    def _commit(self, operations: Sequence[AnyOperation[Any]]) -> list[Any] | None:
        """Commit operations in one transaction without a sync; none if the writer thread has to do it."""
        connection = self._connection
        if connection is None or not self._lock.acquire():
            return None
        try:
            return run_group(connection, operations)
        except (apsw.BusyError, apsw.LockedError):
            return None  # another program writes
        except Exception as error:  # noqa: BLE001  it is raised where the operation is awaited
            return [self._failure_from(error, connection)] * len(operations)
        finally:
            self._lock.release()

    def _failure_from(self, error: Exception, connection: apsw.Connection) -> Failure:
        translated = translate_error(error, connection)
        if isinstance(translated, StorageError):  # the state of the connection is unknown
            self._replace_connection()
        return Failure(translated)

    def _replace_connection(self) -> None:
        """Close the connection, and open a new one in the thread. The writer thread writes meanwhile."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close()
            self._sync_queue.put(self._open)

    def _request_sync(self, synced: list[tuple[Job, Any]]) -> None:
        with self._mutex:
            self._unsynced.extend(synced)
            is_due, self._is_sync_due = self._is_sync_due, True
        if not is_due:
            self._sync_queue.put(self._sync)

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run_syncs(self) -> None:
        while (action := self._sync_queue.get()) is not None:
            action()
        if self._log is not None:
            os.close(self._log)

    def _open(self) -> None:
        """Open the connection, and the log to sync it."""
        try:
            connection = self._connect()
            if self._log is None:
                self._log = os.open(self._log_path, os.O_RDONLY)
                permissions.sync_folder(self._log_path.parent)  # the log may be a new file
        except (OSError, DragomanError):
            return  # the writer thread reports it
        connection.set_busy_timeout(0)
        connection.wal_autocheckpoint(0)
        connection.execute("PRAGMA synchronous=NORMAL")
        self._connection = connection

    def _sync(self) -> None:
        with self._mutex:
            synced, self._unsynced = self._unsynced, []
            self._is_sync_due = False
        jobs, outcomes = [job for job, _ in synced], [outcome for _, outcome in synced]
        try:
            assert self._log is not None
            _sync_file(self._log)
        except OSError as error:
            what = f"the disk failed ({error}); it is unknown whether the change was stored"
            outcomes = [Failure(StorageError(what))] * len(jobs)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._replace_connection)
        resolve(jobs, outcomes)
        self._sync_count += 1
        if self._sync_count % _SYNCS_PER_CHECKPOINT == 0:
            self._fallback.put(WAKE)

    async def close(self) -> None:
        """Commit and sync what is submitted, then close the connection."""
        while self._pending:
            await asyncio.sleep(0)
        self._sync_queue.put(None)
        await asyncio.to_thread(self._thread.join)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._lock.close()
