"""Tests of workers that are killed during a run: another worker ends the run, and its thread is free immediately."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.message import MessageStatus
from dragoman.server.runs.recovery import end_expired_run
from dragoman.store import Store, open_store
from dragoman.store.liveness import is_dead, make_owner
from tests.server.conftest import ServerFixture
from tests.server.runs.conftest import RUNS, SSE, run_input
from tests.server.runs.test_recovery import _SETTINGS, Client, _stream_story, run_factory
from tests.server.test_server_process import run_process, wait_for_worker
from tests.servers.faulty_server import FaultyServer
from tests.store.faults.conftest import times

requires_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="requires /proc")


@asynccontextmanager
async def run_two_workers(folder: Path) -> AsyncIterator[tuple[int, str, Store]]:
    """Run a server with two workers whose model streams a story, and yield its process id, address and store."""
    async with FaultyServer(_stream_story) as upstream:
        file = folder / "dragoman" / "config.toml"
        file.parent.mkdir()
        file.write_text(_SETTINGS.format(address=upstream.address))
        file.chmod(0o600)
        database = str(folder / "chats.db")
        arguments = ("--port", "0", "--workers", "2", "--store", database)
        server = run_process(folder, *arguments)
        process, address = await asyncio.to_thread(server.__enter__)
        try:
            await asyncio.to_thread(wait_for_worker, address)
            async with open_store(f"sqlite:///{database}") as store:
                yield process.pid, address, store
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


def list_children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_serving(pid: int, port: int) -> bool:
    """Return whether the event loop of a process waits for connections to a port."""
    folder = Path(f"/proc/{pid}")
    try:
        sockets = [line.split() for line in (folder / "net/tcp").read_text().splitlines()]
        names = {f"socket:[{fields[9]}]" for fields in sockets if fields[1].endswith(f":{port:04X}")}
        links = {link.name: os.readlink(link) for link in (folder / "fd").iterdir()}
        loops = [name for name, target in links.items() if target == "anon_inode:[eventpoll]"]
        lines = [line for name in loops for line in (folder / "fdinfo" / name).read_text().splitlines()]
    except OSError:  # the process has ended or closed a file
        return False
    return any(line.startswith("tfd:") and links.get(line.split()[1]) in names for line in lines)


async def wait_for_two_workers(supervisor: int, address: str) -> None:
    """Wait until two workers serve."""
    port = int(address.rpartition(":")[2])
    while sum(is_serving(pid, port) for pid in list_children(supervisor)) < 2:
        await asyncio.sleep(0.02)


def worker_pid(owner: str) -> int:
    """Return the process id of an owner."""
    return int(owner.partition("/")[0].rpartition("@")[2].partition("-")[0])


async def kill_worker(client: Client, address: str, store: Store) -> float:
    """Start a run, kill its worker, and return the seconds until the run ended."""
    reader = asyncio.create_task(client.start(address))
    while len(client.seen) < 4:
        await asyncio.sleep(0.005)
    run = await store.runs.latest(client.body["threadId"])
    assert run is not None
    os.kill(worker_pid(run.owner), signal.SIGKILL)
    killed_at = time.monotonic()
    await reader
    while not client.has_ended:
        try:
            await client.resume(address)
        except aiohttp.ClientError:  # the socket of the killed worker
            await asyncio.sleep(0.005)
    return time.monotonic() - killed_at


@requires_proc
async def test_another_worker_ends_run_of_killed_worker(tmp_path: Path, count: Callable[[str], None]) -> None:
    waits_s: list[float] = []
    async with (
        run_two_workers(tmp_path) as (supervisor, address, store),
        aiohttp.ClientSession() as session,
        asyncio.timeout(900),
    ):
        for _ in range(times(2, 50)):
            await wait_for_two_workers(supervisor, address)
            client = Client(session, run_input("An endless story, please."))
            waits_s.append(await kill_worker(client, address, store))
            await check_ended(client, store)
            second_client = Client(session, run_input("Another story", threadId=client.body["threadId"]))
            await second_client.start(address)
            assert second_client.seen[-1][1]["type"] == "RUN_FINISHED"
    count(f"workers killed in the middle of a run {describe(waits_s)}")


async def check_ended(client: Client, store: Store) -> None:
    """Check that all received events of an interrupted run are stored."""
    client.check_complete()
    assert client.seen[-1][1]["code"] == "interrupted"
    rows = await store.read(client.body["threadId"])
    assert [row.message.metadata.status for row in rows] == [MessageStatus.COMPLETE, MessageStatus.ERROR]
    assert rows[1].message.content[0].text.startswith(client.text)  # type: ignore[union-attr]


def describe(waits_s: list[float]) -> str:
    p50_s, max_s = statistics.median(waits_s), max(waits_s)
    return f"{len(waits_s)}, lost 0, ended after p50 {p50_s:.2f} s, max {max_s:.2f} s"


async def start_and_kill(client: Client, server: tuple[int, str]) -> None:
    """Start a run at a server, and kill the server."""
    pid, address = server
    await client.start(address, limit=4)
    os.kill(pid, signal.SIGKILL)


async def follow_to_end(client: Client, address: str) -> float:
    """Follow a run to its end, and return the seconds it took."""
    started_at = time.monotonic()
    while not client.has_ended:
        await client.resume(address)
    return time.monotonic() - started_at


@requires_proc
@pytest.mark.parametrize(("distance", "rounds", "together"), [("near", (2, 50), 1), ("far", (1, 5), 10)])
async def test_another_server_ends_run_of_killed_server(
    distance: str, rounds: tuple[int, int], together: int, tmp_path: Path, count: Callable[[str], None]
) -> None:
    url, waits_s = f"sqlite:///{tmp_path / 'chats.db'}", list[float]()
    async with (
        run_factory(url, tmp_path, distance) as servers,
        aiohttp.ClientSession() as session,
        open_store(url) as store,
        asyncio.timeout(900),
    ):
        _, survivor = await servers.start_server()
        for _ in range(times(*rounds)):
            clients = [Client(session, run_input("An endless story, please.")) for _ in range(together)]
            killed = [await servers.start_server() for _ in clients]
            await asyncio.gather(*(start_and_kill(*pair) for pair in zip(clients, killed, strict=True)))
            waits_s += await asyncio.gather(*(follow_to_end(client, survivor) for client in clients))
            for client in clients:
                await check_ended(client, store)
    machine = "this machine" if distance == "near" else "other machines"
    count(f"servers of {machine} killed in the middle of a run {describe(waits_s)}")


async def make_dead_owner() -> str:
    """Return an owner whose process has ended."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    owner = make_owner("x").replace(f"@{os.getpid()}-", f"@{process.pid}-")
    process.kill()
    await process.wait()
    return owner


