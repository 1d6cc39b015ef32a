"""One contestant in its own interpreter: reads commands from standard input, and writes results to standard output, as
JSON Lines.

    python worker.py NAME       prints the supported operations, then reads {"operation": …, "seconds": …}

Without seconds, the result is the return value of the operation instead of its time.

A contestant is a module of ``contestants`` with ``operations()``: for each operation a function that prepares the
argument, the function to measure, and a function that checks the result. If the argument has a non-empty list
``times_ns``, it contains the times of several runs. Standard library only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Operation = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], str | None]]


def main() -> None:
    """Serve one contestant until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries may print to standard output
    sys.path = [str(Path(__file__).parents[1]), *(path for path in sys.path if Path(path) != Path(__file__).parent)]
    try:
        operations: dict[str, Operation] = importlib.import_module(f"benchmarks.contestants.{sys.argv[1]}").operations()
    except Exception as error:  # noqa: BLE001  reported as the reason
        print(json.dumps({"able": [], "unable": {"all": f"{type(error).__name__}: {error}"[:300]}}), file=answers)
        return
    unable = {name: why for name, operation in operations.items() if (why := _complaint(operation)) is not None}
    print(json.dumps({"able": sorted(operations.keys() - unable), "unable": unable}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        prepare, run, _ = operations[command["operation"]]
        figure = _measure_us(prepare, run, command["seconds"]) if command["seconds"] else run(prepare())
        print(json.dumps(figure), file=answers)


def _complaint(operation: Operation) -> str | None:
    prepare, run, complain = operation
    try:
        return complain(run(prepare()))
    except Exception as error:  # noqa: BLE001  reported as the reason
        return f"{type(error).__name__}: {error}"[:300]


def _measure_us(prepare: Callable[[], Any], run: Callable[[Any], Any], seconds: float) -> float:
    gc.collect()
    times_ns: list[int] = []
    until = time.perf_counter() + seconds
    while len(times_ns) < 3 or time.perf_counter() < until:
        argument = prepare()
        start = time.perf_counter_ns()
        run(argument)
        times_ns.extend(getattr(argument, "times_ns", None) or [time.perf_counter_ns() - start])
    return statistics.median(times_ns) / 1000


if __name__ == "__main__":
    main()
