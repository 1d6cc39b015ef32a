"""Every engine, each test with a fresh and empty place of its own.

    async def test_…(store)          a store that is open, once for every engine
    async def test_…(place)          where one can be opened: place.open(), or place.url for other processes
    async def test_…(shared_place)   the same, of those engines that several Store objects can open at once

Tests may be coroutines: each runs in a loop of its own, in which ``store`` was opened. One that is no coroutine (a
property, for example) takes ``runner`` and calls ``runner.run``. PostgreSQL is a real server, started when the first
test asks for it, one for each process of the tests; a place in it is a schema.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.store import Store, engines, open_store
from dragoman.store.operation import Rows, Statement
from tests.store.schema_pool import schema_pool


class Place:
    """Somewhere to keep a store: nothing is there yet."""

    def __init__(self, url: str, *, is_shared: bool = True) -> None:
        self.url = url
        self.is_shared = is_shared  # whether a second Store object finds what a first one keeps there

    def open(self) -> Store:
        """The store, to be used with ``async with``."""
        return open_store(self.url)


def _memory(request: pytest.FixtureRequest) -> Place:
    return Place("memory:", is_shared=False)


def _sqlite(request: pytest.FixtureRequest) -> Place:
    folder: Path = request.getfixturevalue("tmp_path")
    return Place(f"sqlite:///{folder / 'store.db'}")


def _postgres(request: pytest.FixtureRequest) -> Place:
    return schema_of(request, request.getfixturevalue("postgres_server"))


def schema_of(request: pytest.FixtureRequest, server: str) -> Place:
    """A schema that does not exist yet; for a test that takes ``store``, one with an empty store."""
    if "store" not in request.fixturenames:
        return Place(f"{server}&schema=place_{next(_NUMBERS)}")
    pool = schema_pool(server)
    name = pool.take()
    request.addfinalizer(lambda: pool.give_back(name))
    return Place(pool.url(name))


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
}
SHARED = ("sqlite", "postgres")
_NUMBERS = itertools.count(1)


def engine_names() -> set[str]:
    """The names of the engine modules: those that define a subclass of ``Store``."""
    (folder,) = engines.__path__
    return {path.stem for path in Path(folder).glob("*.py") if "Store(Store)" in path.read_text()}


# A store in memory is SQLite without a file: the default run has every test on files, and a sample of them in memory.
_PLACE_PARAMETERS = [pytest.param(name, marks=pytest.mark.sampled(4) if name == "memory" else ()) for name in PLACES]


@pytest.fixture(params=_PLACE_PARAMETERS)
def place(request: pytest.FixtureRequest) -> Place:
    """A fresh place, of every engine."""
    return PLACES[request.param](request)


@pytest.fixture(params=SHARED)
def shared_place(request: pytest.FixtureRequest) -> Place:
    """A fresh place, of every engine that several Store objects can open at once."""
    return PLACES[request.param](request)


@pytest.fixture
def store(place: Place, runner: asyncio.Runner) -> Iterator[Store]:
    """A fresh store that is open, of every engine."""
    opened = place.open()
    runner.run(opened.open())
    yield opened
    runner.run(opened.close())


class Clock:
    """A clock that stands still until somebody moves it: ``store.clock = clock``."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 8, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, **by: float) -> None:
        self.now += timedelta(**by)


async def pass_time(store: Store, clock: Clock | None = None, **by: float) -> None:
    """Let time pass for leases, the signs of life of runs and letters, and on the wall clock if one is given.

    Nobody can set the clock that leases are measured on, so their ends come nearer instead.
    """
    if clock is not None:
        clock.move(**by)
    sooner = round(timedelta(**by) / timedelta(microseconds=1))
    await store._write(_come_nearer(sooner))


def _come_nearer(sooner: int) -> Generator[Statement, Rows, None]:
    yield "UPDATE leases SET expires_at = expires_at - ?", (sooner,)
    yield "UPDATE runs SET alive_until = alive_until - ?", (sooner,)
    yield "UPDATE outbox SET available_at = available_at - ?", (sooner,)
    yield (
        "UPDATE inbox SET available_at = CASE WHEN available_at > ? THEN available_at - ? ELSE 1 END"
        " WHERE available_at > 0",
        (sooner, sooner),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The loop in which a test and its store run."""
    with asyncio.Runner() as made:
        yield made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**given))
    return True
