"""Tests of the health endpoint."""

from __future__ import annotations

import dragoman
from tests.server.conftest import ServerFixture


async def test_health_reports_version_and_durability(chat_server: ServerFixture) -> None:
    async with chat_server.client.get("/healthz") as response:
        assert response.status == 200
        health = await response.json()
    assert health["status"] == "ok"
    assert health["version"] == dragoman.__version__
    assert health["durability"] == chat_server.store.durability == "power-safe"
    assert health["store"] == "reachable"


async def test_health_requires_no_key(keyed_server: ServerFixture) -> None:
    async with keyed_server.client.get("/healthz") as response:
        assert response.status == 200


async def test_health_on_postgres(postgres_chat_server: ServerFixture) -> None:
    async with postgres_chat_server.client.get("/healthz") as response:
        assert (await response.json())["durability"] == postgres_chat_server.store.durability


async def test_health_is_503_when_store_is_unreachable(chat_server: ServerFixture) -> None:
    await chat_server.store.close()
    async with chat_server.client.get("/healthz") as response:
        assert response.status == 503
        assert (await response.json())["store"] == "unreachable"
