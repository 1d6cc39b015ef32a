"""What a process prints, bounded: the beginning and the end of it, read from a pipe of our own.

The pipe is our own because asyncio waits for the end of the pipes that it made and not only for the end of the process,
and a process left in the background may hold them for ever. The one rule: however much is printed, it is read, so that
nobody waits for room in the pipe, and little of it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Final

_DRAIN_S: Final = 0.5  # for what is left in the pipe


class ProcessOutput:
    """The beginning and the end of what came."""

    def __init__(self, head: int, tail: int) -> None:
        self._limits = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self._omitted_bytes = 0
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def read_pipe(self, pipe: int) -> AsyncIterator[None]:
        """Read a pipe while this lasts, and close it."""
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
        """Until the pipe has ended, for a moment at most: somebody else may still hold its other end."""
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
        """What is kept of it, with how much is not."""
        if not self._omitted_bytes:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        return f"{head}\n… {self._omitted_bytes} bytes left out …\n{tail}"
