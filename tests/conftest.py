"""Location of recorded data and temporary files, selection and order of the tests, and hypothesis profiles.

The default run samples exhaustive tests; ``make test-full`` (``DRAGOMAN_TESTS=full``) runs all cases.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import math
import os
import signal
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dragoman.local import find_weights
from dragoman.local.weights import VARIABLE as WEIGHTS_VARIABLE
from tests import cli_runner, order, store_template, worker_messages
from tests.cli_store import chats  # noqa: F401  a store for the tests of commands
from tests.servers.fixtures import (  # noqa: F401  one of each for a process, whatever folder its tests are in
    aimock_server,
    llama_server,
    pooler,
    postgres,
    postgres_server,
    s3_server,
)

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("DRAGOMAN_CORPUS", ROOT.parent / "shared" / "corpus"))
IS_LONG = os.environ.get("DRAGOMAN_FAULTS") == "long"
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
IS_FULL = IS_LONG or os.environ.get("DRAGOMAN_TESTS") == "full"

MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 * 1024**3


def _has_room(folder: Path) -> bool:
    """Return whether a folder has space for the files of the tests, and programs in it can be executed."""
    if not os.access(folder, os.W_OK):
        return False
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize >= _MEMORY_BYTES and not system.f_flag & os.ST_NOEXEC


if not IS_FULL and "TMPDIR" not in os.environ and MEMORY.is_dir() and _has_room(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)  # fsync is free in memory; long tests use the disk

if weights := find_weights():
    os.environ[WEIGHTS_VARIABLE] = str(weights)  # tests change the data directory, and no test fetches the weights

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # The tests run in the background. Without this, every process that a test starts would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if not IS_FULL:
    store_template.install()


def scale(default: int, full: int) -> int:
    """Return the size of an exhaustive test: smaller in the default run than in the full run."""
    return full if IS_FULL else default


settings.register_profile(
    "default",
    max_examples=scale(12, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("long", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("DRAGOMAN_HYPOTHESIS", "default"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make a worker send only the reports that the end of the run prints."""
    worker_messages.shorten(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the modules first, so that no two workers of a new checkout compile the same ones."""
    gc.disable()  # modules are not garbage
    config = session.config
    if WORKERS > 1 and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        for path in sorted(ROOT.glob("tests/**/test_*.py"))[worker % WORKERS :: WORKERS]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all but one of every ``n`` cases of tests marked ``sampled(n)``, and order the tests of workers."""
    dropped = [item for item in items if not _is_selected(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if _is_selected(item)]
    if WORKERS > 1:
        items[:] = order.spread(items, WORKERS)


def pytest_collection_finish() -> None:
    """Enable garbage collection again, except for modules and tests."""
    gc.freeze()
    gc.enable()


def _is_selected(item: pytest.Item) -> bool:
    """Return whether the default run contains a test: the hash of its id decides."""
    if IS_FULL:
        return True
    one_of = math.prod(mark.args[0] for mark in item.iter_markers("sampled"))
    return zlib.crc32(item.nodeid.encode()) % one_of == 0


@pytest.fixture(scope="session")
def suites() -> Path:
    """Third-party test data, read in place and never copied."""
    folder = CORPUS / "suites"
    if not folder.is_dir():
        pytest.skip(f"no test suites at {folder}; set DRAGOMAN_CORPUS to another folder")
    return folder


def pytest_sessionfinish() -> None:
    """Stop the forked processes."""
    cli_runner.close()


_COUNTED = "counted"


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that records a figure of a test; the end of a run lists all of them."""
    return functools.partial(record_property, _COUNTED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the figures that tests have recorded."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, line in report.user_properties:
                if name == _COUNTED:
                    terminalreporter.write_line(f"{report.head_line}: {line}")