async def test_owner_is_dead_if_its_process_is(chat_server: ServerFixture) -> None:
    assert is_dead(await make_dead_owner())
    assert not is_dead(make_owner("x"))
    assert not is_dead("01ARZ3NDEKTSV4RRFFQ69G5FAV")  # of an earlier version
    assert not is_dead((await make_dead_owner()).replace(":", "-", 1))  # of another machine
    session = (await chat_server.store.create_session()).id
    await chat_server.store.turns.acquire(session, await make_dead_owner())
    async with chat_server.store.turns.lease(session):
        pass


async def test_cancel_ends_run_of_dead_worker_immediately(chat_server: ServerFixture) -> None:
    chat_server.fake.reply("Yes.")
    body = run_input("Is it?")
    async with chat_server.client.post(RUNS, json=body, headers=SSE) as response:
        await response.read()
    store, thread = chat_server.store, body["threadId"]
    orphan = await store.runs.start(
        store.runs.new(thread, "orphan", b"h" * 32, owner=await make_dead_owner()), alive_s=60
    )
    assert orphan.run_id == "orphan"
    async with chat_server.client.post(f"{RUNS}/{thread}/cancel") as response:
        assert response.status == 202
    run = await store.runs.latest(thread)
    assert run is not None
    assert (run.run_id, run.status) == ("orphan", "error")


async def test_question_after_crash_is_answered_immediately(chat_server: ServerFixture) -> None:
    store, body = chat_server.store, run_input("Is it?")
    await store.create_session(body["threadId"], user_id="local")
    await store.runs.start(
        store.runs.new(body["threadId"], "orphan", b"h" * 32, owner=await make_dead_owner()), alive_s=60
    )
    chat_server.fake.reply("Yes.")
    client = Client(chat_server.client, body)
    await client.start("")
    assert client.seen[-1][1]["type"] == "RUN_FINISHED"


async def test_retry_after_is_time_until_silent_run_expires(chat_server: ServerFixture) -> None:
    store, body = chat_server.store, run_input("Is it?")
    await store.create_session(body["threadId"], user_id="local")
    for run_id, alive_s, expected in (("silent", 3.5, "4"), ("alive", 60, "1")):
        run = store.runs.new(body["threadId"], run_id, b"h" * 32, owner="elsewhere")
        await store.runs.start(run, alive_s=alive_s)
        async with chat_server.client.post(RUNS, json=body, headers=SSE) as response:
            assert (response.status, response.headers["retry-after"]) == (409, expected)
        await store._write(_set_owner(await make_dead_owner()))
        current = await store.runs.latest(body["threadId"])
        assert current is not None
        assert await end_expired_run(chat_server.state, current)


def _set_owner(owner: str) -> Any:
    yield "UPDATE runs SET owner = ? WHERE status = 'running'", (owner,)
