"""Run work on large input in a thread, so that the event loop stays responsive.

    value = await run_off_loop(len(data), read_json, data)    directly if small, else in a thread
    async for item in iterate_fairly(items, size):            iterate, and let other tasks run in between
    estimate_size(messages)                                   the size of messages by their blocks

Python code in a thread releases the interpreter lock every few milliseconds; a single call into a C library does not.
Offloading therefore helps for work of many small steps. Limits on counts keep each step short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

LARGE: Final = 64 * 1024  # bytes, or work of the same duration
MESSAGE_SIZE: Final = 256  # size of a message,
BLOCK_SIZE: Final = 256  # and of each block
Item = TypeVar("Item")
Result = TypeVar("Result")
_ITEM_SIZE: Final = LARGE // 64


class HasContent(Protocol):
    """A message; only the number of its blocks matters."""

    @property
    def content(self) -> tuple[Any, ...]: ...


async def run_off_loop(size: int, call: Callable[..., Result], *arguments: object) -> Result:
    """Call a function, in a thread if ``size`` bytes are large, and return its result."""
    if size < LARGE:
        return call(*arguments)
    return await asyncio.to_thread(call, *arguments)


async def iterate_fairly(items: Iterable[Item], size: Callable[[Item], int] = lambda _: 0) -> AsyncIterator[Item]:
    """Yield items. After items of 64 KB in total, let the event loop run other tasks."""
    total = 0
    for item in items:
        yield item
        total += _ITEM_SIZE + size(item)
        if total >= LARGE:
            total = 0
            await asyncio.sleep(0)


def estimate_size(messages: Iterable[HasContent]) -> int:
    """Return the size of messages. A message with many short blocks takes as long as many messages."""
    return sum(MESSAGE_SIZE + BLOCK_SIZE * len(message.content) for message in messages)
