"""Negative controls: the harness finds the defects of stores that are wrong on purpose."""

from __future__ import annotations

import random
from pathlib import Path

from tests.store.faults import faulty
from tests.store.faults.checker import folder_blob_of, sqlite_tables
from tests.store.faults.harness import Harness

CYCLES = 30


def _found(word: str, harness: Harness, path: Path, rng: random.Random) -> list[str]:
    """The first problems of a kind that cycles of killing bring to light."""
    for _ in range(CYCLES):
        harness.cycle(rng)
        found = harness.problems(sqlite_tables(path), folder_blob_of(path.with_name(f"{path.name}-blobs")))
        if wanted := [problem for problem in found if word in problem]:
            return wanted
    return []


def test_a_store_that_acknowledges_before_the_commit_is_found_out(rng: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert _found("LOST", Harness(f"sqlite:///{path}", faulty.open_eager), path, rng)


def test_a_writer_that_asks_again_without_a_key_is_found_out(rng: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert _found("DOUBLED", Harness(f"sqlite:///{path}", faulty.open_late, is_careless=True), path, rng)


def test_a_writer_that_asks_again_with_keys_is_not(rng: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    harness = Harness(f"sqlite:///{path}", faulty.open_late)
    for _ in range(5):
        harness.cycle(rng)
    harness.finish()
    assert not harness.problems(sqlite_tables(path), folder_blob_of(path.with_name(f"{path.name}-blobs")))
