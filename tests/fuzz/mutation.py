"""Seeded mutations of JSON values and bytes, and the reduction of a failing value.

mutate(value, chance)            one to four changes of structure or value
damage(data, chance)             bytes with a part removed, repeated or changed
reduce(value, still_fails)       a smaller value with the same failure
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

_DEPTH: Final = 300
_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**40,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "x",
    "\0",
    "a\0b",
    "\ud800",
    "half \udc00 of a character",
    "\u2028",
    "😀",
    "{",
    "[1,",
    '{"a":1,"a":2}',
    "null",
    "data:image/png;base64,AAAA",
    "data:;base64,@@",
    "2026-05-08T09:30:00+02:00",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-12:00",
    "text",
    "tool",
    "user",
    "assistant",
    "error",
    [],
    [None],
    [[]],
    [{}],
    [1, "a"],
    ["text"],
    {},
    {"": None},
    {"type": "text"},
    {"type": "text", "text": None},
    {"type": []},
    {"\ud800": 1},
    {"\0": "\0"},
    {"dragoman": {}},
)
Path = tuple[Any, ...]


def mutate(value: Any, chance: random.Random) -> Any:
    """Return a copy with one to four changes."""
    root = [copy.deepcopy(value)]  # in a list, so that the root can be replaced as well
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        paths = list(paths_of(root[0], (0,)))
        *steps, last = chance.choice(paths)
        _change(_at(root, tuple(steps)), last, chance, root, paths)
        if not root:
            return None
    return root[0]


def _change(holder: Any, key: Any, chance: random.Random, whole: list[Any], paths: list[Path]) -> None:
    match chance.randrange(10):
        case 0 | 1:
            del holder[key]
        case 2 | 3 | 4:
            holder[key] = _value(chance)
        case 5:  # another part of the same input: swapped ids, a misplaced block
            holder[key] = copy.deepcopy(_at(whole, chance.choice(paths)))
        case 6 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[chance.randrange(len(holder))]))
        case 7 if isinstance(holder, list):
            holder[key:] = holder[key:][::-1]
        case 8 if isinstance(holder, list):
            del holder[key:]
        case 6 | 7 | 8:
            holder[chance.choice([*holder, "a_new_key"])] = holder[key]
        case _:
            holder[key] = _wrap(holder[key], chance)


def _value(chance: random.Random) -> Any:
    if chance.random() < 0.02:
        deep: Any = 1
        for _ in range(_DEPTH):
            deep = [deep] if chance.random() < 0.5 else {"a": deep}
        return deep
    return copy.deepcopy(chance.choice(_VALUES))


def _wrap(value: Any, chance: random.Random) -> Any:
    match chance.randrange(5):
        case 0:
            return [value]
        case 1:
            return {"type": value}
        case 2:
            return json.dumps(value)
        case 3 if isinstance(value, str):
            return value[: len(value) // 2]
        case _:
            return str(value)


def paths_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every part of a value, the root first."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        if len(path) < 40:
            yield from paths_of(item, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return damaged bytes: truncated, with a part removed or repeated, or with one byte changed."""
    if not data:
        return b"\xff"
    start, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    match chance.randrange(5):
        case 0 | 1:
            return data[:start]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:end] + data[start:end] + data[end:]
        case _:
            return (
                data[:start] + chance.choice((b"\xff", b"\x00", b'"', b"{", b"\xed\xa0\x80", b"\n")) + data[start + 1 :]
            )


def reduce(value: Any, still_fails: Callable[[Any], bool], tries: int = 2_000) -> Any:
    """Remove the parts of a value that are not needed for its failure."""
    root = [copy.deepcopy(value)]
    is_smaller = True
    while is_smaller and tries > 0:
        is_smaller = False
        for path in sorted(paths_of(root[0], (0,)), key=len):
            tries -= 1
            for smaller in _smaller_values(root, path):
                if still_fails(smaller[0]):
                    root, is_smaller = smaller, True
                    break
            if is_smaller or tries <= 0:
                break
    return root[0]


def _smaller_values(whole: list[Any], path: Path) -> Iterator[list[Any]]:
    *steps, last = path
    if steps:
        reduced = copy.deepcopy(whole)
        del _at(reduced, tuple(steps))[last]
        yield reduced
    part = _at(whole, path)
    if isinstance(part, str) and len(part) > 8:
        shorter = copy.deepcopy(whole)
        _at(shorter, tuple(steps))[last] = part[: len(part) // 2]
        yield shorter
