"""Starts and stops the process of the embedded model.

Invariant: the parent keeps the standard input of the process open; when it closes, the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
import threading
from typing import IO, Final, Self

from dragoman.errors import SettingsError
from dragoman.local.weights import DOWNLOAD_MB, find_weights, install_weights
from dragoman.settings import find_missing_packages

NAME: Final = "smollm2-135m"
_LOG_LINES: Final = 5
_log: Final = logging.getLogger("dragoman.local")
_START_TIMEOUT_S: Final = 120.0  # enough for a slow disk and a busy machine


class LocalModel:
    """The embedded model. It runs from the first ``base_url`` to ``close``; all callers share it."""

    def __init__(self, *, threads: int = 1, context_tokens: int = 8192) -> None:
        self._arguments = [str(threads), str(context_tokens)]
        self._process: subprocess.Popen[bytes] | None = None
        self._address: str | None = None
        self._start_lock = threading.Lock()  # callers may have event loops of their own

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def base_url(self) -> str:
        """Return the base URL of the running server; ``SettingsError`` if it cannot start."""
        address = self._find_address()
        return await asyncio.to_thread(self._start_once) if address is None else address

    async def close(self) -> None:
        """Stop the process if it runs."""
        process, self._process, self._address = self._process, None, None
        if process is not None:
            await asyncio.to_thread(_stop, process)

    def _find_address(self) -> str | None:
        return self._address if self._process is not None and self._process.poll() is None else None

    def _start_once(self) -> str:
        with self._start_lock:
            address = self._find_address()
            if address is None:
                address = self._address = self._start()
            return address

    def _start(self) -> str:
        missing_packages = find_missing_packages()
        if missing_packages:
            raise SettingsError(
                f"the embedded model needs {' and '.join(missing_packages)}, which cannot be imported",
                where="local",
                remedy=f"Run: {' && '.join(missing_packages.values())}",
                code="missing_package",
            )
        weights = find_weights()
        if weights is None:
            _log.warning("fetching the weights of the embedded model (%d MB, once)", DOWNLOAD_MB)
            weights = install_weights()
        if self._process is not None:  # it crashed
            _stop(self._process)
        with tempfile.TemporaryFile() as log:
            command = [sys.executable, "-m", "dragoman.local.llama_process", str(weights), *self._arguments]
            pipe = subprocess.PIPE
            # A session of its own: Ctrl-C in the terminal interrupts only the parent.
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True)
            self._process = process
            address = _read_address(process)
            if address:
                return address
            process.wait()
            _stop(process)
            raise SettingsError(f"it did not start: {_read_last_lines(log)}", where="local", code="local_model_failed")


def _read_address(process: subprocess.Popen[bytes]) -> str:
    """Return the first line of output; empty if the process ends or times out before."""
    assert process.stdout is not None
    timer = threading.Timer(_START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        return process.stdout.readline().decode().strip()
    finally:
        timer.cancel()


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.terminate()
    process.wait()
    process.stdout.close()


def _read_last_lines(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return " / ".join(lines[-_LOG_LINES:]) or "no output"
