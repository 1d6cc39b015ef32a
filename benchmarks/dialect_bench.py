"""What translating costs, beside other libraries and beside the limit: requests, a reply, streams.

Each contestant runs in an interpreter and an environment of its own, made on first use under ``.cache/bench`` from the
pins in ``requirements/bench``. They have their turns one after another, several times over, so that what the machine
does meanwhile happens to all alike; the figure is the median of the turns. The limit is msgspec alone, on the same
bytes. A contestant whose result is wrong is named and not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.side_by_side import show

ROOT = Path(__file__).parents[1]
LIMIT = "the limit"
CONTESTANTS = {  # title: module, environment; no environment: ours
    LIMIT: ("limit", None),
    "Dragoman": ("ours", None),
    "pydantic-ai": ("pydantic_ai_", "pydantic-ai"),
    "LiteLLM": ("litellm_", "litellm"),
    "llm-rosetta": ("rosetta", "llm-rosetta"),
    "LangChain": ("langchain_", "langchain"),
}
OPERATIONS = {
    "request 8": "OpenAI chat request of 8 messages and 8 tools to an Anthropic request",
    "request 64": "the same with 64 messages",
    "request 256": "the same with 256 messages",
    "reply": "reading an Anthropic reply of four blocks",
    "stream anthropic": "reading an Anthropic stream of 200 deltas into events",
    "stream openai": "reading an OpenAI chat stream of 200 deltas into events",
}


def python_of(environment: str | None, console: Console) -> str:
    """The interpreter of an environment, which is made if it is not there."""
    if environment is None:
        return sys.executable
    folder, pins = ROOT / ".cache" / "bench" / environment, ROOT / "requirements" / "bench" / f"{environment}.txt"
    python, made = folder / "bin" / "python", folder / ".installed"
    if not made.exists() or made.stat().st_mtime < pins.stat().st_mtime:
        console.print(f"installing {environment} into {folder.relative_to(ROOT)}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", pins], check=True
        )
        made.touch()
    return str(python)


class Contestant:
    """One contestant, waiting in its own process."""

    def __init__(self, module: str, python: str) -> None:
        worker = [python, str(ROOT / "benchmarks" / "worker.py"), module]
        self._process = subprocess.Popen(
            worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.said = json.loads(self._line())

    def measured_us(self, operation: str, seconds: float) -> float:
        """Microseconds for one run of the operation: the median of as many as fit into the time."""
        assert self._process.stdin is not None
        print(json.dumps({"operation": operation, "seconds": seconds}), file=self._process.stdin, flush=True)
        return float(self._line())

    def leave(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or '{"able": [], "unable": {"all": "it ended at once"}}'


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how many turns each contestant has")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long a turn takes")
    parser.add_argument("--only", default="", help="measure only contestants whose names contain this, and the limit")
    parser.add_argument("--json-to", type=Path, help="write the figures to this file, too")
    asked = parser.parse_args()
    console = Console()
    contestants = {
        title: Contestant(module, python_of(environment, console))
        for title, (module, environment) in CONTESTANTS.items()
        if title == LIMIT or asked.only.lower() in title.lower()
    }
    figures: dict[str, dict[str, float]] = {}
    try:
        for title, contestant in contestants.items():
            for operation, why in contestant.said["unable"].items():
                console.print(f"{title} is not measured ({operation}): {why}", markup=False)
        for operation, title in OPERATIONS.items():
            able = {name: one for name, one in contestants.items() if operation in one.said["able"]}
            turns: dict[str, list[float]] = {name: [] for name in able}
            for turn in range(asked.rounds + 1):
                for name, contestant in able.items():
                    taken = contestant.measured_us(operation, asked.seconds if turn else 0.02)
                    if turn:  # the first one warms up
                        turns[name].append(taken)
            figures[operation] = {name: statistics.median(taken) for name, taken in turns.items()}
            show(console, title, figures[operation], LIMIT)
    finally:
        for contestant in contestants.values():
            contestant.leave()
    if asked.json_to:
        written: dict[str, Any] = {"microseconds": figures, "rounds": asked.rounds, "seconds": asked.seconds}
        asked.json_to.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
