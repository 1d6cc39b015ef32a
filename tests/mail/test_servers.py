"""Tests of two Dragoman servers on one PostgreSQL and three brokers, while a server and a broker are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.errors import DragomanError
from dragoman.mail.remote import RemoteMail
from dragoman.store import Store, open_store
from tests.mail.brokers import Cluster, free_port, run_broker
from tests.mail.conftest import result
from tests.mail.consumers import KEYS
from tests.mail.timeouts import cancel_and_wait, time_limit
from tests.store.faults.conftest import times

_RETRYABLE = (DragomanError, OSError, TimeoutError)


class Server:
    """A server process that keeps its port across restarts."""

    def __init__(self, folder: Path, url: str, cluster: Cluster) -> None:
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        program = Path(sys.executable).with_name("dragoman")
        brokers = [part for broker in cluster.urls for part in ("--nats", broker)]
        self._command = [str(program), "serve", "--port", str(self.port), "--store", url, *brokers]
        self._command += ["--nats-replicas", "3", "--attachments", f"file://{folder / 'attachments'}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {"DRAGOMAN_MAIL_KEYS": KEYS, "XDG_CONFIG_HOME": str(self._folder)}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self.base_url}/healthz", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)


@contextlib.contextmanager
def run_servers(folder: Path, url: str, cluster: Cluster) -> Iterator[list[Server]]:
    servers = [Server(folder / name, url, cluster) for name in ("one", "two")]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


async def _send_letter(servers: list[Server], number: int) -> None:
    """Send a letter to either server, with retries."""
    async with time_limit(120, f"a server that accepts letter {number}"):
        for attempt in range(1_000):
            server = servers[(number + attempt) % 2]
            with contextlib.suppress(*_RETRYABLE):
                async with RemoteMail(server.base_url) as mail:
                    await mail.send(result(f"T{number}", message_id=f"L{number}"))
                    return
            await asyncio.sleep(0.1)


async def _receive_letters(server: Server, received: set[str]) -> None:
    """Receive letters of a server until this task is cancelled. Record each before its acknowledgement.

    A server can be killed after it stored an acknowledgement and before it answered.
    """
    while True:
        with contextlib.suppress(*_RETRYABLE):
            async with RemoteMail(server.base_url, wait_s=0.5) as mail:
                for delivery in await mail.receive("ARCH", lease_s=3, limit=10):
                    received.add(delivery.letter_id)
                    await delivery.ack()
                continue
        await asyncio.sleep(0.2)


async def _is_done(store: Store, letter_count: int) -> bool:
    """Return whether all letters are done and no receipt is missing."""
    done = [item for item in await store.mail.find(limit=letter_count + 1) if item.state == "done"]
    return len(done) == letter_count and not any(item.away for item in await store.mail.counts())


@pytest.mark.slow
async def test_mail_continues_while_servers_and_brokers_are_killed(
    tmp_path: Path, postgres_server: str, rng: random.Random, count: Callable[[str], None]
) -> None:
    rounds, part = times(1, 5), times(20, 100)
    url = f"{postgres_server}&schema=servers_{rng.getrandbits(32)}"
    async with open_store(url) as store:  # creates the tables
        cluster = Cluster(tmp_path / "cluster")
        with run_broker(cluster), run_servers(tmp_path, url, cluster) as servers:
            async with time_limit(120, "two running servers"):
                while not all([await asyncio.to_thread(server.is_up) for server in servers]):
                    await asyncio.sleep(0.2)
            received: set[str] = set()
            receivers = [asyncio.create_task(_receive_letters(server, received)) for server in servers]
            for round_number in range(rounds):
                numbers = range(round_number * part, (round_number + 1) * part)
                senders = asyncio.gather(*(_send_letter(servers, number) for number in numbers))
                await asyncio.sleep(rng.random())
                servers[round_number % 2].kill()
                broker = rng.choice(cluster.brokers)
                broker.kill()
                await asyncio.sleep(rng.random())
                servers[round_number % 2].start()
                await asyncio.to_thread(broker.start)
                await senders
            async with time_limit(180, f"{rounds * part} letters and their receipts"):
                while not await _is_done(store, rounds * part):
                    await asyncio.sleep(0.2)
            for task in receivers:
                await cancel_and_wait(task)
        states = [status.state for status in await store.mail.find(limit=rounds * part + 1)]
    count(f"{rounds * part} letters by two servers, {rounds} times a server and a broker killed")
    assert received == {f"L{number}" for number in range(rounds * part)}
    assert states == ["done"] * rounds * part
