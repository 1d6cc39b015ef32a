"""Tests of network partitions: three brokers in separate namespaces, and the leader is disconnected repeatedly."""

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
from tests.mail.brokers import Cluster, run_broker
from tests.mail.consumers import KEYS, ConsumerConfig, Consumers, count_effects
from tests.mail.test_exactly_once import (
    TIMEOUT_S,
    create_effects_table,
    create_letters,
    find_leader,
    is_done,
    send_copies,
)
from tests.store.faults.conftest import IS_LONG


class Network:
    """Three namespaces on a bridge. Their names contain the process id, and they are removed at the end."""

    def __init__(self) -> None:
        self._name = f"drm{os.getpid() % 100_000}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() % 250}"
        self.hosts = [f"{self._net}.{number + 11}" for number in range(3)]

    def namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def create(self) -> None:
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

    def disconnect(self, number: int) -> None:
        """Disconnect a broker from the network."""
        _ip("link", "set", f"{self._name}o{number}", "down")

    def reconnect(self, number: int) -> None:
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
    """A network, if this machine allows namespaces."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed; on Debian or Ubuntu: sudo apt-get install iproute2")
    created = Network()
    try:
        created.create()
    except (OSError, subprocess.CalledProcessError) as error:
        created.remove()
        pytest.skip(f"cannot create network namespaces: {error}")
    yield created
    created.remove()


@pytest.mark.slow
@pytest.mark.skipif(not IS_LONG, reason="takes minutes: make faults")
async def test_partitions_and_kills_lose_and_duplicate_no_letter(
    tmp_path: Path, network: Network, rng: random.Random, count: Callable[[str], None]
) -> None:
    rounds, part = 5, 200
    command_prefixes = [["ip", "netns", "exec", network.namespace(number)] for number in range(3)]
    cluster = Cluster(tmp_path / "cluster", network.hosts, command_prefixes)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    transport = NatsTransport(cluster.urls, resend_s=2.0, redeliver_s=3.0, replicas=3)
    faults: list[str] = []
    with run_broker(cluster):
        async with (
            open_store(url) as store,
            Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
        ):
            await create_effects_table(store)
            config = ConsumerConfig(url=url, brokers=cluster.urls, death_odds=1_000)
            with Consumers(config, config, rng=rng) as consumers:
                for round_number in range(rounds):
                    batch = create_letters(rounds * part)[round_number * part : (round_number + 1) * part]
                    await send_copies(mail, batch[: part // 2], rng)
                    leader = await find_leader(transport, cluster)
                    number = cluster.brokers.index(leader)
                    network.disconnect(number)
                    if round_number % 2:
                        leader.kill()
                    faults.append(f"{leader.name} {'cut off and killed' if round_number % 2 else 'cut off'}")
                    await send_copies(mail, batch[part // 2 :], rng)
                    await asyncio.sleep(6)
                    consumers.replace_dead()
                    network.reconnect(number)
                    if round_number % 2:
                        await asyncio.to_thread(leader.start)
                await consumers.wait_until(lambda: is_done(mail), TIMEOUT_S)
            effects = await count_effects(store)
    count(f"{rounds * part} letters, {faults}, {consumers.deaths} deaths, {sum(effects.values())} effects")
    assert effects == {f"L{number}": 1 for number in range(rounds * part)}
