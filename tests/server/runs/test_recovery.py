"""Servers that are killed, and servers beside each other: what a client has seen is never lost and never told twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dragoman.message import MessageStatus, TextBlock
from dragoman.rules import check
from dragoman.store import open_store
from tests.conftest import scale
from tests.server.runs.conftest import RUNS, SSE, run_input
from tests.servers.faulty_server import Answer, FaultyServer, ReceivedRequest, encode_chunk, make_head
from tests.store.conftest import StoreLocation, database_location
from tests.store.faults.conftest import times

__all__ = ["database_location"]

_SETTINGS = """
default_model = "fake:model"
[providers.fake]
dialect = "ollama"
base_url = "{address}"
[models."fake:model"]
max_context_tokens = 100000
"""
_WORDS = [f"word {number}, " for number in range(200)]
_EVERY_S = 0.005


def _line(text: str, *, is_done: bool = False) -> bytes:
    told = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": text}}
    return msgspec.json.encode({**told, "done": is_done, **({"done_reason": "stop"} if is_done else {})}) + b"\n"


def _make_story(asked: ReceivedRequest) -> Answer:
    """Stream a short answer; a long one, or one that takes a minute, if the last question says so."""
    question = asked.json["messages"][-1]["content"]
    words = _WORDS * 50 if "endless" in question else _WORDS if "long" in question else _WORDS[:20]
    pieces: list[Any] = [piece for word in words for piece in (encode_chunk(_line(word)), _EVERY_S)]
    end = [encode_chunk(_line("", is_done=True)), encode_chunk(b"")]
    return [make_head(200, **{"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}), *pieces, *end]


class ServerFactory:
    """Servers on one store."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def server(self) -> tuple[int, str]:
        """A new one: its process id and its address."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        said = await asyncio.wait_for(self._process.stdout.readline(), 60)
        number, port = said.split()
        return int(number), f"http://127.0.0.1:{int(port)}"


@asynccontextmanager
async def run_factory(url: str, folder: Path, *more: str) -> AsyncIterator[ServerFactory]:
    """A factory whose servers ask a model that tells a story."""
    async with FaultyServer(_make_story) as upstream:
        file = folder / "config.toml"
        file.write_text(_SETTINGS.format(address=upstream.address))
        file.chmod(0o600)
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "tests.server.runs.killable_server", url, str(file), str(folder), *more]
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        try:
            yield ServerFactory(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Client:
    """A client that reads a run and keeps all its events."""

    def __init__(self, session: aiohttp.ClientSession, given: dict[str, Any]) -> None:
        self.session = session
        self.given = given
        self.seen: list[tuple[int, dict[str, Any]]] = []

    @property
    def is_over(self) -> bool:
        return bool(self.seen) and self.seen[-1][1]["type"] in ("RUN_FINISHED", "RUN_ERROR")

    @property
    def text(self) -> str:
        return "".join(event["delta"] for _, event in self.seen if event["type"] == "TEXT_MESSAGE_CONTENT")

    async def begin(self, address: str, most: int = sys.maxsize) -> None:
        """Ask, and read at most so many events; the server may go away meanwhile."""
        async with self.session.post(address + RUNS, json=self.given, headers=SSE) as answer:
            assert answer.status == 200, await answer.text()
            await self._read(answer, most)

    async def come_back(self, address: str, most: int = sys.maxsize) -> None:
        """Go on reading behind the last event that was seen, at any server."""
        headers = {"Last-Event-ID": str(self.seen[-1][0])} if self.seen else {}
        path = f"{RUNS}/{self.given['threadId']}/events"
        async with self.session.get(address + path, headers=headers) as answer:
            if answer.status == 204:
                return
            assert answer.status == 200, await answer.text()
            await self._read(answer, most)

    async def _read(self, answer: aiohttp.ClientResponse, most: int) -> None:
        number = 0
        try:
            async for line in answer.content:
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    self.seen.append((number, json.loads(line[6:])))
                    most -= 1
                    if most <= 0:
                        return
        except aiohttp.ClientError:
            pass  # the server is gone

    def check_complete(self) -> None:
        """Every event once, in order, from the beginning to the end."""
        numbers = [number for number, _ in self.seen]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        ends = [at for at, (_, event) in enumerate(self.seen) if event["type"] in ("RUN_FINISHED", "RUN_ERROR")]
        assert ends == [len(self.seen) - 1]


@pytest.mark.parametrize("database_location", ["sqlite"], indirect=True)
async def test_a_client_that_reconnects_after_every_second_event_receives_each_once(
    database_location: StoreLocation, tmp_path: Path
) -> None:
    async with run_factory(database_location.url, tmp_path) as servers, aiohttp.ClientSession() as session:
        _, address = await servers.server()
        client = Client(session, run_input("A long story, please."))
        await client.begin(address, most=2)
        cuts = 0
        while not client.is_over:
            await client.come_back(address, most=2)
            cuts += 1
        client.check_complete()
        assert client.text == "".join(_WORDS)
        assert cuts >= 2


async def test_200_streams_on_one_worker_lose_nothing(tmp_path: Path) -> None:
    async with (
        run_factory(f"sqlite:///{tmp_path / 'chats.db'}", tmp_path) as servers,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        _, address = await servers.server()
        clients = [Client(session, run_input(f"Story {number}")) for number in range(200)]
        await asyncio.gather(*(client.begin(address) for client in clients))
        for client in clients:
            client.check_complete()
            assert client.text == "".join(_WORDS[:20])


async def test_a_killed_server_loses_no_event_that_a_client_received(
    database_location: StoreLocation, tmp_path: Path, count: Callable[[str], None]
) -> None:
    chance = random.Random(11)
    kills = times(scale(3, 10), 50) if database_location.url.startswith("sqlite") else times(3, 20)
    clients: list[Client] = []
    async with run_factory(database_location.url, tmp_path) as servers, aiohttp.ClientSession() as session:
        for _ in range(kills):
            number, address = await servers.server()
            client = Client(session, run_input("An endless story, please."))
            clients.append(client)
            most = chance.randrange(1, 15)
            await client.begin(address, most)
            os.kill(number, signal.SIGKILL)
        _, address = await servers.server()
        for client in clients:
            await client.come_back(address)
            client.check_complete()
            assert client.seen[-1][1]["code"] == "interrupted"
        async with open_store(database_location.url) as store:
            for client in clients:
                rows = await store.read(client.given["threadId"])
                assert [row.message.metadata.status for row in rows] == [MessageStatus.COMPLETE, MessageStatus.ERROR]
                kept = "".join(block.text for block in rows[1].message.content if isinstance(block, TextBlock))
                assert kept.startswith(client.text)
                assert check([row.message for row in rows]) == ()
        again = Client(session, run_input("Another story", threadId=clients[0].given["threadId"]))
        await again.begin(address)
        assert again.seen[-1][1]["type"] == "RUN_FINISHED"
    seen = sum(len(client.seen) for client in clients)
    count(
        f"{database_location.url.partition(':')[0]}: servers killed in the middle of a run {kills}, events seen {seen}, lost 0"
    )


async def test_a_run_can_be_followed_and_cancelled_at_another_worker(
    database_location: StoreLocation, tmp_path: Path
) -> None:
    async with (
        run_factory(database_location.url, tmp_path) as servers,
        aiohttp.ClientSession() as session,
        asyncio.timeout(60),
    ):
        (_, here), (_, there) = await servers.server(), await servers.server()
        given = run_input("An endless story, please.")
        first, second = Client(session, given), Client(session, given)
        reading = asyncio.create_task(first.begin(here))
        while len(first.seen) < 5:
            await asyncio.sleep(0.01)
        following = asyncio.create_task(second.come_back(there))
        while len(second.seen) < 10:
            await asyncio.sleep(0.01)
        async with session.post(f"{there}{RUNS}/{given['threadId']}/cancel") as answer:
            assert answer.status == 202
        await asyncio.gather(reading, following)
        assert first.seen == second.seen
        first.check_complete()
        assert first.seen[-1][1]["outcome"] == {"type": "cancelled"}
        again = Client(session, given)
        await again.begin(there)  # the same request, at another worker
        assert again.seen == first.seen
        busy = Client(session, run_input("An endless story, please.", threadId=given["threadId"]))
        running = asyncio.create_task(busy.begin(here))
        while not busy.seen:
            await asyncio.sleep(0.01)
        async with session.post(there + RUNS, json=run_input("Me too", threadId=given["threadId"])) as answer:
            assert answer.status == 409
        async with session.post(f"{here}{RUNS}/{given['threadId']}/cancel") as answer:
            assert answer.status == 202
        await running
