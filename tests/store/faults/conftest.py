"""The duration of fault tests: short by default, long with ``make faults``."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable

import pytest

from tests.servers.processes import find_program

IS_LONG = os.environ.get("DRAGOMAN_FAULTS") == "long"


def times(short: int, long: int) -> int:
    """Return the number of repetitions in this run."""
    return long if IS_LONG else short


@pytest.fixture
def rng() -> random.Random:
    """A random generator whose seed a failing test prints. DRAGOMAN_SEED repeats a run."""
    seed = int(os.environ.get("DRAGOMAN_SEED", random.SystemRandom().getrandbits(32)))
    sys.stdout.write(f"DRAGOMAN_SEED={seed}\n")
    return random.Random(seed)


@pytest.fixture(scope="session")
def program() -> Callable[[str, str], str]:
    """Return a function that finds or installs a program of this system. Without it the test is skipped."""

    def find(name: str, package: str) -> str:
        return find_program(name, package)

    return find
