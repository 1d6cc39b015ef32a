"""The order of the tests of parallel workers, so that no worker runs slow tests alone at the end.

``--dist worksteal`` sends each worker a part of equal length, and a worker that has finished its part steals tests from
the end of another part. Invariant: each part begins with whole files of slow tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

# Folders and files of tests that mostly wait for browsers, servers and processes, or take long, the slowest first.
SLOW_TESTS = (
    "tests/web/",
    "tests/server/",
    "tests/attachments/test_browser.py",
    "tests/gateway/",
    "tests/transcripts/test_judges.py",
    "tests/test_types.py",
    "tests/mail/",
    "tests/store/faults/",
    "tests/turn/",
    "tests/tui/",
    "tests/tools/",
    "tests/transcripts/",
    "tests/install/",
    "tests/local/",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_programs.py",
    "tests/test_cli",
)


def spread(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Distribute the files of slow tests to the workers, and append the other tests in order."""
    files: dict[Path, list[pytest.Item]] = {}
    rest: list[pytest.Item] = []
    for item in items:
        if item.nodeid.startswith(SLOW_TESTS):
            files.setdefault(item.path, []).append(item)
        else:
            rest.append(item)
    slow = sorted(files.values(), key=lambda tests: _rank(tests[0]))
    order: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(order)) // (workers - worker)  # of the part that the scheduler sends to this worker
        first = [item for file in slow[worker::workers] for item in file]
        count = max(0, size - len(first))
        order += first + rest[:count]
        del rest[:count]
    return order + rest


def _rank(item: pytest.Item) -> int:
    return next(rank for rank, name in enumerate(SLOW_TESTS) if item.nodeid.startswith(name))
