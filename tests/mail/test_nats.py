"""Letters between stores, by NATS JetStream: nothing is lost, whatever becomes of the broker."""

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
from tests.mail.brokers import Broker, running
from tests.mail.conftest import failure, request, result
from tests.mail.test_encryption import KEY, found_in
from tests.mail.timeouts import within

KEYS = f"a:{KEY}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "broker")
    with running(made):
        yield made


@contextlib.asynccontextmanager
async def opened(folder: Path, name: str, broker: Broker, **options: object) -> AsyncIterator[Mail]:
    """The mail of a store of its own."""
    given: dict[str, Any] = {"resend_s": 1.0, "redeliver_s": 2.0, **options}
    keys = given.pop("keys", KEYS)
    transport = NatsTransport(broker.url, **given)
    async with (
        open_store(f"sqlite:///{folder / f'{name}.db'}") as store,
        Mail(store, transport=transport, encryptor=None if keys is None else Encryptor.from_text(keys)) as mail,
    ):
        yield mail


async def received(mail: Mail, recipient: str, count: int, within_s: float = 30) -> list[str]:
    """The ids of letters, acknowledged as they come."""
    seen: list[str] = []
    wanted = f"{count} letters to {recipient}"
    async with within(within_s, wanted), mail.mailbox(recipient, concurrency=50) as mailbox:
        async for delivery in mailbox:
            await delivery.ack()
            seen.append(delivery.letter_id)
            if len(seen) == count:
                break
    return seen


async def emptied(mail: Mail, within_s: float = 30) -> None:
    """Wait until every letter has its receipt."""
    async with within(within_s, "a receipt for every letter"):
        while any(one.away for one in await mail.counts()):
            await asyncio.sleep(0.02)


