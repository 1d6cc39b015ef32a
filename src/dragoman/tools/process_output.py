"""The output of a process, bounded: its start and its end, read from a pipe that we create.

asyncio waits until its own pipes are closed, and a background process may keep them open for ever; hence our own pipe.
Invariant: all output is read, so that the process never blocks on a full pipe, and a bounded part is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Final

_DRAIN_S: Final = 0.5  # for output that is left in the pipe


class ProcessOutput:
    """The first and last bytes of the output."""

    def __init__(self, head: int, tail: int) -> None:
        self._limits = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self._omitted_bytes = 0
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def read_pipe(self, pipe: int) -> AsyncIterator[None]:
        """Read a pipe during the ``with`` block, then close it."""
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
        )
        self._task = asyncio.create_task(self._read(stream))
        try:
            yield
        finally:
            self._task.cancel()
            transport.close()
            await asyncio.wait({self._task})

    async def drain(self) -> None:
        """Wait for the end of the pipe, at most 0.5 s: another process may keep it open."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_DRAIN_S)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        head, tail = self._limits
        while chunk := await stream.read(65_536):
            free = head - len(self._head)
            self._head += chunk[:free]
            self._tail += chunk[free:]
            excess = max(0, len(self._tail) - tail)
            self._omitted_bytes += excess
            del self._tail[:excess]

    def text(self) -> str:
        """The kept output, with the number of omitted bytes."""
        if not self._omitted_bytes:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        return f"{head}\n… {self._omitted_bytes} bytes left out …\n{tail}"
