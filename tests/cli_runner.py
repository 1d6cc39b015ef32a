"""Run command-line commands without the cost of their imports: each command is a fork of one process that has them.

    run("sessions", "--json", environment=…) -> CompletedProcess[bytes]; run_text returns texts
    run_program("program.py", environment=…, cwd=…) runs a Python program in the same way

Use it to test what a command does. Tests of start-up, of its duration and of signals start the real program; see
test_cli.py. Invariant: a command has its own arguments, environment, working directory, input and outputs, and shares
no state with earlier commands.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.program_forks import execute

_TIMEOUT_S = 60
_PACKAGES = ("dragoman.cli", "dragoman.dialects")  # imported with every module in them
_PRELOAD = (
    "dragoman.store.engines.sqlite",
    "dragoman.store.mailbox.mail_store",
    "dragoman.mail",
    "dragoman.turn",
    "dragoman.client.transport",
    "dragoman.server.config",
    # libraries that commands import when they need them
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cyclopts.help",
    "genai_prices",
    "idna",
    "keyring.core",
    "keyring.backends.SecretService",
    "re2",
    "rich.console",
    "rich.live",
    "rich.markdown",
    "rich.syntax",
    "rich.table",
)


def run(
    *arguments: str | Path,
    environment: Mapping[str, str],
    stdin: bytes | Path = b"",
    cwd: Path | None = None,
    merge_stderr: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. With ``merge_stderr``, standard output contains both outputs in their order.

    ``stdin`` is its input, or the path of a file or terminal to read.
    """
    return _run("dragoman", arguments, environment, stdin=stdin, cwd=cwd, merge_stderr=merge_stderr)


def run_program(
    file: str | Path, *, environment: Mapping[str, str], cwd: Path | None = None, on_warning: str = "default"
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end, as ``python -W ON_WARNING FILE`` does."""
    return _decode(_run(str(file), (), environment, cwd=cwd, on_warning=on_warning))


def _run(
    program: str,
    arguments: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    stdin: bytes | Path = b"",
    cwd: Path | None = None,
    merge_stderr: bool = False,
    on_warning: str | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``dragoman``, or with ``on_warning`` a Python program."""
    command = [program, *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="dragoman-command-") as folder:
        names = ("in", "out", "out" if merge_stderr else "err")
        paths = [os.path.join(folder, name) for name in names]
        if isinstance(stdin, Path):
            paths[0] = str(stdin)
        else:
            Path(paths[0]).write_bytes(stdin)
        order = {
            "arguments": command,
            "environment": dict(environment),
            "cwd": str(cwd or Path.cwd()),
            "paths": paths,
            "on_warning": on_warning,
        }
        code = _server().execute(order)
        out = Path(paths[1]).read_bytes()
        err = b"" if merge_stderr else Path(paths[2]).read_bytes()
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(command, _TIMEOUT_S, out, err)
    return subprocess.CompletedProcess(command, code, out, err)


def run_text(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command and decode its outputs."""
    return _decode(run(*arguments, **options))


def _decode(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class _Server:
    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
        )

    def execute(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


_server = functools.cache(_Server)


def close() -> None:
    """Stop the process that commands are forked from, if it runs."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


# --- inside the forked process ---------------------------------------------------------------------------------------


def _serve() -> None:
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in _PRELOAD:
        with contextlib.suppress(ImportError):  # an optional library
            importlib.import_module(name)
    gc.freeze()  # forks share these objects
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _execute(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _execute(order: dict[str, Any]) -> NoReturn:
    """Run the command in this process and end the process."""
    signal.alarm(_TIMEOUT_S)
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [
        os.open(path, mode, 0o600) for path, mode in zip(order["paths"], (os.O_RDONLY, output, output), strict=True)
    ]
    action = order["on_warning"]
    execute(order, streams, _run_main if action is None else functools.partial(_run_file, action))


def _run_main() -> None:
    from dragoman.cli import main

    main()


def _run_file(action: Any) -> None:
    """Run the program that the arguments name, and end its threads as the interpreter does."""
    warnings.resetwarnings()
    warnings.simplefilter(action)
    sys.path[0] = os.getcwd()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        gc.collect()  # warnings about open resources are printed


if __name__ == "__main__":
    _serve()
