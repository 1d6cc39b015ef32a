"""The tools that an answer asks for, and their results, each stored as soon as it is there.

The one rule: one call, one result, before the model is asked again; whatever happens to the turn meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from dragoman.message import Message, Role, ToolResultBlock
from dragoman.store import Row
from dragoman.tools import dispatch
from dragoman.turn.beginning import Turn
from dragoman.turn.values import ResultStored


async def results_of(turn: Turn) -> AsyncGenerator[ResultStored, None]:
    """Run what the last answer asks for; each result when it is stored."""
    calls = turn.calls
    coming: asyncio.Queue[ToolResultBlock] = asyncio.Queue()
    turn.tally.tool_calls += len(calls)
    working = asyncio.create_task(
        dispatch(
            calls,
            turn.agent.tools,
            turn.agent.bench(turn.session.id, turn.asked.user_id),
            events=turn.emit,
            results=coming.put_nowait,
            turn_id=turn.turn_id,
        ),
        name="dragoman-tools",
    )
    left = len(calls)
    try:
        while left:
            result = await _next(coming, working)
            left -= 1
            yield ResultStored(await _stored(turn, result))
    finally:
        if not working.done():
            working.cancel()
        await asyncio.wait([working])
        while not coming.empty():  # of a turn that is cancelled
            await _stored(turn, coming.get_nowait())


async def _next(coming: asyncio.Queue[ToolResultBlock], working: asyncio.Task[Any]) -> ToolResultBlock:
    getting = asyncio.create_task(coming.get())
    try:
        await asyncio.wait([getting, working], return_when=asyncio.FIRST_COMPLETED)
        if not getting.done() and coming.empty():
            working.result()  # raises what it failed with
        return await getting
    finally:
        getting.cancel()


async def _stored(turn: Turn, result: ToolResultBlock) -> Row:
    message: Message = turn.message(Role.TOOL, (result,), parent_tool_use_id=result.tool_use_id)
    (row,) = await turn.agent.store.append(turn.session.id, message)
    turn.history.append(row.message)
    return row
