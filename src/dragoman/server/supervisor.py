"""Serve from the command line: validate the configuration, announce the URL, and run one or more worker processes.

The supervisor restarts a worker that ends. A worker stops when its supervisor has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import multiprocessing.process
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from dragoman import settings as keys
from dragoman.errors import SettingsError
from dragoman.server.admin.counters import Counters, Table, make_shared_table
from dragoman.server.auth.local_access import LocalToken, can_find_users
from dragoman.server.config import ServerConfig, address
from dragoman.server.http import access_log
from dragoman.server.server import (
    SHUTDOWN_MARGIN_S,
    ChatServer,
    attachments_url,
    bind_socket,
    freeze_loaded_objects,
    make_workspace,
    open_app_state,
    raise_file_limit,
)
from dragoman.store import open_store
from dragoman.tools.shell import run_command

_PR_SET_DUMPABLE: Final = 4
_log: Final = logging.getLogger("dragoman.server")


def print_addresses(own: str, others: str | None) -> None:
    """Print the URL of the server, and the URL for other users of this machine."""
    print(f"Dragoman is at {own}", *([f"For other users of this machine: {others}"] if others else []), sep="\n")


def serve(config: ServerConfig, announce: Callable[[str, str | None], None] = print_addresses) -> None:
    """Serve until SIGINT or SIGTERM, in one process or several.

    ``announce`` receives the URL once the socket listens, and the URL for other users of this machine, if there is one.
    """
    listener, config = bind_socket(config)
    token = LocalToken()
    if run_command.name in config.tool:
        hide_environment()
    try:
        asyncio.run(_validate_config(config))
        announce(*addresses(config, token))
        if config.workers == 1:
            run_worker(config, listener, token.text)
        else:
            _supervise(config, listener, token.text)
    finally:
        listener.close()


def addresses(config: ServerConfig, token: LocalToken) -> tuple[str, str | None]:
    """The URL for the server's own user, and the one for other users of this machine without a key."""
    url = address(config)
    if config.requires_keys:
        return url, None
    if can_find_users():
        return url, token.url(url)
    return (token.url(url) if config.tool or config.mcp else url), None


async def _validate_config(config: ServerConfig) -> None:
    """Raise an error if the server cannot work with this configuration."""
    attachments_url(config)
    async with open_store(config.store) as store:
        make_workspace(config, store, keys.load())
        if not config.requires_keys:
            return
        now = store.clock()
        if not any(key.is_valid(now) for key in await store.keys.list()):
            raise SettingsError(
                "other machines can reach this server, and the store has no valid API key",
                where=f"{config.host} port {config.port}",
                remedy="Create one with dragoman keys create, or listen on 127.0.0.1",
                code="no_keys",
            )


def run_worker(
    config: ServerConfig, listener: socket.socket, token: str | None = None, table: Table | None = None, index: int = 0
) -> None:
    """Serve in this process. ``table`` has the counters of all workers; ``index`` is the row of this one."""
    access_log.configure(config.log_level)
    if run_command.name in config.tool:
        hide_environment()
    raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run_worker(config, listener, token, Counters(table, index)))


async def _run_worker(config: ServerConfig, listener: socket.socket, token: str | None, counters: Counters) -> None:
    async with open_app_state(config) as state:
        state.token = LocalToken(token)
        state.counters = counters
        freeze_loaded_objects()
        server = ChatServer(state)
        model_load = asyncio.create_task(state.agent.services.load_embedded_model())  # while the server starts
        with _stop_on_signals(server), _stop_with_parent(server):
            await server._serve([listener])
        model_load.cancel()


def hide_environment() -> None:
    """Deny commands of the same user access to the environment and the memory of this process in ``/proc``."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  which is not for every system
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def _stop_on_signals(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server on SIGINT and SIGTERM; on a second signal without a grace period."""
    previous = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _stop_with_parent(server: uvicorn.Server) -> Iterator[None]:
    """Stop a worker when its supervisor has died."""
    parent = multiprocessing.parent_process()
    if parent is None:
        yield
        return

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):  # not every event loop can watch a process handle
        loop.add_reader(parent.sentinel, stop)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_reader(parent.sentinel)


def _supervise(config: ServerConfig, listener: socket.socket, token: str) -> None:
    """Keep the configured number of worker processes running until a signal."""
    spawn = multiprocessing.get_context("spawn")
    stop_event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_event.set())

    table = make_shared_table(config.workers)

    def start_worker(index: int) -> multiprocessing.process.BaseProcess:
        process = spawn.Process(target=run_worker, args=(config, listener, token, table, index))
        process.start()
        return process

    access_log.configure(config.log_level)
    workers = [start_worker(index) for index in range(config.workers)]
    while not stop_event.wait(0.2):
        for place, process in enumerate(workers):
            if not process.is_alive():
                _log.error("a worker ended with %s and is restarted", process.exitcode, extra={"worker": process.pid})
                stop_event.wait(1)  # a worker that fails at start must not restart in a busy loop
                workers[place] = start_worker(place)
    for process in workers:
        process.terminate()
    for process in workers:
        process.join(config.grace_s + 2 * SHUTDOWN_MARGIN_S)
        if process.is_alive():
            process.kill()
            process.join()
