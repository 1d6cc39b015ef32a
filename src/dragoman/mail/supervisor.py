"""Background tasks that never end: one that raises is logged and started again after a pause.

    supervisor = Supervisor("dragoman-nats")
    supervisor.start("pull CA", pull)         pull() is awaited; when it raises or returns, it is called again
    supervisor.report_success("pull CA")      called by the task itself whenever it has done some work
    supervisor.report_failure("pull CA", …)   the same when it cannot do its work at the moment
    supervisor.failures()                     the tasks that have failed and have not done any work since
    await supervisor.stop()

The pause doubles from ``FIRST_PAUSE_S`` to ``LONGEST_PAUSE_S`` while a task keeps failing; a success resets it.
Invariant: a task that was started is running or about to be restarted until ``stop``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 30.0
_log: Final = logging.getLogger("dragoman.mail")


class Supervisor:
    """Starts tasks, restarts those that fail, and knows which ones do not work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, str] = {}

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task until ``stop``."""
        self._tasks.add(asyncio.create_task(self._run(name, work), name=f"{self._name}-{name}"))

    async def stop(self) -> None:
        """Cancel every task and wait for its end."""
        tasks, self._tasks = self._tasks, set()
        self._failures.clear()
        while tasks:  # a library may swallow a cancellation, as asyncio.wait_for of Python 3.11 does
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1)

    def report_success(self, name: str) -> None:
        """The task has done some work."""
        self._failures.pop(name, None)

    def report_failure(self, name: str, reason: str) -> None:
        """The task cannot do its work at the moment."""
        self._failures[name] = reason

    def failures(self) -> dict[str, str]:
        """The tasks that do not work, each with the reason."""
        return dict(self._failures)

    async def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await work()
                reason = "it ended"
            except Exception as error:  # noqa: BLE001  the entry point of a task: any failure is logged and retried
                reason = type(error).__name__
                _log.error("%s failed with %s; it is restarted", name, reason, exc_info=error)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if name in self._failures else FIRST_PAUSE_S
            self.report_failure(name, reason)
            await asyncio.sleep(pause_s)
