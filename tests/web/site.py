"""A server with the page: the real server, with strict fakes under the names of real models.

    async with open_site(folder) as site:
        site.fakes["anthropic"].reply("…")
        site.paces["anthropic"].hold(10)         pauses the next answer after 10 chunks, until release()
        site.wire.cut(); site.wire.mend()        closes the connections to the server, and accepts new ones
        await site.stop(); await site.start()    restarts the server on the same store

Invariant: nothing between the browser and the fake provider is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from dragoman import settings
from dragoman.client import Retries
from dragoman.server.config import ServerConfig
from dragoman.server.server import bind_socket, open_app_state, run_server
from dragoman.server.state import AppState
from dragoman.settings import Settings
from dragoman.tools import builtin_tools
from dragoman.turn import AgentConfig
from scripts.build_page import build
from tests.fake_providers import StrictProvider, strict_provider

_CONFIG = """
default_model = "sonnet"
[providers.anthropic]
base_url = "{anthropic}"
api_key = "sk-not-a-real-key"
[providers.gemini]
base_url = "{gemini}"
api_key = "not-a-real-key"
[models."gemini:blind"]
max_context_tokens = 32000
supports_images = false
[models."gemini:small"]
max_context_tokens = 12000
"""
README = "# Lantern\n\nA lantern is lit with `lantern on`, and out after an hour.\n"


class Pace:
    """Pauses the streams of a fake."""

    def __init__(self, fake: StrictProvider) -> None:
        self._send_stream = fake._stream
        self._released = asyncio.Event()
        self._released.set()
        self._after = 0
        self.pause_s = 0.0  # between two chunks
        fake._stream = self._stream  # type: ignore[method-assign]

    def hold(self, after: int) -> None:
        """Pause the next streams after this number of chunks."""
        self._after = after
        self._released.clear()

    def release(self) -> None:
        """Resume the streams."""
        self._released.set()

    async def _stream(self, request: web.Request, chunks: list[bytes], cut: int | None) -> web.StreamResponse:
        if cut is not None or (self._released.is_set() and not self.pause_s):
            return await self._send_stream(request, chunks, cut)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, chunk in enumerate(chunks):
            if number >= self._after:
                await self._released.wait()
            await asyncio.sleep(self.pause_s)
            await response.write(chunk)
        await response.write_eof()
        return response


class Wire:
    """A connection between the browser and the server that a test can cut."""

    def __init__(self) -> None:
        self.port = 0
        self.server_port = 0  # the port of the server
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def mend(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Close all connections, and accept no more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._copy_both(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also if the task is cancelled before it starts

    async def _copy_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, server_writer))
                tasks.create_task(_copy(server_reader, writer))
        except (asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            server_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # one side has closed: close the other


class Site:
    """A server that can be stopped and started, with its fakes."""

    def __init__(
        self, folder: Path, settings: Settings, fakes: dict[str, StrictProvider], options: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.fakes = fakes
        self.paces = {name: Pace(fake) for name, fake in fakes.items()}
        self.options = ServerConfig(store=f"sqlite:///{folder / 'chats.db'}", port=0, grace_s=0.2, **options)
        self._settings = settings
        self.wire = Wire()
        self._stack = contextlib.AsyncExitStack()
        self._state: AppState | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.wire.port}"

    @property
    def state(self) -> AppState:
        assert self._state is not None
        return self._state

    async def start(self) -> None:
        """Start the server."""
        if not self.wire.port:
            await self.wire.mend()
            self.options = msgspec.structs.replace(self.options, base_url=self.base_url)
        listener, options = bind_socket(self.options)
        self.wire.server_port = listener.getsockname()[1]
        self._stack.callback(listener.close)
        agent_options: dict[str, Any] = {
            "agent_config": AgentConfig(retries=Retries(max_retries=0)),
            "tools": builtin_tools(("read_file", "write_file", "ask_user")),
            "workspace": self.folder / "work",
        }
        self._state = await self._stack.enter_async_context(open_app_state(options, self._settings, **agent_options))
        await self._stack.enter_async_context(run_server(self._state, listener))

    async def stop(self) -> None:
        """Stop the server gracefully."""
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def open_site(folder: Path, **options: Any) -> AsyncIterator[Site]:
    """Run a server with the page."""
    build()
    (folder / "work").mkdir()
    (folder / "work" / "README.md").write_text(README, "utf-8")
    async with contextlib.AsyncExitStack() as stack:
        fakes = {name: await stack.enter_async_context(strict_provider(name)) for name in ("anthropic", "gemini")}
        file = folder / "config.toml"
        file.write_text(_CONFIG.format(**{name: fake.base_url for name, fake in fakes.items()}), "utf-8")
        file.chmod(0o600)
        loaded = settings.load(environment={}, file=file, keyring=lambda _: None)
        site = Site(folder, loaded, fakes, options)
        await site.start()
        stack.push_async_callback(site.wire.cut)
        stack.push_async_callback(site.stop)
        yield site
