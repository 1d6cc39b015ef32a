"""Tests of tools may be coroutines: each runs in a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.tools import Workspace


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The loop in which a test runs."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for a workspace, with a neighbour that is none of its business."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    loop: Any = pyfuncitem.funcargs["runner"]
    loop.run(pyfuncitem.obj(**given))
    return True
