"""Where the recorded data is, and how long a property is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.fixtures import aimock_server, llama_server  # noqa: F401  fixtures for every folder

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("DRAGOMAN_CORPUS", ROOT.parent / "shared" / "corpus"))

settings.register_profile(
    "default", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("long", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("DRAGOMAN_HYPOTHESIS", "default"))


@pytest.fixture(scope="session")
def suites() -> Path:
    """Third-party test data, which is read where it lies and never copied."""
    folder = CORPUS / "suites"
    if not folder.is_dir():
        pytest.skip(f"no test suites at {folder}; DRAGOMAN_CORPUS names another place")
    return folder
