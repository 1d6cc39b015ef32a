"""The waits of these tests end, and say what they waited for."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.mail.timeouts import bounded, within


async def test_wait_timeout_names_the_condition() -> None:
    with pytest.raises(AssertionError, match=r"after 0\.01 s it still waited for a receipt"):
        async with within(0.01, "a receipt"):
            await asyncio.Event().wait()


async def test_hanging_test_reports_its_position() -> None:
    async def hangs() -> None:
        await _for_ever()

    with pytest.raises(AssertionError, match=r"hangs .*> _for_ever .*> Event\.wait"):
        await bounded(hangs(), 0.01)


async def test_task_that_ignores_one_cancel_does_not_block() -> None:
    async def refuses() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await _for_ever()
        await asyncio.sleep(0.01)

    with pytest.raises(AssertionError, match="it is not over"):
        await bounded(refuses(), 0.01)


async def test_exception_of_the_test_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await bounded(fails(), 10)


async def _for_ever() -> None:
    await asyncio.Event().wait()
