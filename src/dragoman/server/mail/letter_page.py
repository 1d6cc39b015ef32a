"""A page of letters, bounded by count and by size.

    page = await read_page(read, limit, size)      items, and whether there are more
    count_within_size(items, size)                      as many items from the front as a page has room for

Letters are read from the store in small slices, so that a request never holds much more than it returns. A page
has at least one letter, however large that is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

PAGE_SIZE: Final = 4 * 1024 * 1024  # characters of the letters, as they are stored
SLICE: Final = 16  # letters that are read from the store at once
Item = TypeVar("Item")


class Page(NamedTuple, Generic[Item]):
    """Some of the items, and whether there are more."""

    items: list[Item]
    has_more: bool


async def read_page(
    read: Callable[[Item | None, int], Awaitable[Sequence[Item]]], limit: int, size: Callable[[Item], int]
) -> Page[Item]:
    """Read up to ``limit`` items; ``read`` returns those behind the last one, or the first ones."""
    items: list[Item] = []
    while len(items) <= limit:
        count = min(SLICE, limit + 1 - len(items))
        batch = await read(items[-1] if items else None, count)
        items.extend(batch)
        room = count_within_size(items, size)
        if room < len(items):
            return Page(items[: min(room, limit)], has_more=True)
        if len(batch) < count:
            break
    return Page(items[:limit], has_more=len(items) > limit)


def count_within_size(items: Sequence[Item], size: Callable[[Item], int]) -> int:
    """How many items from the front have ``PAGE_SIZE`` together; at least one, if there is one."""
    total = 0
    for count, item in enumerate(items):
        total += size(item)
        if count and total > PAGE_SIZE:
            return count
    return len(items)
