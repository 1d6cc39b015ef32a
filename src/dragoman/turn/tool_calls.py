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
from dragoman.shield import run_to_completion
from dragoman.store import Row
from dragoman.tools import LateResult, dispatch
from dragoman.turn import stages
from dragoman.turn.late import LATE_KEY, make_late_note
from dragoman.turn.start import TurnState
from dragoman.turn.types import ToolResultStored

_END_EVENTS: Final = ("tool.completed", "tool.failed")
_log: Final = logging.getLogger("dragoman.turn")


async def run_tools(turn: TurnState) -> AsyncGenerator[ToolResultStored, None]:
    """Run what the last answer asks for and nobody else is waited for; each result when it is stored."""
    calls = turn.runnable_calls
    if not calls:
        return
    tool_run = _ToolRun(turn, calls)
    remaining = len(calls)
    try:
        while remaining:
            yield ToolResultStored(await tool_run.next())
            remaining -= 1
    finally:
        await run_to_completion(tool_run.stop())


class _ToolRun:
    """Tools at work, and the results that wait to be stored."""

    def __init__(self, turn: TurnState, calls: list[Call]) -> None:
        self._turn = turn
        self._latencies_ms: dict[str, int] = {}  # by call
        self._results: deque[ToolResultBlock] = deque()
        self._changed = asyncio.Event()
        turn.usage.tool_calls += len(calls)
        self._task: asyncio.Task[Any] = asyncio.create_task(
            dispatch(
                calls,
                turn.pending_calls.tools,
                turn.pending_calls.tool_session,
                events=self._emit,
                results=self._add_result,
                turn_id=turn.turn_id,
                approvals=turn.pending_calls.approvals,
                late_results=lambda late: store_late_result(turn, late),
            ),
            name="dragoman-tools",
        )
        self._task.add_done_callback(lambda _: self._changed.set())

    def _emit(self, event_type: str, payload: dict[str, Any]) -> None:
        if event_type in _END_EVENTS:
            self._latencies_ms[payload["tool_use_id"]] = payload["latency_ms"]
        self._turn.emit(event_type, payload)

    def _add_result(self, result: ToolResultBlock) -> None:
        self._results.append(result)
        self._changed.set()

    async def next(self) -> Row:
        """The next result, stored."""
        while not self._results:
            if self._task.done():
                self._task.result()  # raises what it failed with
                raise AssertionError("a call has no result")
            self._changed.clear()
            await self._changed.wait()
        return await run_to_completion(self._store_next())

    async def stop(self) -> None:
        """Stop what still works, and store what it gives."""
        self._task.cancel()  # nothing happens if it is done
        await asyncio.wait([self._task])
        try:
            while self._results:
                await self._store_next()
        except DragomanError as error:
            _log.warning("a result could not be stored: %s", error, extra={"session_id": self._turn.session.id})

    async def _store_next(self) -> Row:
        result = self._results[0]
        row = await store_result(self._turn, result, self._latencies_ms.get(result.tool_use_id))
        self._results.popleft()
        return row


def store_late_result(turn: TurnState, late: LateResult) -> None:
    """Tell of a result that nobody waits for any more, and keep it for the next turn."""
    fields = {"tool_use_id": late.tool_use_id, "tool_name": late.tool_name, "latency_ms": late.latency_ms}
    size = len(msgspec.json.encode(late.result.content))
    turn.emit("tool.completed_late", {**fields, "success": not late.result.is_error, "output_size_bytes": size})
    note = make_late_note(late)
    if note:
        extra = {LATE_KEY: {"tool_use_id": late.tool_use_id, "tool_name": late.tool_name}}
        turn.agent.add_late_note(turn.session.id, turn.message(Role.USER, note, extra=extra, stage=stages.LATE_RESULT))


async def store_result(turn: TurnState, result: ToolResultBlock, latency_ms: int | None = None) -> Row:
    """Store the result of a call."""
    (row,) = await turn.agent.store.append(turn.session.id, turn.result_message(result, latency_ms))
    turn.history.append(row.message)
    turn.answered_ids.add(result.tool_use_id)
    return row
