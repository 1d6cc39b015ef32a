"""What must not be left half done: work that goes to its end although whoever waits for it is cancelled meanwhile.

The one rule: a cancel is never lost. It is raised when the work is done, and goes before an error of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def unbroken(work: Coroutine[Any, Any, Result]) -> Result:
    """What the work gives. However often the caller is cancelled, the work is done when this ends."""
    task = asyncio.ensure_future(work)
    stopped: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if not task.cancelled():
                stopped = error
        except BaseException:  # noqa: BLE001  the work's own: it is raised below
            break
    if stopped is not None:
        raise stopped from (None if task.cancelled() else task.exception())
    return task.result()
