"""The effect of a letter happens once: delivered one to five times, by consumers that die between effect and ack."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.letters import Letter
from dragoman.letters.records import StoredLetter
from dragoman.mail import Encryptor, Mail
from dragoman.mail.nats import NatsTransport
from dragoman.mail.stored_letter import to_transport
from dragoman.store import Store, open_store
from tests.conftest import scale
from tests.mail.brokers import Broker, Cluster, running
from tests.mail.conftest import result
from tests.mail.consumers import KEYS, MADE, Consumers, Orders, effects, steps
from tests.mail.timeouts import within
from tests.store.conftest import Place
from tests.store.faults.conftest import IS_LONG, times

LETTERS = times(scale(100, 1_000), 10_000)
TASKS = min(400, LETTERS * 2 // 5)  # so that there is an order to keep, and still something to do for several
GIVE_UP_S = 600 if IS_LONG else 120

Count = Callable[[str], None]


def letters(count: int, to: str = "ARCH") -> list[Letter]:
    return [result(f"T{number % TASKS}", to=to, message_id=f"L{number}") for number in range(count)]


async def sent(mail: Mail, all_of_them: list[Letter], chance: random.Random) -> int:
    """Send each letter one to five times, with a higher retry count each time; how often that was."""
    total = 0
    for first in range(0, len(all_of_them), 100):
        some = all_of_them[first : first + 100]
        again = [letter.replace(retry_count=count) for letter in some for count in range(chance.randint(1, 5))]
        await asyncio.gather(*(mail.send(letter) for letter in again))
        total += len(again)
    return total


async def all_done(mail: Mail) -> bool:
    counts = await mail.counts()
    return not any(one.ready + one.leased + one.waiting + one.behind + one.held + one.away for one in counts)


async def made_ready(store: Store) -> None:
    await store._write(steps(MADE))


@pytest.mark.slow
async def test_every_letter_has_its_effect_once_without_a_broker(
    shared_place: Place, chance: random.Random, count: Count
) -> None:
    wanted = LETTERS if shared_place.url.startswith("sqlite") else times(scale(50, 200), 10_000)
    async with shared_place.open() as store:
        await made_ready(store)
        mail = Mail(store)
        orders = Orders(url=shared_place.url, deaths=min(500, max(15, wanted // 5)))
        with Consumers(orders, orders, chance=chance) as consumers:
            total = await sent(mail, letters(wanted), chance)
            await consumers.until(lambda: all_done(mail), GIVE_UP_S)
            total += await sent(mail, letters(wanted)[:50], chance)  # and late
        found = await effects(store)
        states = {one.state for one in await mail.letters(limit=wanted + 1)}
        assert consumers.deaths > 0
    count(f"{wanted} letters, sent {total} times, {consumers.deaths} deaths, {sum(found.values())} effects")
    assert found == {f"L{number}": 1 for number in range(wanted)}
    assert states == {"done"}


@pytest.mark.slow
async def test_consumer_that_skips_the_inbox_is_detected(tmp_path: Path, chance: random.Random) -> None:
    """The negative control: without the inbox in the same transaction, effects are doubled, and this test sees it."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_store(url) as store:
        await made_ready(store)
        mail = Mail(store)
        await sent(mail, letters(100), chance)
        orders = Orders(url=url, deaths=10, is_careless=True)

        async def is_seen() -> bool:
            return any(often > 1 for often in (await effects(store)).values())

        with Consumers(orders, orders, chance=chance) as consumers:
            await consumers.until(is_seen, GIVE_UP_S)


# --- with a broker ---------------------------------------------------------------------------------------------------


async def doubled(transport: NatsTransport, posted: list[StoredLetter], chance: random.Random) -> int:
    """Publish copies of letters that the broker does not know for copies, as a broker that redelivers would."""
    total = 0
    async with within(GIVE_UP_S, "a broker that takes copies"):
        await transport._connected.wait()
        assert transport._js is not None
        for one in posted:
            for _ in range(chance.randint(0, 4)):
                await transport._js.publish(transport._subject(one.recipient_id, one.team_id), to_transport(one))
                total += 1
    return total


