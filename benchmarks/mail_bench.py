"""Cost of mail delivery, beside raw SQLite transactions and plain nats-py.

Embedded: letters per second sent, received and acknowledged, one after another, by 16 concurrent agents, and 64 per
call. The limit is one bare table in the same mode: inserts and acknowledgements are synced, leases are not. It uses
one transaction per letter, also with 16 agents, because SQLite has one writer; 64 per call are one transaction.
JetStream: letters per second from one store to another, beside plain messages published and pulled with the same
client on the same broker, which syncs every write. All contestants run in turns; a figure is the median. BENCH_FOLDER
names the folder, and so the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import apsw
from rich.console import Console

from benchmarks.side_by_side import print_figures
from dragoman.letters import Letter, task_result_letter, write_letter
from dragoman.mail import Mail
from dragoman.store import Store, open_store

LIMIT = "the limit"
OURS = "Dragoman"
BATCH_SIZE = 64
AGENTS = 16
Figures = dict[str, dict[str, float]]


def letters(count: int, turn: int) -> list[Letter]:
    """Return letters, each of its own task."""
    return [
        task_result_letter(
            sender_id="CA",
            recipient_id="ARCH",
            task_id=f"TASK-{turn}-{number}",
            timestamp="2026-11-15T12:00:00Z",
            output="Deployment completed successfully",
            artifacts=[{"type": "file", "path": "/deployments/output.log", "description": "Deployment log"}],
            message_id=f"L-{turn}-{number}",
        )
        for number in range(count)
    ]


# --- embedded --------------------------------------------------------------------------------------------------------


class Raw:
    """A queue of one table."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        for pragma in ("page_size=2048", "journal_mode=WAL", "synchronous=FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(
            "CREATE TABLE queue (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, recipient TEXT NOT NULL,"
            " state TEXT NOT NULL, until INTEGER NOT NULL, body TEXT NOT NULL)"
        )
        self._connection.execute("CREATE INDEX waiting ON queue (recipient, number) WHERE state = 'ready'")

    def _write(self, sql: str, rows: list[tuple[Any, ...]], *, synced: bool = True) -> None:
        if not synced:
            self._connection.execute("PRAGMA synchronous=NORMAL").fetchall()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(sql, rows)
        self._connection.execute("COMMIT")
        if not synced:
            self._connection.execute("PRAGMA synchronous=FULL").fetchall()

    async def send(self, items: list[tuple[str, bytes]]) -> None:
        rows = [(name, body.decode()) for name, body in items]
        self._write("INSERT INTO queue (id, recipient, state, until, body) VALUES (?, 'ARCH', 'ready', 0, ?)", rows)

    async def receive(self, count: int) -> list[int]:
        rows = self._connection.execute(
            "SELECT number, body FROM queue WHERE recipient = 'ARCH' AND state = 'ready' AND until <= 1 ORDER BY number"
            " LIMIT ?",
            (count,),
        ).fetchall()
        self._write("UPDATE queue SET until = 2 WHERE number = ?", [(row[0],) for row in rows], synced=False)
        return [row[0] for row in rows]

    async def ack(self, numbers: list[int]) -> None:
        self._write("UPDATE queue SET state = 'done' WHERE number = ?", [(number,) for number in numbers])


class Ours:
    """The same with Dragoman mail."""

    def __init__(self, store: Store) -> None:
        self._mail = Mail(store)

    async def send(self, items: list[Letter]) -> None:
        await (self._mail.send_all(items) if len(items) > 1 else self._mail.send(items[0]))

    async def receive(self, count: int) -> list[Any]:
        return await self._mail.receive("ARCH", limit=count)

    async def ack(self, deliveries: list[Any]) -> None:
        await (self._mail.ack_all(deliveries) if len(deliveries) > 1 else deliveries[0].ack())


