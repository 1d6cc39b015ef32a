"""Serve from the command line: validate the configuration, announce the URL, and run one or more worker processes.

The supervisor restarts a worker that ends, and reports its death to the others, which end its runs. A worker stops when
its supervisor has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
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
_SIGNAL_POLL_S: Final = 0.2  # how soon a signal to the supervisor takes effect
_MIN_LIFE_S: Final = 1.0  # of a worker that is restarted soon
_RESTART_S: Final = 0.3  # delay of a restart: the start must not slow down the workers that end the runs
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
    config: ServerConfig,
    listener: socket.socket,
    token: str | None = None,
    table: Table | None = None,
    *,
    index: int = 0,
    deaths: Connection | None = None,
) -> None:
    """Serve in this process. ``table`` has the counters of all workers; ``index`` is the row of this one.

    ``deaths`` has data whenever another worker has died.
    """
    access_log.configure(config.log_level)
    if run_command.name in config.tool:
        hide_environment()
    raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run_worker(config, listener, token, Counters(table, index), deaths))


async def _run_worker(
    config: ServerConfig, listener: socket.socket, token: str | None, counters: Counters, deaths: Connection | None
) -> None:
    async with open_app_state(config) as state:
        state.token = LocalToken(token)
        state.counters = counters
        freeze_loaded_objects()
        server = ChatServer(state)
        model_load = asyncio.create_task(state.agent.services.load_embedded_model())  # while the server starts
        with _stop_on_signals(server), _stop_with_parent(server), _watch_deaths(deaths, state.runs.report_death):
            await server._serve([listener])
        model_load.cancel()


@contextlib.contextmanager
def _watch_deaths(deaths: Connection | None, report: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever the supervisor has sent that a worker died."""
    if deaths is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            deaths.recv_bytes()
        except (EOFError, OSError):  # the supervisor has died
            loop.remove_reader(deaths.fileno())
            return
        report()

    with contextlib.suppress(NotImplementedError):  # not every event loop can watch a pipe
        loop.add_reader(deaths.fileno(), read)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_reader(deaths.fileno())


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
    """Stop the server on SIGINT and SIGTERM; on a SIGINT after that without a grace period."""
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


class _Worker:
    """A worker process, and the pipe that reports the death of others to it."""

    def __init__(self, config: ServerConfig, listener: socket.socket, token: str, table: Table, index: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        reader, self._deaths = spawn.Pipe(duplex=False)
        fields = {"index": index, "deaths": reader}
        self.process = spawn.Process(target=run_worker, args=(config, listener, token, table), kwargs=fields)
        self.process.start()
        self.started_at = time.monotonic()
        reader.close()

    def report_death(self) -> None:
        """Notify the worker of the death of another one."""
        with contextlib.suppress(OSError):  # it has died itself
            self._deaths.send_bytes(b"1")

    def interrupt(self) -> None:
        """Send SIGINT, which ends the grace period of a worker that stops."""
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        self._deaths.close()


def _supervise(config: ServerConfig, listener: socket.socket, token: str) -> None:
    """Keep the configured number of worker processes running until a signal."""
    stop_event = threading.Event()
    workers: list[_Worker] = []

    def stop(number: int, _: object) -> None:
        if stop_event.is_set() and number == signal.SIGINT:
            for worker in workers:
                worker.interrupt()
        stop_event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    table = make_shared_table(config.workers)
    access_log.configure(config.log_level)
    workers += [_Worker(config, listener, token, table, index) for index in range(config.workers)]
    while not stop_event.is_set():
        wait([worker.process.sentinel for worker in workers], timeout=_SIGNAL_POLL_S)
        for index, worker in enumerate(workers):
            if worker.process.is_alive() or stop_event.is_set():
                continue
            process = worker.process
            _log.error("a worker ended with %s and is restarted", process.exitcode, extra={"worker": process.pid})
            for other in workers:
                other.report_death()
            worker.close()
            has_failed = time.monotonic() - worker.started_at < _MIN_LIFE_S  # at its start
            stop_event.wait(_MIN_LIFE_S if has_failed else _RESTART_S)
            workers[index] = _Worker(config, listener, token, table, index)
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(config.grace_s + 2 * SHUTDOWN_MARGIN_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
