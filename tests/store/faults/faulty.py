"""Stores that do what a store must not do, so that the harness can be seen to find it. Nothing but tests uses them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dragoman.store import Store, open_store
from dragoman.store.engines import sqlite

_WAIT_S = 0.01


class _InTheThread(sqlite._Writer):
    """Writes nothing where it was asked for."""

    def committed_here(self, asked: list[Any]) -> None:
        return None

    def done_here(self, sql: str, arguments: Sequence[Any]) -> None:
        return None


class _Eager(_InTheThread):
    """Acknowledges when everything is written, and commits a little later."""

    def work(self) -> None:
        is_over = False
        while not is_over:
            jobs, is_over = self._collect_jobs(self._jobs.get())
            with self._lock.hold(), sqlite._transaction(self._connection):
                for operation, loop, future in jobs:
                    sqlite._deliver(loop, [(future, self._run_in_savepoint(operation))])
                time.sleep(_WAIT_S)
        self._connection.close()
        self._lock.close()


class _Late(_InTheThread):
    """Commits, and acknowledges a little later: allowed, and the worst for those who ask again carelessly."""

    def _committed(self, asked: list[Any], *, wait: bool = True) -> list[Any] | None:
        outcomes = super()._commit(asked, wait=wait)
        time.sleep(_WAIT_S)
        return outcomes


def open_eager(url: str) -> Store:
    sqlite._Writer = _Eager  # type: ignore[misc]
    return open_store(url)


def open_late(url: str) -> Store:
    sqlite._Writer = _Late  # type: ignore[misc]
    return open_store(url)


def open_unsynced(url: str) -> Store:
    """A store that never waits for the disk."""
    sqlite._SETTINGS = sqlite._SETTINGS | {"synchronous": 0}  # type: ignore[misc]
    store = open_store(url)
    assert isinstance(store, sqlite.SqliteStore)
    store._synchronous = "OFF"
    return store
