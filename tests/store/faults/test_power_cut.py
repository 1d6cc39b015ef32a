"""Tests of a power cut, which discards unsynced data. Acknowledged messages survive unless syncs are disabled.

A small ext4 lies in a file. The writers are stopped in mid-air, the file system is shut down without its journal being
flushed, and it is mounted again, as after a cut. Whatever was only in memory is lost then, and what was synced is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from dragoman.store import Store, open_store
from tests.store.faults import faulty, turn_writer
from tests.store.faults.checker import create_folder_reader, read_sqlite_tables
from tests.store.faults.conftest import IS_LONG, times
from tests.store.faults.harness import Harness, freeze, processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_LONG, reason="a power cut is part of the long run: make faults"),
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can mount, and only on Linux"),
]

_SHUTDOWN = 0x8004587D  # the shutdown request of ext4 and xfs; mode 2 discards unwritten data
_WITHOUT_FLUSHING = 2


class Disk:
    """A file system that can be shut down."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "disk"
        self._image = folder / "image"
        self.place.mkdir()
        with self._image.open("wb") as file:
            file.truncate(64 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True, capture_output=True)
        self.mount()

    def mount(self) -> None:
        done = subprocess.run(
            ["mount", "-o", "loop", str(self._image), str(self.place)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"a file system in a file cannot be mounted here: {done.stderr.strip()}")

    def cut(self) -> None:
        """Shut the file system down without flushing."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING))
        except OSError as error:
            pytest.skip(f"this file system cannot be shut down: {error}")
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.place)], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4 here")
    mounted = Disk(tmp_path)
    yield mounted
    with contextlib.suppress(subprocess.CalledProcessError):
        mounted.unmount()


def _find_losses(
    disk: Disk, opened: Callable[[str], Store], cuts: int, rng: random.Random
) -> tuple[list[str], Harness]:
    """Return the problems after the first cut that causes any."""
    path = disk.place / "store.db"
    harness = Harness(f"sqlite:///{path}", opened)
    for _ in range(cuts):
        harness.cut(rng, disk.cut)
        disk.unmount()
        disk.mount()
        try:
            tables = read_sqlite_tables(path)
        except (AssertionError, apsw.Error) as error:
            return [f"everything is LOST ({error})"], harness
        if found := harness.problems(tables, create_folder_reader(path.with_name("store.db-blobs"))):
            return found, harness
    return [], harness


def test_acknowledged_messages_survive_a_power_cut(
    disk: Disk, rng: random.Random, count: Callable[[str], None]
) -> None:
    wrong, harness = _find_losses(disk, open_store, times(0, 50), rng)
    count(f"{harness.cycles} cuts, {harness.log.acknowledgement_count} messages acknowledged, problems: {wrong}")
    assert wrong == []
    assert harness.log.acknowledgement_count > 100


def test_loss_without_sync_is_detected(disk: Disk, rng: random.Random) -> None:
    wrong, _ = _find_losses(disk, faulty.open_unsynced, 5, rng)
    assert [problem for problem in wrong if "LOST" in problem]


# --- commits on the event loop ---------------------------------------------------------------------------------------


def _run_turns_until_cut(disk: Disk, orders: turn_writer.Orders, rng: random.Random) -> list[str]:
    """Run turns, freeze the process, shut the disk down, and return the acknowledged turns."""
    hears, says = processes.Pipe(duplex=False)
    process = processes.Process(target=turn_writer.write_turns, args=(orders, says), daemon=True)
    process.start()
    says.close()
    assert hears.poll(60)
    time.sleep(rng.random() * 0.5)  # the instant of the cut
    freeze(process)
    disk.cut()
    process.kill()
    with contextlib.closing(hears), open(hears.fileno(), "rb", closefd=False) as stream:
        lines = stream.read().decode().splitlines()
    process.join(60)
    disk.unmount()
    disk.mount()
    return [line for line in lines if line != "opened"]


def _read_stored_lines(path: Path) -> set[str]:
    """Return the texts of the complete messages, which equal the lines that acknowledge them."""
    connection = apsw.Connection(str(path))
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("SELECT content_json FROM messages WHERE status = 'complete'").fetchall()
    finally:
        connection.close()
    return {block["text"] for (content,) in rows for block in json.loads(content)}


def _find_lost_turns(disk: Disk, cuts: int, rng: random.Random, *, is_synced: bool) -> tuple[set[str], int]:
    """Return the acknowledged turns that are missing after cuts, and the number of acknowledged turns."""
    path, acknowledged = disk.place / "store.db", set[str]()
    for number in range(cuts):
        has_appends = is_synced and number % 2 == 1
        orders = turn_writer.Orders(f"sqlite:///{path}", number * 1_000_000, is_synced, has_appends)
        acknowledged.update(_run_turns_until_cut(disk, orders, rng))
        if lost := acknowledged - _read_stored_lines(path):
            return lost, len(acknowledged)
    return set(), len(acknowledged)


def test_turns_committed_on_event_loop_survive_power_cut(
    disk: Disk, rng: random.Random, count: Callable[[str], None]
) -> None:
    cuts = times(0, 50)
    lost, acknowledged = _find_lost_turns(disk, cuts, rng, is_synced=True)
    count(f"{cuts} cuts, {acknowledged} questions, answers and appends acknowledged, lost: {sorted(lost)}")
    assert lost == set()
    assert acknowledged > 100


def test_loss_of_unsynced_turns_is_detected(disk: Disk, rng: random.Random) -> None:
    lost, _ = _find_lost_turns(disk, 10, rng, is_synced=False)
    assert lost
