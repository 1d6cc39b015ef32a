"""Where the recorded data is, how much of it is looked at, and how long a property is looked for."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import forked
from tests.servers.fixtures import aimock_server, llama_server  # noqa: F401  fixtures for every folder

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("DRAGOMAN_CORPUS", ROOT.parent / "shared" / "corpus"))
IS_LONG = os.environ.get("DRAGOMAN_FAULTS") == "long"
_PLENTY = {"openai-chat": 5, "openai-responses": 4, "anthropic": 4, "gemini": 3}  # of so many records one

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # Somebody runs the tests in the background. Every program that a test starts would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("long", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("DRAGOMAN_HYPOTHESIS", "default"))


def is_looked_at(record: Mapping[str, Any]) -> bool:
    """Whether a record is shown to others: each one in the long run, and else of those that there are many of, some.

    That each one comes back as it was is tested in every run: see dialects/test_corpus.py.
    """
    return IS_LONG or zlib.crc32(record["id"].encode()) % _PLENTY.get(record["dialect"], 1) == 0


@pytest.fixture(scope="session")
def suites() -> Path:
    """Third-party test data, which is read where it lies and never copied."""
    folder = CORPUS / "suites"
    if not folder.is_dir():
        pytest.skip(f"no test suites at {folder}; DRAGOMAN_CORPUS names another place")
    return folder


def pytest_sessionfinish() -> None:
    """Nothing that was started is left behind."""
    forked.close()
