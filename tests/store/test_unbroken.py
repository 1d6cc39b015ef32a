"""Work that goes to its end, whatever happens to whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.shield import run_to_completion

BEGINNINGS = pytest.mark.parametrize("at_once", [False, True])


class Work:
    """Waits as often as it is told to, and notes how far it came."""

    def __init__(self, waits: int, error: Exception | None = None) -> None:
        self.gates = [asyncio.Event() for _ in range(waits)]
        self.error = error
        self.steps = 0
        self.tasks: list[asyncio.Task[Any] | None] = []

    async def __call__(self) -> str:
        for gate in self.gates:
            self.tasks.append(asyncio.current_task())
            await gate.wait()
            self.steps += 1
        self.tasks.append(asyncio.current_task())
        if self.error is not None:
            raise self.error
        return "done"

    def open(self) -> None:
        for gate in self.gates:
            gate.set()


@BEGINNINGS
@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_what_the_work_gives_is_given(waits: int, at_once: bool) -> None:
    work = Work(waits)
    asyncio.get_running_loop().call_soon(work.open)
    assert await run_to_completion(work(), start_inline=at_once) == "done"
    assert work.steps == waits


@BEGINNINGS
@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_what_the_work_raises_is_raised(waits: int, at_once: bool) -> None:
    work = Work(waits, ValueError("no"))
    asyncio.get_running_loop().call_soon(work.open)
    with pytest.raises(ValueError, match="no"):
        await run_to_completion(work(), start_inline=at_once)
    assert work.steps == waits


@BEGINNINGS
@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_a_cancel_waits_for_the_work_and_is_not_lost(
    cancels: int, error: Exception | None, at_once: bool
) -> None:
    work = Work(2, error)
    waiting = asyncio.create_task(run_to_completion(work(), start_inline=at_once))
    for _ in range(cancels):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    work.open()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.steps == 2


async def test_work_that_begins_at_once_goes_on_in_a_task_of_its_own() -> None:
    work = Work(2)
    asyncio.get_running_loop().call_soon(work.open)
    await run_to_completion(work(), start_inline=True)
    first, *others = work.tasks
    assert first is asyncio.current_task()
    assert len(set(others)) == 1
    assert others[0] not in (first, None)


async def test_work_that_never_waits_needs_no_task() -> None:
    before = asyncio.all_tasks()
    work = Work(0)
    await run_to_completion(work(), start_inline=True)
    assert work.tasks == [asyncio.current_task()]
    assert asyncio.all_tasks() == before


async def test_a_time_limit_behind_the_first_wait_is_one_for_the_work_alone() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "too late"
        return "in time"

    assert await run_to_completion(work(), start_inline=True) == "too late"


async def test_an_error_of_what_the_work_waits_for_is_raised_within_it() -> None:
    promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await promised
        except ValueError as error:
            return str(error)
        return "nothing"

    asyncio.get_running_loop().call_soon(promised.set_exception, ValueError("broken"))
    assert await run_to_completion(work(), start_inline=True) == "broken"
