"""Measure the endpoints of the server, beside an empty handler of the same server, over real sockets.

A page of the history out of a short and a long thread; runs, from the request to the last event, against a provider
that answers at once; their fsyncs (with strace), their time to the first token beside the provider's own; and the
memory of open streams and of idle followers. The last table has the targets. The clients are in this process, the
server and the provider in two others. BENCH_FOLDER names the folder, and so the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.chat_server import LONG, PAGE, SHORT
from benchmarks.side_by_side import print_figures
from benchmarks.turn_server import WORDS
from dragoman.server.server import raise_file_limit

EMPTY = "an empty handler"
PROVIDER = "the provider itself"
FLOOR = "Starlette, msgspec and SQLite alone"
RUNS = "/api/v1/agent/runs"
SSE = {"accept": "text/event-stream"}
_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def start_process(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a benchmark process that prints its port; yields the port and the process id."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


async def measure_us(calls: Mapping[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, float]:
    """Return the median time of each call in microseconds, measured in turns."""
    times_by_name: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 10):
        for name, call in calls.items():
            start = time.perf_counter()
            await call()
            if number >= 10:
                times_by_name[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) * 1e6 for name, times in times_by_name.items()}


def cpu_s(pid: int) -> float:
    """Return the CPU time of the threads of a process (Linux), in nanoseconds as the scheduler counts it."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


async def cpu_us(pid: int, calls: Mapping[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, float]:
    """Return the CPU time of the server per call in microseconds, measured in turns. Other processes affect it less."""
    seconds_by_name = dict.fromkeys(calls, 0.0)
    for _ in range(5):
        for name, call in calls.items():
            start = cpu_s(pid)
            for _ in range(rounds):
                await call()
            seconds_by_name[name] += cpu_s(pid) - start
    return {name: seconds / (5 * rounds) * 1e6 for name, seconds in seconds_by_name.items()}


async def per_second(call: Callable[[], Awaitable[None]], writers: int, count: int) -> float:
    """Return calls per second with this many concurrent clients."""
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await call()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(writers)))
    return count / (time.perf_counter() - start)


class Client:
    """The HTTP client."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.at_first_token = 0.0

    async def empty(self) -> None:
        async with self.http.get("/empty") as answer:
            assert await answer.read() == b"{}"

    def page(self, thread: str) -> Callable[[], Awaitable[None]]:
        async def page() -> None:
            async with self.http.get(
                f"/api/v1/agent/history?threadId={thread}&limit={PAGE}&beforeSeq=1000000"
            ) as answer:
                assert len((await answer.json())["messages"]) == PAGE

        return page

    async def run(self) -> None:
        async with self.http.post(RUNS, json=_run_input(), headers=SSE) as answer:
            text = await answer.read()
        assert b"RUN_FINISHED" in text, text[-500:]

    async def floor(self) -> None:
        async with self.http.post("/floor", json=_run_input(), headers=SSE) as answer:
            text = await answer.read()
        assert b"RUN_FINISHED" in text, text[-500:]

    async def first_token(self, model: str) -> None:
        """A run up to its first text. The rest is read, too, before the next call starts."""
        async with self.http.post(RUNS, json=_run_input(f"fake:{model}"), headers=SSE) as answer:
            async for line in answer.content:
                if b'"TEXT_MESSAGE_CONTENT"' in line:
                    break
            self.at_first_token = time.perf_counter()
            await answer.read()


async def first_token_ms(client: Client, provider: str, rounds: int, model: str) -> dict[str, float]:
    """Return the median time to the first text of the provider itself and of a run, measured in turns."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    times: dict[str, list[float]] = {PROVIDER: [], "a run": []}
    async with aiohttp.ClientSession() as http:
        for _ in range(rounds):
            start = time.perf_counter()
            async with http.post(provider, json=body) as answer:
                async for line in answer.content:
                    if b'"content": "word' in line:
                        break
                times[PROVIDER].append(time.perf_counter() - start)
                await answer.read()
            start = time.perf_counter()
            await client.first_token(model)
            times["a run"].append(client.at_first_token - start)
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


