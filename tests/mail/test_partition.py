"""Three brokers in network namespaces of their own; the one that leads is cut off, again and again: nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.mail import Encryptor, Mail
from dragoman.mail.nats import NatsTransport
from dragoman.store import open_store
from tests.mail.brokers import Cluster, running
from tests.mail.consumers import KEYS, Consumers, Orders, effects
from tests.mail.test_exactly_once import GIVE_UP_S, all_done, leader_of, letters, made_ready, sent
from tests.store.faults.conftest import IS_LONG


class Network:
    """Three namespaces on a bridge. What is made here is named after this process, and taken away again."""

    def __init__(self) -> None:
        self._name = f"drm{os.getpid() % 100_000}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() % 250}"
        self.hosts = [f"{self._net}.{number + 11}" for number in range(3)]

    def namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def make(self) -> None:
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self._net}.1/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for number, host in enumerate(self.hosts):
            space, outer, inner = self.namespace(number), f"{self._name}o{number}", f"{self._name}i{number}"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", space)
            _ip("link", "set", outer, "master", self._name)
            _ip("link", "set", outer, "up")
            _ip("-n", space, "addr", "add", f"{host}/24", "dev", inner)
            _ip("-n", space, "link", "set", inner, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def cut(self, number: int) -> None:
        """Let nobody reach a broker, nor it anybody."""
        _ip("link", "set", f"{self._name}o{number}", "down")

    def mend(self, number: int) -> None:
        _ip("link", "set", f"{self._name}o{number}", "up")

    def remove(self) -> None:
        for number in range(3):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "del", self.namespace(number))
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "del", self._name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network, where this machine allows one."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip here; on Debian or Ubuntu: sudo apt-get install iproute2")
    made = Network()
    try:
        made.make()
    except (OSError, subprocess.CalledProcessError) as error:
        made.remove()
        pytest.skip(f"no network namespaces can be made here: {error}")
    yield made
    made.remove()


@pytest.mark.slow
@pytest.mark.skipif(not IS_LONG, reason="it takes minutes: make faults")
async def test_partitions_and_kills_lose_and_duplicate_nothing(
    tmp_path: Path, network: Network, chance: random.Random, count: Callable[[str], None]
) -> None:
    rounds, part = 5, 200
    inside = [["ip", "netns", "exec", network.namespace(number)] for number in range(3)]
    cluster = Cluster(tmp_path / "cluster", network.hosts, inside)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    transport = NatsTransport(cluster.urls, resend_s=2.0, redeliver_s=3.0, replicas=3)
    told: list[str] = []
    with running(cluster):
        async with (
            open_store(url) as store,
            Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
        ):
            await made_ready(store)
            orders = Orders(url=url, brokers=cluster.urls, deaths=1_000)
            with Consumers(orders, orders, chance=chance) as consumers:
                for turn in range(rounds):
                    some = letters(rounds * part)[turn * part : (turn + 1) * part]
                    await sent(mail, some[: part // 2], chance)
                    leader = await leader_of(transport, cluster)
                    number = cluster.brokers.index(leader)
                    network.cut(number)
                    if turn % 2:
                        leader.kill()
                    told.append(f"{leader.name} {'cut off and killed' if turn % 2 else 'cut off'}")
                    await sent(mail, some[part // 2 :], chance)
                    await asyncio.sleep(6)
                    consumers.replaced()
                    network.mend(number)
                    if turn % 2:
                        await asyncio.to_thread(leader.start)
                await consumers.until(lambda: all_done(mail), GIVE_UP_S)
            found = await effects(store)
    count(f"{rounds * part} letters, {told}, {consumers.deaths} deaths, {sum(found.values())} effects")
    assert found == {f"L{number}": 1 for number in range(rounds * part)}
