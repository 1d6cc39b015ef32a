"""Negative controls: the harness detects stores with deliberate defects."""

from __future__ import annotations

import random
from pathlib import Path

from tests.store.faults import faulty
from tests.store.faults.checker import create_folder_reader, read_sqlite_tables
from tests.store.faults.harness import Harness

CYCLES = 30


def _find_problems(word: str, harness: Harness, path: Path, rng: random.Random) -> list[str]:
    """Return the first problems of a kind after cycles of kills."""
    for _ in range(CYCLES):
        harness.cycle(rng)
        found = harness.problems(read_sqlite_tables(path), create_folder_reader(path.with_name(f"{path.name}-blobs")))
        if matching := [problem for problem in found if word in problem]:
            return matching
    return []


def test_store_that_acknowledges_before_commit_is_detected(rng: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert _find_problems("LOST", Harness(f"sqlite:///{path}", faulty.open_eager), path, rng)


def test_writer_that_retries_without_key_is_detected(rng: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert _find_problems(
        "DOUBLED", Harness(f"sqlite:///{path}", faulty.open_late, retries_without_key=True), path, rng
    )


def test_writer_that_retries_with_keys_is_correct(rng: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    harness = Harness(f"sqlite:///{path}", faulty.open_late)
    for _ in range(5):
        harness.cycle(rng)
    harness.finish()
    assert not harness.problems(read_sqlite_tables(path), create_folder_reader(path.with_name(f"{path.name}-blobs")))
