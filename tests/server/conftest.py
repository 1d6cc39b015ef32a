"""A chat server to ask, over a real socket, in the loop of the test.

    async def test_…(chat_server)        nobody needs a key; SQLite, attachments in a folder
    async def test_…(keyed_server)       everybody does; await keyed_server.key(user_id) gives headers with one
    async def test_…(postgres_chat_server)   as chat_server, on PostgreSQL

Each has ``base_url``, ``store``, ``agent``, ``doors``, ``fakes`` (strict providers by the name of their dialect, the
first of which answers by default: ``chat_server.fake.say("…")``) and ``client``, a session of aiohttp.
``serving(folder, …)`` is the same as a context manager, for tests that start and stop servers themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.client import Retries
from dragoman.server.keys import new_key
from dragoman.server.options import ServeOptions, address
from dragoman.server.serving import ChatServer, bound, listening, opened_doors
from dragoman.server.state import Doors
from dragoman.store import Store
from dragoman.turn import Agent
from tests.store.conftest import postgres, postgres_server, pytest_pyfunc_call, runner
from tests.strict import StrictProvider, strict_provider
from tests.turn.ground import settings_for

__all__ = ["Serving", "postgres", "postgres_server", "pytest_pyfunc_call", "runner", "serving"]

_NUMBERS = itertools.count(1)


class Serving:
    """A server that listens, and what is behind it."""

    def __init__(
        self,
        base_url: str,
        doors: Doors,
        server: ChatServer,
        fakes: dict[str, StrictProvider],
        client: aiohttp.ClientSession,
    ) -> None:
        self.base_url = base_url
        self.doors = doors
        self.server = server
        self.fakes = fakes
        self.client = client

    async def key(
        self, user_id: str | None = None, scopes: tuple[str, ...] = ("chat",), **given: Any
    ) -> dict[str, str]:
        """Headers with a new key of that user, or of a new one."""
        made = new_key(self.doors.peppers)
        whose = user_id or self.store.new_id()
        await self.store.create_key(made.public_id, made.secret_hash, user_id=whose, scopes=scopes, **given)
        return {"Authorization": f"Bearer {made.text}"}

    @property
    def store(self) -> Store:
        return self.doors.store

    @property
    def agent(self) -> Agent:
        return self.doors.agent

    @property
    def fake(self) -> StrictProvider:
        """The provider that answers when nobody chose another one."""
        return next(iter(self.fakes.values()))


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *dialects: str, store: str | None = None, of_agent: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Serving]:
    """A server over fakes of these dialects, answering while the block lasts. ``options`` are those of serving."""
    async with contextlib.AsyncExitStack() as stack:
        names = dialects or ("anthropic",)
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in names}
        options.setdefault("attachments", f"file://{folder / 'attachments'}")
        options.setdefault("grace_s", 2.0)
        chosen = ServeOptions(store=store or f"sqlite:///{folder / 'chats.db'}", port=options.pop("port", 0), **options)
        listener, chosen = bound(chosen)
        stack.callback(listener.close)
        given = {"retries": Retries(max_retries=0), **(of_agent or {})}
        settings = settings_for(folder, fakes, names[0])
        doors = await stack.enter_async_context(opened_doors(chosen, settings, **given))
        server = await stack.enter_async_context(listening(doors, listener))
        base_url = f"http://127.0.0.1:{chosen.port}"
        client = await stack.enter_async_context(aiohttp.ClientSession(base_url))
        assert chosen.base_url or address(chosen) == base_url
        yield Serving(base_url, doors, server, fakes, client)


def _held(runner: asyncio.Runner, made: contextlib.AbstractAsyncContextManager[Serving]) -> Iterator[Serving]:
    opened = runner.run(made.__aenter__())
    yield opened
    runner.run(made.__aexit__(None, None, None))


@pytest.fixture
def chat_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Serving]:
    """A server that needs no key."""
    yield from _held(runner, serving(tmp_path))


@pytest.fixture
def keyed_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Serving]:
    """A server that nobody enters without a key."""
    yield from _held(runner, serving(tmp_path, require_keys=True))


@pytest.fixture
def postgres_chat_server(runner: asyncio.Runner, tmp_path: Path, postgres_server: str) -> Iterator[Serving]:
    """A server that needs no key, on PostgreSQL."""
    yield from _held(runner, serving(tmp_path, store=f"{postgres_server}&schema=chats_{next(_NUMBERS)}"))
