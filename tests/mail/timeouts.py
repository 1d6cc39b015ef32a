"""Time limits whose errors name the missing condition.

    async with time_limit(60, "a receipt for every letter"): …
    await run_with_timeout(test, 300)    a whole test; its error lists where every task waits

Invariant: every wait here has a time limit, also for a task that ignores its cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

_CANCEL_TIMEOUT_S = 60.0


@contextlib.asynccontextmanager
async def time_limit(seconds: float, condition: str) -> AsyncIterator[None]:
    """Fail if the block takes longer than a limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"after {seconds:g} s it still waited for {condition}") from None


async def run_with_timeout(test: Coroutine[Any, Any, None], seconds: float) -> None:
    """Run a test. After the timeout, raise an ``AssertionError`` that lists where every task waits."""
    task = asyncio.create_task(test)
    done, _ = await asyncio.wait([task], timeout=seconds)
    if done:
        return task.result()
    report = f"after {seconds:g} s the test is still running; its tasks wait at\n{format_task_stacks()}"
    print(report, file=sys.__stderr__, flush=True)  # before the cancellation, which may hang
    task.cancel()
    await asyncio.wait([task], timeout=_CANCEL_TIMEOUT_S)
    raise AssertionError(report)


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it ends."""
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=_CANCEL_TIMEOUT_S)
    assert done, f"it was cancelled and did not end: {' > '.join(_list_frames(task.get_coro()))}"


def format_task_stacks() -> str:
    """Return where each task of the loop waits, from the outermost function to the innermost."""
    return "\n".join(
        f"  {task.get_name()}: {' > '.join(_list_frames(task.get_coro()))}" for task in asyncio.all_tasks()
    )


def _list_frames(awaited: Any) -> list[str]:
    frames: list[str] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append(
                f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
            )
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames
