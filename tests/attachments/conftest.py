"""Fixtures of empty storages: a folder, a bucket of a real S3 server, and Supabase.

async def test_…(attachments)    runs once for every storage
async def test_…(in_folder)      runs with a folder only
clock                            advances only when a test sets it; Supabase uses its own clock
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.attachments import Attachments, Owner, open_attachments
from tests.attachments.supabase_server import KEY, SECRET, SupabaseServer
from tests.store.conftest import pytest_pyfunc_call, runner
from tests.store.test_blobs import bucket

__all__ = ["bucket", "pytest_pyfunc_call", "runner"]

BASE = "http://127.0.0.1:8000"
ANN = Owner("ann", "infra")
BOB = Owner("bob", "infra")
STORAGES = ("folder", "s3", "supabase")


class Clock:
    """A clock of seconds since 1970 that a test advances."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def in_folder(tmp_path: Path, clock: Clock) -> Attachments:
    """Attachments in a folder."""
    return open_attachments((tmp_path / "files").as_uri(), base_url=BASE, environment={}, clock=clock)


@pytest.fixture
def supabase(runner: asyncio.Runner) -> Iterator[SupabaseServer]:
    """A server that behaves like Supabase storage."""
    server = SupabaseServer()
    serving = runner.run(server.start())
    yield server
    runner.run(serving.cleanup())


@pytest.fixture
def in_supabase(supabase: SupabaseServer, runner: asyncio.Runner) -> Iterator[Attachments]:
    """Attachments in Supabase storage."""
    environment = {"SUPABASE_SERVICE_ROLE_KEY": KEY, "SUPABASE_JWT_SECRET": SECRET}
    opened = open_attachments(
        f"supabase://{supabase.url}/agent-files?scheme=http", base_url=BASE, environment=environment
    )
    yield opened
    runner.run(opened.close())


@pytest.fixture
def in_s3(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Attachments:
    """Attachments in a bucket of a real S3 server."""
    url = f"{request.getfixturevalue('bucket')}&direct=true"
    return open_attachments(url, base_url=BASE, keys_file=tmp_path / "keys.json", environment={}, clock=clock)


@pytest.fixture(params=STORAGES)
def attachments(request: pytest.FixtureRequest) -> Attachments:
    """Attachments in each storage."""
    opened: Attachments = request.getfixturevalue(f"in_{request.param}")
    return opened
