"""The chat server of one process: bind a socket, open the shared state, and serve requests until shutdown.

    listener, config = bind_socket(ServerConfig(store="sqlite:///chats.db"))
    async with open_app_state(config) as state, run_server(state, listener): ...

``supervisor.serve`` does the same for the command line, with one or more processes. Invariant: resources are closed in
the opposite order of their opening, after active turns had their grace period.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn

from dragoman import settings as keys
from dragoman.attachments import open_attachments
from dragoman.errors import SettingsError
from dragoman.mail import Mail
from dragoman.redaction import redact
from dragoman.server.application import make_app
from dragoman.server.auth.principal import FindUser
from dragoman.server.config import ServerConfig, address, default_attachments_url, private_paths
from dragoman.server.gateway_fast_path import make_protocol
from dragoman.server.gateway_middleware import MAX_BODY_BYTES
from dragoman.server.http.endpoint import Endpoint
from dragoman.server.mail.agents import LetterRuns, run_mail_agents
from dragoman.server.runs import RunRegistry
from dragoman.server.runs.publisher import FLUSH_S
from dragoman.server.state import AppState
from dragoman.settings import Setting, Settings
from dragoman.settings.policy_file import policy_from_file
from dragoman.store import Store, open_store
from dragoman.tools import Workspace
from dragoman.tools.exposure import load_tools
from dragoman.tools.shell import run_command
from dragoman.toolschema import value_problems
from dragoman.turn import Agent, AgentConfig, make_registry
from dragoman.turn.letter_tool import SEND_LETTER

DEFAULT_PORT: Final = 8000
_MAX_UNSENT_BYTES: Final = 128 * 1024  # in the kernel, per client that reads slowly; it would keep up to 4 MB
_PORT_ATTEMPTS: Final = 10  # consecutive ports that are tried if none is configured
SHUTDOWN_MARGIN_S: Final = 5  # for writes after the last turn has ended
_GC_THRESHOLDS: Final = (10_000, 20, 20)
_log: Final = logging.getLogger("dragoman.server")


def bind_socket(config: ServerConfig) -> tuple[socket.socket, ServerConfig]:
    """A listening socket, and the configuration with its port."""
    first = DEFAULT_PORT if config.port is None else config.port
    for port in (first, *(range(first + 1, first + _PORT_ATTEMPTS) if config.port is None else ())):
        try:
            listener = _open_listener(config.host, port)
        except OSError as error:
            message = f"cannot listen on {config.host} port {port}: {error.strerror or error}"
            continue
        return listener, msgspec.structs.replace(config, port=listener.getsockname()[1])
    raise SettingsError(message, remedy="Choose another --port, or stop the program that uses it", code="cannot_listen")


def _open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio sets TCP_NODELAY only for a named TCP
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted connections inherit it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)
        sock.bind((host.strip("[]"), port))
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


@contextlib.asynccontextmanager
async def open_app_state(
    config: ServerConfig,
    settings: Settings | None = None,
    *,
    agent_config: AgentConfig = AgentConfig(),  # noqa: B008  an immutable value
    find_user: FindUser | None = None,
    is_mounted: bool = False,
    **agent_options: Any,
) -> AsyncIterator[AppState]:
    """The state that all requests share, open while the block lasts.

    A mounted server without a base URL has the address of each request. ``find_user`` authenticates callers without
    a key.
    """
    effective = settings or keys.load()
    if config.model is not None:
        effective = msgspec.structs.replace(effective, default_model=Setting(config.model, "--model"))
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(config.store, strict=effective.is_strict))
        location = attachments_url(config)
        base_url = address(config) if config.base_url is not None or not is_mounted else None
        attachments = await stack.enter_async_context(open_attachments(location, base_url=base_url))
        builtin = tuple(name for name in config.tool if name != SEND_LETTER)
        tools = await stack.enter_async_context(load_tools(builtin, config.mcp, effective, _log.warning))
        letter_runs = LetterRuns()
        if SEND_LETTER in config.tool:
            tools = (*tools, letter_runs.make_tool())
        agent_fields: dict[str, Any] = {
            "system_prompt": config.system,
            "workspace": make_workspace(config, store, effective),
            "config": _agent_config(agent_config, config, effective),
            **agent_options,
            "tools": (*tools, *agent_options.get("tools", ())),
        }
        agent = await stack.enter_async_context(Agent(store, settings=effective, **agent_fields))
        await asyncio.to_thread(load_libraries, agent)
        state = AppState(store, agent, attachments, config, base_url=base_url, find_user=find_user)
        if config.nats:
            state.mail = await stack.enter_async_context(_open_nats_mail(store, config))
        state.letter_runs = letter_runs
        letter_runs.state = state
        state.runs = RunRegistry(state)
        state.runs.start()
        stack.push_async_callback(state.runs.close)
        await stack.enter_async_context(run_mail_agents(state))
        yield state


def _agent_config(agent_config: AgentConfig, config: ServerConfig, settings: Settings) -> AgentConfig:
    """The configuration of the agent with the options of the server. Calls are pending: clients may disconnect."""
    policy = agent_config.policy
    if config.policy is not None:
        policy = policy_from_file(Path(config.policy), make_registry(settings))
    return msgspec.structs.replace(
        agent_config,
        pause_for_approval=True,
        allow_delegation=agent_config.allow_delegation or config.delegate,
        summarize=agent_config.summarize or config.summarize,
        gather_s=agent_config.gather_s or FLUSH_S,
        policy=policy,
    )


def make_workspace(config: ServerConfig, store: Store, settings: Settings) -> Workspace | None:
    """The folder in which tools work, without the server's own files; ``None`` without tools.

    File tools skip the server's own files. A command can read every file of the folder, so with ``run_command`` the
    folder must not contain any of them.
    """
    if not config.tool and not config.mcp:
        return None
    own_paths = (*store.local_paths, *keys.private_paths(settings), *private_paths(config))
    workspace = Workspace(config.workspace or Path.cwd(), private=own_paths)
    exposed_path = workspace.private.first_within(workspace.root) if run_command.name in config.tool else None
    if exposed_path is None:
        if run_command.name in config.tool and hasattr(os, "geteuid") and os.geteuid() == 0:
            _log.warning("the server runs as root, so that run_command can change every file; use another user")
        return workspace
    raise SettingsError(
        f"run_command could read the server's own {exposed_path}",
        where=f"workspace {workspace.root}",
        remedy="Choose another --workspace, move the file (--store, --attachments, --keys-file), or omit"
        " --tool run_command",
        code="unsafe_workspace",
    )


def _open_nats_mail(store: Store, config: ServerConfig) -> Mail:
    """Mail that NATS transports between stores."""
    from dragoman.mail.broker_access import BrokerAccess  # noqa: PLC0415  only used with a broker
    from dragoman.mail.nats import NatsTransport  # noqa: PLC0415  an extra

    access = BrokerAccess(
        user=config.nats_user,
        password=config.nats_password,
        token=config.nats_token,
        credentials=config.nats_credentials,
        nkey=config.nats_nkey,
        ca=config.nats_ca,
        cert=config.nats_cert,
        key=config.nats_key,
        tls_first=config.nats_tls_first,
    )
    transport = NatsTransport(
        config.nats,
        access,
        sign_only=config.nats_sign_only,
        replicas=config.nats_replicas,
        monitor=config.nats_monitor,
    )
    return Mail(store, transport=transport)


def attachments_url(config: ServerConfig) -> str:
    """The URL of the attachment storage: the configured one, else a folder beside the SQLite file of the store."""
    if config.attachments is not None:
        return config.attachments
    default_url = default_attachments_url(config.store)
    if default_url is None:
        raise SettingsError(
            "no storage for attachments is configured",
            remedy="Set --attachments to file:///folder, s3://bucket/prefix or supabase://host/bucket",
            code="missing_attachments",
        )
    return default_url


class ChatServer(uvicorn.Server):
    """A uvicorn server with a grace period for active turns at shutdown."""

    def __init__(self, state: AppState, extra_endpoints: tuple[Endpoint, ...] = ()) -> None:
        config = state.config
        super().__init__(
            uvicorn.Config(
                make_app(state, extra_endpoints),
                http=make_protocol(state),
                ws="websockets-sansio",
                ws_max_size=MAX_BODY_BYTES,
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,  # headers do not change the caller or the address
                timeout_keep_alive=math.ceil(config.keep_alive_s),
                timeout_graceful_shutdown=math.ceil(config.grace_s) + SHUTDOWN_MARGIN_S,
            )
        )
        self.app_state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for active turns, then close. A second signal ends the wait."""
        grace_s = self.app_state.config.grace_s
        requests, runs = len(self.server_state.tasks), self.app_state.runs.active_count
        if (requests or runs) and not self.force_exit:
            _log.warning(
                "stopping; in progress: requests %d, runs %d; they have %g s to end; press Ctrl-C again to stop now",
                requests,
                runs,
                grace_s,
            )
        close_task = asyncio.create_task(self.app_state.runs.close(grace_s))
        await super().shutdown(sockets)
        while not close_task.done() and not self.force_exit:
            await asyncio.wait([close_task], timeout=0.1)
        if not close_task.done():
            close_task.cancel()
            await asyncio.wait([close_task])
            close_task = asyncio.create_task(self.app_state.runs.close())
        await close_task


@contextlib.asynccontextmanager
async def run_server(
    state: AppState, listener: socket.socket, extra_endpoints: tuple[Endpoint, ...] = ()
) -> AsyncIterator[ChatServer]:
    """Serve requests in this event loop while the block lasts."""
    server = ChatServer(state, extra_endpoints)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.should_exit = True
        await task


def load_libraries(agent: Agent) -> None:
    """Import the libraries that the first run needs. On the event loop the imports would block it for about 200 ms."""
    from dragoman.client.connections import tls_context  # noqa: PLC0415  the command line needs it for its first call

    tls_context()
    agent.services.price_table.has_price("openai:gpt-4o")
    redact("a text")
    value_problems({"type": "object"}, {})


def freeze_loaded_objects() -> None:
    """Exclude the objects that exist now from garbage collection, and collect the others less often.

    A full collection stops every thread, for a time that grows with the number of objects. A call of the gateway
    allocates hundreds of objects; with the default threshold the collector takes about 5 % of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def raise_file_limit() -> None:
    """Allow as many open files as the system permits: each stream and each provider call uses one."""
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems report no limit, and have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