@pytest.mark.slow
async def test_every_letter_has_its_effect_once_with_a_damaged_broker(
    tmp_path: Path, chance: random.Random, count: Count
) -> None:
    wanted = LETTERS
    url = f"sqlite:///{tmp_path / 'store.db'}"
    broker = Broker(tmp_path / "broker")
    transport = NatsTransport(broker.url, resend_s=1.0, redeliver_s=2.0)
    with running(broker):
        async with (
            open_store(url) as store,
            Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
        ):
            await made_ready(store)
            orders = Orders(
                url=url, brokers=[broker.url], deaths=max(100, wanted * 2 // 5) if wanted < 5_000 else 1_500
            )
            with Consumers(orders, orders, chance=chance) as consumers:
                total, faults = 0, []
                part = wanted // 4
                for number, fault in enumerate(("kill", "wipe", "flip", "none")):
                    some = letters(wanted)[number * part : (number + 1) * part]
                    total += await sent(mail, some, chance)
                    kept = [one.letter for one in await mail.letters(limit=wanted)][: part // 10]
                    total += await doubled(transport, kept, chance)
                    consumers.replaced()
                    faults.append(await _broken(broker, fault, chance))
                await consumers.until(lambda: all_done(mail), GIVE_UP_S)
            found = await effects(store)
            states = {one.state for one in await mail.letters(limit=wanted + 1)}
    count(
        f"{wanted} letters, {total} deliveries, {consumers.deaths} deaths, broker {faults}, {sum(found.values())} effects"
    )
    assert found == {f"L{number}": 1 for number in range(wanted // 4 * 4)}
    assert states == {"done"}


async def _broken(broker: Broker, fault: str, chance: random.Random) -> str:
    if fault == "none":
        return fault
    broker.kill()
    if fault == "wipe":
        broker.wipe()
    if fault == "flip":
        fault = f"flip {broker.flip(chance, 10)}"
    await asyncio.to_thread(broker.start)
    return fault


@pytest.mark.slow
async def test_two_servers_and_a_cluster_exchange_mail_while_leader_and_server_are_killed(
    tmp_path: Path, postgres_server: str, chance: random.Random, count: Count
) -> None:
    rounds, part = times(1, 5), times(60, 400)
    url = f"{postgres_server}&schema=cluster_{chance.getrandbits(32)}"
    cluster = Cluster(tmp_path / "cluster")
    transport = NatsTransport(cluster.urls, resend_s=1.0, redeliver_s=2.0, replicas=3)
    with running(cluster):
        async with (
            open_store(url) as store,
            Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
        ):
            await made_ready(store)
            given: dict[str, Any] = {"url": url, "brokers": cluster.urls, "deaths": 0}
            one = Orders(recipient="ARCH", answers_to="CA", **given)
            two = Orders(recipient="CA", **given)
            with Consumers(one, two, chance=chance) as consumers:
                killed: list[str] = []
                for number in range(rounds):
                    some = letters(rounds * part)[number * part : (number + 1) * part]
                    await sent(mail, some[: part // 2], chance)
                    leader = await leader_of(transport, cluster)
                    leader.kill()
                    killed.append(leader.name)
                    consumers.kill(number % 2)
                    await sent(mail, some[part // 2 :], chance)
                    consumers.replaced()
                    await asyncio.to_thread(leader.start)
                await consumers.until(lambda: all_done(mail), GIVE_UP_S)
            found = await effects(store)
    count(f"{rounds * part} letters and answers, leaders killed {killed}, {consumers.deaths} servers killed")
    assert consumers.deaths >= rounds
    assert found == {f"{start}L{number}": 1 for number in range(rounds * part) for start in ("", "re-")}


async def leader_of(transport: NatsTransport, cluster: Cluster) -> Broker:
    """The server that leads the stream, once there is one."""
    async with within(60, "a leader of the stream"):
        while True:
            await transport._connected.wait()
            try:
                assert transport._js is not None
                info = await transport._js.stream_info("DRAGOMAN_MAIL")
            except Exception:  # noqa: BLE001  whatever it is, there is none yet
                await asyncio.sleep(0.1)
                continue
            for broker in cluster.brokers:
                if info.cluster is not None and info.cluster.leader == broker.name:
                    return broker
            await asyncio.sleep(0.1)
