"""Counters of a server: requests by route and status, runs by their end, and the resources of each worker.

    table = make_shared_table(workers)                    once, in the process that starts the workers
    counters = Counters(table, index=1)                   in a worker: it writes its own row and reads all rows
    counters.name_routes(routes)                          the same in every worker, before the first request
    counters.count_request("GET", "/healthz", 200, 0.002)
    counters.http(), counters.runs(), counters.workers()  of all workers

Workers share one block of memory without locks, because each row has one writer. Any worker can report the totals. A
restarted worker continues in the row of its predecessor, so totals never fall.
"""

from __future__ import annotations

import array
import os
import sys
import time
from collections.abc import Iterable, MutableSequence, Sequence
from multiprocessing import get_context
from typing import Final

import msgspec

MAX_ROUTES: Final = 512
RUN_ENDS: Final = ("finished", "interrupted", "cancelled", "error")
STATUSES: Final = ("gone", "1xx", "2xx", "3xx", "4xx", "5xx")  # gone: the client disconnected before the response
Table = MutableSequence[float]
Route = tuple[str, str]  # method and path
OTHER_ROUTES: Final[Route] = ("", "")  # requests without a route

_PROCESS: Final = 4  # pid, start, CPU seconds, bytes
_HTTP: Final = _PROCESS  # requests in progress
_RUNS: Final = _HTTP + 1  # started, running, then by end
_ROUTES: Final = _RUNS + 2 + len(RUN_ENDS)
_ROUTE_WIDTH: Final = len(STATUSES) + 1  # requests by status, then seconds
_ROW: Final = _ROUTES + MAX_ROUTES * _ROUTE_WIDTH


class WorkerMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process."""

    worker: int
    uptime_sec: float
    cpu_sec: float
    memory_mb: float  # peak


class RunMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of all workers since the server started."""

    running: int
    begun: int
    finished: int
    interrupted: int  # waiting for a person
    cancelled: int
    error: int


class RouteMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one route."""

    method: str
    route: str  # as declared; empty for requests without a route
    requests: int
    by_status: dict[str, int]
    seconds: float  # total; a stream counts until its end


class HttpMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of all workers since the server started."""

    in_progress: int
    requests: int
    by_status: dict[str, int]
    routes: list[RouteMeasures]


def make_shared_table(workers: int) -> Table:
    """Return shared memory for the counters of ``workers`` workers."""
    table: Table = get_context("spawn").RawArray("d", workers * _ROW)
    return table


class Counters:
    """The counters of one worker, and the totals of all."""

    def __init__(self, table: Table | None = None, index: int = 0) -> None:
        self._routes: tuple[Route, ...] = (OTHER_ROUTES,)
        self._places = {OTHER_ROUTES: 0}
        self._table: Table = array.array("d", bytes(8 * _ROW)) if table is None else table
        self._row = index * _ROW
        self._table[self._row] = os.getpid()
        self._table[self._row + 1] = time.monotonic()
        self._table[self._row + _HTTP] = self._table[self._row + _RUNS + 1] = 0  # left by a worker that died
        self.record_process()

    def name_routes(self, routes: Iterable[Route]) -> None:
        """Count requests of these routes separately, and all others together."""
        self._routes = (OTHER_ROUTES, *dict.fromkeys(routes))[:MAX_ROUTES]
        self._places = {route: at for at, route in enumerate(self._routes)}

    # --- counting ----------------------------------------------------------------------------------------------------

    def begin_request(self) -> None:
        """Count a request in progress."""
        self._table[self._row + _HTTP] += 1

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a finished request; status 0 if its client disconnected before the response."""
        key = ("GET" if method == "HEAD" else method, route)
        at = self._row + _ROUTES + self._places.get(key, 0) * _ROUTE_WIDTH
        self._table[self._row + _HTTP] -= 1
        self._table[at + (status // 100 if 100 <= status < 600 else 0)] += 1
        self._table[at + len(STATUSES)] += seconds

    def begin_run(self) -> None:
        """Count a started run."""
        self._table[self._row + _RUNS] += 1
        self._table[self._row + _RUNS + 1] += 1

    def end_run(self, end: str) -> None:
        """Count a finished run by its end, one of ``RUN_ENDS``."""
        self._table[self._row + _RUNS + 1] -= 1
        self._table[self._row + _RUNS + 2 + RUN_ENDS.index(end)] += 1

    def record_process(self) -> None:
        """Record the resources of this process."""
        times = os.times()
        self._table[self._row + 2] = times.user + times.system
        self._table[self._row + 3] = _memory_bytes()

    # --- reading -----------------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerMeasures]:
        """All workers."""
        self.record_process()
        rows = (self._table[first : first + _PROCESS] for first in range(0, len(self._table), _ROW))
        return [_worker(row) for row in rows if row[0]]

    def this_worker(self) -> WorkerMeasures:
        """This worker."""
        self.record_process()
        return _worker(self._table[self._row : self._row + _PROCESS])

    def runs(self) -> RunMeasures:
        """The runs of all workers."""
        total, running, *ends = (round(self._sum(_RUNS + at)) for at in range(2 + len(RUN_ENDS)))
        return RunMeasures(running=running, begun=total, **dict(zip(RUN_ENDS, ends, strict=True)))

    def http(self) -> HttpMeasures:
        """The requests of all workers."""
        routes = [measures for at, route in enumerate(self._routes) if (measures := self._route(at, route)).requests]
        by_status = {name: sum(measures.by_status.get(name, 0) for measures in routes) for name in STATUSES}
        return HttpMeasures(
            in_progress=round(self._sum(_HTTP)),
            requests=sum(measures.requests for measures in routes),
            by_status={name: count for name, count in by_status.items() if count},
            routes=routes,
        )

    def _route(self, at: int, route: Route) -> RouteMeasures:
        first = _ROUTES + at * _ROUTE_WIDTH
        counts = {name: round(self._sum(first + place)) for place, name in enumerate(STATUSES)}
        return RouteMeasures(
            method=route[0],
            route=route[1],
            requests=sum(counts.values()),
            by_status={name: count for name, count in counts.items() if count},
            seconds=round(self._sum(first + len(STATUSES)), 6),
        )

    def _sum(self, at: int) -> float:
        return sum(self._table[first + at] for first in range(0, len(self._table), _ROW))


def _worker(row: Sequence[float]) -> WorkerMeasures:
    pid, start_s, cpu_sec, memory = row
    return WorkerMeasures(
        worker=int(pid),
        uptime_sec=round(time.monotonic() - start_s, 3),
        cpu_sec=round(cpu_sec, 3),
        memory_mb=round(memory / 2**20, 1),
    )


def _memory_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415  not available on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
