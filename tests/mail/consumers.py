"""Consumers that are killed: processes that handle letters and die between what they do and saying so.

    with Consumers(orders, count=3) as consumers:
        consumers.until(done)           as long as it takes; who dies is replaced

An effect is a row in a table that forbids nothing, so that what happened twice is there twice. A consumer dies by its
own hand, at random: before it is done, in the middle of the transaction, after it, and, with a broker, between the
commit of the inbox and the acknowledgement. Invariant: this module kills only processes that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Generator
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from dragoman.errors import ConflictError
from dragoman.letters import task_result_letter
from dragoman.mail import Delivery, Encryptor, Mail
from dragoman.mail.nats import NatsTransport
from dragoman.store import Store, open_store
from dragoman.store.mailbox.mail_store import MailStore  # so that it is there before anything is forked
from tests.fork_server import processes
from tests.mail.conftest import WHEN

KEYS = "a:c2VhbGluZy1rZXktZm9yLXRlc3RzLW9mLW1haWwtMDE="

MADE = "CREATE TABLE IF NOT EXISTS effects (letter_id TEXT NOT NULL)"
HAPPENED = "INSERT INTO effects (letter_id) VALUES (?)"
ROOM = MailStore
COUNTED = "SELECT letter_id, count(*) FROM effects GROUP BY letter_id"


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a consumer."""

    url: str
    recipient: str = "ARCH"
    brokers: list[str] = []
    deaths: int = 100  # it dies once in so many chances to
    is_careless: bool = False  # it does not let the inbox know what it did: the negative control
    answers_to: str | None = None  # whom to send a letter for every letter, as a part of its effect
    seed: int = 0


def steps(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    """One statement, as an operation."""
    return (yield sql, arguments)


async def effects(store: Store) -> dict[str, int]:
    """Return the number of effects of each letter."""
    return dict(await store._read(steps(COUNTED)))


def dies(chance: random.Random, orders: Orders) -> None:
    """Die, or not."""
    if orders.deaths and chance.randrange(orders.deaths) == 0:
        os.kill(os.getpid(), signal.SIGKILL)


class DyingTransport(NatsTransport):
    """Dies between the commit of the inbox and the acknowledgement."""

    def __init__(self, orders: Orders, chance: random.Random) -> None:
        super().__init__(
            orders.brokers, resend_s=1.0, redeliver_s=2.0, replicas=3 if len(orders.brokers) > 1 else 1, batch=50
        )
        self._orders, self._chance = orders, chance

    async def _acknowledge(self, message: Any) -> None:
        dies(self._chance, self._orders)
        await super()._acknowledge(message)
        dies(self._chance, self._orders)


def consume(orders: Orders) -> None:
    """Handle letters until somebody ends it."""
    faulthandler.register(signal.SIGUSR1)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_consume(orders))


async def _consume(orders: Orders) -> None:
    chance = random.Random(orders.seed)
    transport = DyingTransport(orders, chance) if orders.brokers else None
    async with (
        open_store(orders.url) as store,
        Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
    ):
        while True:
            deliveries = await mail.receive(orders.recipient, lease_s=0.4, limit=20)
            if deliveries:
                await asyncio.gather(*(_handle(mail, delivery, orders, chance) for delivery in deliveries))
            else:
                await asyncio.sleep(0.05)


async def _handle(mail: Mail, delivery: Delivery, orders: Orders, chance: random.Random) -> None:
    dies(chance, orders)
    if orders.is_careless:
        await mail.store._write(steps(HAPPENED, delivery.letter_id))
        dies(chance, orders)
        await _acked(delivery)
        return
    reply = await _reply(mail, delivery, orders)

    def effect(_: Delivery) -> Generator[Any, Any, None]:
        yield HAPPENED, (delivery.letter_id,)
        if reply is not None:
            yield from reply
        dies(chance, orders)

    await _acked(delivery, effect)
    dies(chance, orders)


async def _acked(delivery: Delivery, effect: Any = None) -> None:
    """Say that it is done, unless that took so long that somebody else has it."""
    try:
        await delivery.ack(effect)
    except ConflictError as error:
        if error.code != "lease_lost":
            raise


async def _reply(mail: Mail, delivery: Delivery, orders: Orders) -> Any:
    if orders.answers_to is None:
        return None
    made = task_result_letter(
        sender_id=orders.recipient,
        recipient_id=orders.answers_to,
        task_id=delivery.letter.task_id,
        timestamp=WHEN,
        output="answered",
        message_id=f"re-{delivery.letter_id}",
    )
    return await mail.send_operation(made)


class Consumers:
    """Several consumers; one that dies has a successor."""

    def __init__(self, *orders: Orders, chance: random.Random) -> None:
        self._orders = orders
        self._chance = chance
        self._running: list[BaseProcess] = []
        self.deaths = 0

    def __enter__(self) -> Consumers:
        self._running = [self._started(orders) for orders in self._orders]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.join(30)

    def _started(self, orders: Orders) -> BaseProcess:
        given = msgspec.structs.replace(orders, seed=self._chance.getrandbits(32))
        process = processes.Process(target=consume, args=(given,), daemon=True)
        process.start()
        return process

    def kill(self, number: int) -> None:
        """Kill one, and wait for its end; it has a successor."""
        self._running[number].kill()
        self._running[number].join(60)

    def replaced(self) -> None:
        """Start a successor for every one who has died."""
        for number, process in enumerate(self._running):
            if not process.is_alive():
                process.join(30)
                assert process.exitcode == -signal.SIGKILL, f"a consumer ended by itself with {process.exitcode}"
                self.deaths += 1
                self._running[number] = self._started(self._orders[number])

    async def until(self, is_done: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Go on until it is done."""
        end = time.monotonic() + within_s
        self.replaced()
        while not await is_done():
            if time.monotonic() > end:
                await self._show_stacks()
                raise AssertionError(f"it is not done yet, after {self.deaths} deaths")
            self.replaced()
            await asyncio.sleep(0.1)

    async def _show_stacks(self) -> None:
        """Let every one write to the standard error where it is."""
        for process in self._running:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)
        await asyncio.sleep(1)  # they take a moment to write it
