"""What delivering letters costs, beside raw SQLite transactions and beside plain nats-py.

Embedded: letters a second sent, received and acknowledged, one after another, by 16 agents at once of whom each waits
for its own, and 64 in one call. The limit beside it is one bare table in the same mode: a sent row and an acknowledged
one are synced, the lease of a received one is not. It has a transaction for each letter, also with 16 agents, because
SQLite writes one at a time; 64 in one call are one transaction. By JetStream: letters a second from one store to
another and done with, beside plain messages published and pulled with the same client, on the same broker, which syncs
every write. Everybody has turns, one after another; a figure is the median. BENCH_FOLDER names the folder, and so the
disk, to measure on.
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

from benchmarks.side_by_side import show
from dragoman.letters import Letter, task_result_letter, write_letter
from dragoman.mail import Mail
from dragoman.store import Store, open_store

LIMIT = "the limit"
OURS = "Dragoman"
AT_ONCE = 64
AGENTS = 16
Figures = dict[str, dict[str, float]]


def letters(count: int, turn: int) -> list[Letter]:
    """Letters, each of a task of its own."""
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
    """A queue of one table, and nothing around it."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        for pragma in ("page_size=2048", "journal_mode=WAL", "synchronous=FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(
            "CREATE TABLE queue (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, recipient TEXT NOT NULL,"
            " state TEXT NOT NULL, until INTEGER NOT NULL, body TEXT NOT NULL)"
        )
        self._connection.execute("CREATE INDEX waiting ON queue (recipient, number) WHERE state = 'ready'")

    def _in_one(self, sql: str, rows: list[tuple[Any, ...]], *, synced: bool = True) -> None:
        if not synced:
            self._connection.execute("PRAGMA synchronous=NORMAL").fetchall()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(sql, rows)
        self._connection.execute("COMMIT")
        if not synced:
            self._connection.execute("PRAGMA synchronous=FULL").fetchall()

    async def send(self, some: list[tuple[str, bytes]]) -> None:
        rows = [(name, body.decode()) for name, body in some]
        self._in_one("INSERT INTO queue (id, recipient, state, until, body) VALUES (?, 'ARCH', 'ready', 0, ?)", rows)

    async def receive(self, count: int) -> list[int]:
        rows = self._connection.execute(
            "SELECT number, body FROM queue WHERE recipient = 'ARCH' AND state = 'ready' AND until <= 1 ORDER BY number"
            " LIMIT ?",
            (count,),
        ).fetchall()
        self._in_one("UPDATE queue SET until = 2 WHERE number = ?", [(row[0],) for row in rows], synced=False)
        return [row[0] for row in rows]

    async def ack(self, numbers: list[int]) -> None:
        self._in_one("UPDATE queue SET state = 'done' WHERE number = ?", [(number,) for number in numbers])


class Ours:
    """The same with mail."""

    def __init__(self, store: Store) -> None:
        self._mail = Mail(store)

    async def send(self, some: list[Letter]) -> None:
        await (self._mail.send_all(some) if len(some) > 1 else self._mail.send(some[0]))

    async def receive(self, count: int) -> list[Any]:
        return await self._mail.receive("ARCH", limit=count)

    async def ack(self, deliveries: list[Any]) -> None:
        await (self._mail.ack_all(deliveries) if len(deliveries) > 1 else deliveries[0].ack())


async def _timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    began = perf_counter()
    made = await work()
    return perf_counter() - began, made


async def _turn(one: Raw | Ours, given: list[Any], at_once: int, agents: int) -> dict[str, float]:
    """Letters a second of each verb. Each agent has its share of the letters, so many in one call."""
    shares = [given[number::agents] for number in range(agents)]
    groups = [[share[first : first + at_once] for first in range(0, len(share), at_once)] for share in shares]

    async def by_all(work: Callable[[list[Any]], Awaitable[Any]]) -> list[Any]:
        return await asyncio.gather(*map(work, groups))

    async def send(mine: list[Any]) -> None:
        for group in mine:
            await one.send(group)

    async def receive(mine: list[Any]) -> list[Any]:
        return [await one.receive(len(group)) for group in mine]

    async def ack(mine: list[Any]) -> None:
        for group in mine:
            await one.ack(group)

    sending, _ = await _timed(lambda: by_all(send))
    receiving, groups = await _timed(lambda: by_all(receive))
    assert sum(len(group) for mine in groups for group in mine) == len(given)
    acking, _ = await _timed(lambda: by_all(ack))
    return {name: len(given) / taken for name, taken in (("sent", sending), ("received", receiving), ("acked", acking))}


WAYS = {"one after another": (1, 1), f"by {AGENTS} agents": (1, AGENTS), f"{AT_ONCE} in one call": (AT_ONCE, 1)}


