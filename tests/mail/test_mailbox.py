"""Tests of the mailbox loop: acknowledgement, retries, cancellation and leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.mail import Delivery, Mail, RetryRule
from dragoman.store import Store
from tests.mail.conftest import Clock, pass_time, result
from tests.mail.timeouts import cancel_and_wait, time_limit
from tests.store.conftest import StoreLocation


async def read_states(mail: Mail) -> dict[str, str]:
    return {status.letter.letter_id: status.state for status in await mail.letters()}


async def test_letter_is_acknowledged_when_the_body_succeeds(mail: Mail) -> None:
    for number in range(5):
        await mail.send(result(message_id=f"L{number}"))
    received = []
    async with mail.mailbox("ARCH") as mailbox:
        async for delivery in mailbox:
            received.append(delivery.letter_id)
            if len(received) == 5:
                break
    assert received == [f"L{number}" for number in range(5)]
    assert set((await read_states(mail)).values()) == {"done"}


async def test_exception_ends_the_loop_and_the_letter_is_retried(mail: Mail, clock: Clock) -> None:
    await mail.send(result(message_id="L0"))

    async def loop() -> None:
        async with mail.mailbox("ARCH") as mailbox:
            async for _ in mailbox:
                raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await loop()
    assert await mail.receive("ARCH") == []
    await pass_time(mail.store, clock, seconds=5)
    (retried,) = await mail.receive("ARCH")
    assert retried.attempts == 2


async def test_worker_continues_after_a_failure(store: Store) -> None:
    mail = Mail(store, retry_rules={"error": RetryRule(1)})
    for number in range(4):
        await mail.send(result(f"T{number}", message_id=f"L{number}"))
    received: list[str] = []

    async def function(delivery: Delivery) -> None:
        received.append(delivery.letter_id)
        if delivery.letter_id == "L1":
            raise ValueError("no")

    async with mail.mailbox("ARCH") as mailbox:
        worker = asyncio.create_task(mailbox.work(function))
        async with time_limit(60, "letters that are done or dead"):
            while {status.state for status in await mail.letters(recipient_id="ARCH")} != {"done", "dead"}:
                assert not worker.done()
                await asyncio.sleep(0.01)
        await cancel_and_wait(worker)
    assert sorted(received) == ["L0", "L1", "L1", "L2", "L3"]
    assert [dead.letter_id for dead in await mail.dead_letters()] == ["L1"]


async def test_cancelled_loop_releases_its_letters(mail: Mail) -> None:
    for number in range(3):
        await mail.send(result(f"T{number}"))
    started = asyncio.Event()

    async def loop() -> None:
        async with mail.mailbox("ARCH", concurrency=3) as mailbox:
            async for _ in mailbox:
                started.set()
                await asyncio.sleep(60)

    task = asyncio.create_task(loop())
    async with time_limit(60, "the first letter"):
        await started.wait()
    assert await mail.receive("ARCH") == []
    await cancel_and_wait(task)
    redelivered = await mail.receive("ARCH")
    assert [delivery.attempts for delivery in redelivered] == [1, 1, 1]


async def test_mailbox_is_notified_of_a_new_letter(store: Store) -> None:
    mail = Mail(store)
    received: asyncio.Queue[str] = asyncio.Queue()

    async def loop() -> None:
        async with mail.mailbox("ARCH") as mailbox:
            async for delivery in mailbox:
                received.put_nowait(delivery.letter_id)

    task = asyncio.create_task(loop())
    for number in range(3):
        await asyncio.sleep(0.1)
        await mail.send(result(message_id=f"L{number}"))
        async with time_limit(60, f"letter {number}"):
            assert await received.get() == f"L{number}"
    await cancel_and_wait(task)


async def test_mailbox_polls_letters_of_another_process(database_location: StoreLocation) -> None:
    async with (
        database_location.open() as first_store,
        database_location.open() as second_store,
        Mail(first_store).mailbox("ARCH") as mailbox,
    ):
        waiting = asyncio.ensure_future(mailbox.__anext__())
        await asyncio.sleep(0.05)
        await Mail(second_store).send(result(message_id="L0"))
        async with time_limit(60, "a letter of another process"):
            assert (await waiting).letter_id == "L0"


async def test_lease_is_renewed_while_the_body_runs(store: Store) -> None:
    mail = Mail(store)
    await mail.send(result())

    def lease_end() -> Any:
        return (yield "SELECT available_at FROM inbox", ())

    async with mail.mailbox("ARCH", lease_s=1.5) as mailbox:
        async for delivery in mailbox:
            first = await store._read(lease_end())
            async with time_limit(60, "a lease that ends later"):
                while await store._read(lease_end()) == first:
                    await asyncio.sleep(0.02)
            assert await mail.receive("ARCH") == []
            assert delivery.attempts == 1
            break
    assert set((await read_states(mail)).values()) == {"done"}


async def test_explicit_ack_is_not_repeated(mail: Mail) -> None:
    await mail.send(result("T0"))
    await mail.send(result("T1"))
    results = []
    async with mail.mailbox("ARCH") as mailbox:
        async for delivery in mailbox:
            results.append((await delivery.ack()).is_first)
            if len(results) == 2:
                break
    assert results == [True, True]
