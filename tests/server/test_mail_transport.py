"""Two servers, each with a store of its own, and a broker between them: what is sent at one is received at the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.letters import task_result_letter
from dragoman.mail.broker_access import BrokerAccess
from dragoman.mail.remote import RemoteMail
from tests.mail.brokers import Broker, run_broker
from tests.mail.test_forgery import certificates, tls_broker
from tests.mail.test_nats import KEYS
from tests.server.conftest import run_test_server
from tests.server.test_threads import read_json

__all__ = ["certificates", "tls_broker"]


def result(number: int) -> Any:
    return task_result_letter(
        sender_id="CA",
        recipient_id="ARCH",
        task_id=f"T-{number}",
        timestamp="2026-11-15T12:00:00Z",
        output="done",
        message_id=f"m{number}",
    )


async def test_letters_reach_another_server_and_none_is_lost_while_it_is_down(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    with run_broker(broker):
        options: dict[str, Any] = {"nats": (broker.url,), "nats_monitor": broker.monitor}
        async with run_test_server(folders[0], **options) as here, RemoteMail(here.base_url) as sender:
            seen = set[str]()
            for number in range(5):  # while nobody is there
                await sender.send(result(number))
            async with run_test_server(folders[1], **options) as there:
                seen |= await received(there.base_url, 5)
            for number in range(5, 10):  # and again
                await sender.send(result(number))
            async with run_test_server(folders[1], **options) as there:
                seen |= await received(there.base_url, 5)
                boxes = (await read_json(there.client.get("/api/v1/mail")))["mailboxes"]
                delivery = (await read_json(there.client.get("/metrics")))["delivery"]
                async with there.client.get("/metrics", headers={"accept": "text/plain"}) as answer:
                    text = await answer.text()
    assert seen == {f"m{number}" for number in range(10)}
    assert (delivery["transport"], delivery["broker"]) == ("NatsTransport", "connected")
    assert delivery["delivery_durability"] == "power-safe"
    assert "dragoman_broker_connected 1.0" in text.splitlines()
    assert [(box["recipient_id"], box["done"]) for box in boxes] == [("ARCH", 10)]


async def received(base_url: str, count: int) -> set[str]:
    seen = set[str]()
    async with RemoteMail(base_url, wait_s=1) as mail, mail.mailbox("ARCH") as mailbox, asyncio.timeout(60):
        async for delivery in mailbox:
            assert delivery.letter_id not in seen
            seen.add(delivery.letter_id)
            if len(seen) == count:
                break
    return seen


async def test_health_reports_a_mailbox_that_is_not_served(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    with run_broker(broker):
        async with run_test_server(tmp_path, nats=(broker.url,)) as server:
            transport: Any = server.state.mail.transport
            transport._redeliver_s = 0.5
            take = transport._receive

            async def crash(_: Any) -> Any:
                raise RuntimeError("a defect that nobody has thought of")

            transport._receive = crash
            async with RemoteMail(server.base_url, wait_s=0) as mail, asyncio.timeout(60):
                assert await mail.receive("ARCH") == []
                await mail.send(result(1))
                health = await eventually(server, status="degraded")
                assert (health["mail"], health["store"]) == ("failing", "reachable")
                async with server.client.get("/metrics", headers={"accept": "text/plain"}) as answer:
                    assert "dragoman_mail_delivery_ok 0.0" in (await answer.text()).splitlines()
                transport._receive = take
                assert (await eventually(server, status="ok"))["mail"] == "ok"
                assert await received(server.base_url, 1) == {"m1"}
            broker.kill()
            assert (await eventually(server, mail="not connected"))["status"] == "ok"  # letters are taken all the same


async def eventually(server: Any, **wanted: str) -> dict[str, Any]:
    """The health of a server as soon as it is this."""
    async with asyncio.timeout(60):
        while True:
            said: dict[str, Any] = await read_json(server.client.get("/healthz"))
            if wanted.items() <= said.items():
                return said
            await asyncio.sleep(0.02)


async def test_servers_connect_with_nkey_and_tls_and_sign_letters(
    tmp_path: Path, tls_broker: tuple[Broker, BrokerAccess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, access = tls_broker
    monkeypatch.setenv("DRAGOMAN_MAIL_KEYS", KEYS)
    options: dict[str, Any] = {"nats": (broker.url,), "nats_nkey": access.nkey, "nats_ca": access.ca}
    options |= {"nats_cert": access.cert, "nats_key": access.key}
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    async with (
        run_test_server(folders[0], **options) as here,
        run_test_server(folders[1], **options) as there,
        RemoteMail(here.base_url) as sender,
    ):
        await sender.send(result(1))
        assert await received(there.base_url, 1) == {"m1"}
        assert (await there.state.mail.health())["is_signed"] is True
