"""Serving: from options to a server that listens, and back to nothing when it is told to stop.

The one rule: what was opened is closed in the opposite order, and running turns are given their time first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import logging
import math
import multiprocessing
import multiprocessing.process
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn

from dragoman import settings as keys
from dragoman.attachments import open_attachments
from dragoman.errors import SettingsError
from dragoman.mail import Mail
from dragoman.server import logs
from dragoman.server.app import make_app
from dragoman.server.counters import Counters, Table, shared_table
from dragoman.server.endpoint import Endpoint
from dragoman.server.limits import patience
from dragoman.server.local_token import LocalToken
from dragoman.server.options import ServeOptions, address, attachments_beside, private_paths
from dragoman.server.peer import can_find_users
from dragoman.server.runs import Runs
from dragoman.server.state import Doors
from dragoman.settings import Setting, Settings
from dragoman.store import Store, open_store
from dragoman.tools import Workspace
from dragoman.tools.commands import run_command
from dragoman.tools.offering import offered
from dragoman.turn import Agent

DEFAULT_PORT: Final = 8000
_PR_SET_DUMPABLE: Final = 4
_MORE_PORTS: Final = 10  # which are tried when nobody named one
_AFTER_GRACE_S: Final = 5  # for what is to be written after the last turn has ended
_log: Final = logging.getLogger("dragoman.server")


def bound(options: ServeOptions) -> tuple[socket.socket, ServeOptions]:
    """A socket that listens where the options say, and the options with the port that it got."""
    first = DEFAULT_PORT if options.port is None else options.port
    for port in (first, *(range(first + 1, first + _MORE_PORTS) if options.port is None else ())):
        try:
            listener = _listener(options.host, port)
        except OSError as error:
            what = f"it cannot listen at {options.host} port {port}: {error.strerror or error}"
            continue
        return listener, msgspec.structs.replace(options, port=listener.getsockname()[1])
    raise SettingsError(what, remedy="Choose another --port, or end what listens there", code="cannot_listen")


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio sets TCP_NODELAY
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(2048)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


@contextlib.asynccontextmanager
async def opened_doors(
    options: ServeOptions, settings: Settings | None = None, **of_agent: Any
) -> AsyncIterator[Doors]:
    """What all requests share, open while the block lasts. ``of_agent`` are further options of the agent."""
    chosen = settings or keys.load()
    if options.model is not None:
        chosen = msgspec.structs.replace(chosen, default_model=Setting(options.model, "--model"))
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.to_thread(load_libraries)
        store = await stack.enter_async_context(open_store(options.store, strict=chosen.is_strict))
        place = address_of_attachments(options)
        attachments = await stack.enter_async_context(open_attachments(place, base_url=address(options)))
        tools = await stack.enter_async_context(offered(options.tool, options.mcp, chosen, _log.warning))
        given: dict[str, Any] = {
            "system_prompt": options.system,
            "tools": tools,
            "workspace": workspace_for(options, store, chosen),
            "parks": True,  # whoever is asked may be gone
            **of_agent,
        }
        agent = await stack.enter_async_context(Agent(store, settings=chosen, **given))
        doors = Doors(store, agent, attachments, options)
        if options.nats:
            doors.mail = await stack.enter_async_context(_carried_mail(store, options))
        doors.runs = Runs(doors)
        doors.runs.start()
        stack.push_async_callback(doors.runs.close)
        yield doors


def workspace_for(options: ServeOptions, store: Store, settings: Settings) -> Workspace | None:
    """The folder in which tools work, without the server's own files; none without tools.

    File tools leave these files out. A command reads whatever lies in the folder, so there must be none of them in it.
    """
    if not options.tool and not options.mcp:
        return None
    own = (*store.local_paths, *keys.private_paths(settings), *private_paths(options))
    workspace = Workspace(options.workspace or Path.cwd(), private=own)
    inside = workspace.private.first_within(workspace.root) if run_command.name in options.tool else None
    if inside is None:
        return workspace
    raise SettingsError(
        f"run_command could read the server's own {inside}",
        where=f"workspace {workspace.root}",
        remedy="Choose another --workspace, keep the file elsewhere (--store, --attachments, --keys-file), or leave out"
        " --tool run_command",
        code="unsafe_workspace",
    )


def _carried_mail(store: Store, options: ServeOptions) -> Mail:
    """Mail that brokers carry between stores."""
    from dragoman.mail.broker_access import BrokerAccess  # noqa: PLC0415  only who has a broker needs it
    from dragoman.mail.nats import NatsTransport  # noqa: PLC0415  an extra

    access = BrokerAccess(
        user=options.nats_user,
        password=options.nats_password,
        token=options.nats_token,
        credentials=options.nats_credentials,
        nkey=options.nats_nkey,
        ca=options.nats_ca,
        cert=options.nats_cert,
        key=options.nats_key,
        tls_first=options.nats_tls_first,
    )
    carrier = NatsTransport(
        options.nats,
        access,
        sign_only=options.nats_sign_only,
        replicas=options.nats_replicas,
        monitor=options.nats_monitor,
    )
    return Mail(store, transport=carrier)


def address_of_attachments(options: ServeOptions) -> str:
    """Where attachments are kept: where somebody said, else beside the file of the store."""
    if options.attachments is not None:
        return options.attachments
    beside = attachments_beside(options.store)
    if beside is None:
        raise SettingsError(
            "there is no place for attachments",
            remedy="Name one with --attachments: file:///folder, s3://bucket/prefix or supabase://host/bucket",
            code="missing_attachments",
        )
    return beside


class ChatServer(uvicorn.Server):
    """A server that gives running turns their time before it ends."""

    def __init__(self, doors: Doors, also: tuple[Endpoint, ...] = ()) -> None:
        options = doors.options
        super().__init__(
            uvicorn.Config(
                make_app(doors, also),
                http=patience(options.read_timeout_s),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,  # nobody is believed about who calls or where we are
                timeout_keep_alive=math.ceil(options.keep_alive_s),
                timeout_graceful_shutdown=math.ceil(options.grace_s) + _AFTER_GRACE_S,
            )
        )
        self.doors = doors

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let running turns end, then close what is left. Who is told twice does not wait."""
        ending = asyncio.create_task(self.doors.runs.close(self.doors.options.grace_s))
        await super().shutdown(sockets)
        while not ending.done() and not self.force_exit:
            await asyncio.wait([ending], timeout=0.1)
        if not ending.done():
            ending.cancel()
            await asyncio.wait([ending])
            ending = asyncio.create_task(self.doors.runs.close())
        await ending


