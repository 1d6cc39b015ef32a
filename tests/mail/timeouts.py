"""Waits that come to an end, and say what they waited for.

    async with within(60, "a receipt for every letter"): …
    await bounded(test, 300)            a whole test; where every task stands is told if it is not over then

Invariant: every wait here has a time limit, also for a task that ignores its cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

_ENDING_S = 60.0


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Fail if the block takes longer than a limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"after {seconds:g} s it still waited for {what}") from None


async def bounded(test: Coroutine[Any, Any, None], seconds: float) -> None:
    """Run a test; an ``AssertionError`` that says where it stands if it is not over after so long."""
    task = asyncio.create_task(test)
    done, _ = await asyncio.wait([task], timeout=seconds)
    if done:
        return task.result()
    told = f"after {seconds:g} s it is not over; the tasks stand at\n{standing()}"
    print(told, file=sys.__stderr__, flush=True)  # at once: to end what hangs may hang
    task.cancel()
    await asyncio.wait([task], timeout=_ENDING_S)
    raise AssertionError(told)


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait until it has ended."""
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=_ENDING_S)
    assert done, f"it was cancelled and did not end: {' > '.join(_places(task.get_coro()))}"


def standing() -> str:
    """Where each task of the loop waits, from the outermost function to the innermost."""
    return "\n".join(f"  {task.get_name()}: {' > '.join(_places(task.get_coro()))}" for task in asyncio.all_tasks())


def _places(awaited: Any) -> list[str]:
    places: list[str] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            places.append(
                f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
            )
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return places