async def _measure(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    start = perf_counter()
    result = await work()
    return perf_counter() - start, result


async def _run_turn(queue: Raw | Ours, batch: list[Any], group_size: int, agents: int) -> dict[str, float]:
    """Return letters per second by operation. Each agent has its share of the letters, in groups of this size."""
    shares = [batch[number::agents] for number in range(agents)]
    groups = [[share[first : first + group_size] for first in range(0, len(share), group_size)] for share in shares]

    async def by_all(work: Callable[[list[Any]], Awaitable[Any]]) -> list[Any]:
        return await asyncio.gather(*map(work, groups))

    async def send(mine: list[Any]) -> None:
        for group in mine:
            await queue.send(group)

    async def receive(mine: list[Any]) -> list[Any]:
        return [await queue.receive(len(group)) for group in mine]

    async def ack(mine: list[Any]) -> None:
        for group in mine:
            await queue.ack(group)

    send_s, _ = await _measure(lambda: by_all(send))
    receive_s, groups = await _measure(lambda: by_all(receive))
    assert sum(len(group) for mine in groups for group in mine) == len(batch)
    ack_s, _ = await _measure(lambda: by_all(ack))
    return {
        name: len(batch) / seconds for name, seconds in (("sent", send_s), ("received", receive_s), ("acked", ack_s))
    }


WAYS = {"one after another": (1, 1), f"by {AGENTS} agents": (1, AGENTS), f"{BATCH_SIZE} in one call": (BATCH_SIZE, 1)}


async def measure_embedded(folder: Path, rounds: int, count: int) -> Figures:
    """Return letters per second by case and contestant."""
    speeds_by_name: dict[str, dict[str, list[float]]] = {}
    raw = Raw(folder / "raw.db")
    async with open_store(f"sqlite:///{folder / 'ours.db'}") as store:
        ours = Ours(store)
        for turn in range(rounds + 1):
            for number, (way, (group_size, agents)) in enumerate(WAYS.items()):
                batch = letters(count, turn * len(WAYS) + number)
                plain = [(letter.message_id, write_letter(letter)) for letter in batch]
                for name, queue, items in ((LIMIT, raw, plain), (OURS, ours, batch)):
                    for verb, speed in (await _run_turn(queue, items, group_size, agents)).items():  # type: ignore[arg-type]
                        if turn:  # the first round is a warm-up
                            speeds_by_name.setdefault(f"{verb} {way}", {}).setdefault(name, []).append(speed)
    return {
        case: {name: statistics.median(speeds) for name, speeds in by.items()} for case, by in speeds_by_name.items()
    }


# --- by JetStream ----------------------------------------------------------------------------------------------------


async def measure_jetstream(folder: Path, rounds: int, count: int) -> Figures:
    """Return letters per second from one store to another, beside plain messages."""
    from tests.mail.brokers import Broker, running

    broker = Broker(folder / "broker")
    plain: list[float] = []
    ours: list[float] = []
    with running(broker):
        for turn in range(rounds + 1):
            batch = letters(count, turn)
            for speeds, speed in (
                (plain, await _measure_plain(broker.url, batch, turn)),
                (ours, await _measure_mail(folder, broker.url, batch, turn)),
            ):
                if turn:
                    speeds.append(speed)
    return {"by JetStream, from end to end": {LIMIT: statistics.median(plain), OURS: statistics.median(ours)}}


async def _measure_plain(url: str, batch: list[Letter], turn: int) -> float:
    import nats

    client = await nats.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=f"PLAIN{turn}", subjects=[f"plain{turn}.>"])
        subscription = await js.pull_subscribe(f"plain{turn}.ARCH", durable="plain")
        start = perf_counter()

        async def publish() -> None:
            for first in range(0, len(batch), BATCH_SIZE):
                group = batch[first : first + BATCH_SIZE]
                await asyncio.gather(
                    *(
                        js.publish(
                            f"plain{turn}.ARCH",
                            write_letter(letter),
                            headers={"Nats-Msg-Id": letter.message_id},
                            timeout=30,
                        )
                        for letter in group
                    )
                )

        async def pull() -> None:
            done = 0
            while done < len(batch):
                messages = await subscription.fetch(BATCH_SIZE, timeout=5)
                await asyncio.gather(*(message.ack_sync() for message in messages))
                done += len(messages)

        await asyncio.gather(publish(), pull())
        return len(batch) / (perf_counter() - start)
    finally:
        await client.close()


async def _measure_mail(folder: Path, url: str, batch: list[Letter], turn: int) -> float:
    from dragoman.mail.nats import NatsTransport

    async with (
        open_store(f"sqlite:///{folder / f'here-{turn}.db'}") as first_store,
        open_store(f"sqlite:///{folder / f'there-{turn}.db'}") as second_store,
        Mail(first_store, transport=NatsTransport(url, stream=f"MAIL{turn}", prefix=f"mail{turn}")) as here,
        Mail(second_store, transport=NatsTransport(url, stream=f"MAIL{turn}", prefix=f"mail{turn}")) as there,
    ):
        await there.receive("ARCH")
        await asyncio.sleep(0.5)  # until the consumer exists
        start = perf_counter()

        async def send() -> None:
            for first in range(0, len(batch), BATCH_SIZE):
                await here.send_all(batch[first : first + BATCH_SIZE])

        async def handle() -> None:
            done = 0
            with there.notifier.waiter("/ARCH") as wait:
                while done < len(batch):
                    deliveries = await there.receive("ARCH", limit=BATCH_SIZE)
                    if not deliveries:
                        await wait.wait()
                        continue
                    await there.ack_all(deliveries)
                    done += len(deliveries)

        await asyncio.gather(send(), handle())
        return len(batch) / (perf_counter() - start)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many turns each has")
    parser.add_argument("--letters", type=int, default=1_000, help="how many letters a turn has")
    parser.add_argument("--only", choices=("embedded", "jetstream"), help="measure only this")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    console = Console()
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="dragoman-mail-", dir=os.environ.get("BENCH_FOLDER")) as folder:
        if options.only != "jetstream":
            figures |= asyncio.run(measure_embedded(Path(folder), options.rounds, options.letters))
        if options.only != "embedded":
            figures |= asyncio.run(measure_jetstream(Path(folder), options.rounds, options.letters))
    for case, speeds in figures.items():
        print_figures(console, f"letters a second {case}", speeds, LIMIT, unit="/s")
    if options.json_to:
        options.json_to.write_text(json.dumps({"figures": figures, **vars(options)}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
