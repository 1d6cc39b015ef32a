"""Run a coroutine to completion, or wait for the end of a future, although the caller is cancelled.

Invariant: a cancellation is never lost. It is raised when the work is done and overrides its error.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def run_to_completion(work: Coroutine[Any, Any, Result] | asyncio.Future[Result]) -> Result:
    """Return the result of a coroutine or a future. However often the caller is cancelled, it is done afterwards."""
    task = work if isinstance(work, asyncio.Future) else asyncio.get_running_loop().create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        waiter = task.get_loop().create_future()
        task.add_done_callback(functools.partial(_wake, waiter))
        try:
            await waiter
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()


def _wake(waiter: asyncio.Future[None], _: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(None)
