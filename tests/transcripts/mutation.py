"""Invalid variants of wires: a missing key, another value, keys in another order, an additional item."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

_VALUES: tuple[Any, ...] = (
    None,
    1,
    1.5,
    True,
    "",
    "x",
    [],
    {},
    [1, "a"],
    {"kind": "binary"},
    {"type": "text"},
    {"dragoman": {}},
    "2026-05-08T09:30:00+02:00",
    "error",
)
_Path = tuple[Any, ...]


def mutate_many(wire: Any, count: int) -> Iterator[Any]:
    """Yield ``count`` mutations, always the same."""
    for seed in range(count):
        yield _mutate(copy.deepcopy(wire), random.Random(seed))


def _mutate(wire: Any, chance: random.Random) -> Any:
    for _ in range(chance.randint(1, 3)):
        *steps, last = chance.choice([path for path in _paths(wire) if path])
        holder = wire
        for step in steps:
            holder = holder[step]
        _change(holder, last, chance)
        if not wire:
            break
    return wire


def _change(holder: Any, key: Any, chance: random.Random) -> None:
    match chance.randrange(4):
        case 0:
            del holder[key]
        case 1 | 2:
            holder[key] = copy.deepcopy(chance.choice(_VALUES))
        case _ if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(chance.choice(_VALUES)))
        case _:
            items = [*holder.items(), ("a_new_key", copy.deepcopy(chance.choice(_VALUES)))]
            chance.shuffle(items)
            holder.clear()
            holder.update(items)


def _paths(value: Any, path: _Path = ()) -> Iterator[_Path]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from _paths(item, (*path, key))
