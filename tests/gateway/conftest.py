"""Fixtures: a server whose gateway uses a strict fake provider of every dialect.

async def test_…(gateway_server)     no keys; one model per dialect, with the name of the dialect as alias
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.sdk_clients import CLIENTS, close_clients
from tests.server.conftest import ServerFixture, run_test_server
from tests.store.conftest import pytest_pyfunc_call, runner

__all__ = ["pytest_pyfunc_call", "runner"]


@pytest.fixture
def gateway_server(runner: asyncio.Runner, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server without keys, with fakes of all dialects."""
    context = run_test_server(tmp_path, *CLIENTS)
    server = runner.run(context.__aenter__())
    yield server
    close_clients()
    runner.run(context.__aexit__(None, None, None))
