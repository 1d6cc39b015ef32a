"""Contestants in their own interpreters and environments, measured in turns.

An environment is created on first use under ``.cache/bench`` from the pins in ``requirements/bench``. Contestants run
in turns, several rounds, so that load on the machine affects all of them; the figure is the median of the rounds. A
contestant with a wrong result is reported and not measured.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]


def ensure_python(environment: str | None, console: Console) -> str:
    """Return the interpreter of an environment, and create the environment if necessary."""
    if environment is None:
        return sys.executable
    folder, pins = ROOT / ".cache" / "bench" / environment, ROOT / "requirements" / "bench" / f"{environment}.txt"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.exists() or stamp.stat().st_mtime < pins.stat().st_mtime:
        console.print(f"installing {environment} into {folder.relative_to(ROOT)}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", pins], check=True
        )
        stamp.touch()
    return str(python)


class Contestant:
    """A contestant in its own process."""

    def __init__(self, module: str, python: str) -> None:
        worker = [python, str(ROOT / "benchmarks" / "worker.py"), module]
        self._process = subprocess.Popen(
            worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.info = json.loads(self._read_line())

    def measure_us(self, operation: str, seconds: float) -> float:
        """Return the median time of an operation in microseconds, over as many runs as fit into the time."""
        assert self._process.stdin is not None
        print(json.dumps({"operation": operation, "seconds": seconds}), file=self._process.stdin, flush=True)
        return float(self._read_line())

    def run_once(self, operation: str) -> float:
        """Run an operation once, and return its numeric result."""
        return self.measure_us(operation, 0)

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or '{"able": [], "unable": {"all": "the process ended"}}'


class Arena:
    """All contestants of a benchmark by title: a module, and an environment unless it is our own."""

    def __init__(self, contestants: Mapping[str, tuple[str, str | None]], console: Console) -> None:
        self.contestants = {
            title: Contestant(module, ensure_python(environment, console))
            for title, (module, environment) in contestants.items()
        }
        for title, contestant in self.contestants.items():
            for operation, why in contestant.info["unable"].items():
                console.print(f"{title} is not measured ({operation}): {why}", markup=False)

    def measure_us(self, operation: str, rounds: int, seconds: float) -> dict[str, float]:
        """Return the median time of an operation in microseconds, by title."""
        participants = {
            title: contestant for title, contestant in self.contestants.items() if operation in contestant.info["able"]
        }
        turns: dict[str, list[float]] = {title: [] for title in participants}
        for turn in range(rounds + 1):
            for title, contestant in participants.items():
                time_us = contestant.measure_us(operation, seconds if turn else 0.02)
                if turn:  # the first round is a warm-up
                    turns[title].append(time_us)
        return {title: statistics.median(time_us) for title, time_us in turns.items()}

    def stop(self) -> None:
        """End all contestants."""
        for contestant in self.contestants.values():
            contestant.stop()
