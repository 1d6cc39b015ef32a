"""Many rows with few statements: how values are put into them.

    for marks, some in listed(names): …         IN (marks), with these values
    for some in insert_chunks(rows): …              VALUES of so many rows

The one rule: there are few different statements, however many values there are, because an engine plans each anew.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

_SIZES: Final = (1, 4, 16, 64, 256)
_INSERT_SIZES: Final = (64, 16, 4, 1)
Item = TypeVar("Item")


def in_clause_chunks(values: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The marks of a list, and its values, filled up with the last of them: to name one twice changes nothing."""
    max_size = _SIZES[-1]
    for first in range(0, len(values), max_size):
        chunk = values[first : first + max_size]
        size = next(size for size in _SIZES if size >= len(chunk))
        yield _placeholders(size), (*chunk, *[chunk[-1]] * (size - len(chunk)))


def insert_chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in their order, so many at a time as there is a statement for."""
    position = 0
    for size in _INSERT_SIZES:
        while len(items) - position >= size:
            yield items[position : position + size]
            position += size


@functools.cache
def values_clause(columns: int, rows: int) -> str:
    """What stands behind VALUES for so many rows of so many columns."""
    return ", ".join([f"({_placeholders(columns)})"] * rows)


@functools.cache
def _placeholders(count: int) -> str:
    return ", ".join("?" * count)
