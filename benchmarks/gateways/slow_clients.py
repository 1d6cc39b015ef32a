"""Many slow clients in one process: ``python -m benchmarks.gateways.slow_clients PORT COUNT REQUEST``.

Half of them send a request of 60 KB at 1,100 bytes in ten seconds. The others ask for a long stream and read a few
kilobytes in ten seconds. It prints a line when all of them are at work, and then the number of open connections for
each line of its input. It ends with its input.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
from typing import Any

_BATCH = 100  # connections that are opened at the same time
_PARTS = 10  # in one second, one part of the clients works
_SENT_BYTES = 1_100
_BODY_BYTES = 60_000


class SlowClient(asyncio.Protocol):
    """A connection that never receives more than a few kilobytes at once."""

    is_open = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_open = False

    def start(self, request: bytes) -> None:
        """Send the request."""
        self.transport.write(request)

    def work(self) -> None:
        """Do a little."""


class SlowReader(SlowClient):
    """A client that reads slowly."""

    has_begun = False

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self.has_begun = True
        self.transport.pause_reading()

    def work(self) -> None:
        if self.is_open:
            self.transport.resume_reading()


class SlowSender(SlowClient):
    """A client that sends slowly."""

    has_begun = True

    def start(self, request: bytes) -> None:
        head = request.partition(b"\r\n\r\n")[0]
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        self.transport.write(b"\r\n".join((*lines, b"content-length: %d" % _BODY_BYTES, b"", b"")))
        self.work()

    def work(self) -> None:
        if self.is_open:
            self.transport.write(b" " * _SENT_BYTES)


async def open_client(port: int, kind: type[SlowClient], request: bytes) -> SlowClient:
    """Connect and begin."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    _, client = await loop.create_connection(kind, sock=sock)
    client.start(request)
    return client


async def main() -> None:
    """Open the clients, and let them work until the input ends."""
    port, count, request = int(sys.argv[1]), int(sys.argv[2]), base64.b64decode(sys.argv[3])
    clients: list[Any] = []
    work = asyncio.create_task(keep_working(clients))
    for at in range(0, count, _BATCH):
        kinds = [SlowReader if number % 2 else SlowSender for number in range(at, min(count, at + _BATCH))]
        clients += await asyncio.gather(*(open_client(port, kind, request) for kind in kinds))
    while not all(client.has_begun for client in clients):
        await asyncio.sleep(0.1)
    print("ready", flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        print(sum(client.is_open for client in clients), flush=True)
    work.cancel()


async def keep_working(clients: list[SlowClient]) -> None:
    """Let a part of the clients work in every second."""
    part = 0
    while True:
        for client in clients[part % _PARTS :: _PARTS]:
            client.work()
        part += 1
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
