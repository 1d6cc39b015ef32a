"""Writers that are started and killed, and what they said.

    with Harness(path) as harness:
        harness.cycle(random, …)          start writers, kill each at some instant, read what they said
        harness.problems()                what the checker has to say

A writer is forked off a server that has everything imported, so that one costs milliseconds. Invariant: this module kills
only processes that it started.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dragoman.store import Store, open_store
from tests.fork_server import processes
from tests.store.faults.checker import BlobOf, Log, Tables, problems
from tests.store.faults.traffic import WRITERS, append_named
from tests.store.faults.writer import UNUSABLE, Orders, write, write_once_traced

_GIVE_UP_S = 60.0


class Harness:
    """Cycles of writing and killing on one store."""

    def __init__(
        self,
        url: str,
        opened: Callable[[str], Store] = open_store,
        writers: int = WRITERS,
        *,
        is_careless: bool = False,
        may_be_refused: bool = False,
    ) -> None:
        self.url = url
        self.ends = (0, -9, UNUSABLE) if may_be_refused else (0, -9)  # as of a server that has just been killed
        self.is_careless = is_careless
        self.opened = opened
        self.writers = writers
        self.log = Log()
        self.cycles = 0
        self.killed_before_opening = 0

    def cycle(self, rng: random.Random, longest_s: float = 0.06, fault: Callable[[], None] | None = None) -> None:
        """Start the writers and kill each of them at an instant of its own, most often after it has opened the store."""
        waiting = self.log.unknown()
        running = [self._start(self._orders(writer, waiting)) for writer in range(self.writers)]
        if rng.random() < 0.8:
            for _, pipe in running:
                pipe.poll(_GIVE_UP_S)
        begun = time.monotonic()
        ends = sorted((begun + rng.random() * longest_s, number) for number in range(self.writers))
        if fault is not None:
            time.sleep(max(0.0, ends[-1][0] - time.monotonic()))
            fault()
        for end, number in ends:
            time.sleep(max(0.0, end - time.monotonic()))
            running[number][0].kill()
        for process, pipe in running:
            self._heard(process, pipe)
        self.cycles += 1

    def cut(self, rng: random.Random, cut: Callable[[], None], longest_s: float = 0.1) -> None:
        """Start the writers, stop them all in mid-air, let something happen to the disk, and kill them."""
        waiting = self.log.unknown()
        running = [self._start(self._orders(writer, waiting)) for writer in range(self.writers)]
        for _, pipe in running:
            pipe.poll(_GIVE_UP_S)
        time.sleep(rng.random() * longest_s)
        for process, _ in running:
            freeze(process)
        cut()
        for process, pipe in running:
            process.kill()
            self._heard(process, pipe)
        self.cycles += 1

    def finish(self, new: int = 0) -> None:
        """Repeat the appends with an unknown outcome, without faults, and add new ones."""
        waiting = self.log.unknown()
        running = [self._start(self._orders(writer, waiting, new)) for writer in range(self.writers)]
        for process, pipe in running:
            self._heard(process, pipe)
            assert process.exitcode == 0, f"a writer ended with {process.exitcode}"

    def traced(self, strace: list[str], new: int) -> int:
        """One writer under strace, left alone but for what strace does to it; how it ended."""
        process, pipe = self._start(self._orders(0, [], new), write_once_traced)
        watching = subprocess.Popen([*strace, "-f", "-qq", "-p", str(process.pid)], stderr=subprocess.PIPE, text=True)
        try:
            return self._heard(process, pipe, is_alone=True)
        finally:
            process.kill()
            _, said = watching.communicate(timeout=_GIVE_UP_S)
            if "attach" in said:
                pytest.skip(f"strace may not watch a process here: {said.strip()}")

    def problems(self, tables: Tables, blob_of: BlobOf) -> list[str]:
        """Return the problems that the checker finds."""
        return problems(tables, blob_of, self.log)

    def _orders(self, writer: int, waiting: list[str], new: int | None = None) -> Orders:
        mine = [name for name in waiting if name.startswith(f"w{writer}-")]
        numbers = [int(name.partition("-")[2]) for name in self.log.begun if name.startswith(f"w{writer}-")]
        first = max(numbers, default=-1) + 1
        return Orders(
            url=self.url,
            writer=writer,
            first=first,
            repeated=tuple(name for name in mine if self.is_careless or append_named(name).may_be_repeated),
            until=None if new is None else first + new,
            opened=self.opened,
            is_careless=self.is_careless,
        )

    def _start(self, orders: Orders, target: Callable[..., None] = write) -> tuple[BaseProcess, Connection]:
        hears, says = processes.Pipe(duplex=target is not write)
        process = processes.Process(target=target, args=(orders, says), daemon=True)
        process.start()
        says.close()
        return process, hears

    def _heard(self, process: BaseProcess, pipe: Connection, *, is_alone: bool = False) -> int:
        with contextlib.closing(pipe), open(pipe.fileno(), "rb", closefd=False) as stream:
            text = stream.read()  # until every writer of it is gone
        process.join(_GIVE_UP_S)
        assert process.exitcode is not None, "a writer that was killed goes on"
        assert is_alone or process.exitcode in self.ends, f"a writer ended by itself with {process.exitcode}"
        lines = text.decode().splitlines()
        self.killed_before_opening += not lines
        for line in lines:
            self.log.read(line)
        return process.exitcode


def freeze(process: BaseProcess) -> None:
    """Freeze a process, and see that none of its threads is inside of a call any more."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    end = time.monotonic() + _GIVE_UP_S
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        while (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "a writer cannot be stopped"
            time.sleep(0.001)
