"""Bodies that are almost letters: what a broken or hostile sender could put on the wire.

mutants(body, chance, count)        mutated copies of a JSON text, each with one to three changes
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

SURROGATE = "\ud800"
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    2**63,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "\0",
    SURROGATE,
    "x" * 300,
    "é\U0001f600",
    [],
    {},
    [[[]]],
    {SURROGATE: float("nan")},
    {"a": {"a": {"a": {}}}},
)
_PIECES = (
    b"NaN",
    b"Infinity",
    b'"\\ud800"',
    b"\\u0000",
    b"\xff\xfe",
    b'{"a":' * 80,
    b"[" * 300,
    b'"',
    b",",
    b"}",
    b"1e999",
)


def mutants(body: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """So many mutated copies."""
    for _ in range(count):
        changed = json.loads(body)
        for _ in range(chance.randint(1, 3)):
            _change(changed, chance)
        data = json.dumps(changed if chance.random() < 0.95 else _value(chance)).encode()
        yield _damaged(data, chance) if chance.random() < 0.4 else data


def _change(value: Any, chance: random.Random) -> None:
    """Put something else somewhere into an object."""
    places = list(_places(value))
    if not places:
        return
    inside, name = chance.choice(places)
    match chance.randrange(4):
        case 0 if isinstance(inside, dict):
            del inside[name]
        case 1 if isinstance(inside, dict):
            inside[chance.choice(("type", "context", SURROGATE, "\0", "payload"))] = _value(chance)
        case _:
            inside[name] = _value(chance)


def _value(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice(_VALUES))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield value, name
        yield from _places(inner)


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a piece put in, cut out, or one bit flipped."""
    at = chance.randrange(len(data) + 1)
    match chance.randrange(3):
        case 0:
            return data[:at] + chance.choice(_PIECES) + data[at:]
        case 1:
            return data[:at]
        case _:
            flipped = bytearray(data or b"x")
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            return bytes(flipped)
