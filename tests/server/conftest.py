"""Fixtures with a chat server on a real socket, in the event loop of the test.

    async def test_…(chat_server)            requires no key; SQLite, attachments in a folder
    async def test_…(keyed_server)           requires a key; await keyed_server.make_key(user_id) returns its headers
    async def test_…(postgres_chat_server)   like chat_server, on PostgreSQL

Each has ``base_url``, ``store``, ``agent``, ``state``, ``fakes`` (providers by dialect; the first answers by default:
``chat_server.fake.say("…")``) and ``client``, an aiohttp session. ``run_test_server(folder, …)`` is the same as a
context manager, for tests that start and stop servers themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.client import Retries
from dragoman.server.auth.api_keys import new_key
from dragoman.server.config import ServerConfig, address
from dragoman.server.server import ChatServer, bind_socket, open_app_state, run_server
from dragoman.server.state import AppState
from dragoman.store import Store
from dragoman.turn import Agent, AgentConfig
from tests.fake_providers import StrictProvider, strict_provider
from tests.servers import uvicorn_sleep
from tests.store.conftest import pytest_pyfunc_call, runner
from tests.store.schema_pool import schema_pool
from tests.turn.fake_agent import settings_for

__all__ = ["ServerFixture", "pytest_pyfunc_call", "run_test_server", "runner"]

uvicorn_sleep.shorten()


class ServerFixture:
    """A running server, its store and its fakes."""

    def __init__(
        self,
        base_url: str,
        state: AppState,
        server: ChatServer,
        fakes: dict[str, StrictProvider],
        client: aiohttp.ClientSession,
    ) -> None:
        self.base_url = base_url
        self.state = state
        self.server = server
        self.fakes = fakes
        self.client = client

    async def make_key(
        self, user_id: str | None = None, scopes: tuple[str, ...] = ("chat",), **fields: Any
    ) -> dict[str, str]:
        """Create a key of that user, or of a new user, and return the headers with it."""
        api_key = new_key(self.state.peppers)
        owner = user_id or self.store.new_id()
        await self.store.keys.create(api_key.public_id, api_key.secret_hash, user_id=owner, scopes=scopes, **fields)
        return {"Authorization": f"Bearer {api_key.text}"}

    @property
    def store(self) -> Store:
        return self.state.store

    @property
    def agent(self) -> Agent:
        return self.state.agent

    @property
    def fake(self) -> StrictProvider:
        """The fake of the default provider."""
        return next(iter(self.fakes.values()))


@contextlib.asynccontextmanager
async def run_test_server(
    folder: Path,
    *dialects: str,
    store: str | None = None,
    agent_options: dict[str, Any] | None = None,
    rows: str = "",
    **options: Any,
) -> AsyncIterator[ServerFixture]:
    """Run a server with fakes of these dialects.

    ``options`` are those of the server configuration. ``rows`` are further lines of the configuration file.
    """
    async with contextlib.AsyncExitStack() as stack:
        names = dialects or ("anthropic",)
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in names}
        options.setdefault("attachments", f"file://{folder / 'attachments'}")
        options.setdefault("grace_s", 2.0)
        config = ServerConfig(store=store or f"sqlite:///{folder / 'chats.db'}", port=options.pop("port", 0), **options)
        listener, config = bind_socket(config)
        stack.callback(listener.close)
        no_retries = AgentConfig(retries=Retries(max_retries=0))
        settings = settings_for(folder, fakes, names[0], rows)
        state = await stack.enter_async_context(
            open_app_state(config, settings, agent_config=no_retries, **(agent_options or {}))
        )
        server = await stack.enter_async_context(run_server(state, listener))
        base_url = f"http://127.0.0.1:{config.port}"
        client = await stack.enter_async_context(aiohttp.ClientSession(base_url))
        assert config.base_url or address(config) == base_url
        yield ServerFixture(base_url, state, server, fakes, client)


def _run_fixture(
    runner: asyncio.Runner, context: contextlib.AbstractAsyncContextManager[ServerFixture]
) -> Iterator[ServerFixture]:
    server = runner.run(context.__aenter__())
    yield server
    runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def chat_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that needs no key."""
    yield from _run_fixture(runner, run_test_server(tmp_path))


@pytest.fixture
def keyed_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server that requires a key."""
    yield from _run_fixture(runner, run_test_server(tmp_path, require_keys=True))


@pytest.fixture
def postgres_store(postgres_server: str) -> Iterator[str]:
    """The URL of an empty store on PostgreSQL."""
    pool = schema_pool(postgres_server)
    name = pool.acquire()
    yield pool.url(name)
    pool.release(name)


@pytest.fixture
def postgres_chat_server(runner: asyncio.Runner, tmp_path: Path, postgres_store: str) -> Iterator[ServerFixture]:
    """A server that needs no key, on PostgreSQL."""
    yield from _run_fixture(runner, run_test_server(tmp_path, store=postgres_store))
