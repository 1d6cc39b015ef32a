"""Fixtures of every engine. Each test gets a new, empty store.

    async def test_…(store)                an open store, once for every engine
    async def test_…(store_location)       a location of a store: open() opens it, url is for other processes
    async def test_…(database_location)    the same, only engines that several Store objects can open

A coroutine test runs in its own event loop, in which ``store`` was opened. Another test (a property, for example) uses
the fixture ``runner`` and calls ``runner.run``. PostgreSQL is a real server. It starts with the first test that needs
it, once for each process of the tests. A location in it is a schema.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from dragoman.store import Store, engines, open_store
from dragoman.store.operation import Rows, Statement
from tests.store.schema_pool import schema_pool


class StoreLocation:
    """The location of a store that does not exist yet."""

    def __init__(self, url: str, *, is_shared: bool = True) -> None:
        self.url = url
        self.is_shared = is_shared  # whether a second Store object can open the same data

    def open(self) -> Store:
        """Return the store for ``async with``."""
        return open_store(self.url)


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    """Connect to the PostgreSQL server and schema of a store, without the store and its background work."""
    server, _, schema = url.partition("&schema=")
    connection = await asyncpg.connect(server)
    try:
        if schema:
            await connection.execute(f"SET search_path = {schema}")
        yield connection
    finally:
        await connection.close()


def _memory(request: pytest.FixtureRequest) -> StoreLocation:
    return StoreLocation("memory:", is_shared=False)


def _sqlite(request: pytest.FixtureRequest) -> StoreLocation:
    folder: Path = request.getfixturevalue("tmp_path")
    return StoreLocation(f"sqlite:///{folder / 'store.db'}")


def _postgres(request: pytest.FixtureRequest) -> StoreLocation:
    return create_schema_location(request, request.getfixturevalue("postgres_server"))


def create_schema_location(request: pytest.FixtureRequest, server: str) -> StoreLocation:
    """Return a new schema, or one with an empty store for a test that uses ``store``."""
    if "store" not in request.fixturenames:
        return StoreLocation(f"{server}&schema=place_{next(_NUMBERS)}")
    pool = schema_pool(server)
    name = pool.acquire()
    request.addfinalizer(lambda: pool.release(name))
    return StoreLocation(pool.url(name))


LOCATIONS: dict[str, Callable[[pytest.FixtureRequest], StoreLocation]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
}
SHARED = ("sqlite", "postgres")
_NUMBERS = itertools.count(1)


def engine_names() -> set[str]:
    """Return the names of the engine modules, which define a subclass of ``Store``."""
    (folder,) = engines.__path__
    return {path.stem for path in Path(folder).glob("*.py") if "Store(Store)" in path.read_text()}


# A store in memory is SQLite without a file. The default run uses files for every test and memory for a sample.
_LOCATION_PARAMETERS = [
    pytest.param(name, marks=pytest.mark.sampled(4) if name == "memory" else ()) for name in LOCATIONS
]


@pytest.fixture(params=_LOCATION_PARAMETERS)
def store_location(request: pytest.FixtureRequest) -> StoreLocation:
    """A new location of every engine."""
    return LOCATIONS[request.param](request)


@pytest.fixture(params=SHARED)
def database_location(request: pytest.FixtureRequest) -> StoreLocation:
    """A new location of every engine that several Store objects can open at the same time."""
    return LOCATIONS[request.param](request)


@pytest.fixture
def store(store_location: StoreLocation, runner: asyncio.Runner) -> Iterator[Store]:
    """A new, open store of every engine."""
    opened = store_location.open()
    runner.run(opened.open())
    yield opened
    runner.run(opened.close())


class Clock:
    """A clock that only a test advances: ``store.clock = clock``."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 8, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, **by: float) -> None:
        self.now += timedelta(**by)


async def pass_time(store: Store, clock: Clock | None = None, **by: float) -> None:
    """Advance the time of leases, runs and letters, and the wall clock if one is passed.

    The clock of leases cannot be set, so their expiry times are reduced instead.
    """
    if clock is not None:
        clock.move(**by)
    elapsed_us = round(timedelta(**by) / timedelta(microseconds=1))
    await store._write(_advance_leases(elapsed_us))


def _advance_leases(elapsed_us: int) -> Generator[Statement, Rows, None]:
    yield "UPDATE leases SET expires_at = expires_at - ?", (elapsed_us,)
    yield "UPDATE runs SET alive_until = alive_until - ?", (elapsed_us,)
    yield "UPDATE outbox SET available_at = available_at - ?", (elapsed_us,)
    yield (
        "UPDATE inbox SET available_at = CASE WHEN available_at > ? THEN available_at - ? ELSE 1 END"
        " WHERE available_at > 0",
        (elapsed_us, elapsed_us),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of a test and its store."""
    with asyncio.Runner() as opened:
        yield opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**arguments))
    return True
