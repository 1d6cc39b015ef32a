"""Large work runs in a thread, small work directly."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.offload import LARGE, estimate_size, iterate_fairly, run_off_loop


def test_large_work_runs_in_a_thread_and_small_work_at_once() -> None:
    here = threading.get_ident()
    assert asyncio.run(run_off_loop(LARGE - 1, threading.get_ident)) == here
    assert asyncio.run(run_off_loop(LARGE, threading.get_ident)) != here


@pytest.mark.parametrize("size", [0, LARGE])
def test_what_the_work_raises_is_raised(size: int) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(run_off_loop(size, int, "x"))


def test_other_tasks_run_while_a_long_list_is_worked_through() -> None:
    done: list[tuple[str, int]] = []

    async def work(name: str) -> None:
        async for number in iterate_fairly(range(300)):
            done.append((name, number))

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    assert [number for name, number in done if name == "a"] == list(range(300))
    first_of_b = next(at for at, (name, _) in enumerate(done) if name == "b")
    assert first_of_b < 100  # not behind all of the other's


def test_large_items_are_worked_through_one_at_a_time() -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        async for _ in iterate_fairly(range(2), size=lambda _: LARGE):
            done.append(name)

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    assert done == ["a", "b", "a", "b"]


def test_a_message_with_many_blocks_counts_as_many_messages() -> None:
    block = TextBlock("a")
    one = Message("m", "s", Role.USER, (block,) * 256, MessageMetadata(), datetime(2026, 11, 15, tzinfo=UTC))
    assert estimate_size([one]) >= LARGE > estimate_size([one.replace(content=(block,))] * 100)
