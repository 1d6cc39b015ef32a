"""Run command-line commands without the cost of their imports: each command is a fork of one process that has them.

    run("sessions", "--json", environment=…) -> CompletedProcess[bytes]; run_text returns texts

Use it to test what a command does. Tests of start-up, of its duration and of signals start the real program; see
test_cli.py. Invariant: a command has its own arguments, environment, working directory, input and outputs, and shares
no state with earlier commands.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60
_NOT_STARTED = 70  # the exit code of a command that failed before its first line
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
    stdin: bytes = b"",
    cwd: Path | None = None,
    merge_stderr: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. With ``merge_stderr``, standard output contains both outputs in their order."""
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory(prefix="dragoman-command-") as folder:
        names = ("in", "out", "out" if merge_stderr else "err")
        paths = [os.path.join(folder, name) for name in names]
        Path(paths[0]).write_bytes(stdin)
        order = {"arguments": command, "environment": dict(environment), "cwd": str(cwd or Path.cwd()), "paths": paths}
        code = _server().execute(order)
        out = Path(paths[1]).read_bytes()
        err = b"" if merge_stderr else Path(paths[2]).read_bytes()
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(command, _TIMEOUT_S, out, err)
    return subprocess.CompletedProcess(command, code, out, err)


def run_text(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command and decode its outputs."""
    done = run(*arguments, **options)
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


def _execute(order: dict[str, Any]) -> None:
    """Run the command in this process and end the process."""
    signal.alarm(_TIMEOUT_S)
    code = _NOT_STARTED
    try:
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["cwd"])
        output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for number, (path, mode) in enumerate(zip(order["paths"], (os.O_RDONLY, output, output), strict=True)):
            os.dup2(os.open(path, mode, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww")
        )
        sys.argv = ["dragoman", *order["arguments"]]
        code = _run_main()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _run_main() -> int:
    from dragoman.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  as the interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


if __name__ == "__main__":
    _serve()
