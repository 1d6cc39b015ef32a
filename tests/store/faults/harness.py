"""Writers that are started and killed, and their logs.

    with Harness(path) as harness:
        harness.cycle(rng, …)             start writers, kill each at a random time, read their logs
        harness.problems(…)               the problems that the checker finds

A writer is forked from a server with all imports, which takes milliseconds. Invariant: this module kills only processes
that it started.
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
from tests.store.faults.checker import BlobOf, Log, Tables, find_problems
from tests.store.faults.traffic import WRITERS, create_append
from tests.store.faults.writer import UNUSABLE, Orders, write, write_under_strace

_TIMEOUT_S = 60.0


class Harness:
    """Cycles of writes and kills on one store."""

    def __init__(
        self,
        url: str,
        opened: Callable[[str], Store] = open_store,
        writers: int = WRITERS,
        *,
        retries_without_key: bool = False,
        may_be_refused: bool = False,
    ) -> None:
        self.url = url
        self.exit_codes = (0, -9, UNUSABLE) if may_be_refused else (0, -9)  # a killed server may refuse connections
        self.retries_without_key = retries_without_key
        self.opened = opened
        self.writers = writers
        self.log = Log()
        self.cycles = 0
        self.killed_before_opening = 0

    def cycle(self, rng: random.Random, longest_s: float = 0.06, fault: Callable[[], None] | None = None) -> None:
        """Start the writers and kill each at a random time, usually after it opened the store."""
        waiting = self.log.list_unknown()
        running = [self._start(self._create_orders(writer, waiting)) for writer in range(self.writers)]
        if rng.random() < 0.8:
            for _, pipe in running:
                pipe.poll(_TIMEOUT_S)
        start = time.monotonic()
        ends = sorted((start + rng.random() * longest_s, number) for number in range(self.writers))
        if fault is not None:
            time.sleep(max(0.0, ends[-1][0] - time.monotonic()))
            fault()
        for end, number in ends:
            time.sleep(max(0.0, end - time.monotonic()))
            running[number][0].kill()
        for process, pipe in running:
            self._read_log(process, pipe)
        self.cycles += 1

    def cut(self, rng: random.Random, cut: Callable[[], None], longest_s: float = 0.1) -> None:
        """Start the writers, freeze them, run the fault, and kill them."""
        waiting = self.log.list_unknown()
        running = [self._start(self._create_orders(writer, waiting)) for writer in range(self.writers)]
        for _, pipe in running:
            pipe.poll(_TIMEOUT_S)
        time.sleep(rng.random() * longest_s)
        for process, _ in running:
            freeze(process)
        cut()
        for process, pipe in running:
            process.kill()
            self._read_log(process, pipe)
        self.cycles += 1

    def finish(self, new: int = 0) -> None:
        """Repeat the appends with an unknown outcome, without faults, and add new ones."""
        waiting = self.log.list_unknown()
        running = [self._start(self._create_orders(writer, waiting, new)) for writer in range(self.writers)]
        for process, pipe in running:
            self._read_log(process, pipe)
            assert process.exitcode == 0, f"a writer ended with {process.exitcode}"

    def run_traced(self, strace: list[str], new: int) -> int:
        """Run one writer under strace and return its exit code."""
        process, pipe = self._start(self._create_orders(0, [], new), write_under_strace)
        watching = subprocess.Popen([*strace, "-f", "-qq", "-p", str(process.pid)], stderr=subprocess.PIPE, text=True)
        try:
            return self._read_log(process, pipe, is_alone=True)
        finally:
            process.kill()
            _, errors = watching.communicate(timeout=_TIMEOUT_S)
            if "attach" in errors:
                pytest.skip(f"strace cannot attach to a process: {errors.strip()}")

    def problems(self, tables: Tables, blob_of: BlobOf) -> list[str]:
        """Return the problems that the checker finds."""
        return find_problems(tables, blob_of, self.log)

    def _create_orders(self, writer: int, waiting: list[str], new: int | None = None) -> Orders:
        mine = [name for name in waiting if name.startswith(f"w{writer}-")]
        numbers = [int(name.partition("-")[2]) for name in self.log.started if name.startswith(f"w{writer}-")]
        first = max(numbers, default=-1) + 1
        return Orders(
            url=self.url,
            writer=writer,
            first=first,
            repeated=tuple(name for name in mine if self.retries_without_key or create_append(name).may_be_repeated),
            until=None if new is None else first + new,
            opened=self.opened,
            retries_without_key=self.retries_without_key,
        )

    def _start(self, orders: Orders, target: Callable[..., None] = write) -> tuple[BaseProcess, Connection]:
        hears, says = processes.Pipe(duplex=target is not write)
        process = processes.Process(target=target, args=(orders, says), daemon=True)
        process.start()
        says.close()
        return process, hears

    def _read_log(self, process: BaseProcess, pipe: Connection, *, is_alone: bool = False) -> int:
        with contextlib.closing(pipe), open(pipe.fileno(), "rb", closefd=False) as stream:
            text = stream.read()  # until the pipe is closed
        process.join(_TIMEOUT_S)
        assert process.exitcode is not None, "a writer that was killed goes on"
        assert is_alone or process.exitcode in self.exit_codes, f"a writer ended by itself with {process.exitcode}"
        lines = text.decode().splitlines()
        self.killed_before_opening += not lines
        for line in lines:
            self.log.read(line)
        return process.exitcode


def freeze(process: BaseProcess) -> None:
    """Freeze a process and wait until no thread is inside a system call."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    end = time.monotonic() + _TIMEOUT_S
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        while (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "a writer cannot be stopped"
            time.sleep(0.001)
