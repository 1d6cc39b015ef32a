"""One library in its own interpreter, which converts requests: reads commands from standard input, and writes results
to standard output, as JSON Lines.

    python conversion_worker.py NAME     prints {"version": …, "pairs": […]}, then reads {"source": …, "target": …,
                                         "model": …, "wire": …} and prints {"wire": …, "warnings": […]} or
                                         {"error": …}

A library is a module of ``contestants`` with ``VERSION``, ``PAIRS`` and ``convert``. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Serve one library until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries may print to standard output
    sys.path = [str(Path(__file__).parents[1]), *(path for path in sys.path if Path(path) != Path(__file__).parent)]
    library = importlib.import_module(f"benchmarks.contestants.{sys.argv[1]}")
    print(json.dumps({"version": library.VERSION, "pairs": library.PAIRS}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            with warnings.catch_warnings(record=True) as reports:
                warnings.simplefilter("always")
                wire = library.convert(command["source"], command["target"], command["model"], command["wire"])
            texts = [str(report.message)[:300] for report in reports if issubclass(report.category, UserWarning)]
            answer = json.dumps({"wire": wire, "warnings": texts})
        except Exception as error:  # noqa: BLE001  the library rejects the request
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:300]})
        print(answer, file=answers)


if __name__ == "__main__":
    main()
