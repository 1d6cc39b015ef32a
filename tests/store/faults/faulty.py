"""Stores that do what a store must not do, so that the harness can be seen to find it. Nothing but tests uses them."""

from __future__ import annotations

import time
from typing import Any

from dragoman.store import Store, open_store, sqlite

_WAIT_S = 0.01


class _Eager(sqlite._Writer):
    """Acknowledges when everything is written, and commits a little later."""

    def _committed(self, jobs: list[Any]) -> list[Any]:
        outcomes = []
        with self._lock.held(), sqlite._transaction(self._connection):
            for operation, loop, future in jobs:
                outcomes.append(self._alone(operation))
                sqlite._tell(loop, [(future, outcomes[-1])])
            time.sleep(_WAIT_S)
        return outcomes


class _Late(sqlite._Writer):
    """Commits, and acknowledges a little later: allowed, and the worst for those who ask again carelessly."""

    def _committed(self, jobs: list[Any]) -> list[Any]:
        outcomes = super()._committed(jobs)
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
