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

_TO_DRAIN_S: Final = 0.5  # for what is left in the pipe


class Printed:
    """The beginning and the end of what came."""

    def __init__(self, head: int, tail: int) -> None:
        self._most = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self._reading: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def reading(self, pipe: int) -> AsyncIterator[None]:
        """Read a pipe while this lasts, and close it."""
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
        )
        self._reading = asyncio.create_task(self._read(stream))
        try:
            yield
        finally:
            self._reading.cancel()
            transport.close()
            await asyncio.wait({self._reading})

    async def drained(self) -> None:
        """Until the pipe has ended, for a moment at most: somebody else may still hold its other end."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_TO_DRAIN_S)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        head, tail = self._most
        while chunk := await stream.read(65_536):
            room = head - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            too_many = max(0, len(self._tail) - tail)
            self._left_out += too_many
            del self._tail[:too_many]

    def text(self) -> str:
        """What is kept of it, with how much is not."""
        if not self._left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        return f"{head}\n… {self._left_out} bytes left out …\n{tail}"
