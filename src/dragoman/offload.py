"""Work on large input, done in a thread so that the event loop goes on.

    value = await off_loop(len(data), read_json, data)        at once if it is small, else in a thread
    async for item in in_turns(items, size):                  the items of a list; others run after every few of them
    size_of(messages)                                         what messages count as, by their blocks

A thread of Python code gives the interpreter lock back every few milliseconds; one call into a C library does not. So
this helps where the work consists of many small steps, and limits on counts have to keep each single step short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

LARGE: Final = 64 * 1024  # bytes, or what takes as long as reading so many
MESSAGE_SIZE: Final = 256  # what a message of a history counts as,
BLOCK_SIZE: Final = 256  # and each of its blocks
Item = TypeVar("Item")
Result = TypeVar("Result")
_ITEM_SIZE: Final = LARGE // 64


class HasContent(Protocol):
    """A message, of which only the number of blocks matters here."""

    @property
    def content(self) -> tuple[Any, ...]: ...


async def run_off_loop(size: int, call: Callable[..., Result], *arguments: object) -> Result:
    """What a function returns, or raises. ``size`` is how much it has to look at, in bytes."""
    if size < LARGE:
        return call(*arguments)
    return await asyncio.to_thread(call, *arguments)


async def iterate_fairly(items: Iterable[Item], size: Callable[[Item], int] = lambda _: 0) -> AsyncIterator[Item]:
    """Items of which each takes a moment, or longer by its size. The event loop runs other tasks after some of them."""
    total = 0
    for item in items:
        yield item
        total += _ITEM_SIZE + size(item)
        if total >= LARGE:
            total = 0
            await asyncio.sleep(0)


def estimate_size(messages: Iterable[HasContent]) -> int:
    """What messages count as: a message with many short blocks takes as long as many messages."""
    return sum(MESSAGE_SIZE + BLOCK_SIZE * len(message.content) for message in messages)
