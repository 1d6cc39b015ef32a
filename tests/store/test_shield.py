"""Tests that a shielded coroutine runs to completion when its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.shield import run_to_completion


class Work:
    """Waits at each of its gates and counts the passed ones."""

    def __init__(self, waits: int, error: Exception | None = None) -> None:
        self.gates = [asyncio.Event() for _ in range(waits)]
        self.error = error
        self.steps = 0

    async def __call__(self) -> str:
        for gate in self.gates:
            await gate.wait()
            self.steps += 1
        if self.error is not None:
            raise self.error
        return "done"

    def open(self) -> None:
        for gate in self.gates:
            gate.set()


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_result_of_coroutine_is_returned(waits: int) -> None:
    work = Work(waits)
    asyncio.get_running_loop().call_soon(work.open)
    assert await run_to_completion(work()) == "done"
    assert work.steps == waits


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_error_of_coroutine_is_raised(waits: int) -> None:
    work = Work(waits, ValueError("no"))
    asyncio.get_running_loop().call_soon(work.open)
    with pytest.raises(ValueError, match="no"):
        await run_to_completion(work())
    assert work.steps == waits


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_cancellation_waits_for_coroutine(cancels: int, error: Exception | None) -> None:
    work = Work(2, error)
    waiting = asyncio.create_task(run_to_completion(work()))
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


async def test_timeout_within_coroutine_is_its_own() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "too late"
        return "in time"

    assert await run_to_completion(work()) == "too late"


async def test_error_of_awaited_future_is_raised_in_coroutine() -> None:
    promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await promised
        except ValueError as error:
            return str(error)
        return "nothing"

    asyncio.get_running_loop().call_soon(promised.set_exception, ValueError("broken"))
    assert await run_to_completion(work()) == "broken"
