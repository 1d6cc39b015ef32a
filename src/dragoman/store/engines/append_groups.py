"""Appends to PostgreSQL that wait at the same time share one statement.

Few appends run at once, each as a statement of its own. Those that arrive meanwhile wait, and the next statement
appends the messages of all of them, each to its own session. An append whose session has moved on changes nothing and
receives no seqs; the others are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

from dragoman.store.engines import single_statement
from dragoman.store.message_writer import Draft, SessionEnd
from dragoman.store.operation import Rows, Statement

_MAX_RUNNING: Final = 2  # statements at once
_MAX_GROUP: Final = 64  # appends in one statement


class AppendGroups:
    """The appends of one store that wait."""

    def __init__(self, run: Callable[[Statement], Awaitable[Rows]]) -> None:
        self._run = run
        self._running = 0
        self._waiting: dict[str, tuple[single_statement.Append, asyncio.Future[list[int]]]] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, session_id: str, drafts: Sequence[Draft], end: SessionEnd, now: datetime) -> list[int]:
        """Append messages; return their seqs, or none if the general operation must decide."""
        if session_id in self._waiting:
            return []
        append = single_statement.Append(session_id, drafts, end, now)
        if self._running >= _MAX_RUNNING:
            future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
            self._waiting[session_id] = append, future
            return await future
        self._running += 1
        try:
            rows = await self._run(single_statement.append_statement(session_id, drafts, end, now=now, key=None))
        finally:
            self._running -= 1
            self._start_next()
        return sorted(seq for (seq,) in rows)

    def _start_next(self) -> None:
        if self._waiting and self._running < _MAX_RUNNING:
            self._running += 1
            task = asyncio.get_running_loop().create_task(self._run_group())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_group(self) -> None:
        group = [self._waiting.pop(session_id) for session_id in list(self._waiting)[:_MAX_GROUP]]
        appends = [append for append, future in group if not future.done()]
        seqs: dict[str, list[int]] = {}
        try:
            if appends:
                with contextlib.suppress(Exception):  # the general operation of each append raises it
                    for session_id, seq in await self._run(single_statement.append_group_statement(appends)):
                        seqs.setdefault(session_id, []).append(seq)
        finally:
            self._running -= 1
            self._start_next()
            for append, future in group:
                if not future.done():
                    future.set_result(sorted(seqs.get(append.session_id, ())))
