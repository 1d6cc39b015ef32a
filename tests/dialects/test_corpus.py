"""Recorded traffic comes back as it was. The records are read where they lie, and never copied."""

from __future__ import annotations

from collections import Counter

import pytest

from dragoman import dialects
from dragoman.cli.prove import Proof, proof_of, records_of
from tests.conftest import CORPUS

# Records that are broken themselves: a request that is none, streams that were cut or ended in an error.
BROKEN = {
    "anthropic": {"request": 1, "stream": 1},
    "gemini": {"stream": 1},
    "openai_chat": {"stream": 26},
    "openai_responses": {"stream": 2},
}


@pytest.mark.parametrize("name", dialects.names())
def test_everything_that_was_recorded_comes_back(name: str) -> None:
    files = sorted(CORPUS.glob("*.jsonl.gz"))
    if not files:
        pytest.skip(f"no recorded traffic at {CORPUS}; DRAGOMAN_CORPUS names another place")
    proof = Proof(Counter(), [], [])
    for file in files:
        proof_of(records_of(file), proof, name)
    assert proof.failures == []
    assert {part for _, _, part in proof.equal} == {"request", "reply", "stream"}
    assert Counter(found.part for found in proof.broken) == BROKEN.get(name, {}), proof.broken
