"""Tests of the twelve programs of docs/programs.md: the table is current, and Dragoman's programs run and are the shortest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import programs_bench
from tests import cli_runner
from tests.conftest import IS_FULL

IN_NEW_PROCESSES = ("mcp",)  # also in the default run


def test_page_contains_the_table() -> None:
    assert programs_bench.make_table(list(programs_bench.SIDES)) in programs_bench.PAGE.read_text("utf-8")


@pytest.mark.parametrize("task", programs_bench.TASKS)
def test_no_program_is_longer_than_those_of_peers(task: str) -> None:
    files = {side: programs_bench.PROGRAMS / task / f"{side}_side.py" for side in programs_bench.SIDES}
    counts = {side: programs_bench.count_statements(file) for side, file in files.items() if file.is_file()}
    assert counts["dragoman"] == min(counts.values())


def fork(_python: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program without the cost of its imports."""
    return cli_runner.run_program("program.py", environment=environment, cwd=folder)


@pytest.mark.parametrize("task", programs_bench.TASKS)
def test_program_runs(task: str) -> None:
    start = programs_bench.start_process if IS_FULL or task in IN_NEW_PROCESSES else fork
    assert asyncio.run(programs_bench.run_program(task, "dragoman", sys.executable, start)) is None
