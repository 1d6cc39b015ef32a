"""Tests of a crash or an error at every system call that writes, syncs, renames or deletes.

strace does it: it kills the writer as it is about to make the call, or has the call fail. The calls are counted in a
first run, for each thread and each kind of call, and then each one has its turn.
"""

from __future__ import annotations

import collections
import copy
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import scale
from tests.store.faults.checker import create_folder_reader, read_sqlite_tables
from tests.store.faults.harness import Harness
from tests.store.faults.writer import UNUSABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="strace is for Linux"),
]

Count = Callable[[str], None]

CALLS = (
    "pwrite64",
    "write",
    "fdatasync",
    "fsync",
    "ftruncate",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
)
BEFORE, NEW = 1, 7  # the store has one append, and a run adds one of each other kind


class Crashes:
    """Runs on copies of the same store, each with one fault."""

    def __init__(self, strace: str, folder: Path, *, is_new: bool) -> None:
        self.strace = strace
        self.folder = folder
        self.base = Harness(f"sqlite:///{folder / 'base' / 'store.db'}", writers=1)
        (folder / "base").mkdir()
        if not is_new:
            self.base.finish(new=BEFORE)
        self.new = 1 if is_new else NEW
        self.runs = 0
        self.exit_codes: collections.Counter[int] = collections.Counter()  # exit codes of the runs with a fault

    def points(self) -> list[tuple[str, int]]:
        """Return each system call of the run: its name and its number in its thread."""
        output = self.folder / "calls.txt"
        harness = self._harness()
        assert harness.run_traced([self.strace, "-o", str(output), "-e", f"trace={self._list_calls()}"], self.new) == 0
        threads = collections.Counter(re.findall(r"^(\d+) +(\w+)\(", output.read_text(), flags=re.MULTILINE))
        return sorted({(call, number) for (_, call), times in threads.items() for number in range(1, times + 1)})

    def run(self, fault: str) -> Harness:
        """Run with a fault, then repeat all appends that may be repeated."""
        harness = self._harness()
        ended = harness.run_traced(
            [self.strace, "-e", f"trace={self._list_calls()}", "-e", f"inject={fault}"], self.new
        )
        self.exit_codes[ended] += 1
        assert self._problems(harness) == [], fault
        harness.finish()
        assert self._problems(harness) == [], fault
        assert not [name for name in harness.log.list_unknown() if not name.endswith(("-0", "-8"))], fault
        shutil.rmtree(self._path(harness).parent)
        return harness

    def _harness(self) -> Harness:
        self.runs += 1
        folder = self.folder / f"run-{self.runs}"
        shutil.copytree(self.folder / "base", folder)
        harness = Harness(f"sqlite:///{folder / 'store.db'}", writers=1)
        harness.log = copy.deepcopy(self.base.log)
        return harness

    def _problems(self, harness: Harness) -> list[str]:
        path = self._path(harness)
        return harness.problems(read_sqlite_tables(path), create_folder_reader(path.with_name(f"{path.name}-blobs")))

    def _path(self, harness: Harness) -> Path:
        return Path(harness.url.removeprefix("sqlite:///"))

    def _list_calls(self) -> str:
        return ",".join(f"?{call}" for call in CALLS)  # not every machine has every call


@pytest.fixture
def strace(program: Callable[[str, str], str]) -> str:
    return program("strace", "strace")


@pytest.mark.parametrize("part", range(4))
def test_crash_at_any_system_call_loses_no_message(part: int, strace: str, tmp_path: Path, count: Count) -> None:
    crashes = Crashes(strace, tmp_path, is_new=False)
    points = crashes.points()
    assert {"pwrite64", "fdatasync", "fsync"} <= {call for call, _ in points}
    points = points[part :: scale(40, 4)]
    for call, number in points:
        crashes.run(f"{call}:signal=SIGKILL:when={number}")
    _assert_killed(crashes, points)
    count(f"{len(points)} points, {crashes.exit_codes[-9]} kills")


@pytest.mark.parametrize("part", range(2))
def test_crash_during_creation_leaves_usable_store(part: int, strace: str, tmp_path: Path, count: Count) -> None:
    crashes = Crashes(strace, tmp_path, is_new=True)
    points = crashes.points()[part :: scale(24, 2)]
    for call, number in points:
        crashes.run(f"{call}:signal=SIGKILL:when={number}")
    _assert_killed(crashes, points)
    count(f"{len(points)} points, {crashes.exit_codes[-9]} kills")


def _assert_killed(crashes: Crashes, points: list[tuple[str, int]]) -> None:
    """Check that most runs were killed. The number of calls varies with grouping and indexing."""
    assert crashes.exit_codes.keys() <= {-9, 0}
    assert crashes.exit_codes[-9] >= len(points) / 3


def test_retry_after_failed_sync_stores_message_once(strace: str, tmp_path: Path, count: Count) -> None:
    crashes = Crashes(strace, tmp_path, is_new=False)
    failed = 0
    syncs = [(call, number) for call, number in crashes.points() if call in ("fdatasync", "fsync")]
    for call, number in syncs[:: scale(4, 1)]:
        harness = crashes.run(f"{call}:error=EIO:when={number}")
        failed += len(harness.log.failed)
        assert {code for _, code in harness.log.failed} <= {"storage_failed"}
    count(f"{failed} appends failed in {sum(crashes.exit_codes.values())} runs")
    assert failed
    assert crashes.exit_codes.keys() <= {0, UNUSABLE}


def test_write_on_full_disk_raises_and_retry_succeeds(strace: str, tmp_path: Path, count: Count) -> None:
    crashes = Crashes(strace, tmp_path, is_new=False)
    failed = 0
    for call, number in crashes.points():
        if call in ("pwrite64", "write") and number % scale(28, 7) == 0:
            harness = crashes.run(f"{call}:error=ENOSPC:when={number}..{number + 2}")
            failed += len(harness.log.failed)
            assert {code for _, code in harness.log.failed} <= {"disk_full"}
    count(f"{failed} appends failed in {sum(crashes.exit_codes.values())} runs")
    assert failed
    assert crashes.exit_codes.keys() <= {0, UNUSABLE}
