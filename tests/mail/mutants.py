"""Bodies that are almost letters, as a broken or hostile sender could publish them.

mutants(body, rng, count)        mutated copies of a JSON text, each with one to three changes
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


def mutants(body: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """Yield this many mutated copies."""
    for _ in range(count):
        changed = json.loads(body)
        for _ in range(rng.randint(1, 3)):
            _mutate_value(changed, rng)
        data = json.dumps(changed if rng.random() < 0.95 else _random_value(rng)).encode()
        yield _mutate_bytes(data, rng) if rng.random() < 0.4 else data


def _mutate_value(value: Any, rng: random.Random) -> None:
    """Replace, add or delete a random value within an object."""
    positions = list(_list_positions(value))
    if not positions:
        return
    container, name = rng.choice(positions)
    match rng.randrange(4):
        case 0 if isinstance(container, dict):
            del container[name]
        case 1 if isinstance(container, dict):
            container[rng.choice(("type", "context", SURROGATE, "\0", "payload"))] = _random_value(rng)
        case _:
            container[name] = _random_value(rng)


def _random_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(_VALUES))


def _list_positions(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield value, name
        yield from _list_positions(inner)


def _mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with a fragment inserted, the end removed, or one bit flipped."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(3):
        case 0:
            return data[:at] + rng.choice(_PIECES) + data[at:]
        case 1:
            return data[:at]
        case _:
            flipped = bytearray(data or b"x")
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
