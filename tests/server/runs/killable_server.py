"""Servers that can be killed: python -m tests.server.runs.killable_server STORE CONFIG FOLDER [far].

A process that has imported everything; for each line that it reads it makes a child that serves, and says the child's
process id and the port. A child gives up on dead workers sooner than a real server: leases are a few seconds long. With
``far`` the leases are those of a real server, and each child takes the others for servers of other machines.
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
    found = settings.load(environment={}, file=Path(config), keyring=lambda _: None)
    async with open_app_state(options, found, agent_config=AgentConfig(retries=Retries(max_retries=0))) as doors:
        if not is_far:
            await doors.runs.close()
            doors.runs = RunRegistry(doors, alive_s=LEASE_S)
            doors.runs.start()
            doors.store.turns.lease = functools.partial(doors.store.turns.lease, seconds=LEASE_S)  # type: ignore[method-assign]
        async with run_server(doors, listener):
            os.write(1, f"{os.getpid()} {options.port}\n".encode())
            while os.getppid() == parent:  # and no longer, whatever becomes of the tests
                await asyncio.sleep(0.5)


def main(store: str, config: str, folder: str, distance: str = "near") -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child
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
