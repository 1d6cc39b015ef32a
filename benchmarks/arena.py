"""Contestants in interpreters and environments of their own, and their turns.

An environment is made on first use under ``.cache/bench`` from the pins in ``requirements/bench``. Contestants have
their turns one after another, several times over, so that what the machine does meanwhile happens to all alike; the
figure is the median of the turns. A contestant whose result is wrong is named and not measured.
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
    """The interpreter of an environment, which is made if it is not there."""
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
    """One contestant, waiting in its own process."""

    def __init__(self, module: str, python: str) -> None:
        worker = [python, str(ROOT / "benchmarks" / "worker.py"), module]
        self._process = subprocess.Popen(
            worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.info = json.loads(self._read_line())

    def measure_us(self, operation: str, seconds: float) -> float:
        """Microseconds for one run of the operation: the median of as many as fit into the time."""
        assert self._process.stdin is not None
        print(json.dumps({"operation": operation, "seconds": seconds}), file=self._process.stdin, flush=True)
        return float(self._read_line())

    def run_once(self, operation: str) -> float:
        """What the operation gives, where that is a number."""
        return self.measure_us(operation, 0)

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or '{"able": [], "unable": {"all": "it ended at once"}}'


class Arena:
    """All contestants of a benchmark, by their titles; each is a module, and an environment if it is not our own."""

    def __init__(self, contestants: Mapping[str, tuple[str, str | None]], console: Console) -> None:
        self.contestants = {
            title: Contestant(module, ensure_python(environment, console))
            for title, (module, environment) in contestants.items()
        }
        for title, contestant in self.contestants.items():
            for operation, why in contestant.info["unable"].items():
                console.print(f"{title} is not measured ({operation}): {why}", markup=False)

    def measure_us(self, operation: str, rounds: int, seconds: float) -> dict[str, float]:
        """Microseconds for one run of an operation, by title."""
        participants = {
            title: contestant for title, contestant in self.contestants.items() if operation in contestant.info["able"]
        }
        turns: dict[str, list[float]] = {title: [] for title in participants}
        for turn in range(rounds + 1):
            for title, contestant in participants.items():
                time_us = contestant.measure_us(operation, seconds if turn else 0.02)
                if turn:  # the first one warms up
                    turns[title].append(time_us)
        return {title: statistics.median(time_us) for title, time_us in turns.items()}

    def stop(self) -> None:
        """End every contestant."""
        for contestant in self.contestants.values():
            contestant.stop()
