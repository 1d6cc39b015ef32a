"""The fake provider and the load generator, in one process of their own: ``python -m benchmarks.gateways.load``.

It prints the port of the provider. Then each line of its input is a load, and each line of its output the result:

    {"port": …, "request": "POST …", "connections": 16, "seconds": 1.0}
    {"requests": …, "errors": …, "latencies_us": {"p50": …, "p99": …}, "first_us": {…}}

The load is a closed loop: a connection sends its next request when the response is complete. A response whose last
bytes do not contain the end of the provider's text is an error. A streamed reply has 10 events every 4 ms; to a request
of the user ``slow`` it has 300 KB, as fast as it is read.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from typing import Any

import httptools

from benchmarks.gateways import bodies

_EVENTS_PER_WRITE = 10
_PACE_S = 0.004
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_SLOW = b'"user":"slow"'
_LONG_EVENTS, _LONG_TEXT = 15, b"x" * 20_000
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_DEADLINE_S = 30.0


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Provider(asyncio.Protocol):
    """A connection to the fake provider."""

    last_body = b""
    requests = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._writes: Any = iter(())
        self._is_paused = False

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        Provider.last_body = self._body
        Provider.requests += 1
        api = bodies.ANTHROPIC if self._url.partition(b"?")[0].endswith(b"/messages") else bodies.OPENAI
        if _STREAM.search(self._body) is None:
            self._transport.write(_WHOLE[api])
            return
        self._transport.write(_HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
        if _SLOW in self._body:
            self._writes = iter(_LONG_STREAMS[api])
            self.resume_writing()
        else:
            self._send(iter(_STREAMS[api]))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        while not self._is_paused and (data := next(self._writes, None)) is not None:
            self._transport.write(data)

    def _send(self, writes: Any) -> None:
        data = next(writes, None)
        if data is not None and not self._transport.is_closing():
            self._transport.write(data)
            asyncio.get_running_loop().call_later(_PACE_S, self._send, writes)


def _whole_response(api: str) -> bytes:
    body = bodies.whole_reply(api)
    return _HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(body) + body


def _stream_writes(api: str) -> list[bytes]:
    chunks = [_chunk(event) for event in bodies.stream_events(api)]
    groups = [b"".join(chunks[at : at + _EVENTS_PER_WRITE]) for at in range(0, len(chunks), _EVENTS_PER_WRITE)]
    return [*groups[:-1], groups[-1] + b"0\r\n\r\n"]


def _long_writes(api: str) -> list[bytes]:
    events, word = bodies.stream_events(api), bodies.WORDS[0].encode()
    at = next(number for number, event in enumerate(events) if word in event)
    long_event = events[at].replace(word, _LONG_TEXT)
    chunks = [_chunk(event) for event in (*events[:at], *[long_event] * _LONG_EVENTS, *events[at + 1 :])]
    return [*chunks, b"0\r\n\r\n"]


_WHOLE = {api: _whole_response(api) for api in bodies.PATHS}
_STREAMS = {api: _stream_writes(api) for api in bodies.PATHS}
_LONG_STREAMS = {api: _long_writes(api) for api in bodies.PATHS}


class Load:
    """One load: its request, and what was measured."""

    def __init__(self, request: bytes, seconds: float, marker: bytes) -> None:
        self.request = request
        self.marker = marker
        self.until = time.perf_counter() + seconds
        self.latencies: list[float] = []
        self.first_bytes: list[float] = []
        self.errors = 0


class Caller(asyncio.Protocol):
    """A connection of the load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_complete = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._send()

    def _send(self) -> None:
        now = time.perf_counter()
        if now >= self._load.until:
            self._end()
            return
        self._start, self._first, self._tail, self._is_complete = now, 0.0, b"", False
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._tail = (self._tail + body)[-6_000:]

    def on_message_complete(self) -> None:
        load, now = self._load, time.perf_counter()
        self._is_complete = True
        if self._parser.get_status_code() != 200 or load.marker not in self._tail:
            load.errors += 1
        else:
            load.latencies.append(now - self._start)
            load.first_bytes.append(self._first - self._start)
        if self._parser.should_keep_alive():
            self._send()
        else:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self._is_complete:
            self._load.errors += 1
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()


async def run_load(task: dict[str, Any]) -> dict[str, Any]:
    """Run a load and return its result."""
    load = Load(base64.b64decode(task["request"]), task["seconds"], task["marker"].encode())
    loop = asyncio.get_running_loop()

    async def keep_connected() -> None:
        deadline = load.until + _DEADLINE_S
        while time.perf_counter() < load.until:
            _, caller = await loop.create_connection(lambda: Caller(load), "127.0.0.1", task["port"])
            try:
                await asyncio.wait_for(caller.done, deadline - time.perf_counter())
            except TimeoutError:
                caller._transport.abort()
                load.errors += 1

    start = time.perf_counter()
    outcomes = await asyncio.gather(*(keep_connected() for _ in range(task["connections"])), return_exceptions=True)
    load.errors += sum(isinstance(outcome, BaseException) for outcome in outcomes)
    return {
        "requests": len(load.latencies),
        "seconds": time.perf_counter() - start,
        "errors": load.errors,
        "latency_us": _percentiles(load.latencies),
        "first_us": _percentiles(load.first_bytes),
        "provider_requests": Provider.requests,
        "last_body": Provider.last_body.decode("utf-8", "replace"),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


async def main() -> None:
    """Serve the provider, and run the loads that arrive on standard input."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Provider, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await run_load(json.loads(line))), flush=True)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # not on every system
        asyncio.run(main())
    else:
        uvloop.run(main())
