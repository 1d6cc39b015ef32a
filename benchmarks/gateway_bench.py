"""Measure gateways side by side: the same fake provider, the same load, one core for each gateway.

Every gateway is started, and its answer compared with the provider's. Then they are measured in turns; the others are
stopped meanwhile. The gateway has one core, the load and the provider share the other one. CPU and memory are those of
all processes of a gateway. Compare the CPU per request; requests per second also depend on the load generator.

    make bench BENCH=gateway                                             every gateway, 16 requests in flight
    make bench BENCH=gateway BENCH_ARGS="--only direct,dragoman-off"     some of them
    make bench BENCH=gateway BENCH_ARGS="--soak 3600"                    mixed load on ours alone: memory, files, p99
    make bench BENCH=gateway BENCH_ARGS="--slow 10000"                   the same load without and with slow clients
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arena import ROOT
from benchmarks.gateways import bodies
from benchmarks.gateways.contestants import MAKERS, ROUTES, Gateway, Route, make_gateways
from dragoman.server.server import raise_file_limit

_CAN_PIN = shutil.which("taskset") is not None and (os.cpu_count() or 1) > 1
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class LoadGenerator:
    """The process with the fake provider and the load generator."""

    def __init__(self) -> None:
        pin = ["taskset", "-c", "1"] if _CAN_PIN else []
        self._process = subprocess.Popen(
            [*pin, sys.executable, "-m", "benchmarks.gateways.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def run(self, gateway: Gateway, route: Route, *, stream: bool, connections: int, seconds: float) -> dict[str, Any]:
        """Run a load and return its result."""
        request = make_request(gateway, route, stream=stream)
        marker = bodies.WORDS[-1].strip() if stream else bodies.ANSWER[-20:]
        task = {
            "port": gateway.port,
            "request": base64.b64encode(request).decode(),
            "marker": marker,
            "connections": connections,
            "seconds": seconds,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(task), file=self._process.stdin, flush=True)
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def make_request(gateway: Gateway, route: Route, *, stream: bool) -> bytes:
    """Return the request of a caller as bytes."""
    caller, provider = route
    body = bodies.request_body(caller, gateway.models[provider], stream=stream)
    headers = {
        "host": f"127.0.0.1:{gateway.port}",
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "content-length": str(len(body)),
        **gateway.headers,
        **(gateway.headers_of(provider) if gateway.headers_of is not None else {}),
    }
    lines = [f"POST {gateway.paths[caller]} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def find_problem(gateway: Gateway, route: Route, *, stream: bool) -> str | None:
    """Return why a gateway cannot be measured; none if its answer is the provider's."""
    request = make_request(gateway, route, stream=stream).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
    try:
        status, body = _exchange(gateway.port, request)
    except OSError as error:
        return f"no answer: {error}"
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    try:
        text = bodies.read_text(route[0], body, stream=stream)
    except (ValueError, LookupError, TypeError) as error:
        return f"not a reply ({error!r}): {body[:200]!r}"
    return None if text == ("".join(bodies.WORDS) if stream else bodies.ANSWER) else "its text is not the provider's"


def _exchange(port: int, request: bytes) -> tuple[int, bytes]:
    import http.client

    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", first.split(" ")[1], body, dict(line.split(": ", 1) for line in lines))
        response = connection.getresponse()
        return response.status, response.read()


def read_usage(gateway: Gateway) -> tuple[float, float, int]:
    """Return the CPU seconds, the megabytes and the open files of all processes of a gateway (Linux)."""
    cpu_s, memory, files = 0.0, 0, 0
    if gateway.process is None or not Path("/proc").exists():
        return cpu_s, 0.0, files
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == gateway.process.pid:
                cpu_s += (int(fields[11]) + int(fields[12])) * _TICK_S
                memory += int(fields[21]) * _PAGE
                files += len(os.listdir(folder / "fd"))
    return cpu_s, memory / 2**20, files


@contextlib.contextmanager
def resume(gateway: Gateway) -> Iterator[None]:
    """Let a gateway run during a block."""
    gateway.signal(signal.SIGCONT)
    try:
        yield
    finally:
        gateway.signal(signal.SIGSTOP)


def start_all(gateways: list[Gateway], console: Console) -> list[Gateway]:
    """Start the gateways and stop them until they are measured; return those that run."""
    running = []
    for gateway in gateways:
        try:
            gateway.start(0 if _CAN_PIN else None)
        except RuntimeError as error:
            console.print(f"{gateway.name} is left out: {error}", markup=False)
            continue
        gateway.signal(signal.SIGSTOP)
        running.append(gateway)
    return running


