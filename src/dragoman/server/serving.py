"""Serving: from options to a server that listens, and back to nothing when it is told to stop.

The one rule: what was opened is closed in the opposite order, and running turns are given their time first.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import uvicorn

from dragoman import settings as keys
from dragoman.attachments import open_attachments
from dragoman.errors import SettingsError
from dragoman.server.app import make_app
from dragoman.server.options import ServeOptions
from dragoman.server.state import Doors
from dragoman.settings import Setting, Settings
from dragoman.store import open_store
from dragoman.turn import Agent


def bound(options: ServeOptions) -> tuple[socket.socket, ServeOptions]:
    """A socket that listens where the options say, and the options with the port that it got."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    made = socket.socket(family=family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((options.host.strip("[]"), options.port))
    except OSError as error:
        made.close()
        raise SettingsError(
            f"it cannot listen at {options.host} port {options.port}: {error.strerror or error}",
            remedy="Choose another --port, or end what listens there",
            code="cannot_listen",
        ) from None
    made.listen(2048)
    made.setblocking(False)
    return made, msgspec.structs.replace(options, port=made.getsockname()[1])


def address(options: ServeOptions) -> str:
    """Where clients reach the server."""
    if options.base_url is not None:
        return options.base_url.rstrip("/")
    host = f"[{options.host.strip('[]')}]" if ":" in options.host else options.host
    return f"http://{host}:{options.port}"


@contextlib.asynccontextmanager
async def opened_doors(
    options: ServeOptions, settings: Settings | None = None, **of_agent: Any
) -> AsyncIterator[Doors]:
    """What all requests share, open while the block lasts. ``of_agent`` are further options of the agent."""
    chosen = settings or keys.load()
    if options.model is not None:
        chosen = msgspec.structs.replace(chosen, default_model=Setting(options.model, "--model"))
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(options.store))
        place = options.attachments or beside(options.store)
        attachments = await stack.enter_async_context(open_attachments(place, base_url=address(options)))
        agent = await stack.enter_async_context(Agent(store, settings=chosen, system_prompt=options.system, **of_agent))
        doors = Doors(store, agent, attachments, options)
        if importlib.util.find_spec("dragoman.server.runs") is not None:
            doors.runs = importlib.import_module("dragoman.server.runs").Runs(doors)
        yield doors


def beside(store: str) -> str:
    """Where attachments are kept when nobody says: beside the file of the store."""
    if not store.startswith("sqlite:///"):
        raise SettingsError(
            "there is no place for attachments", remedy="Name one with --attachments", code="missing_attachments"
        )
    file = Path(unquote(store.removeprefix("sqlite:///"))).absolute()
    return f"file://{quote(str(file.with_name(f'{file.name}-attachments')))}"


class ChatServer(uvicorn.Server):
    """A server that gives running turns their time before it ends."""

    def __init__(self, doors: Doors) -> None:
        options = doors.options
        super().__init__(
            uvicorn.Config(
                make_app(doors),
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_keep_alive=int(options.keep_alive_s),
                timeout_graceful_shutdown=int(options.grace_s) + 5,
            )
        )
        self.doors = doors

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let running turns end, then close what is left."""
        ending = asyncio.create_task(self._end_runs())
        await super().shutdown(sockets)
        await ending

    async def _end_runs(self) -> None:
        if self.doors.runs is not None:
            await self.doors.runs.close(self.doors.options.grace_s)


@contextlib.asynccontextmanager
async def listening(doors: Doors, listener: socket.socket) -> AsyncIterator[ChatServer]:
    """A server that answers in this loop while the block lasts."""
    server = ChatServer(doors)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.should_exit = True
        await task
