"""Consumer processes that handle letters and die at random, also between the effect and its acknowledgement.

    with Consumers(config, config, rng=rng) as consumers:
        await consumers.wait_until(is_done, 60)    consumers that die are replaced

An effect is a row in a table without constraints, so a duplicate effect is a duplicate row. A consumer kills itself at
random: before the transaction, within it, after it, and, with a broker, between the commit of the inbox and the
acknowledgement. Invariant: this module kills only processes that it started.
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
from dragoman.store.mailbox import mail_store  # noqa: F401  imported before processes are forked
from tests.fork_server import processes
from tests.mail.conftest import TIMESTAMP

KEYS = "a:c2VhbGluZy1rZXktZm9yLXRlc3RzLW9mLW1haWwtMDE="

CREATE_EFFECTS = "CREATE TABLE IF NOT EXISTS effects (letter_id TEXT NOT NULL)"
INSERT_EFFECT = "INSERT INTO effects (letter_id) VALUES (?)"
COUNT_EFFECTS = "SELECT letter_id, count(*) FROM effects GROUP BY letter_id"


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a consumer."""

    url: str
    recipient: str = "ARCH"
    brokers: list[str] = []
    death_odds: int = 100  # it dies at one of this many opportunities, on average
    skips_inbox: bool = False  # negative control: it commits effects without the inbox
    answers_to: str | None = None  # the recipient of a letter that is sent as part of each effect
    seed: int = 0


def run_statement(sql: str, *arguments: Any) -> Generator[Any, Any, Any]:
    """Return one statement as an operation."""
    return (yield sql, arguments)


async def count_effects(store: Store) -> dict[str, int]:
    """Return the number of effects of each letter."""
    return dict(await store._read(run_statement(COUNT_EFFECTS)))


def maybe_die(rng: random.Random, config: ConsumerConfig) -> None:
    """Kill this process with a probability of 1 in ``death_odds``."""
    if config.death_odds and rng.randrange(config.death_odds) == 0:
        os.kill(os.getpid(), signal.SIGKILL)


class DyingTransport(NatsTransport):
    """Dies between the commit of the inbox and the acknowledgement."""

    def __init__(self, config: ConsumerConfig, rng: random.Random) -> None:
        super().__init__(
            config.brokers, resend_s=1.0, redeliver_s=2.0, replicas=3 if len(config.brokers) > 1 else 1, batch=50
        )
        self._config, self._rng = config, rng

    async def _acknowledge(self, message: Any) -> None:
        maybe_die(self._rng, self._config)
        await super()._acknowledge(message)
        maybe_die(self._rng, self._config)


def consume(config: ConsumerConfig) -> None:
    """Handle letters until this process is killed."""
    faulthandler.register(signal.SIGUSR1)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_consume(config))


async def _consume(config: ConsumerConfig) -> None:
    rng = random.Random(config.seed)
    transport = DyingTransport(config, rng) if config.brokers else None
    async with (
        open_store(config.url) as store,
        Mail(store, transport=transport, encryptor=Encryptor.from_text(KEYS)) as mail,
    ):
        while True:
            deliveries = await mail.receive(config.recipient, lease_s=0.4, limit=20)
            if deliveries:
                await asyncio.gather(*(_handle(mail, delivery, config, rng) for delivery in deliveries))
            else:
                await asyncio.sleep(0.05)


async def _handle(mail: Mail, delivery: Delivery, config: ConsumerConfig, rng: random.Random) -> None:
    maybe_die(rng, config)
    if config.skips_inbox:
        await mail.store._write(run_statement(INSERT_EFFECT, delivery.letter_id))
        maybe_die(rng, config)
        await _ack(delivery)
        return
    reply = await _reply(mail, delivery, config)

    def effect(_: Delivery) -> Generator[Any, Any, None]:
        yield INSERT_EFFECT, (delivery.letter_id,)
        if reply is not None:
            yield from reply
        maybe_die(rng, config)

    await _ack(delivery, effect)
    maybe_die(rng, config)


async def _ack(delivery: Delivery, effect: Any = None) -> None:
    """Acknowledge a letter. A lost lease is ignored."""
    try:
        await delivery.ack(effect)
    except ConflictError as error:
        if error.code != "lease_lost":
            raise


async def _reply(mail: Mail, delivery: Delivery, config: ConsumerConfig) -> Any:
    if config.answers_to is None:
        return None
    letter = task_result_letter(
        sender_id=config.recipient,
        recipient_id=config.answers_to,
        task_id=delivery.letter.task_id,
        timestamp=TIMESTAMP,
        output="answered",
        message_id=f"re-{delivery.letter_id}",
    )
    return await mail.send_operation(letter)


class Consumers:
    """Several consumers. A consumer that dies is replaced."""

    def __init__(self, *configs: ConsumerConfig, rng: random.Random) -> None:
        self._configs = configs
        self._rng = rng
        self._running: list[BaseProcess] = []
        self.deaths = 0

    def __enter__(self) -> Consumers:
        self._running = [self._start(config) for config in self._configs]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.join(30)

    def _start(self, config: ConsumerConfig) -> BaseProcess:
        seeded = msgspec.structs.replace(config, seed=self._rng.getrandbits(32))
        process = processes.Process(target=consume, args=(seeded,), daemon=True)
        process.start()
        return process

    def kill(self, number: int) -> None:
        """Kill a consumer and wait for its end. It is replaced later."""
        self._running[number].kill()
        self._running[number].join(60)

    def replace_dead(self) -> None:
        """Start a new process for every consumer that died."""
        for number, process in enumerate(self._running):
            if not process.is_alive():
                process.join(30)
                assert process.exitcode == -signal.SIGKILL, f"a consumer ended by itself with {process.exitcode}"
                self.deaths += 1
                self._running[number] = self._start(self._configs[number])

    async def wait_until(self, is_done: Callable[[], Awaitable[bool]], within_s: float) -> None:
        """Replace dead consumers until the predicate holds."""
        end = time.monotonic() + within_s
        self.replace_dead()
        while not await is_done():
            if time.monotonic() > end:
                await self._show_stacks()
                raise AssertionError(f"not done after {self.deaths} deaths")
            self.replace_dead()
            await asyncio.sleep(0.1)

    async def _show_stacks(self) -> None:
        """Make every consumer write its stack to standard error."""
        for process in self._running:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)
        await asyncio.sleep(1)  # time to write
