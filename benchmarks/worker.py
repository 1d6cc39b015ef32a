"""One contestant in its own interpreter: asked on standard input, it answers on standard output, a JSON text a line.

    python worker.py NAME       first says which operations it can do, then waits for {"operation": …, "seconds": …}

Without a time to fill, the answer is what the operation gives, and not how long it takes.

A contestant is a module of ``contestants`` with ``operations()``: for each operation a function that makes its
argument, the one to measure, and one that complains about a wrong result. If the argument has a list ``times_ns`` and
something is in it afterwards, that is how long each of several took. Only the standard library is imported here.
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
    os.dup2(2, 1)  # what a library prints is not an answer
    sys.path = [str(Path(__file__).parents[1]), *(path for path in sys.path if Path(path) != Path(__file__).parent)]
    try:
        operations: dict[str, Operation] = importlib.import_module(f"benchmarks.contestants.{sys.argv[1]}").operations()
    except Exception as error:  # noqa: BLE001  a contestant that cannot start is left out, with the reason
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
    except Exception as error:  # noqa: BLE001  whatever a library raises is the reason
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
