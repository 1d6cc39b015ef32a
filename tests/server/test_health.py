"""Endpoints about the server itself."""

from __future__ import annotations

import dragoman
from tests.server.conftest import ServerFixture


async def test_health_names_the_version_and_how_safe_the_store_is(chat_server: ServerFixture) -> None:
    async with chat_server.client.get("/healthz") as answer:
        assert answer.status == 200
        said = await answer.json()
    assert said["status"] == "ok"
    assert said["version"] == dragoman.__version__
    assert said["durability"] == chat_server.store.durability == "power-safe"
    assert said["store"] == "reachable"


async def test_health_needs_no_key(keyed_server: ServerFixture) -> None:
    async with keyed_server.client.get("/healthz") as answer:
        assert answer.status == 200


async def test_health_on_postgres(postgres_chat_server: ServerFixture) -> None:
    async with postgres_chat_server.client.get("/healthz") as answer:
        assert (await answer.json())["durability"] == postgres_chat_server.store.durability


async def test_health_is_503_when_the_store_does_not_answer(chat_server: ServerFixture) -> None:
    await chat_server.store.close()
    async with chat_server.client.get("/healthz") as answer:
        assert answer.status == 503
        assert (await answer.json())["store"] == "unreachable"
