"""An answer that is still arriving, in the store: there before the first byte is asked for, and never far behind.

What has arrived is written at the latest a second after it came, or when 8 KiB are new, in a task of its own, so that
the stream does not wait for the disk. The one rule: the row is ended exactly once, and what arrived is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from dragoman.adapter import Adapter, RequestContext
from dragoman.errors import DragomanError
from dragoman.event import Folding, StreamEvent, TextDelta, ThinkingDelta, ToolUseInputDelta
from dragoman.exchange import Reply
from dragoman.message import Message, MessageStatus
from dragoman.store import Row, Store
from dragoman.turn.stages import stage_of_answer

FLUSH_S: Final = 1.0
FLUSH_CHARACTERS: Final = 8 * 1024


class Growing:
    """The row of one answer."""

    def __init__(self, store: Store, row: Row, adapter: Adapter, context: RequestContext) -> None:
        self.row = row
        self.folding = Folding()
        self._store = store
        self._adapter = adapter
        self._context = context
        self._new = 0  # characters that are not stored yet
        self._has_news = False
        self._soon: asyncio.TimerHandle | None = None  # when what has arrived is to be stored
        self._storing: asyncio.Task[None] | None = None
        self._is_ending = False

    def take(self, event: StreamEvent) -> None:
        """One more event of the stream. Each word of an answer passes here, so this does next to nothing."""
        self.folding.take(event)
        kind = type(event)
        if kind is TextDelta or kind is ThinkingDelta:
            self._new += len(event.text)  # type: ignore[union-attr]
        elif kind is ToolUseInputDelta:
            self._new += len(event.partial_json)  # type: ignore[union-attr]
        if not self._has_news:
            self._has_news = True
            self._soon = asyncio.get_running_loop().call_later(FLUSH_S, self._store_now)
        if self._new >= FLUSH_CHARACTERS and self._storing is None:
            self._store_now()

    def _store_now(self) -> None:
        self._wait_no_longer()
        if self._storing is None and not self._is_ending:
            self._storing = asyncio.create_task(self._stored(), name="dragoman-answer")

    async def _stored(self) -> None:
        """Store what has arrived; and again, if much has arrived meanwhile."""
        while self._has_news and not self._is_ending:
            self._wait_no_longer()
            self._has_news, self._new = False, 0
            with contextlib.suppress(DragomanError, ValueError):  # whoever ends the row hears of what fails
                await self._store.update(self._context.session_id, self._so_far())
            if self._new < FLUSH_CHARACTERS and self._soon is not None:
                break  # the rest waits for its time
        self._storing = None

    def _wait_no_longer(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _so_far(self) -> Message:
        return self.message(self.folding.reply(), self._context, MessageStatus.PARTIAL)

    def message(self, reply: Reply, context: RequestContext, status: MessageStatus | None = None) -> Message:
        """The answer as a message of that status; without one, as the reply itself says."""
        kept = self.row.message.metadata
        told = {"user_id": kept.user_id, "team_id": kept.team_id, "run_id": kept.run_id}
        told["stage"] = stage_of_answer(reply.content)
        return self._adapter.message_from(reply, context, status, **told)

    async def end(self, message: Message, **beside: Any) -> Row:
        """Write the answer as it ended, and what ends with it (see ``end_answer`` of a store)."""
        self._is_ending = True
        self._wait_no_longer()
        if self._storing is not None:
            await asyncio.wait([self._storing])
        return await self._store.end_answer(self._context.session_id, message, **beside)
