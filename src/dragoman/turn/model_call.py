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
from dragoman.event import Accumulator, StreamEvent, TextDelta, ThinkingDelta, ToolUseInputDelta
from dragoman.exchange import Reply
from dragoman.message import Message, MessageStatus
from dragoman.store import Row, Store
from dragoman.turn.stages import stage_of_answer

FLUSH_S: Final = 1.0
FLUSH_CHARACTERS: Final = 8 * 1024


class AnswerWriter:
    """The row of one answer."""

    def __init__(self, store: Store, row: Row, adapter: Adapter, context: RequestContext) -> None:
        self.row = row
        self.accumulator = Accumulator()
        self._store = store
        self._adapter = adapter
        self._context = context
        self._unsaved_chars = 0  # characters that are not stored yet
        self._has_unsaved = False
        self._timer: asyncio.TimerHandle | None = None  # when what has arrived is to be stored
        self._flush_task: asyncio.Task[None] | None = None
        self._is_closed = False

    def feed(self, event: StreamEvent) -> None:
        """One more event of the stream. Each word of an answer passes here, so this does next to nothing."""
        self.accumulator.add(event)
        kind = type(event)
        if kind is TextDelta or kind is ThinkingDelta:
            self._unsaved_chars += len(event.text)  # type: ignore[union-attr]
        elif kind is ToolUseInputDelta:
            self._unsaved_chars += len(event.partial_json)  # type: ignore[union-attr]
        if not self._has_unsaved:
            self._has_unsaved = True
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._start_flush)
        if self._unsaved_chars >= FLUSH_CHARACTERS and self._flush_task is None:
            self._start_flush()

    def _start_flush(self) -> None:
        self._cancel_timer()
        if self._flush_task is None and not self._is_closed:
            self._flush_task = asyncio.create_task(self._flush(), name="dragoman-answer")

    async def _flush(self) -> None:
        """Store what has arrived; and again, if much has arrived meanwhile."""
        while self._has_unsaved and not self._is_closed:
            self._cancel_timer()
            self._has_unsaved, self._unsaved_chars = False, 0
            with contextlib.suppress(DragomanError, ValueError):  # whoever ends the row hears of what fails
                await self._store.update(self._context.session_id, self._partial_message())
            if self._unsaved_chars < FLUSH_CHARACTERS and self._timer is not None:
                break  # the rest waits for its time
        self._flush_task = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _partial_message(self) -> Message:
        return self.message(self.accumulator.reply(), self._context, MessageStatus.PARTIAL)

    def message(self, reply: Reply, context: RequestContext, status: MessageStatus | None = None) -> Message:
        """The answer as a message of that status; without one, as the reply itself says."""
        metadata = self.row.message.metadata
        fields = {"user_id": metadata.user_id, "team_id": metadata.team_id, "run_id": metadata.run_id}
        fields["stage"] = stage_of_answer(reply.content)
        return self._adapter.make_message(reply, context, status, **fields)

    async def finish(self, message: Message, **fields: Any) -> Row:
        """Write the answer as it ended, and what ends with it (see ``end_answer`` of a store)."""
        self._is_closed = True
        self._cancel_timer()
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])
        return await self._store.turns.finish_answer(self._context.session_id, message, **fields)
