"""Servers that tests can kill: python -m tests.server.runs.killable_server STORE CONFIG FOLDER [far].

The process imports all modules once. For each line that it reads, it forks a child that serves, and prints the child's
process id and port. Leases of a child last a few seconds, so that dead workers are detected sooner than by a real server.
With ``far``, leases are those of a real server, and each child treats the others as servers of other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from pathlib import Path

from dragoman import settings
from dragoman.client import Retries
from dragoman.server.config import ServerConfig
from dragoman.server.runs import RunRegistry
from dragoman.server.server import bind_socket, open_app_state, run_server
from dragoman.store import liveness
from dragoman.turn import AgentConfig

LEASE_S = 4.0


async def serve(store: str, config: str, folder: str, parent: int, *, is_far: bool) -> None:
    options = ServerConfig(store=store, port=0, attachments=f"file://{folder}/attachments", max_pending_runs=1_000)
    listener, options = bind_socket(options)
    loaded = settings.load(environment={}, file=Path(config), keyring=lambda _: None)
    async with open_app_state(options, loaded, agent_config=AgentConfig(retries=Retries(max_retries=0))) as state:
        if not is_far:
            await state.runs.close()
            state.runs = RunRegistry(state, alive_s=LEASE_S)
            state.runs.start()
            state.store.turns.lease = functools.partial(state.store.turns.lease, seconds=LEASE_S)  # type: ignore[method-assign]
        async with run_server(state, listener):
            os.write(1, f"{os.getpid()} {options.port}\n".encode())
            while os.getppid() == parent:  # exits with the test process
                await asyncio.sleep(0.5)


def main(store: str, config: str, folder: str, distance: str = "near") -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped automatically
    parent = os.getpid()
    for _ in sys.stdin:
        if os.fork() == 0:
            if is_far := distance == "far":
                liveness._machine = functools.partial(str, f"machine-{os.getpid()}")  # type: ignore[assignment]
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(serve(store, config, folder, parent, is_far=is_far))
            os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
