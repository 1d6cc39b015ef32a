"""What a turn reads at its beginning and writes at the end of an answer, each in one step.

One after the other, these would be four ways to the disk and back where one does. The one rule: what ends together is
stored together, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from dragoman.message import Message
from dragoman.shield import run_to_completion
from dragoman.store import entries as room
from dragoman.store.leases import release_lease
from dragoman.store.lineage import Segment, lineage
from dragoman.store.message_reader import SMALL_PAGE, MessageRow, read_page_in_segments
from dragoman.store.message_writer import Draft, drafts_from, update_message
from dragoman.store.operation import Operation, Rows, Statement, operation
from dragoman.store.recent import MessageCache
from dragoman.store.search.search import SearchIndex
from dragoman.store.sessions import get_session
from dragoman.store.tool_call_rows import insert_tool_ids, tool_ids_in_segments
from dragoman.store.types import Row, Session

_LARGE_PAGE: Final = 500  # messages that are read at a time, where there are more

ToolId = tuple[str, str, str]
Result = TypeVar("Result")


class TurnSnapshot(msgspec.Struct, frozen=True):
    """What a turn has to know of its session."""

    session: Session
    rows: list[Row]
    tool_ids: tuple[ToolId, ...]


class TurnMethods:
    """What a store does for turns."""

    if TYPE_CHECKING:
        engine: str
        clock: Callable[[], datetime]
        search_index: SearchIndex
        _message_cache: MessageCache

        async def _read_inline(self, operation: Operation[Any]) -> Any: ...
        async def _to_rows(self, items: Iterable[MessageRow | Row]) -> list[Row]: ...
        async def _store_messages(self, drafts: Sequence[Draft], change: Callable[[Sequence[Draft]], Any]) -> Any: ...
        def _adopt(self, session_id: str, message: Message) -> Message: ...
        async def read(self, session_id: str, after_seq: int = 0, limit: int = 50) -> list[Row]: ...

    def run_to_completion(self, work: Coroutine[Any, Any, Result]) -> Coroutine[Any, Any, Result]:
        """What work with this store gives, which goes to its end although whoever waits for it is cancelled."""
        return run_to_completion(work, start_inline=self.engine == "sqlite")  # a connection to a server has time limits

    async def open_turn(self, session_id: str) -> TurnSnapshot:
        """A session, its history, and what providers call its calls; ``UnknownSessionError`` if it is not there."""
        session, items, ids = await self._read_inline(_read_snapshot(session_id, self._message_cache))
        rows = page = await self._to_rows(items)
        size = SMALL_PAGE
        while len(page) == size:
            size = _LARGE_PAGE
            page = await self.read(session_id, rows[-1].seq, size)
            rows = [*rows, *page]
        return TurnSnapshot(session, rows, tuple(ids))

    async def end_answer(
        self,
        session_id: str,
        message: Message,
        *,
        tool_ids: Sequence[ToolId] = (),
        entries: Sequence[Mapping[str, Any]] = (),
        agent_key: str | None = None,
        owner: str | None = None,
    ) -> Row:
        """End a message that was arriving, and with it: what its calls are called, entries, the lease of an owner."""
        own_message = self._adopt(session_id, message)
        drafts = [room.draft_from(entry, agent_key, number) for number, entry in enumerate(entries)]
        now = self.clock()
        extra_operations: list[Operation[Any]] = []
        if tool_ids:
            extra_operations.append(insert_tool_ids(session_id, tool_ids))
        if drafts:
            extra_operations.append(Operation(lambda: room.insert_entries(session_id, drafts)))
        if owner is not None:
            extra_operations.append(release_lease(session_id, owner))
        seq = await self._store_messages(
            drafts_from([own_message]), lambda given: _finish_answer(session_id, given[0], now, extra_operations)
        )
        self.search_index.schedule()
        return Row(seq, own_message)


@operation
def _read_snapshot(
    session_id: str, cache: MessageCache
) -> Generator[Statement, Rows, tuple[Session, list[MessageRow | Row], list[ToolId]]]:
    session = yield from get_session(session_id)
    if not session.last_seq:  # where nothing was said, nothing was called
        return session, [], []
    is_alone = session.parent_session_id is None and not session.parent_seq
    segments = [Segment(session_id, 1, session.last_seq)] if is_alone else (yield from lineage(session_id))
    rows = yield from read_page_in_segments(segments, 0, SMALL_PAGE, cache)
    return session, rows, (yield from tool_ids_in_segments(segments))


@operation
def _finish_answer(
    session_id: str, draft: Draft, now: datetime, extra_operations: Sequence[Operation[Any]]
) -> Generator[Statement, Rows, int]:
    seq = yield from update_message(session_id, draft, now)
    for extra in extra_operations:
        yield from extra
    return seq
