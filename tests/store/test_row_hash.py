"""Tests of row hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from dragoman.store.row_hash import json_hash

ROWS = [
    (),
    ("a", None, 0, -(2**63)),
    ('quote " and \\ and \n', "ü 😀 \u2028", "\ud800", ""),
    (True, False, None),
    (1.5, float("inf"), b"bytes"),
    ["a", {"b": 1}],
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_row_hash_is_hash_of_json(row: Any) -> None:
    text = json.dumps(row, default=str)
    assert json_hash(row) == hashlib.sha256(text.encode()).digest()
