"""A process that runs turns on the event loop until it is killed, and reports acknowledged turns.

A line to the pipe is ``question NAME``, ``answer NAME`` or ``append NAME``: the store has acknowledged the question of
a new session, its answer, or a message that the writer thread commits beside the turns. ``opened`` is the first line.
The questions and the answers are committed on the event loop, by ``store/engines/loop_writer``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.message import Message, MessageStatus, TextBlock
from dragoman.store import Session, Store, open_store
from dragoman.store.engines import loop_writer
from dragoman.store.engines.sqlite import SqliteStore
from tests.store.messages import answer_message, text_message

BESIDE = "beside"  # the session that the writer thread appends to
LANES = 4

Say = Callable[[str], object]


class Orders(msgspec.Struct, frozen=True):
    """The configuration of a writer."""

    url: str
    first: int  # the number of its first turn
    is_synced: bool = True  # without syncs, a power cut loses turns
    has_appends: bool = True  # the writer thread commits as well, and its syncs cover commits of the event loop


def write_turns(orders: Orders, pipe: Any) -> None:
    """Run turns until the process is killed. Acknowledgements are written to the pipe."""
    if not orders.is_synced:
        loop_writer._sync_file = lambda _: None  # type: ignore[misc]
    asyncio.run(_write(orders, lambda line: os.write(pipe.fileno(), f"{line}\n".encode())))


async def _write(orders: Orders, say: Say) -> None:
    async with open_store(orders.url) as store:
        assert isinstance(store, SqliteStore)
        if await store.find_session(BESIDE) is None:
            await store.create_session(BESIDE)
        while store._loop_writer is None or not store._loop_writer.is_ready:
            await asyncio.sleep(0.001)
        _require_loop(store._loop_writer)
        say("opened")
        numbers = itertools.count(orders.first)
        lanes = [_run_turns(store, say, numbers) for _ in range(LANES)]
        await asyncio.gather(*lanes, *([_append(store, say, orders.first)] if orders.has_appends else []))


def _require_loop(writer: loop_writer.LoopWriter) -> None:
    """Make the event loop wait for the writer thread, so that no commit moves to the thread."""
    acquire = writer._lock.acquire

    def wait_and_acquire() -> bool:
        while not acquire():
            os.sched_yield()
        return True

    writer._lock.acquire = wait_and_acquire  # type: ignore[method-assign]


async def _run_turns(store: Store, say: Say, numbers: itertools.count[int]) -> None:
    for number in numbers:
        name, now = f"turn-{number}", store.clock()
        session = Session(id=name, created_at=now, updated_at=now)
        lease = store.turns.lease(name)
        rows = store.turns.place(
            session, [text_message(f"question {name}"), answer_message("", status=MessageStatus.PARTIAL)]
        )
        await (await store.turns.start(lease, session, rows, is_new=True))
        say(f"question {name}")
        await store.turns.save_partial(name, _with_text(rows[1].message, "half", MessageStatus.PARTIAL))
        answer = _with_text(rows[1].message, f"answer {name}", MessageStatus.COMPLETE)
        await store.turns.finish_answer(name, answer, owner=lease.owner)
        say(f"answer {name}")


def _with_text(message: Message, text: str, status: MessageStatus) -> Message:
    return message.replace(content=(TextBlock(text),), metadata=message.metadata.replace(status=status))


async def _append(store: Store, say: Say, first: int) -> None:
    for number in itertools.count(first):
        await store.append(BESIDE, text_message(f"append {number}"))
        say(f"append {number}")
