"""Tests of two servers on one PostgreSQL: runs, cancellation, resumed streams and mail while servers are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.errors import DragomanError
from dragoman.letters import task_result_letter
from dragoman.mail.remote import RemoteMail
from dragoman.message import MessageStatus, Role, TextBlock
from dragoman.rules import check
from dragoman.store import Store, open_store
from tests.server.runs.conftest import RUNS, run_input
from tests.server.runs.test_recovery import Client, ServerFactory, run_factory
from tests.store.faults.conftest import rng, times

__all__ = ["rng"]

_RETRY_ERRORS = (DragomanError, aiohttp.ClientError, OSError, TimeoutError)
_CLIENTS = 6


class Servers:
    """Two servers. One can be killed and replaced."""

    def __init__(self, factory: ServerFactory, members: list[tuple[int, str]], random_source: random.Random) -> None:
        self._factory = factory
        self._members = members
        self._random = random_source

    def any_address(self) -> str:
        """Return the address of a random server."""
        return self._random.choice(self._members)[1]

    async def kill_random(self) -> None:
        """Kill a random server and start another in its place."""
        at = self._random.randrange(2)
        os.kill(self._members[at][0], signal.SIGKILL)
        self._members[at] = await self._factory.start_server()


async def converse(servers: Servers, client: Client, *, cancels: bool) -> None:
    """Start a run and follow it to its end, a few events at a time, at random servers."""
    is_cancelled = False
    while not client.has_ended:
        try:
            if client.seen:
                await client.resume(servers.any_address(), limit=3)
            else:
                await client.start(servers.any_address(), limit=3)
            if cancels and not is_cancelled and len(client.seen) > 5:
                url = f"{servers.any_address()}{RUNS}/{client.body['threadId']}/cancel"
                async with client.session.post(url) as response:
                    is_cancelled = response.status in (202, 404, 409)
        except _RETRY_ERRORS:  # this server was killed
            await asyncio.sleep(0.02)


async def send_letters(servers: Servers, names: list[str]) -> None:
    """Send each letter to random servers until one has stored it."""
    for name in names:
        letter = task_result_letter(
            sender_id="CA",
            recipient_id="ARCH",
            task_id=name,
            timestamp="2026-11-15T12:00:00Z",
            output="Done",
            message_id=name,
        )
        while True:
            with contextlib.suppress(*_RETRY_ERRORS):
                async with RemoteMail(servers.any_address()) as mail:
                    await mail.send(letter)
                    break
            await asyncio.sleep(0.02)


async def receive_letters(servers: Servers, store: Store, acked: Counter[str], names: list[str]) -> None:
    """Receive letters at random servers until the store has all of them as done.

    The store decides, not the count of responses: a server can be killed after it stored an acknowledgement and
    before it responded.
    """
    while sum(status.state == "done" for status in await store.mail.find(limit=len(names) + 1)) < len(names):
        with contextlib.suppress(*_RETRY_ERRORS):
            async with RemoteMail(servers.any_address(), wait_s=0.5) as mail:
                for delivery in await mail.receive("ARCH", lease_s=2, limit=5):
                    if await delivery.ack():
                        acked[delivery.letter_id] += 1
                continue
        await asyncio.sleep(0.02)


async def check_thread(store: Store, client: Client) -> str:
    """Check that the events that a client received are stored once, and return how its run ended."""
    client.check_complete()
    messages = [row.message for row in await store.read(client.body["threadId"])]
    assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT]
    assert check(messages) == ()
    text = "".join(block.text for block in messages[1].content if isinstance(block, TextBlock))
    last: dict[str, Any] = client.seen[-1][1]
    status = messages[1].metadata.status
    if last["type"] == "RUN_FINISHED" and last.get("outcome") != {"type": "cancelled"}:
        assert (text, status) == (client.text, MessageStatus.COMPLETE)
        return "finished"
    assert text.startswith(client.text)
    return "interrupted" if last["type"] == "RUN_ERROR" else "cancelled"


@pytest.mark.slow
async def test_two_servers_lose_and_repeat_nothing_while_one_is_killed(
    postgres_server: str, tmp_path: Path, rng: random.Random, count: Callable[[str], None]
) -> None:
    url, rounds = f"{postgres_server}&schema=two_{rng.getrandbits(32)}", times(1, 20)
    ends: Counter[str] = Counter()
    acked: Counter[str] = Counter()
    letters: list[str] = []
    async with (
        run_factory(url, tmp_path) as factory,
        aiohttp.ClientSession() as session,
        open_store(url) as store,
        asyncio.timeout(60 + 60 * rounds),
    ):
        servers = Servers(factory, [await factory.start_server(), await factory.start_server()], rng)
        for turn in range(rounds):
            names = [f"L{turn}-{number}" for number in range(10)]
            letters += names
            clients = [Client(session, run_input("A long story, please.")) for _ in range(_CLIENTS)]
            work = asyncio.gather(
                *(converse(servers, client, cancels=at % 3 == 0) for at, client in enumerate(clients)),
                send_letters(servers, names),
                receive_letters(servers, store, acked, letters),
            )
            while len(clients[0].seen) < 3:
                await asyncio.sleep(0.01)
            await servers.kill_random()
            await work
            for client in clients:
                ends[await check_thread(store, client)] += 1
        states = Counter(status.state for status in await store.mail.find(limit=len(letters) + 1))
        assert (await store.verify()).is_sound
    assert states == {"done": len(letters)}
    assert set(acked.values()) == {1}
    assert sum(ends.values()) == rounds * _CLIENTS
    count(f"servers killed {rounds}, runs {dict(ends)}, letters {len(letters)}; lost 0, doubled 0")


async def test_run_behind_pooler_is_followed_and_cancelled_at_another_server(pooler: str, tmp_path: Path) -> None:
    """PgBouncer in transaction mode: servers poll, and use no prepared statements."""
    url = f"{pooler}&schema=pooled_{os.getpid()}"
    async with run_factory(url, tmp_path) as factory, aiohttp.ClientSession() as session, asyncio.timeout(90):
        (_, here), (_, there) = await factory.start_server(), await factory.start_server()
        finished = Client(session, run_input("A story, please."))
        await finished.start(here)
        finished.check_complete()
        resumed = Client(session, finished.body)
        await resumed.resume(there)
        assert resumed.seen == finished.seen
        endless = Client(session, run_input("An endless story, please."))
        reader = asyncio.create_task(endless.start(here))
        while len(endless.seen) < 5:
            await asyncio.sleep(0.01)
        async with session.post(f"{there}{RUNS}/{endless.body['threadId']}/cancel") as response:
            assert response.status == 202
        await reader
        assert endless.seen[-1][1]["outcome"] == {"type": "cancelled"}