@contextlib.asynccontextmanager
async def listening(
    doors: Doors, listener: socket.socket, also: tuple[Endpoint, ...] = ()
) -> AsyncIterator[ChatServer]:
    """A server that answers in this loop while the block lasts."""
    server = ChatServer(doors, also)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.should_exit = True
        await task


# --- processes -------------------------------------------------------------------------------------------------------


def print_addresses(own: str, others: str | None) -> None:
    """Print where the server is, and where for other users of this machine."""
    print(f"Dragoman is at {own}", *([f"For other users of this machine: {others}"] if others else []), sep="\n")


def serve(options: ServeOptions, say: Callable[[str, str | None], None] = print_addresses) -> None:
    """Serve until somebody says stop.

    ``say`` is told the address once the server listens, and the one for other users of this machine, if they have one.
    """
    listener, options = bound(options)
    token = LocalToken()
    if run_command.name in options.tool:
        hide_environment()
    try:
        asyncio.run(_check(options))
        say(*addresses(options, token))
        if options.workers == 1:
            work(options, listener, token.text)
        else:
            _supervise(options, listener, token.text)
    finally:
        listener.close()


def addresses(options: ServeOptions, token: LocalToken) -> tuple[str, str | None]:
    """Where the server's own user reaches it, and where other users of this machine do without a key."""
    plain = address(options)
    if options.demands_keys:
        return plain, None
    if can_find_users():
        return plain, token.url(plain)
    return (token.url(plain) if options.tool or options.mcp else plain), None


