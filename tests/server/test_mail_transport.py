"""Tests of two servers with separate stores and a broker: letters sent to one are received at the other."""

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


def make_result(number: int) -> Any:
    return task_result_letter(
        sender_id="CA",
        recipient_id="ARCH",
        task_id=f"T-{number}",
        timestamp="2026-11-15T12:00:00Z",
        output="done",
        message_id=f"m{number}",
    )


async def test_letters_reach_another_server_and_survive_its_downtime(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    with run_broker(broker):
        options: dict[str, Any] = {"nats": (broker.url,), "nats_monitor": broker.monitor}
        async with run_test_server(folders[0], **options) as here, RemoteMail(here.base_url) as sender:
            received = set[str]()
            for number in range(5):  # while the other server is down
                await sender.send(make_result(number))
            async with run_test_server(folders[1], **options) as there:
                received |= await receive_letters(there.base_url, 5)
            for number in range(5, 10):  # down again
                await sender.send(make_result(number))
            async with run_test_server(folders[1], **options) as there:
                received |= await receive_letters(there.base_url, 5)
                boxes = (await read_json(there.client.get("/api/v1/mail")))["mailboxes"]
                delivery = (await read_json(there.client.get("/metrics")))["delivery"]
                async with there.client.get("/metrics", headers={"accept": "text/plain"}) as response:
                    text = await response.text()
    assert received == {f"m{number}" for number in range(10)}
    assert (delivery["transport"], delivery["broker"]) == ("NatsTransport", "connected")
    assert delivery["delivery_durability"] == "power-safe"
    assert "dragoman_broker_connected 1.0" in text.splitlines()
    assert [(box["recipient_id"], box["done"]) for box in boxes] == [("ARCH", 10)]


async def receive_letters(base_url: str, count: int) -> set[str]:
    received = set[str]()
    async with RemoteMail(base_url, wait_s=1) as mail, mail.mailbox("ARCH") as mailbox, asyncio.timeout(60):
        async for delivery in mailbox:
            assert delivery.letter_id not in received
            received.add(delivery.letter_id)
            if len(received) == count:
                break
    return received


async def test_health_reports_unserved_mailbox(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    with run_broker(broker):
        async with run_test_server(tmp_path, nats=(broker.url,)) as server:
            transport: Any = server.state.mail.transport
            transport._redeliver_s = 0.5
            receive = transport._receive

            async def crash(_: Any) -> Any:
                raise RuntimeError("an unexpected defect")

            transport._receive = crash
            async with RemoteMail(server.base_url, wait_s=0) as mail, asyncio.timeout(60):
                assert await mail.receive("ARCH") == []
                await mail.send(make_result(1))
                health = await wait_for_health(server, status="degraded")
                assert (health["mail"], health["store"]) == ("failing", "reachable")
                async with server.client.get("/metrics", headers={"accept": "text/plain"}) as response:
                    assert "dragoman_mail_delivery_ok 0.0" in (await response.text()).splitlines()
                transport._receive = receive
                assert (await wait_for_health(server, status="ok"))["mail"] == "ok"
                assert await receive_letters(server.base_url, 1) == {"m1"}
            broker.kill()
            assert (await wait_for_health(server, mail="not connected"))["status"] == "ok"  # letters are still accepted


async def wait_for_health(server: Any, **expected: str) -> dict[str, Any]:
    """Wait until the health of a server has these values, and return it."""
    async with asyncio.timeout(60):
        while True:
            health: dict[str, Any] = await read_json(server.client.get("/healthz"))
            if expected.items() <= health.items():
                return health
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
        await sender.send(make_result(1))
        assert await receive_letters(there.base_url, 1) == {"m1"}
        assert (await there.state.mail.health())["is_signed"] is True
