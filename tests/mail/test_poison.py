"""Messages that break their reader: each is a dead letter, and the mailbox goes on."""

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
from tests.mail.test_nats import broker, opened, received
from tests.mail.timeouts import within
from tests.store.faults.conftest import IS_LONG

__all__ = ["broker"]

POISON = b'{"type": "\\ud800", "sender_id": "CA", "score": NaN}'
SUBJECT = "dragoman.mail._.ARCH"
MUTANTS = 50_000 if IS_LONG else 2_000


async def publish(broker: Broker, *bodies: bytes, subject: str = SUBJECT) -> None:
    """Put messages on the broker, whatever they are."""
    client = await nats.connect(broker.url)
    try:
        for body in bodies:
            await client.jetstream().publish(subject, body)
    finally:
        await client.close()


async def waiting_at(mail: Mail) -> int:
    """Return the number of messages on the broker."""
    transport: Any = mail.transport
    messages: int = (await transport._js.stream_info("DRAGOMAN_MAIL")).state.messages
    return messages


async def test_message_with_surrogate_and_nan_is_a_dead_letter_and_the_next_arrives(
    tmp_path: Path, broker: Broker
) -> None:
    async with opened(tmp_path, "one", broker) as here:
        await here.send(result("T1", message_id="L1"))
        assert await received(here, "ARCH", 1) == ["L1"]
        await publish(broker, POISON)
        await here.send(result("T2", message_id="L2"))
        assert await received(here, "ARCH", 1) == ["L2"]
        (dead,) = await here.dead_letters()
        assert (dead.recipient_id, dead.reason) == ("ARCH", "unsigned_letter")
        assert get_raw(here, dead) == POISON
        async with within(60, "nothing is left on the broker"):
            while await waiting_at(here):
                await asyncio.sleep(0.02)
        assert here.state == "ok"


async def test_invalid_message_is_a_dead_letter_of_its_team_only(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as top:
        here = top.for_team(team_id="ops")
        await here.send(result("T1", message_id="L1"))
        assert await received(here, "ARCH", 1) == ["L1"]
        await publish(broker, POISON, subject=f"dragoman.mail.{b'ops'.hex()}.ARCH")
        async with within(60, "a dead letter"):
            while not (found := await here.dead_letters()):
                await asyncio.sleep(0.02)
        assert [dead.recipient_id for dead in found] == ["ARCH"]
        assert await top.dead_letters() == []


async def test_crashed_task_is_restarted_and_reported_by_health(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    async with opened(tmp_path, "one", broker) as here:
        transport: Any = here.transport
        take, crashes = transport._receive, 0

        async def crash(_: Any) -> Any:
            nonlocal crashes
            crashes += 1
            raise RuntimeError("a defect that nobody has thought of")

        transport._receive = crash
        await here.receive("ARCH")
        await here.send(result("T1", message_id="L1"))
        async with within(60, "a failure"):
            while not crashes or here.state != "failing":
                await asyncio.sleep(0.01)
        assert (await here.health())["failing"] == {"pull ARCH": "RuntimeError"}
        assert "pull ARCH failed with RuntimeError" in caplog.text
        transport._receive = take
        assert await received(here, "ARCH", 1) == ["L1"]
        async with within(60, "the end of the failure"):
            while here.state != "ok":
                await asyncio.sleep(0.01)


def unconnected(mail: Mail) -> NatsTransport:
    """A transport that is given messages by hand."""
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


async def test_no_message_stops_a_mailbox(chance: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "dragoman.mail.nats")
    async with open_store("memory:") as store:
        mail = Mail(store)
        bodies = [
            to_transport(to_stored(one, mail.encryptor))
            for one in (result(inputs={"a": "secret"}), failure(), request())
        ]
        transport = unconnected(mail)
        messages = [Message(body) for seed in bodies for body in mutants(seed, chance, MUTANTS // 3)]
        for start in range(0, len(messages), 100):
            batch: Any = messages[start : start + 100]
            taken = await transport._receive(batch)
            await transport._acknowledge_all(taken)
        assert {message.end for message in messages} <= {"ack", "term"}
        assert len([message for message in messages if message.end == "term"]) > len(messages) // 2
        good = Message(to_transport(to_stored(result("GOOD", message_id="GOOD"), mail.encryptor)))
        await transport._acknowledge_all(await transport._receive([good]))  # type: ignore[list-item]
        assert good.end == "ack"
        async with mail.mailbox("ARCH", concurrency=50) as mailbox:
            async for delivery in mailbox:
                if delivery.letter_id == "GOOD":
                    break


async def test_letter_rejected_by_the_store_does_not_block_others() -> None:
    async with open_store("memory:") as store:
        mail = Mail(store)
        transport = unconnected(mail)
        refused = msgspec.structs.replace(to_stored(result("T1"), mail.encryptor), trace_id="\0" * 10, user_id="\0")
        messages: Any = [
            Message(to_transport(refused)),
            Message(to_transport(to_stored(result("T2", message_id="L2"), mail.encryptor))),
        ]

        async def arrive(posted: Any, _: Any) -> Any:
            if any(one.trace_id for one in posted):
                raise ValueError("the database takes no NUL")
            return await type(store.mail).receive(store.mail, posted)

        store.mail.receive = arrive  # type: ignore[method-assign,assignment]
        taken = await transport._receive(messages)
        await transport._acknowledge_all(taken)
        assert [message.end for message in messages] == ["term", "ack"]
        assert [one.letter.letter_id for one in await mail.letters()][-1:] == ["L2"]
        assert [dead.error for dead in await mail.dead_letters()] == ["the message cannot be read (ValueError)"]


@pytest.mark.parametrize("recipient", ["*", ">", "a.b", "ARCH ", "", "\ud800"])
async def test_invalid_recipient_is_never_a_subject(recipient: str) -> None:
    transport = NatsTransport("nats://127.0.0.1:1")
    await transport.subscribe(recipient, "")
    assert transport._pull_tasks == {}
