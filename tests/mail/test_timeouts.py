"""Tests of the time limits of the mail tests."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.mail.timeouts import run_with_timeout, time_limit


async def test_wait_timeout_names_the_condition() -> None:
    with pytest.raises(AssertionError, match=r"after 0\.01 s it still waited for a receipt"):
        async with time_limit(0.01, "a receipt"):
            await asyncio.Event().wait()


async def test_hanging_test_reports_its_position() -> None:
    async def hang() -> None:
        await _wait_forever()

    with pytest.raises(AssertionError, match=r"hang .*> _wait_forever .*> Event\.wait"):
        await run_with_timeout(hang(), 0.01)


async def test_task_that_ignores_one_cancel_does_not_block() -> None:
    async def ignore_cancel() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await _wait_forever()
        await asyncio.sleep(0.01)

    with pytest.raises(AssertionError, match="the test is still running"):
        await run_with_timeout(ignore_cancel(), 0.01)


async def test_exception_of_the_test_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("original error")

    with pytest.raises(ValueError, match="original error"):
        await run_with_timeout(fail(), 10)


async def _wait_forever() -> None:
    await asyncio.Event().wait()
