"""The command line without the time that its imports take: each command is a process of its own, forked off one that
has everything imported.

    run("sessions", "--json", environment=…) -> CompletedProcess[bytes]; run_text, with texts

For tests of what a command does. How it starts, how long that takes and what a signal does to it is told by the real
program: see test_cli.py. Invariant: a command gets its own arguments, environment, folder, input and outputs, and
nothing of the command before it.
"""

from __future__ import annotations

import contextlib
import functools
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

_LONGEST_S = 60
_IMPORTED = (
    "dragoman.store.engines.sqlite",
    "dragoman.store.mailbox.mail_store",
    "dragoman.mail",
    "dragoman.turn",
    "dragoman.server.config",
)


def run(
    *arguments: str | Path, environment: Mapping[str, str], given: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What a command printed and how it ended."""
    asked = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory(prefix="dragoman-command-") as folder:
        paths = [os.path.join(folder, name) for name in ("in", "out", "err")]
        Path(paths[0]).write_bytes(given)
        order = {"arguments": asked, "environment": dict(environment), "cwd": str(cwd or Path.cwd()), "paths": paths}
        code = _server().do(order)
        out, err = (Path(path).read_bytes() for path in paths[1:])
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(asked, _LONGEST_S, out, err)
    return subprocess.CompletedProcess(asked, code, out, err)


def run_text(*arguments: str | Path, **given: Any) -> subprocess.CompletedProcess[str]:
    """The same with texts."""
    done = run(*arguments, **given)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class _Server:
    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
        )

    def do(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


_server = functools.cache(_Server)


def close() -> None:
    """End the process that commands are forked off, if there is one."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


# --- in the process that is forked -----------------------------------------------------------------------------------


def _serve() -> None:
    import dragoman.cli

    names = (f"dragoman.cli.{found.name}" for found in pkgutil.iter_modules(dragoman.cli.__path__))
    for name in (*names, *_IMPORTED):
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(order: dict[str, Any]) -> None:
    """Be the command that was ordered, until its end."""
    signal.alarm(_LONGEST_S)
    code = 70  # of a command that did not even begin
    try:
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["cwd"])
        modes = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
        for number, (path, mode) in enumerate(zip(order["paths"], modes, strict=True)):
            os.dup2(os.open(path, mode, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww")
        )
        sys.argv = ["dragoman", *order["arguments"]]
        code = _ended()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _ended() -> int:
    from dragoman.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  as the interpreter would
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


if __name__ == "__main__":
    _serve()