async def embedded(folder: Path, rounds: int, count: int) -> Figures:
    """Letters a second, by what is done and by whom."""
    taken: dict[str, dict[str, list[float]]] = {}
    raw = Raw(folder / "raw.db")
    async with open_store(f"sqlite:///{folder / 'ours.db'}") as store:
        ours = Ours(store)
        for turn in range(rounds + 1):
            for number, (way, (at_once, agents)) in enumerate(WAYS.items()):
                made = letters(count, turn * len(WAYS) + number)
                plain = [(letter.message_id, write_letter(letter)) for letter in made]
                for name, one, given in ((LIMIT, raw, plain), (OURS, ours, made)):
                    for verb, speed in (await _turn(one, given, at_once, agents)).items():  # type: ignore[arg-type]
                        if turn:  # the first one warms up
                            taken.setdefault(f"{verb} {way}", {}).setdefault(name, []).append(speed)
    return {what: {name: statistics.median(speeds) for name, speeds in by.items()} for what, by in taken.items()}


# --- by JetStream ----------------------------------------------------------------------------------------------------


async def by_jetstream(folder: Path, rounds: int, count: int) -> Figures:
    """Letters a second from one store to another, beside plain messages."""
    from tests.mail.brokers import Broker, running

    broker = Broker(folder / "broker")
    plain: list[float] = []
    ours: list[float] = []
    with running(broker):
        for turn in range(rounds + 1):
            made = letters(count, turn)
            for speeds, measured in (
                (plain, await _plainly(broker.url, made, turn)),
                (ours, await _by_mail(folder, broker.url, made, turn)),
            ):
                if turn:
                    speeds.append(measured)
    return {"by JetStream, from end to end": {LIMIT: statistics.median(plain), OURS: statistics.median(ours)}}


async def _plainly(url: str, made: list[Letter], turn: int) -> float:
    import nats

    client = await nats.connect(url)
    try:
        js = client.jetstream()
        await js.add_stream(name=f"PLAIN{turn}", subjects=[f"plain{turn}.>"])
        subscription = await js.pull_subscribe(f"plain{turn}.ARCH", durable="plain")
        began = perf_counter()

        async def publish() -> None:
            for first in range(0, len(made), AT_ONCE):
                some = made[first : first + AT_ONCE]
                await asyncio.gather(
                    *(
                        js.publish(
                            f"plain{turn}.ARCH", write_letter(one), headers={"Nats-Msg-Id": one.message_id}, timeout=30
                        )
                        for one in some
                    )
                )

        async def pull() -> None:
            done = 0
            while done < len(made):
                messages = await subscription.fetch(AT_ONCE, timeout=5)
                await asyncio.gather(*(message.ack_sync() for message in messages))
                done += len(messages)

        await asyncio.gather(publish(), pull())
        return len(made) / (perf_counter() - began)
    finally:
        await client.close()


async def _by_mail(folder: Path, url: str, made: list[Letter], turn: int) -> float:
    from dragoman.mail.nats import NatsTransport

    async with (
        open_store(f"sqlite:///{folder / f'here-{turn}.db'}") as one,
        open_store(f"sqlite:///{folder / f'there-{turn}.db'}") as two,
        Mail(one, transport=NatsTransport(url, stream=f"MAIL{turn}", prefix=f"mail{turn}")) as here,
        Mail(two, transport=NatsTransport(url, stream=f"MAIL{turn}", prefix=f"mail{turn}")) as there,
    ):
        await there.receive("ARCH")
        await asyncio.sleep(0.5)  # until it is attended to
        began = perf_counter()

        async def send() -> None:
            for first in range(0, len(made), AT_ONCE):
                await here.send_all(made[first : first + AT_ONCE])

        async def handle() -> None:
            done = 0
            with there.waking.wait_for("/ARCH") as wait:
                while done < len(made):
                    deliveries = await there.receive("ARCH", limit=AT_ONCE)
                    if not deliveries:
                        await wait.pause()
                        continue
                    await there.ack_all(deliveries)
                    done += len(deliveries)

        await asyncio.gather(send(), handle())
        return len(made) / (perf_counter() - began)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many turns each has")
    parser.add_argument("--letters", type=int, default=1_000, help="how many letters a turn has")
    parser.add_argument("--only", choices=("embedded", "jetstream"), help="measure only this")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    asked = parser.parse_args()
    console = Console()
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="dragoman-mail-", dir=os.environ.get("BENCH_FOLDER")) as folder:
        if asked.only != "jetstream":
            figures |= asyncio.run(embedded(Path(folder), asked.rounds, asked.letters))
        if asked.only != "embedded":
            figures |= asyncio.run(by_jetstream(Path(folder), asked.rounds, asked.letters))
    for what, speeds in figures.items():
        show(console, f"letters a second {what}", speeds, LIMIT, unit="/s")
    if asked.json_to:
        asked.json_to.write_text(json.dumps({"figures": figures, **vars(asked)}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
