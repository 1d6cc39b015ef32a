"""Tests of killed and parallel servers: each client receives every event exactly once."""

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
    fields = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": text}}
    return msgspec.json.encode({**fields, "done": is_done, **({"done_reason": "stop"} if is_done else {})}) + b"\n"


def _stream_story(request: ReceivedRequest) -> Answer:
    """Stream a short story, a long one, or one of a minute, as the last question requests."""
    question = request.json["messages"][-1]["content"]
    words = _WORDS * 50 if "endless" in question else _WORDS if "long" in question else _WORDS[:20]
    pieces: list[Any] = [piece for word in words for piece in (encode_chunk(_line(word)), _EVERY_S)]
    end = [encode_chunk(_line("", is_done=True)), encode_chunk(b"")]
    return [make_head(200, **{"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}), *pieces, *end]


class ServerFactory:
    """Starts servers on one store."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def start_server(self) -> tuple[int, str]:
        """Start a server and return its process id and its address."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        pid, port = line.split()
        return int(pid), f"http://127.0.0.1:{int(port)}"


@asynccontextmanager
async def run_factory(url: str, folder: Path, *more: str) -> AsyncIterator[ServerFactory]:
    """Run a factory whose servers use a model that streams a story."""
    async with FaultyServer(_stream_story) as upstream:
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
    """Reads a run and stores its events."""

    def __init__(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        self.session = session
        self.body = body
        self.seen: list[tuple[int, dict[str, Any]]] = []

    @property
    def has_ended(self) -> bool:
        return bool(self.seen) and self.seen[-1][1]["type"] in ("RUN_FINISHED", "RUN_ERROR")

    @property
    def text(self) -> str:
        return "".join(event["delta"] for _, event in self.seen if event["type"] == "TEXT_MESSAGE_CONTENT")

    async def start(self, address: str, limit: int = sys.maxsize) -> None:
        """Post the run and read at most this number of events. The server may be killed meanwhile."""
        async with self.session.post(address + RUNS, json=self.body, headers=SSE) as response:
            assert response.status == 200, await response.text()
            await self._read(response, limit)

    async def resume(self, address: str, limit: int = sys.maxsize) -> None:
        """Continue after the last received event, at any server."""
        headers = {"Last-Event-ID": str(self.seen[-1][0])} if self.seen else {}
        path = f"{RUNS}/{self.body['threadId']}/events"
        async with self.session.get(address + path, headers=headers) as response:
            if response.status == 204:
                return
            assert response.status == 200, await response.text()
            await self._read(response, limit)

    async def _read(self, response: aiohttp.ClientResponse, limit: int) -> None:
        number = 0
        try:
            async for line in response.content:
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    self.seen.append((number, json.loads(line[6:])))
                    limit -= 1
                    if limit <= 0:
                        return
        except aiohttp.ClientError:
            pass  # the server was killed

    def check_complete(self) -> None:
        """Check that every event was received once and in order."""
        numbers = [number for number, _ in self.seen]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        ends = [at for at, (_, event) in enumerate(self.seen) if event["type"] in ("RUN_FINISHED", "RUN_ERROR")]
        assert ends == [len(self.seen) - 1]


@pytest.mark.parametrize("database_location", ["sqlite"], indirect=True)
async def test_reconnecting_client_receives_each_event_once(database_location: StoreLocation, tmp_path: Path) -> None:
    async with run_factory(database_location.url, tmp_path) as servers, aiohttp.ClientSession() as session:
        _, address = await servers.start_server()
        client = Client(session, run_input("A long story, please."))
        await client.start(address, limit=2)
        cuts = 0
        while not client.has_ended:
            await client.resume(address, limit=2)
            cuts += 1
        client.check_complete()
        assert client.text == "".join(_WORDS)
        assert cuts >= 2


async def test_200_streams_on_one_worker_lose_nothing(tmp_path: Path) -> None:
    async with (
        run_factory(f"sqlite:///{tmp_path / 'chats.db'}", tmp_path) as servers,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        _, address = await servers.start_server()
        clients = [Client(session, run_input(f"Story {number}")) for number in range(200)]
        await asyncio.gather(*(client.start(address) for client in clients))
        for client in clients:
            client.check_complete()
            assert client.text == "".join(_WORDS[:20])


async def test_killed_server_loses_no_received_event(
    database_location: StoreLocation, tmp_path: Path, count: Callable[[str], None]
) -> None:
    random_source = random.Random(11)
    kills = times(scale(3, 10), 50) if database_location.url.startswith("sqlite") else times(3, 20)
    clients: list[Client] = []
    async with run_factory(database_location.url, tmp_path) as servers, aiohttp.ClientSession() as session:
        for _ in range(kills):
            pid, address = await servers.start_server()
            client = Client(session, run_input("An endless story, please."))
            clients.append(client)
            limit = random_source.randrange(1, 15)
            await client.start(address, limit)
            os.kill(pid, signal.SIGKILL)
        _, address = await servers.start_server()
        for client in clients:
            await client.resume(address)
            client.check_complete()
            assert client.seen[-1][1]["code"] == "interrupted"
        async with open_store(database_location.url) as store:
            for client in clients:
                rows = await store.read(client.body["threadId"])
                assert [row.message.metadata.status for row in rows] == [MessageStatus.COMPLETE, MessageStatus.ERROR]
                text = "".join(block.text for block in rows[1].message.content if isinstance(block, TextBlock))
                assert text.startswith(client.text)
                assert check([row.message for row in rows]) == ()
        retried = Client(session, run_input("Another story", threadId=clients[0].body["threadId"]))
        await retried.start(address)
        assert retried.seen[-1][1]["type"] == "RUN_FINISHED"
    received = sum(len(client.seen) for client in clients)
    count(
        f"{database_location.url.partition(':')[0]}: servers killed in the middle of a run {kills}, events received {received}, lost 0"
    )


async def test_run_is_followed_and_cancelled_at_another_worker(
    database_location: StoreLocation, tmp_path: Path
) -> None:
    async with (
        run_factory(database_location.url, tmp_path) as servers,
        aiohttp.ClientSession() as session,
        asyncio.timeout(60),
    ):
        (_, here), (_, there) = await servers.start_server(), await servers.start_server()
        body = run_input("An endless story, please.")
        first, second = Client(session, body), Client(session, body)
        reader = asyncio.create_task(first.start(here))
        while len(first.seen) < 5:
            await asyncio.sleep(0.01)
        follower = asyncio.create_task(second.resume(there))
        while len(second.seen) < 10:
            await asyncio.sleep(0.01)
        async with session.post(f"{there}{RUNS}/{body['threadId']}/cancel") as response:
            assert response.status == 202
        await asyncio.gather(reader, follower)
        assert first.seen == second.seen
        first.check_complete()
        assert first.seen[-1][1]["outcome"] == {"type": "cancelled"}
        repeated = Client(session, body)
        await repeated.start(there)  # repeated request, at another worker
        assert repeated.seen == first.seen
        busy = Client(session, run_input("An endless story, please.", threadId=body["threadId"]))
        busy_reader = asyncio.create_task(busy.start(here))
        while not busy.seen:
            await asyncio.sleep(0.01)
        async with session.post(there + RUNS, json=run_input("Me too", threadId=body["threadId"])) as response:
            assert response.status == 409
        async with session.post(f"{here}{RUNS}/{body['threadId']}/cancel") as response:
            assert response.status == 202
        await busy_reader
