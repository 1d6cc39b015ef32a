"""The waits of these tests end, and say what they waited for."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.mail.waiting import bounded, within


async def test_a_wait_that_is_over_says_what_for() -> None:
    with pytest.raises(AssertionError, match=r"after 0\.01 s it still waited for a receipt"):
        async with within(0.01, "a receipt"):
            await asyncio.Event().wait()


async def test_a_test_that_does_not_end_says_where_it_stands() -> None:
    async def hangs() -> None:
        await _for_ever()

    with pytest.raises(AssertionError, match=r"hangs .*> _for_ever .*> Event\.wait"):
        await bounded(hangs(), 0.01)


async def test_what_does_not_let_itself_be_cancelled_once_keeps_nobody() -> None:
    async def refuses() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await _for_ever()
        await asyncio.sleep(0.01)

    with pytest.raises(AssertionError, match="it is not over"):
        await bounded(refuses(), 0.01)


async def test_what_a_test_raises_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await bounded(fails(), 10)


async def _for_ever() -> None:
    await asyncio.Event().wait()
