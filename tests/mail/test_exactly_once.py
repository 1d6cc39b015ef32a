"""Tests that the effect of a letter happens once, with duplicate deliveries and consumers that die."""

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
from tests.mail.brokers import Broker, Cluster, run_broker
from tests.mail.conftest import result
from tests.mail.consumers import CREATE_EFFECTS, KEYS, ConsumerConfig, Consumers, count_effects, run_statement
from tests.mail.timeouts import time_limit
from tests.store.conftest import StoreLocation
from tests.store.faults.conftest import IS_LONG, times

LETTERS = times(scale(100, 1_000), 10_000)
TASKS = min(400, LETTERS * 2 // 5)  # few enough for ordered tasks, enough for parallel consumers
TIMEOUT_S = 600 if IS_LONG else 120

Count = Callable[[str], None]


def create_letters(count: int, to: str = "ARCH") -> list[Letter]:
    return [result(f"T{number % TASKS}", to=to, message_id=f"L{number}") for number in range(count)]


async def send_copies(mail: Mail, letters: list[Letter], rng: random.Random) -> int:
    """Send each letter one to five times with a growing retry count and return the number of sends."""
    total = 0
    for first in range(0, len(letters), 100):
        batch = letters[first : first + 100]
        copies = [letter.replace(retry_count=count) for letter in batch for count in range(rng.randint(1, 5))]
        await asyncio.gather(*(mail.send(letter) for letter in copies))
        total += len(copies)
    return total


async def is_done(mail: Mail) -> bool:
    counts = await mail.counts()
    return not any(
        mailbox.ready + mailbox.leased + mailbox.waiting + mailbox.behind + mailbox.held + mailbox.away
        for mailbox in counts
    )


async def create_effects_table(store: Store) -> None:
    await store._write(run_statement(CREATE_EFFECTS))


@pytest.mark.slow
async def test_every_letter_has_its_effect_once_without_a_broker(
    database_location: StoreLocation, rng: random.Random, count: Count
) -> None:
    letter_count = LETTERS if database_location.url.startswith("sqlite") else times(scale(50, 200), 10_000)
    async with database_location.open() as store:
        await create_effects_table(store)
        mail = Mail(store)
        config = ConsumerConfig(url=database_location.url, death_odds=min(500, max(15, letter_count // 5)))
        with Consumers(config, config, rng=rng) as consumers:
            total = await send_copies(mail, create_letters(letter_count), rng)
            await consumers.wait_until(lambda: is_done(mail), TIMEOUT_S)
            total += await send_copies(mail, create_letters(letter_count)[:50], rng)  # and late duplicates
        effects = await count_effects(store)
        states = {status.state for status in await mail.letters(limit=letter_count + 1)}
        assert consumers.deaths > 0
    count(f"{letter_count} letters, sent {total} times, {consumers.deaths} deaths, {sum(effects.values())} effects")
    assert effects == {f"L{number}": 1 for number in range(letter_count)}
    assert states == {"done"}


@pytest.mark.slow
async def test_consumer_that_skips_the_inbox_is_detected(tmp_path: Path, rng: random.Random) -> None:
    """Negative control: without the inbox in the same transaction, effects are duplicated and detected."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_store(url) as store:
        await create_effects_table(store)
        mail = Mail(store)
        await send_copies(mail, create_letters(100), rng)
        config = ConsumerConfig(url=url, death_odds=10, skips_inbox=True)

        async def has_duplicate() -> bool:
            return any(effect_count > 1 for effect_count in (await count_effects(store)).values())

        with Consumers(config, config, rng=rng) as consumers:
            await consumers.wait_until(has_duplicate, TIMEOUT_S)


# --- with a broker ---------------------------------------------------------------------------------------------------


async def publish_duplicates(transport: NatsTransport, letters: list[StoredLetter], rng: random.Random) -> int:
    """Publish duplicates that the broker does not recognize, as a redelivery would."""
    total = 0
    async with time_limit(TIMEOUT_S, "a broker that accepts duplicates"):
        await transport._connected.wait()
        assert transport._js is not None
        for letter in letters:
            for _ in range(rng.randint(0, 4)):
                await transport._js.publish(
                    transport._subject(letter.recipient_id, letter.team_id), to_transport(letter)
                )
                total += 1
    return total


@pytest.mark.slow
async def test_every_letter_has_its_effect_once_with_a_damaged_broker(
    tmp_path: Path, rng: random.Random, count: Count
) -> None:
    letter_count = LETTERS
    url = f"sqlite:///{tmp_path / 'store.db'}"
    broker = Broker(tmp_path / "broker")
    transport = NatsTransport(broker.url, resend_s=1.0, redeliver_s=2.0)
    with run_broker(broker):
        async with (
            open_store(url) as store,
            Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
        ):
            await create_effects_table(store)
            config = ConsumerConfig(
                url=url,
                brokers=[broker.url],
                death_odds=max(100, letter_count * 2 // 5) if letter_count < 5_000 else 1_500,
            )
            with Consumers(config, config, rng=rng) as consumers:
                total, faults = 0, []
                part = letter_count // 4
                for number, fault in enumerate(("kill", "wipe", "flip", "none")):
                    batch = create_letters(letter_count)[number * part : (number + 1) * part]
                    total += await send_copies(mail, batch, rng)
                    duplicated = [status.letter for status in await mail.letters(limit=letter_count)][: part // 10]
                    total += await publish_duplicates(transport, duplicated, rng)
                    consumers.replace_dead()
                    faults.append(await inject_fault(broker, fault, rng))
                await consumers.wait_until(lambda: is_done(mail), TIMEOUT_S)
            effects = await count_effects(store)
            states = {status.state for status in await mail.letters(limit=letter_count + 1)}
    count(
        f"{letter_count} letters, {total} deliveries, {consumers.deaths} deaths, broker {faults}, {sum(effects.values())} effects"
    )
    assert effects == {f"L{number}": 1 for number in range(letter_count // 4 * 4)}
    assert states == {"done"}


async def inject_fault(broker: Broker, fault: str, rng: random.Random) -> str:
    if fault == "none":
        return fault
    broker.kill()
    if fault == "wipe":
        broker.wipe()
    if fault == "flip":
        fault = f"flip {broker.flip_bits(rng, 10)}"
    await asyncio.to_thread(broker.start)
    return fault


@pytest.mark.slow
async def test_effects_happen_once_while_leader_and_consumers_are_killed(
    tmp_path: Path, postgres_server: str, rng: random.Random, count: Count
) -> None:
    rounds, part = times(1, 5), times(60, 400)
    url = f"{postgres_server}&schema=cluster_{rng.getrandbits(32)}"
    cluster = Cluster(tmp_path / "cluster")
    transport = NatsTransport(cluster.urls, resend_s=1.0, redeliver_s=2.0, replicas=3)
    with run_broker(cluster):
        async with (
            open_store(url) as store,
            Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
        ):
            await create_effects_table(store)
            options: dict[str, Any] = {"url": url, "brokers": cluster.urls, "death_odds": 0}
            first = ConsumerConfig(recipient="ARCH", answers_to="CA", **options)
            second = ConsumerConfig(recipient="CA", **options)
            with Consumers(first, second, rng=rng) as consumers:
                killed: list[str] = []
                for number in range(rounds):
                    batch = create_letters(rounds * part)[number * part : (number + 1) * part]
                    await send_copies(mail, batch[: part // 2], rng)
                    leader = await find_leader(transport, cluster)
                    leader.kill()
                    killed.append(leader.name)
                    consumers.kill(number % 2)
                    await send_copies(mail, batch[part // 2 :], rng)
                    consumers.replace_dead()
                    await asyncio.to_thread(leader.start)
                await consumers.wait_until(lambda: is_done(mail), TIMEOUT_S)
            effects = await count_effects(store)
    count(f"{rounds * part} letters and answers, leaders killed {killed}, {consumers.deaths} servers killed")
    assert consumers.deaths >= rounds
    assert effects == {f"{start}L{number}": 1 for number in range(rounds * part) for start in ("", "re-")}


async def find_leader(transport: NatsTransport, cluster: Cluster) -> Broker:
    """Wait until the stream has a leader and return its broker."""
    async with time_limit(60, "a leader of the stream"):
        while True:
            await transport._connected.wait()
            try:
                assert transport._js is not None
                info = await transport._js.stream_info("DRAGOMAN_MAIL")
            except Exception:  # noqa: BLE001  no leader yet
                await asyncio.sleep(0.1)
                continue
            for broker in cluster.brokers:
                if info.cluster is not None and info.cluster.leader == broker.name:
                    return broker
            await asyncio.sleep(0.1)
