"""What must not be left half done: work that goes to its end although whoever waits for it is cancelled meanwhile.

The one rule: a cancel is never lost. It is raised when the work is done, and goes before an error of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


async def unbroken(work: Coroutine[Any, Any, Result], *, at_once: bool = False) -> Result:
    """What the work gives. However often the caller is cancelled, the work is done when this ends.

    ``at_once`` begins it here, so that work which never waits needs no task of its own. It is for work that sets no
    time limit before it first waits: the limit would be one for the caller.
    """
    rest = work
    if at_once:
        try:
            rest = _rest(work, work.send(None))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
    task = asyncio.ensure_future(rest)
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


async def _rest(work: Coroutine[Any, Any, Result], waits_for: Any) -> Result:
    return await _Rest(work, waits_for)


class _Rest(Generic[Result]):
    """Work that has begun, and waits for something."""

    def __init__(self, work: Coroutine[Any, Any, Result], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Result]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    came = yield waits_for
                except BaseException as error:  # noqa: BLE001  whatever it is, it is the work's
                    waits_for = self._work.throw(error)
                else:
                    waits_for = self._work.send(came)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
