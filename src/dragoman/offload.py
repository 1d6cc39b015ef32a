"""Work on large input, done in a thread so that the event loop goes on.

    value = await off_loop(len(data), read_json, data)        at once if it is small, else in a thread
    async for item in in_turns(items):                        the items of a list; others run after every few of them

A thread of Python code gives the interpreter lock back every few milliseconds; one call into a C library does not. So
this helps where the work consists of many small steps, and limits on counts have to keep each single step short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

LARGE: Final = 64 * 1024  # bytes, or what takes as long as reading so many
A_MESSAGE: Final = 512  # what a message of a history counts as
Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW: Final = 64


async def off_loop(size: int, call: Callable[..., Result], *arguments: object) -> Result:
    """What a function returns, or raises. ``size`` is how much it has to look at, in bytes."""
    if size < LARGE:
        return call(*arguments)
    return await asyncio.to_thread(call, *arguments)


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Items of which each takes a moment. The event loop runs other tasks after every few of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _FEW == 0:
            await asyncio.sleep(0)
