"""Supervises endless background tasks: a task that raises or returns is logged and restarted after a delay.

    supervisor = Supervisor("dragoman-nats")
    supervisor.start("pull CA", pull)         awaits pull(); restarts it when it raises or returns
    supervisor.report_success("pull CA")      called by the task after it did some work
    supervisor.report_failure("pull CA", …)   called by the task when it cannot work
    supervisor.failures()                     tasks that failed and did no work since
    await supervisor.stop()

The delay doubles from ``FIRST_PAUSE_S`` to ``LONGEST_PAUSE_S`` while a task keeps failing; a success resets it.
Invariant: until ``stop``, a started task is running or about to be restarted.
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
    """Starts tasks, restarts them, and records failures."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, str] = {}

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run a task until ``stop`` or ``cancel``."""
        task = asyncio.create_task(self._run(name, work), name=f"{self._name}-{name}")
        self._tasks.add(task)
        return task

    def cancel(self, name: str, task: asyncio.Task[None]) -> None:
        """Cancel one task."""
        self._failures.pop(name, None)
        task.cancel()
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks, self._tasks = self._tasks, set()
        self._failures.clear()
        while tasks:  # a library may swallow a cancellation, as asyncio.wait_for of Python 3.11 does
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1)

    def report_success(self, name: str) -> None:
        """Record that a task did some work."""
        self._failures.pop(name, None)

    def report_failure(self, name: str, reason: str) -> None:
        """Record that a task cannot work."""
        self._failures[name] = reason

    def failures(self) -> dict[str, str]:
        """Return the failing tasks with their reasons."""
        return dict(self._failures)

    async def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await work()
                reason = "it ended"
            except Exception as error:  # noqa: BLE001  the entry point of a task: any failure is logged and retried
                reason = type(error).__name__
                _log.error("task %s failed with %s and is restarted", name, reason, exc_info=error)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if name in self._failures else FIRST_PAUSE_S
            self.report_failure(name, reason)
            await asyncio.sleep(pause_s)