class Figures:
    """The rounds of one gateway on one route."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self.errors = 0
        self.memory_mb = (0.0, 0.0)

    def add(self, result: dict[str, Any], cpu_s: float) -> None:
        """Add a round."""
        self.errors += result["errors"]
        if result["requests"]:
            self.rounds.append(
                {
                    "rate": result["requests"] / result["seconds"],
                    "cpu_us": cpu_s / result["requests"] * 1e6,
                    "p50_ms": result["latency_us"]["p50"] / 1e3,
                    "p99_ms": result["latency_us"]["p99"] / 1e3,
                    "first_ms": result["first_us"]["p50"] / 1e3,
                }
            )

    def median(self, name: str) -> float:
        """Return the median of the rounds."""
        return statistics.median(item[name] for item in self.rounds) if self.rounds else 0.0


def measure(
    load: LoadGenerator,
    gateways: list[Gateway],
    route: Route,
    options: argparse.Namespace,
    *,
    stream: bool,
    flight: int,
) -> dict[str, Figures]:
    """Measure the gateways in turns on one route."""
    figures = {gateway.name: Figures() for gateway in gateways}
    for number, gateway in itertools.product(range(options.rounds + 1), gateways):
        with resume(gateway):
            before = read_usage(gateway)
            result = load.run(gateway, route, stream=stream, connections=flight, seconds=options.seconds)
            after = read_usage(gateway)
        item = figures[gateway.name]
        if number:  # the first round warms up
            item.add(result, after[0] - before[0])
            item.memory_mb = (item.memory_mb[0] or before[1], after[1])
    return figures


def print_figures(console: Console, title: str, figures: dict[str, Figures]) -> None:
    """Print a table, the least CPU first."""
    columns = ("", "requests/s", "p50 ms", "added", "p99 ms", "first byte ms", "CPU µs", "memory MB", "errors")
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    base_ms = figures["direct"].median("p50_ms") if "direct" in figures else None
    for name, item in sorted(figures.items(), key=lambda pair: pair[1].median("cpu_us")):
        p50_ms = item.median("p50_ms")
        table.add_row(
            name,
            f"{item.median('rate'):,.0f}",
            f"{p50_ms:.2f}",
            f"{p50_ms - base_ms:.2f}" if base_ms is not None else "",
            f"{item.median('p99_ms'):.2f}",
            f"{item.median('first_ms'):.2f}",
            f"{item.median('cpu_us'):,.0f}",
            f"{item.memory_mb[0]:.0f} → {item.memory_mb[1]:.0f}",
            str(item.errors),
        )
    console.print(table)


def compare(options: argparse.Namespace, console: Console) -> None:
    """Measure every gateway on every route."""
    load = LoadGenerator()
    gateways: list[Gateway] = []
    try:
        gateways = start_all(make_gateways(options.only.split(","), load.port, console), console)
        for stream, route in itertools.product((False, True), ROUTES):
            able = []
            for gateway in gateways:
                if route not in gateway.routes or (stream and gateway.whole_only):
                    continue
                with resume(gateway):
                    problem = find_problem(gateway, route, stream=stream)
                    problem = problem and find_problem(gateway, route, stream=stream)  # the first call may import
                if problem is None:
                    able.append(gateway)
                else:
                    console.print(f"{gateway.name} is not measured: {problem}", markup=False)
            for flight in map(int, options.in_flight.split(",")):
                figures = measure(load, able, route, options, stream=stream, flight=flight)
                kind = "stream" if stream else "JSON"
                print_figures(console, f"{route[0]} → {route[1]}, {kind}, {flight} in flight", figures)
    finally:
        for gateway in gateways:
            gateway.stop()
        load.stop()


_SOAK_COLUMNS = ("minute", "requests", "requests/s", "p99 ms", "÷ bare", "CPU µs", "memory MB", "open files", "errors")
_SLOW_COLUMNS = ("slow", "requests/s", "p50 ms", "p99 ms", "CPU µs", "memory MB", "open files", "errors")


def soak(options: argparse.Namespace, console: Console) -> None:
    """Load our gateway for a long time, and print its memory, its open files and its latency after each interval.

    Each interval also loads a bare proxy. Other programs on the machine delay both, so the ratio of their latencies
    shows whether our own latency changes.
    """
    load = LoadGenerator()
    gateways = make_gateways(["dragoman-durable", "translate"], load.port, console)
    cases = list(itertools.product(ROUTES, (False, True), (4, 16, 64)))
    step_s = max(1.0, options.soak / 10 / (len(cases) + 1))
    start = time.monotonic()
    print_row(console, _SOAK_COLUMNS)
    try:
        gateway, bare = start_all(gateways, console)
        while time.monotonic() - start < options.soak:
            with resume(bare):
                limit = load.run(bare, ROUTES[0], stream=False, connections=16, seconds=step_s)
            with resume(gateway):
                cpu_start_s, _, _ = read_usage(gateway)
                results = {
                    (route, stream, flight): load.run(gateway, route, stream=stream, connections=flight, seconds=step_s)
                    for route, stream, flight in cases
                }
                cpu_s, memory_mb, files = read_usage(gateway)
            count = sum(item["requests"] for item in results.values())
            seconds = sum(item["seconds"] for item in results.values())
            p99_ms = statistics.median(item["latency_us"]["p99"] for item in results.values()) / 1e3
            ratio = results[ROUTES[0], False, 16]["latency_us"]["p99"] / limit["latency_us"]["p99"]
            row = (
                f"{(time.monotonic() - start) / 60:.1f}",
                f"{count:,}",
                f"{count / seconds:,.0f}",
                f"{p99_ms:.1f}",
                f"{ratio:.1f}",
                f"{(cpu_s - cpu_start_s) / max(1, count) * 1e6:,.0f}",
                f"{memory_mb:.0f}",
                str(files),
                str(sum(item["errors"] for item in results.values())),
            )
            print_row(console, row)
    finally:
        for item in gateways:
            item.stop()
        load.stop()


def print_row(console: Console, values: Sequence[str]) -> None:
    """Print a row of a table that grows."""
    console.print(" ".join(f"{value:>10}" for value in values))


def compare_slow(options: argparse.Namespace, console: Console) -> None:
    """Measure the same load without and with clients that send and read slowly."""
    load = LoadGenerator()
    (gateway,) = make_gateways(["dragoman-durable"], load.port, console)
    gateway.start(0 if _CAN_PIN else None)
    print_row(console, _SLOW_COLUMNS)
    try:
        measure_beside(load, gateway, options, console, "0")
        with slow_clients(gateway, options.slow) as count_open:
            measure_beside(load, gateway, options, console, str(count_open()))
            console.print(f"{count_open()} of {options.slow} slow clients are still connected")
    finally:
        gateway.stop()
        load.stop()


def measure_beside(
    load: LoadGenerator, gateway: Gateway, options: argparse.Namespace, console: Console, slow: str
) -> None:
    """Measure a load of 16 requests in flight."""
    load.run(gateway, ROUTES[0], stream=False, connections=16, seconds=1.0)
    cpu_start_s, _, _ = read_usage(gateway)
    result = load.run(gateway, ROUTES[0], stream=False, connections=16, seconds=options.rounds * options.seconds)
    cpu_s, memory_mb, files = read_usage(gateway)
    count = max(1, result["requests"])
    latency = result["latency_us"]
    rate = f"{count / result['seconds']:,.0f}"
    times = (
        f"{latency['p50'] / 1e3:.1f}",
        f"{latency['p99'] / 1e3:.1f}",
        f"{(cpu_s - cpu_start_s) / count * 1e6:,.0f}",
    )
    print_row(console, (slow, rate, *times, f"{memory_mb:.0f}", str(files), str(result["errors"])))


@contextlib.contextmanager
def slow_clients(gateway: Gateway, count: int) -> Iterator[Callable[[], int]]:
    """Keep slow clients connected during a block; the function counts them."""
    request = make_request(gateway, (bodies.OPENAI, bodies.OPENAI), stream=True)
    head, _, body = request.partition(b"\r\n\r\n")
    body = body[:-1] + b',"user":"slow"}'
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    request = b"\r\n".join((*lines, b"content-length: %d" % len(body), b"", body))
    process = subprocess.Popen(
        [
            *(["taskset", "-c", "1"] if _CAN_PIN else []),
            *(sys.executable, "-m", "benchmarks.gateways.slow_clients", str(gateway.port), str(count)),
            base64.b64encode(request).decode(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def count_open() -> int:
        print(file=stdin, flush=True)
        return int(stdout.readline())

    try:
        if stdout.readline() != "ready\n":
            raise RuntimeError("the slow clients did not connect; see ulimit -n")
        yield count_open
    finally:
        stdin.close()
        process.wait()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MAKERS), help="gateways, separated by commas")
    parser.add_argument("--in-flight", default="16", help="requests at the same time, for example 1,16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round")
    parser.add_argument("--soak", type=float, default=0.0, help="seconds of mixed load on ours alone")
    parser.add_argument("--slow", type=int, default=0, help="slow clients beside a load on ours alone")
    options = parser.parse_args()
    console = Console(width=140)
    raise_file_limit()
    if options.soak:
        soak(options, console)
    elif options.slow:
        compare_slow(options, console)
    else:
        compare(options, console)


if __name__ == "__main__":
    main()
