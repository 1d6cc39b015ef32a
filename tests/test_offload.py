"""Tests of ``run_off_loop`` and ``iterate_fairly``: large work runs in a thread, small work directly."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from dragoman.message import Message, MessageMetadata, Role, TextBlock
from dragoman.offload import LARGE, estimate_size, iterate_fairly, run_off_loop


def test_large_work_runs_in_a_thread_and_small_work_inline() -> None:
    main_thread = threading.get_ident()
    assert asyncio.run(run_off_loop(LARGE - 1, threading.get_ident)) == main_thread
    assert asyncio.run(run_off_loop(LARGE, threading.get_ident)) != main_thread


@pytest.mark.parametrize("size", [0, LARGE])
def test_exception_of_the_work_is_raised(size: int) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(run_off_loop(size, int, "x"))


def test_other_tasks_run_during_a_long_iteration() -> None:
    done: list[tuple[str, int]] = []

    async def work(name: str) -> None:
        async for number in iterate_fairly(range(300)):
            done.append((name, number))

    async def run_both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(run_both())
    assert [number for name, number in done if name == "a"] == list(range(300))
    first_of_b = next(at for at, (name, _) in enumerate(done) if name == "b")
    assert first_of_b < 100  # not after all items of the first task


def test_tasks_alternate_after_each_large_item() -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        async for _ in iterate_fairly(range(2), size=lambda _: LARGE):
            done.append(name)

    async def run_both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(run_both())
    assert done == ["a", "b", "a", "b"]


def test_message_with_many_blocks_has_the_size_of_many_messages() -> None:
    block = TextBlock("a")
    message = Message("m", "s", Role.USER, (block,) * 256, MessageMetadata(), datetime(2026, 11, 15, tzinfo=UTC))
    assert estimate_size([message]) >= LARGE > estimate_size([message.replace(content=(block,))] * 100)
