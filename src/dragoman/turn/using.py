"""The tools that an answer asks for, and their results, each stored as soon as it is there.

The one rule: one call, one result, before the model is asked again; whatever happens to the turn meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from dragoman.errors import DragomanError
from dragoman.message import Role, ToolResultBlock
from dragoman.rules import Call
from dragoman.store import Row
from dragoman.store.unbroken import unbroken
from dragoman.tools import LateResult, dispatch
from dragoman.turn import stages
from dragoman.turn.beginning import Turn
from dragoman.turn.late import LATE, note_of
from dragoman.turn.values import ResultStored

_ENDED: Final = ("tool.completed", "tool.failed")
_log: Final = logging.getLogger("dragoman.turn")


async def results_of(turn: Turn) -> AsyncGenerator[ResultStored, None]:
    """Run what the last answer asks for and nobody else is waited for; each result when it is stored."""
    calls = turn.runnable
    if not calls:
        return
    using = _Using(turn, calls)
    left = len(calls)
    try:
        while left:
            yield ResultStored(await using.next())
            left -= 1
    finally:
        await unbroken(using.end())


class _Using:
    """Tools at work, and the results that wait to be stored."""

    def __init__(self, turn: Turn, calls: list[Call]) -> None:
        self._turn = turn
        self._took_ms: dict[str, int] = {}  # by call
        self._coming: deque[ToolResultBlock] = deque()
        self._news = asyncio.Event()
        turn.tally.tool_calls += len(calls)
        self._working: asyncio.Task[Any] = asyncio.create_task(
            dispatch(
                calls,
                turn.waiting.tools,
                turn.waiting.bench,
                events=self._tell,
                results=self._take,
                turn_id=turn.turn_id,
                approvals=turn.waiting.approvals,
                late=lambda late: came_late(turn, late),
            ),
            name="dragoman-tools",
        )
        self._working.add_done_callback(lambda _: self._news.set())

    def _tell(self, what: str, payload: dict[str, Any]) -> None:
        if what in _ENDED:
            self._took_ms[payload["tool_use_id"]] = payload["latency_ms"]
        self._turn.tell(what, payload)

    def _take(self, result: ToolResultBlock) -> None:
        self._coming.append(result)
        self._news.set()

    async def next(self) -> Row:
        """The next result, stored."""
        while not self._coming:
            if self._working.done():
                self._working.result()  # raises what it failed with
                raise AssertionError("a call has no result")
            self._news.clear()
            await self._news.wait()
        return await self._turn.agent.store.unbroken(self._store_next())

    async def end(self) -> None:
        """Stop what still works, and store what it gives."""
        self._working.cancel()  # nothing happens if it is done
        await asyncio.wait([self._working])
        try:
            while self._coming:
                await self._store_next()
        except DragomanError as error:
            _log.warning("a result could not be stored: %s", error, extra={"session_id": self._turn.session.id})

    async def _store_next(self) -> Row:
        result = self._coming[0]
        row = await result_stored(self._turn, result, self._took_ms.get(result.tool_use_id))
        self._coming.popleft()
        return row


def came_late(turn: Turn, late: LateResult) -> None:
    """Tell of a result that nobody waits for any more, and keep it for the next turn."""
    told = {"tool_use_id": late.tool_use_id, "tool_name": late.tool_name, "latency_ms": late.latency_ms}
    size = len(msgspec.json.encode(late.result.content))
    turn.tell("tool.completed_late", {**told, "success": not late.result.is_error, "output_size_bytes": size})
    note = note_of(late)
    if note:
        extra = {LATE: {"tool_use_id": late.tool_use_id, "tool_name": late.tool_name}}
        turn.agent.came_late(turn.session.id, turn.message(Role.USER, note, extra=extra, stage=stages.LATE_RESULT))


async def result_stored(turn: Turn, result: ToolResultBlock, latency_ms: int | None = None) -> Row:
    """Store the result of a call."""
    (row,) = await turn.agent.store.append(turn.session.id, turn.result_message(result, latency_ms))
    turn.history.append(row.message)
    turn.settled.add(result.tool_use_id)
    return row
