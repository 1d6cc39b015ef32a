"""Stores with deliberate defects, which prove that the harness detects them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dragoman.store import Store, open_store
from dragoman.store.engines import sqlite
from dragoman.store.engines.write_scheduler import WriteScheduler, _run_in_savepoint, resolve, transaction

_WAIT_S = 0.01


class _EarlyAcknowledgement(WriteScheduler):
    """Acknowledges before the commit."""

    def run(self) -> None:
        is_last = False
        while not is_last:
            jobs, is_last = self._next_group()
            with self._lock, transaction(self._connection):
                resolve(jobs, [_run_in_savepoint(self._connection, job.operation) for job in jobs])
                time.sleep(_WAIT_S)
        self._connection.close()
        self._lock.close()


class _LateAcknowledgement(WriteScheduler):
    """Acknowledges some time after the commit: allowed, and the worst case for clients that retry without a key."""

    def _commit(self, operations: Sequence[Any]) -> list[Any]:
        outcomes = super()._commit(operations)
        time.sleep(_WAIT_S)
        return outcomes


def open_eager(url: str) -> Store:
    sqlite.WriteScheduler = _EarlyAcknowledgement  # type: ignore[misc]
    return open_store(url)


def open_late(url: str) -> Store:
    sqlite.WriteScheduler = _LateAcknowledgement  # type: ignore[misc]
    return open_store(url)


def open_unsynced(url: str) -> Store:
    """Open a store that never syncs."""
    sqlite._SETTINGS = sqlite._SETTINGS | {"synchronous": 0}  # type: ignore[misc]
    store = open_store(url)
    assert isinstance(store, sqlite.SqliteStore)
    store._synchronous = "OFF"
    return store
