"""Tests of invalid messages: each becomes a dead letter and the mailbox continues."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import nats
import pytest

from dragoman.mail import Mail, supervisor
from dragoman.mail.dead_letters import get_raw
from dragoman.mail.message_codec import MessageCodec
from dragoman.mail.nats import NatsTransport
from dragoman.mail.stored_letter import to_stored, to_transport
from dragoman.store import open_store
from tests.mail.brokers import Broker
from tests.mail.conftest import failure, request, result
from tests.mail.mutants import mutants
from tests.mail.test_nats import broker, open_mail, receive_ids
from tests.mail.timeouts import time_limit
from tests.store.faults.conftest import IS_LONG

__all__ = ["broker"]

POISON = b'{"type": "\\ud800", "sender_id": "CA", "score": NaN}'
SUBJECT = "dragoman.mail._.ARCH"
MUTANTS = 50_000 if IS_LONG else 2_000


async def publish(broker: Broker, *bodies: bytes, subject: str = SUBJECT) -> None:
    """Publish messages without validation."""
    client = await nats.connect(broker.url)
    try:
        for body in bodies:
            await client.jetstream().publish(subject, body)
    finally:
        await client.close()


async def count_broker_messages(mail: Mail) -> int:
    """Return the number of messages on the broker."""
    transport: Any = mail.transport
    messages: int = (await transport._js.stream_info("DRAGOMAN_MAIL")).state.messages
    return messages


async def test_poison_message_becomes_dead_letter_and_next_arrives(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here:
        await here.send(result("T1", message_id="L1"))
        assert await receive_ids(here, "ARCH", 1) == ["L1"]
        await publish(broker, POISON)
        await here.send(result("T2", message_id="L2"))
        assert await receive_ids(here, "ARCH", 1) == ["L2"]
        (dead,) = await here.dead_letters()
        assert (dead.recipient_id, dead.reason) == ("ARCH", "unsigned_letter")
        assert get_raw(here, dead) == POISON
        async with time_limit(60, "an empty broker"):
            while await count_broker_messages(here):
                await asyncio.sleep(0.02)
        assert here.state == "ok"


async def test_invalid_message_is_a_dead_letter_of_its_team_only(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as default_mail:
        here = default_mail.for_team(team_id="ops")
        await here.send(result("T1", message_id="L1"))
        assert await receive_ids(here, "ARCH", 1) == ["L1"]
        await publish(broker, POISON, subject=f"dragoman.mail.{b'ops'.hex()}.ARCH")
        async with time_limit(60, "a dead letter"):
            while not (dead_letters := await here.dead_letters()):
                await asyncio.sleep(0.02)
        assert [dead.recipient_id for dead in dead_letters] == ["ARCH"]
        assert await default_mail.dead_letters() == []


async def test_crashed_task_is_restarted_and_reported_by_health(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    async with open_mail(tmp_path, "one", broker) as here:
        transport: Any = here.transport
        original, crashes = transport._receive, 0

        async def crash(_: Any) -> Any:
            nonlocal crashes
            crashes += 1
            raise RuntimeError("an unexpected defect")

        transport._receive = crash
        await here.receive("ARCH")
        await here.send(result("T1", message_id="L1"))
        async with time_limit(60, "a failure"):
            while not crashes or here.state != "failing":
                await asyncio.sleep(0.01)
        assert (await here.health())["failing"] == {"pull ARCH": "RuntimeError"}
        assert "pull ARCH failed with RuntimeError" in caplog.text
        transport._receive = original
        assert await receive_ids(here, "ARCH", 1) == ["L1"]
        async with time_limit(60, "the end of the failure"):
            while here.state != "ok":
                await asyncio.sleep(0.01)


def create_unconnected_transport(mail: Mail) -> NatsTransport:
    """Return a transport without connection, for messages of the test."""
    transport = NatsTransport("nats://127.0.0.1:1")
    transport._mail, transport._client = mail, SimpleNamespace(is_connected=True)  # type: ignore[assignment]
    transport._wire = MessageCodec(mail.encryptor, mail.store.clock)
    return transport


class Message:
    """A message of the client and its acknowledgement."""

    def __init__(self, data: bytes, subject: str = SUBJECT) -> None:
        self.data, self.subject, self.end = data, subject, ""
        self.headers: dict[str, str] = {}

    async def ack(self) -> None:
        self.end = "ack"

    async def term(self) -> None:
        self.end = "term"

    async def nak(self, delay: float) -> None:
        self.end = "nak"


async def test_no_message_stops_a_mailbox(rng: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "dragoman.mail.nats")
    async with open_store("memory:") as store:
        mail = Mail(store)
        bodies = [
            to_transport(to_stored(letter, mail.encryptor))
            for letter in (result(inputs={"a": "secret"}), failure(), request())
        ]
        transport = create_unconnected_transport(mail)
        messages = [Message(body) for seed in bodies for body in mutants(seed, rng, MUTANTS // 3)]
        for start in range(0, len(messages), 100):
            batch: Any = messages[start : start + 100]
            received = await transport._receive(batch)
            await transport._acknowledge_all(received)
        assert {message.end for message in messages} <= {"ack", "term"}
        assert len([message for message in messages if message.end == "term"]) > len(messages) // 2
        valid = Message(to_transport(to_stored(result("GOOD", message_id="GOOD"), mail.encryptor)))
        await transport._acknowledge_all(await transport._receive([valid]))  # type: ignore[list-item]
        assert valid.end == "ack"
        async with mail.mailbox("ARCH", concurrency=50) as mailbox:
            async for delivery in mailbox:
                if delivery.letter_id == "GOOD":
                    break


async def test_letter_rejected_by_the_store_does_not_block_others() -> None:
    async with open_store("memory:") as store:
        mail = Mail(store)
        transport = create_unconnected_transport(mail)
        rejected = msgspec.structs.replace(to_stored(result("T1"), mail.encryptor), trace_id="\0" * 10, user_id="\0")
        messages: Any = [
            Message(to_transport(rejected)),
            Message(to_transport(to_stored(result("T2", message_id="L2"), mail.encryptor))),
        ]

        async def receive(posted: Any, _: Any) -> Any:
            if any(letter.trace_id for letter in posted):
                raise ValueError("the database rejects NUL")
            return await type(store.mail).receive(store.mail, posted)

        store.mail.receive = receive  # type: ignore[method-assign,assignment]
        received = await transport._receive(messages)
        await transport._acknowledge_all(received)
        assert [message.end for message in messages] == ["term", "ack"]
        assert [status.letter.letter_id for status in await mail.letters()][-1:] == ["L2"]
        assert [dead.error for dead in await mail.dead_letters()] == ["the message cannot be read (ValueError)"]


@pytest.mark.parametrize("recipient", ["*", ">", "a.b", "ARCH ", "", "\ud800"])
async def test_invalid_recipient_is_never_a_subject(recipient: str) -> None:
    transport = NatsTransport("nats://127.0.0.1:1")
    await transport.subscribe(recipient, "")
    assert transport._pull_tasks == {}
