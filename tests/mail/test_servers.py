"""Two Dragoman servers on one PostgreSQL and three brokers: one server and the leading broker are killed, nothing is lost."""

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
from tests.mail.brokers import Cluster, free_port, running
from tests.mail.conftest import result
from tests.mail.consumers import KEYS
from tests.mail.timeouts import ended, within
from tests.store.faults.conftest import times

_TRY_AGAIN = (DragomanError, OSError, TimeoutError)


class Server:
    """A server as a process, whose port stays when it is started again."""

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
            with urllib.request.urlopen(f"{self.base_url}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)


@contextlib.contextmanager
def two_servers(folder: Path, url: str, cluster: Cluster) -> Iterator[list[Server]]:
    servers = [Server(folder / name, url, cluster) for name in ("one", "two")]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


async def _sent(servers: list[Server], number: int) -> None:
    """Send a letter to one server, or to the other."""
    async with within(120, f"a server that takes letter {number}"):
        for turn in range(1_000):
            server = servers[(number + turn) % 2]
            with contextlib.suppress(*_TRY_AGAIN):
                async with RemoteMail(server.base_url) as mail:
                    await mail.send(result(f"T{number}", message_id=f"L{number}"))
                    return
            await asyncio.sleep(0.1)


async def _received(server: Server, seen: set[str]) -> None:
    """Receive letters of a server until this task is cancelled, and note each before its acknowledgement.

    A server can be killed after it stored an acknowledgement and before it answered.
    """
    while True:
        with contextlib.suppress(*_TRY_AGAIN):
            async with RemoteMail(server.base_url, wait_s=0.5) as mail:
                for delivery in await mail.receive("ARCH", lease_s=3, limit=10):
                    seen.add(delivery.letter_id)
                    await delivery.ack()
                continue
        await asyncio.sleep(0.2)


async def _is_done(store: Store, wanted: int) -> bool:
    """Whether all letters are done and no receipt is awaited."""
    done = [one for one in await store.mail.find(limit=wanted + 1) if one.state == "done"]
    return len(done) == wanted and not any(one.away for one in await store.mail.counts())


@pytest.mark.slow
async def test_mail_continues_while_servers_and_brokers_are_killed(
    tmp_path: Path, postgres_server: str, chance: random.Random, count: Callable[[str], None]
) -> None:
    rounds, part = times(1, 5), times(20, 100)
    url = f"{postgres_server}&schema=servers_{chance.getrandbits(32)}"
    async with open_store(url) as store:  # so that the tables are there
        cluster = Cluster(tmp_path / "cluster")
        with running(cluster), two_servers(tmp_path, url, cluster) as servers:
            async with within(120, "two servers that answer"):
                while not all([await asyncio.to_thread(server.is_up) for server in servers]):
                    await asyncio.sleep(0.2)
            seen: set[str] = set()
            taking = [asyncio.create_task(_received(server, seen)) for server in servers]
            for turn in range(rounds):
                numbers = range(turn * part, (turn + 1) * part)
                sending = asyncio.gather(*(_sent(servers, number) for number in numbers))
                await asyncio.sleep(chance.random())
                servers[turn % 2].kill()
                broker = chance.choice(cluster.brokers)
                broker.kill()
                await asyncio.sleep(chance.random())
                servers[turn % 2].start()
                await asyncio.to_thread(broker.start)
                await sending
            async with within(180, f"{rounds * part} letters and their receipts"):
                while not await _is_done(store, rounds * part):
                    await asyncio.sleep(0.2)
            for task in taking:
                await ended(task)
        states = [one.state for one in await store.mail.find(limit=rounds * part + 1)]
    count(f"{rounds * part} letters by two servers, {rounds} times a server and a broker killed")
    assert seen == {f"L{number}" for number in range(rounds * part)}
    assert states == ["done"] * rounds * part
