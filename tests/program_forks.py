"""Programs that are forks of one process that has imported their modules, so that a start costs almost no CPU time.

    with ForkServer("dragoman.server.supervisor") as server:
        process = server.start("dragoman.cli:main", "dragoman", "serve", environment=…, streams=(0, 1, 2))
        process.send_signal(signal.SIGTERM)
        process.wait(20)

As a script, ``python -S program_forks.py SOCKET TARGET ARGUMENTS…`` is a program that a fork of a server replaces: the
fork has its streams and environment. Invariants: a fork has its own arguments, environment, working directory and
streams, and shares no state with earlier ones. It is killed if the process that has started it ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn, Self

_NUMBER = struct.Struct("i")
_NOT_STARTED = 70  # the exit code of a program that failed before its first line
_MAX_BYTES = 1 << 20
_STREAMS = 3


class Fork:
    """A running program, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, path: str, order: dict[str, Any], streams: tuple[int, int, int]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        line = json.dumps(order).encode() + b"\n"
        sent = socket.send_fds(self._connection, [line], streams)
        self._connection.sendall(line[sent:])
        self.pid = self._receive()
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None  # a reader, if the caller sets one

    def _receive(self) -> int:
        (number,) = _NUMBER.unpack(self._connection.recv(_NUMBER.size))
        return int(number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program and return its exit code; after the timeout, raise ``TimeoutError``."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = self._receive()
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or none if the program still runs."""
        with contextlib.suppress(BlockingIOError):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that has imported modules and forks programs."""

    def __init__(self, *modules: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dragoman-forks-")
        self.path = os.path.join(self._folder.name, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen()
            number = listener.fileno()
            program = f"from {__name__} import serve; serve({number}, {modules})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                pass_fds=[number],
                cwd=Path(__file__).parent.parent,
            )

    def start(
        self, target: str, *arguments: str, environment: Mapping[str, str], streams: tuple[int, int, int]
    ) -> Fork:
        """Call the function ``module:name`` in a new process, with ``arguments`` as ``sys.argv``."""
        return Fork(self.path, _make_order(target, arguments, environment), streams)

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_order(target: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, Any]:
    return {"target": target, "arguments": arguments, "environment": dict(environment), "cwd": os.getcwd()}


# --- inside the server -----------------------------------------------------------------------------------------------


def serve(number: int, modules: tuple[str, ...]) -> None:
    """Import modules, and fork programs for connections to a socket until standard input ends."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # forks share these objects
    with socket.socket(fileno=number) as listener:
        while True:
            ready, _, _ = select.select([listener.fileno(), 0], [], [])
            if 0 in ready:
                break
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _watch(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _watch(connection: socket.socket) -> NoReturn:
    """Fork a program, report its process id and its exit code, and kill it if the other side closes the connection."""
    try:
        line, streams, _, _ = socket.recv_fds(connection, _MAX_BYTES, _STREAMS)
        while not line.endswith(b"\n"):
            line += connection.recv(_MAX_BYTES)
        end, lifetime = os.pipe()
        pid = os.fork()
        if pid == 0:
            connection.close()
            os.close(end)
            order = json.loads(line)
            execute(order, streams, _find(order["target"]))
        for number in (lifetime, *streams):
            os.close(number)
        connection.sendall(_NUMBER.pack(pid))
        ready, _, _ = select.select([connection.fileno(), end], [], [])
        if end not in ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(0)


def _find(target: str) -> Callable[[], object]:
    """Return the function ``module:name``."""
    module, _, name = target.partition(":")
    function: Callable[[], object] = getattr(importlib.import_module(module), name)
    return function


def execute(order: dict[str, Any], streams: list[int], main: Callable[[], object]) -> NoReturn:
    """Call a function as the program of this process, with the arguments and environment of an order, and exit."""
    code = _NOT_STARTED
    try:
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww")
        )
        sys.argv = order["arguments"]
        code = _call(main)
        for stream_file in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError, ValueError):
                stream_file.flush()
    finally:
        os._exit(code)


def _call(main: Callable[[], object]) -> int:
    """Call a function and return the exit code of the program, as the interpreter does."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(Fork(sys.argv[1], _make_order(sys.argv[2], tuple(sys.argv[3:]), os.environ), (0, 1, 2)).wait())
