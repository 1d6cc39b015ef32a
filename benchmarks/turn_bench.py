"""Time that one turn adds to the time of the provider, beside a bare call that only reads the bytes.

Both call the same local server, in turns, in one process: the bare call with aiohttp, and a complete turn that stores
everything (``synchronous=FULL``). BENCH_FOLDER names the folder, and so the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from rich.console import Console

from benchmarks.side_by_side import print_figures
from benchmarks.turn_server import WORDS
from dragoman import open_store, settings
from dragoman.turn import Agent, AgentConfig, TurnEnd

BARE, OURS = "a bare call", "a turn"
_SETTINGS = """
default_model = "fake:m"
[providers.fake]
base_url = "http://127.0.0.1:{port}/v1"
[models."fake:m"]
max_context_tokens = 100000
"""


async def measure(port: int, folder: Path, rounds: int, *, stream: bool) -> dict[str, float]:
    """Return microseconds for one call of each kind, measured in turns."""
    file = folder / "config.toml"
    file.write_text(_SETTINGS.format(port=port))
    file.chmod(0o600)
    user_settings = settings.load(environment={}, file=file, keyring=lambda _: None)
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    async with (
        open_store(f"sqlite:///{folder / f'turns-{stream}.db'}") as store,
        aiohttp.ClientSession() as http,
        Agent(store, settings=user_settings, config=AgentConfig(stream=stream)) as agent,
    ):

        async def bare() -> None:
            async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
                async for _ in response.content.iter_any():
                    pass

        async def turn() -> float:
            session = await store.create_session()
            start = time.perf_counter()
            events = [event async for event in agent.turn(session.id, "hi")]
            seconds = time.perf_counter() - start
            assert isinstance(events[-1], TurnEnd)
            assert events[-1].fault is None
            return seconds

        async def time_call(call: Callable[[], Awaitable[float | None]]) -> float:
            start = time.perf_counter()
            own_seconds = await call()
            return own_seconds if own_seconds is not None else time.perf_counter() - start

        taken: dict[str, list[float]] = {BARE: [], OURS: []}
        for number in range(rounds + 20):
            for name, call in ((BARE, bare), (OURS, turn)):
                seconds = await time_call(call)  # type: ignore[arg-type]
                if number >= 20:
                    taken[name].append(seconds)
    return {name: statistics.median(times) * 1e6 for name, times in taken.items()}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="how many turns each has")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the model has no price
    console = Console()
    command = [sys.executable, "-m", "benchmarks.turn_server"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory(prefix="turn-bench-", dir=os.environ.get("BENCH_FOLDER")) as folder,
    ):
        assert server.stdout is not None
        port = int(server.stdout.readline())
        figures = {}
        for stream in (False, True):
            title = f"an answer of {WORDS} words, {'streamed' if stream else 'whole'}"
            figures[title] = asyncio.run(measure(port, Path(folder), options.rounds, stream=stream))
            print_figures(console, title, figures[title], BARE)
            overhead_us = figures[title][OURS] - figures[title][BARE]
            each = f", {overhead_us / WORDS:.1f} µs for each event" if stream else ""
            console.print(f"added: {overhead_us / 1000:.2f} ms{each}\n")
        server.kill()
    if options.json_to:
        options.json_to.write_text(json.dumps({"figures": figures, "rounds": options.rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
