"""Tests of letters between stores over NATS JetStream, with a broker that stops or loses its data."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import LetterError
from dragoman.mail import Encryptor, Mail
from dragoman.mail.nats import NatsTransport
from dragoman.store import open_store
from tests.mail.brokers import Broker, run_broker
from tests.mail.conftest import failure, request, result
from tests.mail.test_encryption import KEY, find_files_with
from tests.mail.timeouts import time_limit

KEYS = f"a:{KEY}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    created = Broker(tmp_path / "broker")
    with run_broker(created):
        yield created


@contextlib.asynccontextmanager
async def open_mail(folder: Path, name: str, broker: Broker, **options: object) -> AsyncIterator[Mail]:
    """Open the mail of a separate store."""
    transport_options: dict[str, Any] = {"resend_s": 1.0, "redeliver_s": 2.0, **options}
    keys = transport_options.pop("keys", KEYS)
    transport = NatsTransport(broker.url, **transport_options)
    async with (
        open_store(f"sqlite:///{folder / f'{name}.db'}") as store,
        Mail(store, transport=transport, encryptor=None if keys is None else Encryptor.from_text(keys)) as mail,
    ):
        yield mail


async def receive_ids(mail: Mail, recipient: str, count: int, within_s: float = 30) -> list[str]:
    """Receive and acknowledge this many letters and return their ids."""
    letter_ids: list[str] = []
    condition = f"{count} letters to {recipient}"
    async with time_limit(within_s, condition), mail.mailbox(recipient, concurrency=50) as mailbox:
        async for delivery in mailbox:
            await delivery.ack()
            letter_ids.append(delivery.letter_id)
            if len(letter_ids) == count:
                break
    return letter_ids


async def wait_for_receipts(mail: Mail, within_s: float = 30) -> None:
    """Wait until every letter has its receipt."""
    async with time_limit(within_s, "a receipt for every letter"):
        while any(mailbox.away for mailbox in await mail.counts()):
            await asyncio.sleep(0.02)


async def test_letters_reach_another_store_and_receipts_return(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, open_mail(tmp_path, "two", broker) as there:
        await there.receive("ARCH")  # that store pulls the mailbox from now on
        for number in range(20):
            assert (await here.send(result(f"T{number}", message_id=f"L{number}"))).state == "away"
        assert sorted(await receive_ids(there, "ARCH", 20)) == sorted(f"L{number}" for number in range(20))
        await wait_for_receipts(here)
        assert (await here.send(result("T1", message_id="L1"))).is_new is False
        assert await there.receive("ARCH") == []


async def test_shared_store_needs_no_receipts(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, open_mail(tmp_path, "one", broker) as there:
        for number in range(20):
            await here.send(result(f"T{number}", message_id=f"L{number}"))
        assert len(await receive_ids(there, "ARCH", 20)) == 20
        await wait_for_receipts(here)


async def test_letters_of_one_task_keep_their_order_in_transit(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, open_mail(tmp_path, "two", broker) as there:
        for number in range(15):
            await here.send(result("T", message_id=f"L{number}"))
        assert await receive_ids(there, "ARCH", 15) == [f"L{number}" for number in range(15)]


async def test_letters_are_accepted_without_a_broker(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    async with open_mail(tmp_path, "one", broker) as here, open_mail(tmp_path, "two", broker) as there:
        for number in range(5):
            await here.send(result(f"T{number}"))
        assert (await here.health())["broker"] == "not connected"
        with run_broker(broker):
            assert len(await receive_ids(there, "ARCH", 5)) == 5
            assert (await here.health())["broker"] == "connected"


async def test_letter_with_dependencies_is_not_published_before_they_succeed(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, open_mail(tmp_path, "two", broker) as there:
        await here.send(failure("B", to="CC", depends_on=["A"]))
        await here.send(failure("C", to="CC"))
        assert len(await receive_ids(there, "CC", 1)) == 1
        await here.send(result("A"))
        assert len(await receive_ids(there, "CC", 1)) == 1


async def wait_for_stored_message(broker: Broker) -> None:
    """Wait until the broker has a message on disk."""
    async with time_limit(60, "a message on the disk of the broker"):
        while not broker.has_messages():
            await asyncio.sleep(0.05)


async def test_wiped_broker_loses_no_letter(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here:
        for number in range(50):
            await here.send(result(f"T{number}", message_id=f"L{number}"))
        await wait_for_stored_message(broker)
        broker.kill()
        broker.wipe()
        broker.start()
        async with open_mail(tmp_path, "two", broker) as there:
            assert sorted(await receive_ids(there, "ARCH", 50)) == sorted(f"L{number}" for number in range(50))
            await wait_for_receipts(here)
            assert await there.receive("ARCH") == []


async def test_unclaimed_letters_do_not_pile_up_on_the_broker(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker, resend_s=0.1) as here:
        for number in range(3):
            await here.send(result(f"T{number}"))
        await asyncio.sleep(2)
        transport = here.transport
        assert isinstance(transport, NatsTransport)
        assert transport._js is not None
        state = (await transport._js.stream_info("DRAGOMAN_MAIL")).state
        assert state.messages <= 3 * 4  # not one for each resend interval


async def test_letter_stuck_on_the_broker_is_resent(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker, resend_s=0.2) as here:
        await here.send(result("T", message_id="L"))
        transport = here.transport
        assert isinstance(transport, NatsTransport)
        async with time_limit(60, "a letter on the broker"):
            await transport._connected.wait()
            assert transport._js is not None
            while (await transport._js.stream_info("DRAGOMAN_MAIL")).state.messages == 0:
                await asyncio.sleep(0.02)
        subscription = await transport._consumer("ARCH", "")
        (message,) = await subscription.fetch(1)
        await message.in_progress()  # held by a consumer that never responds
        await subscription.unsubscribe()
        transport._redeliver_s = 600
        assert await receive_ids(here, "ARCH", 1) == ["L"]


async def test_lost_receipt_is_resent(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "two", broker) as there:
        async with open_mail(tmp_path, "one", broker) as here:
            await here.send(result("T", message_id="L"))
            async with time_limit(60, "a letter and its receipt"):
                while not await there.receive("ARCH", limit=1, lease_s=0.01):
                    await asyncio.sleep(0.05)
                await wait_for_receipts(here)
            origin = await here.store.mail.origin()
            posted = await here.store.mail.get("ARCH", "L")
            assert posted is not None
            await here.store._write(_requeue_letter(origin))
        async with open_mail(tmp_path, "one", broker) as here:
            await wait_for_receipts(here)
        assert [status.letter.letter_id for status in await there.letters()] == ["L"]


def _requeue_letter(_: str):  # type: ignore[no-untyped-def]
    """Insert a letter into the outbox as if its receipt had been lost."""
    yield (
        "INSERT INTO outbox (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts,"
        " put_at, published_at) VALUES ('ARCH', '', 'L', 9, 'T', 'ready', 0, 1, 0, 0)",
        (),
    )


async def test_letter_too_large_for_the_broker_is_a_dead_letter(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here:
        await assert_no_letters(here)
        with pytest.raises(LetterError) as caught:
            await here.send(result(output="x" * (1024 * 1024 + 1), message_id="L"))
        assert caught.value.code == "letter_too_large"
        (dead,) = await here.dead_letters()
        assert (dead.letter_id, dead.reason) == ("L", "letter_too_large")
        assert [mailbox.away for mailbox in await here.counts()] == [0]
        assert (await here.send(result(output="x" * 900_000, message_id="M"))).is_new


async def assert_no_letters(mail: Mail) -> None:
    assert await mail.receive("NOBODY") == []


@pytest.mark.parametrize(("keys", "reason"), [(KEYS, "unsigned_letter"), (None, "invalid_message")])
async def test_invalid_message_is_a_dead_letter_and_not_redelivered(
    tmp_path: Path, broker: Broker, keys: str | None, reason: str
) -> None:
    import nats

    async with open_mail(tmp_path, "one", broker, keys=keys) as here:
        await here.send(result("T", message_id="L"))
        client = await nats.connect(broker.url)
        try:
            async with time_limit(60, "a stream to publish to"):
                while True:
                    with contextlib.suppress(Exception):
                        await client.jetstream().publish("dragoman.mail._.ARCH", b'{"nonsense":1}')
                        break
                    await asyncio.sleep(0.05)
        finally:
            await client.close()
        assert await receive_ids(here, "ARCH", 1) == ["L"]
        async with time_limit(60, "a dead letter"):
            while not await here.dead_letters():
                await asyncio.sleep(0.05)
        assert [dead.reason for dead in await here.dead_letters()] == [reason]


async def test_secret_is_in_no_broker_file(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, open_mail(tmp_path, "two", broker) as there:
        await there.send(request(message_id="ASK"))
        async with time_limit(60, "the question"):
            while not (requests := await here.receive("HUMAN")):
                await asyncio.sleep(0.02)
        await here.answer(requests[0], {"api_key": "correct horse battery staple", "preference": "a"})
        async with time_limit(60, "the answer"):
            while not (answers := await there.receive("CA")):
                await asyncio.sleep(0.02)
        assert (await answers[0].decrypt()).payload.result.inputs["api_key"] == "correct horse battery staple"
        assert find_files_with(tmp_path, b"correct horse battery staple") == []
    broker.kill()
    assert find_files_with(tmp_path, b"correct horse battery staple") == []


@pytest.mark.parametrize(("sync", "durability"), [("always", "power-safe"), ('"2m"', "process-crash-safe")])
async def test_health_reports_delivery_durability(tmp_path: Path, sync: str, durability: str) -> None:
    broker = Broker(tmp_path / "broker", sync=sync)
    with run_broker(broker):
        async with open_mail(tmp_path, "one", broker, monitor=broker.monitor) as mail:
            health = await mail.health()
    assert (health["delivery_durability"], health["kept_until_receipt"]) == (durability, True)


async def test_bit_flips_on_the_broker_lose_no_letter(tmp_path: Path, broker: Broker, rng: random.Random) -> None:
    async with open_mail(tmp_path, "one", broker) as here:
        for number in range(60):
            await here.send(result(f"T{number}", message_id=f"L{number}"))
        await wait_for_stored_message(broker)
        broker.kill()
        assert broker.flip_bits(rng)
        broker.start()
        async with open_mail(tmp_path, "two", broker) as there:
            assert sorted(set(await receive_ids(there, "ARCH", 60))) == sorted(f"L{number}" for number in range(60))
            await wait_for_receipts(here)
            assert await there.receive("ARCH") == []


async def test_store_pulls_limited_number_of_mailboxes(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.mail.nats._MAX_MAILBOXES", 2)
    async with open_mail(tmp_path, "here", broker) as mail:
        assert isinstance(mail.transport, NatsTransport)
        for name in ("CA", "CB", "CA", "CC", "CD"):
            await mail.receive(name)
        assert list(mail.transport._pull_tasks) == ["pull CC", "pull CD"]
        await mail.send(result("T1", to="CA", message_id="L1"))
        assert await receive_ids(mail, "CA", 1) == ["L1"]