async def _check(options: ServeOptions) -> None:
    """Whether this can be served at all, found out before somebody relies on it."""
    address_of_attachments(options)
    async with open_store(options.store) as store:
        workspace_for(options, store, keys.load())
        if not options.demands_keys:
            return
        now = store.clock()
        if not any(key.is_good(now) for key in await store.list_keys()):
            raise SettingsError(
                "others could reach this server, and nobody has a key",
                where=f"{options.host} port {options.port}",
                remedy="Make a key with dragoman keys create, or listen on 127.0.0.1",
                code="no_keys",
            )


def work(
    options: ServeOptions, listener: socket.socket, token: str | None = None, table: Table | None = None, place: int = 0
) -> None:
    """Serve in this process. ``table`` has the counts of all workers, ``place`` is which of them this one is."""
    logs.configure(options.log_level)
    if run_command.name in options.tool:
        hide_environment()
    allow_many_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_work(options, listener, token, Counters(table, place)))


async def _work(options: ServeOptions, listener: socket.socket, token: str | None, counters: Counters) -> None:
    async with opened_doors(options) as doors:
        doors.token = LocalToken(token)
        doors.counters = counters
        freeze_loaded_objects()
        server = ChatServer(doors)
        with _stopped_by_signals(server), _stopped_with_parent(server):
            await server._serve([listener])


def hide_environment() -> None:
    """Close the environment and the memory of this process in ``/proc`` to commands that run as the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def load_libraries() -> None:
    """Import what the first run would import on the event loop, which would hold it for about 200 ms."""
    for name in ("aiohttp", "genai_prices.data", "genai_prices.data_units", "jsonschema_rs", "re2"):
        importlib.import_module(name)


def freeze_loaded_objects() -> None:
    """Have the garbage collector pass over what is loaded at the start, and for as long as the process lives.

    A full collection stops every thread, and takes a time that grows with the number of objects it looks at.
    """
    gc.collect()
    gc.freeze()


def allow_many_connections() -> None:
    """Use as many open files as this process may have: each stream is one, and the call behind it another."""
    try:
        import resource  # noqa: PLC0415  which is not for every system
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems say unlimited, and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  which is not for every system
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Stop a server when the process is told to; when it is told twice, at once."""
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _stopped_with_parent(server: uvicorn.Server) -> Iterator[None]:
    """Stop a worker when the process that looks after it has died: nobody would stop it otherwise."""
    parent = multiprocessing.parent_process()
    if parent is None:
        yield
        return

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):  # not every system has loops that look at such a handle
        loop.add_reader(parent.sentinel, stop)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_reader(parent.sentinel)


def _supervise(options: ServeOptions, listener: socket.socket, token: str) -> None:
    """Keep as many processes serving as were asked for, until this one is told to stop."""
    spawn = multiprocessing.get_context("spawn")
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())

    table = shared_table(options.workers)

    def begun(place: int) -> multiprocessing.process.BaseProcess:
        process = spawn.Process(target=work, args=(options, listener, token, table, place))
        process.start()
        return process

    logs.configure(options.log_level)
    workers = [begun(place) for place in range(options.workers)]
    while not told.wait(0.2):
        for place, process in enumerate(workers):
            if not process.is_alive():
                _log.error("a worker ended with %s and is begun again", process.exitcode, extra={"worker": process.pid})
                told.wait(1)  # one that cannot begin must not keep the machine busy
                workers[place] = begun(place)
    for process in workers:
        process.terminate()
    for process in workers:
        process.join(options.grace_s + 2 * _AFTER_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
