"""Run the tool calls of an answer, and store each result when it is ready.

A tool that returns after its time-out, or after the turn was cancelled, already has its one result. Its output becomes
a note: a user message in tags, which is stored with the next question. The running turn does not receive it.

Invariant: each call has one result before the model is called again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from dragoman.errors import DragomanError
from dragoman.message import ContentBlock, Role, TextBlock, ToolResultBlock
from dragoman.rules import Call, allowed_blocks
from dragoman.shield import run_to_completion
from dragoman.store import Row
from dragoman.tools import LateResult, dispatch
from dragoman.tools.tool import truncate_middle
from dragoman.turn.state import LATE_KEY, LATE_RESULT, TurnState
from dragoman.turn.types import ToolResultEvent

_END_EVENTS: Final = ("tool.completed", "tool.failed")
_MAX_NOTE: Final = 20_000  # characters
_log: Final = logging.getLogger("dragoman.turn")


async def run_tools(turn: TurnState) -> AsyncGenerator[ToolResultEvent, None]:
    """Run the calls of the last answer that are not pending. Yields each result when it is stored."""
    calls = turn.runnable_calls
    if not calls:
        return
    tool_run = _ToolRun(turn, calls)
    try:
        for _ in calls:
            yield ToolResultEvent(await tool_run.next())
    finally:
        await run_to_completion(tool_run.stop())


class _ToolRun:
    """Running tools, and their results that are not stored yet."""

    def __init__(self, turn: TurnState, calls: list[Call]) -> None:
        self._turn = turn
        self._latencies_ms: dict[str, int] = {}  # by call
        self._results: deque[ToolResultBlock] = deque()
        self._changed = asyncio.Event()
        turn.usage.tool_calls += len(calls)
        self._task: asyncio.Task[Any] = asyncio.create_task(
            dispatch(
                calls,
                turn.tools,
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
        """Wait for the next result and store it."""
        while not self._results:
            if self._task.done():
                self._task.result()  # raises its error
                raise AssertionError("a call has no result")
            self._changed.clear()
            await self._changed.wait()
        return await run_to_completion(self._store_next())

    async def stop(self) -> None:
        """Cancel the running tools, and store their results."""
        self._task.cancel()  # does nothing if it is done
        await asyncio.wait([self._task])
        try:
            while self._results:
                await self._store_next()
        except DragomanError as error:
            _log.warning("cannot store a tool result: %s", error, extra={"session_id": self._turn.session.id})

    async def _store_next(self) -> Row:
        result = self._results[0]
        row = await self._turn.store_result(result, self._latencies_ms.get(result.tool_use_id))
        self._results.popleft()
        return row


def store_late_result(turn: TurnState, late: LateResult) -> None:
    """Emit a late result, and keep its note for the next question."""
    fields = {"tool_use_id": late.tool_use_id, "tool_name": late.tool_name}
    size = len(msgspec.json.encode(late.result.content))
    payload = {"latency_ms": late.latency_ms, "success": not late.result.is_error, "output_size_bytes": size}
    turn.emit("tool.completed_late", {**fields, **payload})
    note = make_late_note(late)
    if note:
        message = turn.message(Role.USER, note, extra={LATE_KEY: fields}, stage=LATE_RESULT)
        turn.services.add_late_note(turn.session.id, message)


def make_late_note(late: LateResult) -> tuple[ContentBlock, ...]:
    """The content of the note about a late result; empty if the tool failed."""
    if late.result.is_error:
        return ()
    texts = [block.text for block in late.result.content if isinstance(block, TextBlock)]
    text = (
        f"<late_result tool={msgspec.json.encode(late.tool_name).decode()} call={late.tool_use_id}>\n"
        f"This call was reported as not finished. It ended after {late.latency_ms / 1000:.1f} s and returned:\n"
        f"{truncate_middle(chr(10).join(texts), _MAX_NOTE)}\n</late_result>"
    )
    allowed = allowed_blocks(Role.USER) or frozenset()
    media = [block for block in late.result.content if not isinstance(block, TextBlock) and type(block) in allowed]
    return (TextBlock(text), *media)