async def test_letters_reach_another_store_and_receipts_return(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, opened(tmp_path, "two", broker) as there:
        await there.receive("ARCH")  # from now on it is attended to there
        for number in range(20):
            assert (await here.send(result(f"T{number}", message_id=f"L{number}"))).state == "away"
        assert sorted(await received(there, "ARCH", 20)) == sorted(f"L{number}" for number in range(20))
        await emptied(here)
        assert (await here.send(result("T1", message_id="L1"))).is_new is False
        assert await there.receive("ARCH") == []


async def test_shared_store_needs_no_receipts(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, opened(tmp_path, "one", broker) as there:
        for number in range(20):
            await here.send(result(f"T{number}", message_id=f"L{number}"))
        assert len(await received(there, "ARCH", 20)) == 20
        await emptied(here)


async def test_letters_of_one_task_keep_their_order_in_transit(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, opened(tmp_path, "two", broker) as there:
        for number in range(15):
            await here.send(result("T", message_id=f"L{number}"))
        assert await received(there, "ARCH", 15) == [f"L{number}" for number in range(15)]


async def test_letters_are_accepted_without_a_broker(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    async with opened(tmp_path, "one", broker) as here, opened(tmp_path, "two", broker) as there:
        for number in range(5):
            await here.send(result(f"T{number}"))
        assert (await here.health())["broker"] == "not connected"
        with running(broker):
            assert len(await received(there, "ARCH", 5)) == 5
            assert (await here.health())["broker"] == "connected"


async def test_letter_with_dependencies_is_not_published_before_they_succeed(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, opened(tmp_path, "two", broker) as there:
        await here.send(failure("B", to="CC", depends_on=["A"]))
        await here.send(failure("C", to="CC"))
        assert len(await received(there, "CC", 1)) == 1
        await here.send(result("A"))
        assert len(await received(there, "CC", 1)) == 1


async def kept_on_disk(broker: Broker) -> None:
    """Wait until the broker has a message on its disk."""
    async with within(60, "a message on the disk of the broker"):
        while not broker.has_messages():
            await asyncio.sleep(0.05)


async def test_wiped_broker_loses_no_letter(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here:
        for number in range(50):
            await here.send(result(f"T{number}", message_id=f"L{number}"))
        await kept_on_disk(broker)
        broker.kill()
        broker.wipe()
        broker.start()
        async with opened(tmp_path, "two", broker) as there:
            assert sorted(await received(there, "ARCH", 50)) == sorted(f"L{number}" for number in range(50))
            await emptied(here)
            assert await there.receive("ARCH") == []


async def test_unclaimed_letters_do_not_pile_up_on_the_broker(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker, resend_s=0.1) as here:
        for number in range(3):
            await here.send(result(f"T{number}"))
        await asyncio.sleep(2)
        transport = here.transport
        assert isinstance(transport, NatsTransport)
        assert transport._js is not None
        state = (await transport._js.stream_info("DRAGOMAN_MAIL")).state
        assert state.messages <= 3 * 4  # not once for each time that it was looked for


async def test_letter_stuck_on_the_broker_is_resent(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker, resend_s=0.2) as here:
        await here.send(result("T", message_id="L"))
        transport = here.transport
        assert isinstance(transport, NatsTransport)
        async with within(60, "a letter on the broker"):
            await transport._connected.wait()
            assert transport._js is not None
            while (await transport._js.stream_info("DRAGOMAN_MAIL")).state.messages == 0:
                await asyncio.sleep(0.02)
        subscription = await transport._consumer("ARCH", "")
        (message,) = await subscription.fetch(1)
        await message.in_progress()  # it is in somebody's hands, who never says anything
        await subscription.unsubscribe()
        transport._redeliver_s = 600
        assert await received(here, "ARCH", 1) == ["L"]


async def test_lost_receipt_is_resent(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "two", broker) as there:
        async with opened(tmp_path, "one", broker) as here:
            await here.send(result("T", message_id="L"))
            async with within(60, "a letter and its receipt"):
                while not await there.receive("ARCH", limit=1, lease_s=0.01):
                    await asyncio.sleep(0.05)
                await emptied(here)
            origin = await here.store.mail.origin()
            posted = await here.store.mail.get("ARCH", "L")
            assert posted is not None
            await here.store._write(_again(origin))
        async with opened(tmp_path, "one", broker) as here:
            await emptied(here)
        assert [one.letter.letter_id for one in await there.letters()] == ["L"]


def _again(_: str):  # type: ignore[no-untyped-def]
    """Put a letter into the outbox as if its receipt had never come."""
    yield (
        "INSERT INTO outbox (recipient_id, team_id, letter_id, number, task_id, state, available_at, attempts,"
        " put_at, published_at) VALUES ('ARCH', '', 'L', 9, 'T', 'ready', 0, 1, 0, 0)",
        (),
    )


async def test_letter_too_large_for_the_broker_is_a_dead_letter(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here:
        await received_nothing(here)
        with pytest.raises(LetterError) as caught:
            await here.send(result(output="x" * (1024 * 1024 + 1), message_id="L"))
        assert caught.value.code == "letter_too_large"
        (dead,) = await here.dead_letters()
        assert (dead.letter_id, dead.reason) == ("L", "letter_too_large")
        assert [one.away for one in await here.counts()] == [0]
        assert (await here.send(result(output="x" * 900_000, message_id="M"))).is_new


async def received_nothing(mail: Mail) -> None:
    assert await mail.receive("NOBODY") == []


@pytest.mark.parametrize(("keys", "reason"), [(KEYS, "unsigned_letter"), (None, "invalid_message")])
async def test_invalid_message_is_a_dead_letter_and_not_redelivered(
    tmp_path: Path, broker: Broker, keys: str | None, reason: str
) -> None:
    import nats

    async with opened(tmp_path, "one", broker, keys=keys) as here:
        await here.send(result("T", message_id="L"))
        client = await nats.connect(broker.url)
        try:
            async with within(60, "a stream to publish to"):
                while True:
                    with contextlib.suppress(Exception):
                        await client.jetstream().publish("dragoman.mail._.ARCH", b'{"nonsense":1}')
                        break
                    await asyncio.sleep(0.05)
        finally:
            await client.close()
        assert await received(here, "ARCH", 1) == ["L"]
        async with within(60, "a dead letter"):
            while not await here.dead_letters():
                await asyncio.sleep(0.05)
        assert [dead.reason for dead in await here.dead_letters()] == [reason]


async def test_secret_is_in_no_broker_file(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, opened(tmp_path, "two", broker) as there:
        await there.send(request(message_id="ASK"))
        async with within(60, "the question"):
            while not (asked := await here.receive("HUMAN")):
                await asyncio.sleep(0.02)
        await here.answer(asked[0], {"api_key": "correct horse battery staple", "preference": "a"})
        async with within(60, "the answer"):
            while not (answered := await there.receive("CA")):
                await asyncio.sleep(0.02)
        assert (await answered[0].decrypt()).payload.result.inputs["api_key"] == "correct horse battery staple"
        assert found_in(tmp_path, b"correct horse battery staple") == []
    broker.kill()
    assert found_in(tmp_path, b"correct horse battery staple") == []


@pytest.mark.parametrize(("sync", "said"), [("always", "power-safe"), ('"2m"', "process-crash-safe")])
async def test_health_reports_delivery_durability(tmp_path: Path, sync: str, said: str) -> None:
    broker = Broker(tmp_path / "broker", sync=sync)
    with running(broker):
        async with opened(tmp_path, "one", broker, monitor=broker.monitor) as mail:
            told = await mail.health()
    assert (told["delivery_durability"], told["kept_until_receipt"]) == (said, True)


async def test_bit_flips_on_the_broker_lose_no_letter(tmp_path: Path, broker: Broker, chance: random.Random) -> None:
    async with opened(tmp_path, "one", broker) as here:
        for number in range(60):
            await here.send(result(f"T{number}", message_id=f"L{number}"))
        await kept_on_disk(broker)
        broker.kill()
        assert broker.flip(chance)
        broker.start()
        async with opened(tmp_path, "two", broker) as there:
            assert sorted(set(await received(there, "ARCH", 60))) == sorted(f"L{number}" for number in range(60))
            await emptied(here)
            assert await there.receive("ARCH") == []


async def test_a_store_pulls_the_letters_of_a_limited_number_of_mailboxes(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.mail.nats._MAX_MAILBOXES", 2)
    async with opened(tmp_path, "here", broker) as mail:
        assert isinstance(mail.transport, NatsTransport)
        for name in ("CA", "CB", "CA", "CC", "CD"):
            await mail.receive(name)
        assert list(mail.transport._pull_tasks) == ["pull CC", "pull CD"]
        await mail.send(result("T1", to="CA", message_id="L1"))
        assert await received(mail, "CA", 1) == ["L1"]
