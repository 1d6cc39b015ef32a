"""What must not be left half done: work that goes to its end although whoever waits for it is cancelled meanwhile.

The one rule: a cancel is never lost. It is raised when the work is done, and goes before an error of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


async def run_to_completion(work: Coroutine[Any, Any, Result], *, start_inline: bool = False) -> Result:
    """What the work gives. However often the caller is cancelled, the work is done when this ends.

    ``at_once`` begins it here, so that work which never waits needs no task of its own. It is for work that sets no
    time limit before it first waits: the limit would be one for the caller.
    """
    remaining = work
    if start_inline:
        try:
            remaining = _resume(work, work.send(None))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
    task = asyncio.ensure_future(remaining)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if not task.cancelled():
                cancellation = error
        except BaseException:  # noqa: BLE001  the work's own: it is raised below
            break
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()


async def _resume(work: Coroutine[Any, Any, Result], future: Any) -> Result:
    return await _StartedWork(work, future)


class _StartedWork(Generic[Result]):
    """Work that has begun, and waits for something."""

    def __init__(self, work: Coroutine[Any, Any, Result], future: Any) -> None:
        self._work = work
        self._future = future

    def __await__(self) -> Generator[Any, Any, Result]:
        future = self._future
        try:
            while True:
                try:
                    value = yield future
                except BaseException as error:  # noqa: BLE001  whatever it is, it is the work's
                    future = self._work.throw(error)
                else:
                    future = self._work.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