async def syncs_per_run(client: Client, pid: int, writers: int, count: int) -> float | None:
    """Return how often a run syncs a file, as strace counts it; ``None`` without strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile("r", prefix="syncs-") as log:
        command = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", log.name, "-p", str(pid)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            await asyncio.sleep(1)  # until it is attached
            await per_second(client.run, writers, count)
            process.send_signal(signal.SIGINT)
        return sum("sync(" in line for line in log.read().splitlines()) / count


async def follower_memory_kb(client: Client, pid: int, count: int) -> float:
    """Return kilobytes of server memory per follower of one run that says nothing."""
    body = _run_input("fake:still")
    async with client.http.post(RUNS, json=body, headers=SSE) as run:
        await run.content.readline()
        path = f"{RUNS}/{body['threadId']}/events"
        return await stream_memory_kb(pid, count, lambda: client.http.get(path))


def _run_input(model: str | None = None) -> dict[str, Any]:
    number = next(_NUMBERS)
    message = {"id": f"m{number}", "role": "user", "content": "hi"}
    props = {"forwardedProps": {"model": model}} if model else {}
    return {"threadId": f"t{number}", "runId": f"r{number}", "messages": [message], **props}


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process (Linux)."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


async def stream_memory_kb(pid: int, count: int, open_stream: Callable[[], Any]) -> float:
    """Return kilobytes of server memory per open stream, after the first text of each stream."""
    before = memory_mb(pid)
    async with contextlib.AsyncExitStack() as stack:

        async def wait_for_text() -> None:
            answer = await stack.enter_async_context(open_stream())
            assert answer.status == 200
            async for line in answer.content:
                if line.startswith((b": ", b"data:")) and (b"TEXT_MESSAGE_CONTENT" in line or b"data" not in line):
                    return

        for start in range(0, count, 50):
            await asyncio.gather(*(wait_for_text() for _ in range(start, min(start + 50, count))))
        after = memory_mb(pid)
    await asyncio.sleep(1)
    return max(after - before, 0.1) * 1024 / count  # free memory is used first


class Target(msgspec.Struct, frozen=True):
    """A figure and its limit."""

    name: str
    value: float
    limit: float
    is_minimum: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.is_minimum else self.value <= self.limit


def print_targets(console: Console, targets: Iterable[Target]) -> None:
    """Print each target with its limit."""
    table = Table("target", "measured", "limit", "", title="targets of runs on SQLite", title_justify="left")
    for target in targets:
        limit = f"{'at least' if target.is_minimum else 'at most'} {target.limit:g}"
        table.add_row(target.name, f"{target.value:.2f}", limit, "met" if target.is_met else "missed")
    console.print(table)


async def measure_runs(console: Console, client: Client, pid: int, provider: str, rounds: int) -> list[Target]:
    """Measure fsyncs and the time to the first token."""
    targets: list[Target] = []
    for writers, limit in ((1, 2.0), (16, 0.5)):
        syncs = await syncs_per_run(client, pid, writers, rounds)
        if syncs is None:
            console.print("fsyncs are not counted: strace is not installed")
        else:
            targets.append(Target(f"fsyncs of a run, {writers} at once", syncs, limit))
    for model, what in (("m", "that answers at once"), ("late", "that answers after 50 ms")):
        times_ms = await first_token_ms(client, provider, rounds, model)
        print_figures(console, f"time to the first token, provider {what}", times_ms, PROVIDER, "ms")
        added_ms = times_ms["a run"] - times_ms[PROVIDER]
        targets.append(Target(f"first token above that of a provider {what}, ms", added_ms, 5.0))
    return targets


async def measure_all(
    console: Console, port: int, pid: int, provider: str, options: argparse.Namespace
) -> dict[str, Any]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    figures: dict[str, Any] = {}
    is_linux = Path(f"/proc/{pid}/status").exists()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout) as http:
        client = Client(http)
        pages = {
            EMPTY: client.empty,
            f"{PAGE} of {PAGE} messages": client.page(SHORT),
            f"{PAGE} of {options.messages:,} messages": client.page(LONG),
        }
        runs = {EMPTY: client.empty, FLOOR: client.floor, "a run": client.run}
        # Before everything else: later streams use memory that earlier requests have left.
        follower_kb = await follower_memory_kb(client, pid, options.streams) if is_linux else 0.0
        for title, calls in (
            ("a page of the history", pages),
            (f"a run on a new thread, {WORDS} words streamed", runs),
        ):
            figures[title] = await measure_us(calls, options.rounds)
            print_figures(console, title, figures[title], EMPTY)
            if is_linux:
                figures[f"{title}, CPU of the server"] = cpu_figures = await cpu_us(pid, calls, options.rounds)
                print_figures(console, f"{title}, CPU of the server", cpu_figures, EMPTY)
        for writers in (1, 16):
            title = f"per second, {writers} at once"
            figures[title] = {
                EMPTY: await per_second(client.empty, writers, options.rounds * 10),
                "runs": await per_second(client.run, writers, options.rounds * 2),
            }
            print_figures(console, title, figures[title], EMPTY, "a second")
        targets: list[Target] = []
        if is_linux:
            run_cpu = figures[f"a run on a new thread, {WORDS} words streamed, CPU of the server"]["a run"]
            targets = [
                Target(f"CPU of a run of {WORDS} words, ms", run_cpu / 1e3, 3.0),
                Target("runs a second, 16 at once", figures["per second, 16 at once"]["runs"], 300.0, is_minimum=True),
                *await measure_runs(console, client, pid, provider, options.rounds),
            ]
        if is_linux:
            title = f"memory of each of {options.streams:,} open streams"
            empty_kb = await stream_memory_kb(pid, options.streams, lambda: http.get("/stream"))
            run_kb = await stream_memory_kb(
                pid, options.streams, lambda: http.post(RUNS, json=_run_input("fake:still"), headers=SSE)
            )
            targets.append(Target("memory of an idle follower, kB", follower_kb, 20.0))
            figures[title] = {EMPTY: empty_kb, "a run under way": run_kb, "an idle follower": follower_kb}
            print_figures(console, title, figures[title], EMPTY, "kB")
            figures["memory of the server at the end, MB"] = round(memory_mb(pid), 1)
            console.print(f"the server has {memory_mb(pid):.0f} MB at the end")
            print_targets(console, targets)
            figures["targets"] = {target.name: target.value for target in targets}
    return figures


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="how many requests each has")
    parser.add_argument("--messages", type=int, default=100_000, help="of the long thread")
    parser.add_argument("--streams", type=int, default=1_000, help="that are open at once")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    raise_file_limit()
    with (
        tempfile.TemporaryDirectory(prefix="server-bench-", dir=os.environ.get("BENCH_FOLDER")) as folder,
        start_process("benchmarks.turn_server") as (upstream, _),
        start_process("benchmarks.chat_server", folder, str(upstream), str(options.messages)) as (port, pid),
    ):
        provider = f"http://127.0.0.1:{upstream}/v1/chat/completions"
        figures = asyncio.run(measure_all(Console(), port, pid, provider, options))
    if options.json_to:
        options.json_to.write_text(json.dumps({"figures": figures, "rounds": options.rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
