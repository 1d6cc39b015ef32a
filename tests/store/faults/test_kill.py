"""Tests that acknowledged messages survive kills of the writers at random times."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.store import open_store
from tests.conftest import scale
from tests.store.faults.checker import create_folder_reader, read_sqlite_tables
from tests.store.faults.conftest import times
from tests.store.faults.harness import Harness

CYCLES_OF_ONE_FILE = 10
CYCLES = times(scale(4, 25), 250)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
async def test_acknowledged_messages_survive_sigkill_on_sqlite(
    part: int, rng: random.Random, tmp_path: Path, count: Callable[[str], None]
) -> None:
    for number in range(0, CYCLES, CYCLES_OF_ONE_FILE):
        path = tmp_path / f"{number}.db"
        harness = Harness(f"sqlite:///{path}")
        for _ in range(min(CYCLES_OF_ONE_FILE, CYCLES - number)):
            harness.cycle(rng)
            assert _problems(harness, path) == []
        harness.finish()
        assert _problems(harness, path) == []
        async with open_store(harness.url) as store:
            assert (await store.verify()).damage == ()
        count(
            f"{harness.cycles} cycles, {harness.log.acknowledgement_count} messages acknowledged, none lost, none doubled"
        )


def _problems(harness: Harness, path: Path) -> list[str]:
    return harness.problems(read_sqlite_tables(path), create_folder_reader(path.with_name(f"{path.name}-blobs")))
