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
from dragoman.store import entries as room
from dragoman.store.calls import learn_tool_ids, tool_ids_within
from dragoman.store.leases import release_lease
from dragoman.store.lineage import Stretch, lineage
from dragoman.store.operation import Operation, Rows, Statement, operation
from dragoman.store.reading import LITTLE, Found, page_within
from dragoman.store.recent import Recent
from dragoman.store.searching import Searching
from dragoman.store.sessions import get_session
from dragoman.store.unbroken import unbroken
from dragoman.store.values import Row, Session
from dragoman.store.writing import Draft, drafts_from, end_message

_MUCH: Final = 500  # messages that are read at a time, where there are more

ToolId = tuple[str, str, str]
Result = TypeVar("Result")


class Opened(msgspec.Struct, frozen=True):
    """What a turn has to know of its session."""

    session: Session
    rows: list[Row]
    tool_ids: tuple[ToolId, ...]


class TurnMethods:
    """What a store does for turns."""

    if TYPE_CHECKING:
        engine: str
        clock: Callable[[], datetime]
        searching: Searching
        _recent: Recent

        async def _read_little(self, operation: Operation[Any]) -> Any: ...
        async def _rows(self, found: Iterable[Found | Row]) -> list[Row]: ...
        async def _stored(self, drafts: Sequence[Draft], change: Callable[[Sequence[Draft]], Any]) -> Any: ...
        def _owned(self, session_id: str, message: Message) -> Message: ...
        async def read(self, session_id: str, after_seq: int = 0, limit: int = 50) -> list[Row]: ...

    def unbroken(self, work: Coroutine[Any, Any, Result]) -> Coroutine[Any, Any, Result]:
        """What work with this store gives, which goes to its end although whoever waits for it is cancelled."""
        return unbroken(work, at_once=self.engine == "sqlite")  # a connection to a server has time limits

    async def open_turn(self, session_id: str) -> Opened:
        """A session, its history, and what providers call its calls; ``UnknownSessionError`` if it is not there."""
        session, found, ids = await self._read_little(_opened(session_id, self._recent))
        rows = page = await self._rows(found)
        size = LITTLE
        while len(page) == size:
            size = _MUCH
            page = await self.read(session_id, rows[-1].seq, size)
            rows = [*rows, *page]
        return Opened(session, rows, tuple(ids))

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
        owned = self._owned(session_id, message)
        drafts = [room.draft_from(entry, agent_key, number) for number, entry in enumerate(entries)]
        now = self.clock()
        beside: list[Operation[Any]] = []
        if tool_ids:
            beside.append(learn_tool_ids(session_id, tool_ids))
        if drafts:
            beside.append(Operation(lambda: room.added(session_id, drafts)))
        if owner is not None:
            beside.append(release_lease(session_id, owner))
        seq = await self._stored(drafts_from([owned]), lambda given: _ended(session_id, given[0], now, beside))
        self.searching.soon()
        return Row(seq, owned)


@operation
def _opened(
    session_id: str, recent: Recent
) -> Generator[Statement, Rows, tuple[Session, list[Found | Row], list[ToolId]]]:
    session = yield from get_session(session_id)
    if not session.last_seq:  # where nothing was said, nothing was called
        return session, [], []
    is_alone = session.parent_session_id is None and not session.parent_seq
    stretches = [Stretch(session_id, 1, session.last_seq)] if is_alone else (yield from lineage(session_id))
    found = yield from page_within(stretches, 0, LITTLE, recent)
    return session, found, (yield from tool_ids_within(stretches))


@operation
def _ended(
    session_id: str, draft: Draft, now: datetime, beside: Sequence[Operation[Any]]
) -> Generator[Statement, Rows, int]:
    seq = yield from end_message(session_id, draft, now)
    for one in beside:
        yield from one
    return seq
