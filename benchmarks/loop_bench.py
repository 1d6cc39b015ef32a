"""Largest lag of the event loop during each of the largest requests that the server allows.

A server has one event loop: while it parses one request, no other client is served. Each request is sent several
times; the lag with an empty handler is measured as well. The first run, letter and search are not counted, because
some libraries are imported on first use. Clients, server and provider are three processes. BENCH_FOLDER names the
folder, and so the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.chat_server import LONG
from benchmarks.server_bench import RUNS, SSE, cpu_s, start_process

IDLE = "idle: an empty handler"
TARGET_MS = 50.0
_IDLE_S = 0.06  # of CPU in half a second, of which the measurement itself takes most
MAX_BYTES = 4 * 1024 * 1024
SEARCH = "/api/v1/agent/search?q="
_NUMBERS = itertools.count(1)


class Lag(NamedTuple):
    """The largest lag in milliseconds, and the largest lag with CPU time of the server."""

    ms: float
    busy_ms: float


Send = Callable[[aiohttp.ClientSession], Awaitable[Any]]


async def measure(http: aiohttp.ClientSession, send: Send, rounds: int, pid: int) -> Lag:
    """Return the largest lag while a request is sent this many times, and until the server has nothing more to do.

    A large message is indexed for the search after its response. That counts for the request that caused it.
    """
    await _lag(http)
    for _ in range(rounds):
        await send(http)
    await _settle(pid)
    return await _lag(http)


async def _settle(pid: int) -> None:
    """Wait until a process uses hardly any CPU time, at most half a minute."""
    for _ in range(60):
        before = cpu_s(pid)
        await asyncio.sleep(0.5)
        if cpu_s(pid) - before < _IDLE_S:
            return


async def _lag(http: aiohttp.ClientSession) -> Lag:
    async with http.get("/lag") as answer:
        lag, busy = await answer.json()
        return Lag(lag, busy)


# --- requests --------------------------------------------------------------------------------------------------------


async def send_empty(http: aiohttp.ClientSession) -> None:
    for _ in range(100):
        async with http.get("/empty") as answer:
            await answer.read()


def run_request(make: Callable[[], dict[str, Any]], status: int = 200) -> Send:
    """Return a function that starts a run and reads it to its last event."""

    async def send(http: aiohttp.ClientSession) -> None:
        number = next(_NUMBERS)
        body = {"threadId": f"t{number}", "runId": f"r{number}", "messages": [_user("hi", f"m{number}")], **make()}
        async with http.post(RUNS, data=json.dumps(body), headers={**SSE, **_JSON}) as answer:
            text = await answer.read()
        assert answer.status == status, text[:500]
        assert status != 200 or b"RUN_FINISHED" in text, text[-500:]

    return send


def letter_request(make: Callable[[], dict[str, Any]]) -> Send:
    """Return a function that sends a letter with this context."""

    async def send(http: aiohttp.ClientSession) -> None:
        async with http.post("/api/v1/mail", data=json.dumps(_letter(make())), headers=_JSON) as answer:
            text = await answer.read()
        assert answer.status == 201, text[:500]

    return send


def get_request(path: str) -> Send:
    async def send(http: aiohttp.ClientSession) -> None:
        async with http.get(path) as answer:
            text = await answer.read()
        assert answer.status == 200, text[:500]

    return send


def page_request(letters: int, inputs: int) -> Send:
    """Return a function that reads the newest letters of a mailbox with large letters."""
    is_filled = False

    async def send(http: aiohttp.ClientSession) -> None:
        nonlocal is_filled
        if not is_filled:
            await fill_mailbox(http, letters, inputs)
            await _lag(http)  # exclude the preparation
            is_filled = True
        await get_request("/api/v1/mail/inbox/AGENT-C?limit=200")(http)

    return send


async def fill_mailbox(http: aiohttp.ClientSession, letters: int, inputs: int) -> None:
    requested_inputs = [{"id": f"i{at}", "type": "string", "description": "x" * 2_000} for at in range(inputs)]
    for _ in range(letters):
        body = {
            **_letter({}),
            "type": "needs_input",
            "recipient_id": "AGENT-C",
            "payload": {"requested_inputs": requested_inputs},
        }
        async with http.post("/api/v1/mail", data=json.dumps(body), headers=_JSON) as answer:
            text = await answer.read()
        assert answer.status == 201, text[:500]


_JSON = {"content-type": "application/json"}


def _user(text: str, name: str = "m1") -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text}


def _letter(context: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "task_result",
        "protocol_version": "1.3",
        "sender_id": "AGENT-A",
        "recipient_id": "AGENT-B",
        "task_id": f"TASK-{next(_NUMBERS)}",
        "timestamp": datetime.now(UTC).isoformat(),
        "context": context,
        "payload": {"status": "success", "success": True, "result": {"output": "done"}},
    }


def cases(options: argparse.Namespace) -> dict[str, Send]:
    """Return the requests by name."""
    text = "word " * (MAX_BYTES // 5 - 200)
    state = {"state": {"list": [{"a": 1}] * (options.values // 2 - 50)}}
    history = {"messages": [_user(f"message {at}", f"m{at}") for at in range(options.messages)]}
    many = [{"type": "text", "text": "a"}] * 250
    parts = {"messages": [{**_user("", f"m{at}"), "content": many} for at in range(options.parts // 250)]}
    choice = {"properties": {"x": {"enum": list(range(options.schema_values - 20))}}}
    tools = [{"name": f"t{at}", "description": "", "parameters": choice} for at in range(2)]
    names = [{"name": f"t{at}", "description": "", "parameters": _pattern(at)} for at in range(options.tools)]
    needs = {"depends_on": [f"NEED-{at}" for at in range(options.needs)]}
    return {
        IDLE: send_empty,
        "a run: one message of 4 MiB": run_request(lambda: {"messages": [_user(text)]}),
        f"a run: {options.messages:,} messages on a new thread": run_request(lambda: history),
        f"a run: {options.parts:,} parts in messages of 250": run_request(lambda: parts),
        f"a run: state of {options.values:,} JSON values": run_request(lambda: state),
        "a run: two tools with as many values as allowed": run_request(lambda: {"tools": tools}),
        f"a run: {options.tools} tools with a heavy pattern each": run_request(lambda: {"tools": names}),
        f"a run: an answer with {options.calls} tool calls": run_request(
            lambda: {"forwardedProps": {"model": f"fake:calls-{options.calls}"}, "tools": [_LOOK]}
        ),
        "a run: an answer with 4 MB in one event": run_request(
            lambda: {"forwardedProps": {"model": "fake:delta-4000000"}}
        ),
        "a run: an answer of 30,000 events": run_request(lambda: {"forwardedProps": {"model": "fake:letters-30000"}}),
        f"a run on a thread of {options.thread:,} messages": run_request(lambda: {"threadId": LONG}),
        f"a letter that depends on {options.needs:,} tasks": letter_request(lambda: needs),
        "a letter of 4 MiB": letter_request(lambda: {"note": text[: MAX_BYTES - 4096]}),
        f"a letter of {options.values:,} JSON values": letter_request(
            lambda: {"note": [{"a": 1}] * (options.values // 2 - 50)}
        ),
        f"a page of {options.letters} letters that ask for {options.inputs} inputs": page_request(
            options.letters, options.inputs
        ),
        "a page of 200 messages": get_request(f"/api/v1/agent/history?threadId={LONG}&limit=200"),
        "a search of 1,000 characters": get_request(SEARCH + "word%20" * 140),
        "a list of 200 threads": get_request("/api/v1/agent/threads?limit=200"),
    }


_LOOK = {"name": "other", "description": "", "parameters": {"type": "object", "properties": {}}}


def _pattern(at: int) -> dict[str, Any]:
    return {"properties": {"x": {"type": "string", "pattern": rf"^\p{{L}}{{10}}{at}$"}}}


# --- the table -------------------------------------------------------------------------------------------------------


async def measure_all(port: int, pid: int, options: argparse.Namespace) -> dict[str, Lag]:
    timeout = aiohttp.ClientTimeout(total=600)
    lags: dict[str, Lag] = {}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as http:
        for send in (
            run_request(dict),
            letter_request(dict),
            get_request(SEARCH + "word"),
        ):  # warm up lazy imports
            await send(http)
        for name, send in cases(options).items():
            if options.only in name:
                lags[name] = await measure(http, send, options.rounds, pid)
    return lags


def show(console: Console, lags: dict[str, Lag]) -> None:
    table = Table("", "lag, ms", "busy, ms", "", title="Largest lag of the event loop", title_justify="left")
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, lag in lags.items():
        mark = "" if lag.busy_ms <= TARGET_MS else f"[red]above {TARGET_MS:.0f} ms[/red]"
        table.add_row(name, f"{lag.ms:.1f}", f"{lag.busy_ms:.1f}", mark)
    console.print(table)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each request is made")
    parser.add_argument("--only", default="", help="only requests with this in their name")
    parser.add_argument("--messages", type=int, default=5_000, help="of one run")
    parser.add_argument("--parts", type=int, default=10_000, help="of all messages of one run")
    parser.add_argument("--values", type=int, default=100_000, help="JSON values of one body")
    parser.add_argument("--schema-values", type=int, default=10_000, help="of one tool's schema")
    parser.add_argument("--tools", type=int, default=64, help="of one run")
    parser.add_argument("--calls", type=int, default=128, help="of one answer")
    parser.add_argument("--needs", type=int, default=1_000, help="tasks that a letter depends on")
    parser.add_argument("--letters", type=int, default=32, help="of one mailbox")
    parser.add_argument("--inputs", type=int, default=256, help="that each of these letters asks for")
    parser.add_argument("--thread", type=int, default=10_000, help="messages of the long thread")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="loop-bench-", dir=os.environ.get("BENCH_FOLDER")) as folder,
        start_process("benchmarks.turn_server") as (upstream, _),
        start_process("benchmarks.chat_server", folder, str(upstream), str(options.thread), str(options.calls)) as (
            port,
            pid,
        ),
    ):
        lags = asyncio.run(measure_all(port, pid, options))
    show(Console(), lags)
    if options.json_to:
        options.json_to.write_text(json.dumps({"lag_ms": lags, "rounds": options.rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
