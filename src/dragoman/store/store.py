"""The store: sessions, messages, search, and facets for runs, turns, keys, trace, evaluations, costs, mail and entries.

Messages are only appended, in one order per session; a message of status ``partial`` is the only one that changes,
until it ends. An engine is a subclass that runs operations (see ``operation``) in transactions, and that opens, checks
and copies its database.

Invariant: a method returns only after its change has the ``durability`` of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from dragoman import value
from dragoman.errors import FormatError, InputError, UnknownSessionError
from dragoman.ids import UlidSource
from dragoman.message import Message, Role
from dragoman.offload import run_off_loop
from dragoman.signals import Signals
from dragoman.store import high_water, message_reader, message_writer, sessions, tool_call_rows
from dragoman.store.api_keys import KeyStore
from dragoman.store.archive import exporter, importer, verification
from dragoman.store.blobs import Blobs, FolderBlobs
from dragoman.store.costs import CostStore
from dragoman.store.engines import tables
from dragoman.store.entries import EntryStore
from dragoman.store.evaluations import EvaluationStore
from dragoman.store.gateway_calls import GatewayStore
from dragoman.store.high_water import HighWaterMark
from dragoman.store.labels import LABELS, SHARE, LabelStore
from dragoman.store.message_reader import MAX_CACHED_PAGE, SMALL_PAGE, AttachmentRefs, MessageCache, MessageRow
from dragoman.store.message_rows import message_hash
from dragoman.store.message_writer import Draft, MessageRange, SessionEnd
from dragoman.store.operation import NO_SYNC, UNKNOWN_TIME, AnyOperation, Outcome, quick, to_micros
from dragoman.store.preferences import PreferenceStore
from dragoman.store.retention import blob_gc, deletion, erasure
from dragoman.store.rule_check import reject_violations
from dragoman.store.runs import Run, RunEnd, RunStore
from dragoman.store.search.index import SearchFilters
from dragoman.store.search.search import SearchIndex
from dragoman.store.sessions import Segment
from dragoman.store.tool_call_rows import CallInfo
from dragoman.store.trace import TraceStore
from dragoman.store.turns import TurnStore
from dragoman.store.types import (
    ErasureReceipt,
    Hit,
    Owners,
    Row,
    Session,
    SizeReport,
    ToolCall,
    ToolCallStatus,
    Verification,
)

if TYPE_CHECKING:
    from dragoman.store.mailbox.mail_store import MailStore

_UNCHANGED: Final[Any] = object()
Stored = TypeVar("Stored")
_make_message: Final = value.unvalidated(Message)
_MAX_ENDS: Final = 4_096


def now_utc() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


class Store:
    """A store of sessions. ``open_store`` makes one; use it with ``async with``."""

    engine: str
    durability: str  # power-safe, process-crash-safe or memory

    def __init__(self, blobs: Blobs, clock: Callable[[], datetime] = now_utc) -> None:
        self.blobs = blobs
        self.clock = clock
        self.strict = False  # whether an append that violates a rule is rejected
        self.mark = HighWaterMark(None)
        self.signals = Signals()
        self.search_index = SearchIndex(self)
        self.costs = CostStore(self)
        self.entries = EntryStore(self)
        self.evaluations = EvaluationStore(self)
        self.gateway = GatewayStore(self)
        self.keys = KeyStore(self)
        self.labels = LabelStore(self)
        self.preferences = PreferenceStore(self)
        self.runs = RunStore(self)
        self.trace = TraceStore(self)
        self.turns = TurnStore(self)
        self._message_cache = MessageCache()
        self._ends: dict[str, SessionEnd] = {}  # after our last append; other processes may have appended since
        self.listed: set[str] = set()  # sessions that we appended to since the search index was filled
        self._ids = UlidSource(lambda: time.time_ns() // 1_000_000, lambda: int.from_bytes(os.urandom(10)))

    @property
    def local_paths(self) -> tuple[Path, ...]:
        """The local files and folders of the store. Files beside them that start with their names are its own."""
        return (self.blobs.folder,) if isinstance(self.blobs, FolderBlobs) else ()

    @functools.cached_property
    def mail(self) -> MailStore:
        """The letters of a store, for ``dragoman.mail``."""
        from dragoman.store.mailbox.mail_store import MailStore  # noqa: PLC0415  only mail needs it

        return MailStore(self)

    def new_id(self) -> str:
        """Return a ULID that is greater than all earlier ones of this store."""
        return self._ids.next()

    def new_ids(self, count: int) -> list[str]:
        """Return several of them."""
        return self._ids.next_many(count)

    # --- methods of an engine ----------------------------------------------------------------------------------------

    async def _read(self, operation: AnyOperation[Outcome]) -> Outcome:
        """Run an operation that only reads, on one consistent snapshot."""
        raise NotImplementedError

    async def _write(self, operation: AnyOperation[Outcome]) -> Outcome:
        """Run an operation in its own transaction, and return when it is committed."""
        raise NotImplementedError

    def _start_write(self, operation: AnyOperation[Outcome]) -> asyncio.Future[Outcome]:
        """Start ``_write``, and return the future of its result."""
        return asyncio.get_running_loop().create_task(self._write(operation))

    async def _commit(self, operation: AnyOperation[Outcome]) -> tuple[Outcome, Awaitable[Any]]:
        """Run an operation in its own transaction; return its result, and what to await until no power cut can lose it.

        The result is returned as soon as other processes see it. A failure of the sync is raised by the second part.
        """
        return await self._write(operation), NO_SYNC

    async def _write_index(self, operation: AnyOperation[Outcome]) -> Outcome:
        """Write to the search index, which is allowed on a read-only copy as well."""
        return await self._write(operation)

    async def _try_append(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        *,
        now: datetime,
        expected_seq: int | None,
        idempotency_key: str | None,
    ) -> MessageRange | None:
        """Append messages on the fast path of an engine; ``None`` if the general operation must decide."""
        del session_id, drafts, now, expected_seq, idempotency_key
        return None

    async def _try_append_events(
        self, run: Run, after: int, events: Sequence[str], end: RunEnd | None = None
    ) -> bool | None:
        """Append events of a run on the fast path of an engine; ``None`` if the general operation must decide."""
        del run, after, events, end
        return None

    async def open(self) -> None:
        """Open and check the store; ``StoreUnusableError`` if it would not be safe."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish pending operations and release all resources."""
        raise NotImplementedError

    async def _scrub(self) -> None:
        """Remove deleted content from the engine's files, as far as the engine allows."""

    def _find_copies(self, *, delete: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the copies beside this store: those that were deleted now, and those that remain."""
        del delete  # a database server has no copies
        return (), ()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        title: str | None = None,
        workspace_path: str = "",
        active_model: str | None = None,
        routing_policy: dict[str, Any] | None = None,
        user_id: str | None = None,
        team_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Session:
        """Create a session; ``ConflictError`` if the given id exists."""
        now = self.clock()
        session = Session(
            id=session_id or f"sess_{self._ids.next()}",
            title=title,
            workspace_path=workspace_path,
            active_model=active_model,
            routing_policy=routing_policy,
            user_id=user_id,
            team_id=team_id,
            metadata=metadata or {},
            created_at=now,
            updated_at=now,
        )
        result = await self._write(sessions.create_session(session))
        self.mark.add_session(result.id, result.last_seq)
        return result

    async def get_session(self, session_id: str) -> Session:
        """Return the session of that id, or raise ``UnknownSessionError``."""
        return await self._read(sessions.get_session(session_id))

    async def find_session(self, session_id: str) -> Session | None:
        """The session of that id, or ``None``."""
        return await self._read(quick(sessions.find_session(session_id)))

    async def read_sessions(self, *session_ids: str) -> list[Session]:
        """Return the sessions of a few ids that exist, in the order of the ids."""
        return await self._read(quick(sessions.read_sessions(session_ids)))

    async def list_sessions(
        self,
        *,
        user_id: str | None = None,
        team_id: str | None = None,
        before: Session | None = None,
        limit: int = 50,
    ) -> list[Session]:
        """Return sessions, the last changed first; ``before`` is the last one of the previous page."""
        place = (before.updated_at, before.id) if before is not None else None
        return await self._read(sessions.list_sessions(user_id, team_id, place, limit))

    async def find_sessions(self, part: str, limit: int = 10) -> list[Session]:
        """Return sessions whose id starts or ends with a text (``sess_`` is optional), the last changed first."""
        return await self._read(sessions.find_sessions(part, limit))

    async def rename_session(self, session_id: str, title: str | None) -> Session:
        """Change the title of a session."""
        return await self.change_session(session_id, title=title)

    async def change_session(
        self,
        session_id: str,
        *,
        title: str | None = _UNCHANGED,
        workspace_path: str = _UNCHANGED,
        active_model: str | None = _UNCHANGED,
        routing_policy: dict[str, Any] | None = _UNCHANGED,
        metadata: dict[str, Any] = _UNCHANGED,
        user_id: str | None = _UNCHANGED,
        team_id: str | None = _UNCHANGED,
    ) -> Session:
        """Change fields of a session; ``None`` clears a field."""
        values = {
            "title": title,
            "workspace_path": workspace_path,
            "active_model": active_model,
            "routing_policy": routing_policy,
            "metadata": metadata,
            "user_id": user_id,
            "team_id": team_id,
        }
        changes = {name: value for name, value in values.items() if value is not _UNCHANGED}
        return await self._write(sessions.change_session(session_id, changes, self.clock()))

    async def fork(
        self, session_id: str, at: str | int | None = None, *, title: str | None = None, user_id: str | None = None
    ) -> Session:
        """Create a session that shares the history up to a message, given by id or seq; the newest one by default."""
        origin = await self.get_session(session_id)
        seq = origin.last_seq if at is None else at if isinstance(at, int) else (await self._seq_of(session_id, at))
        now = self.clock()
        session = Session(
            id=f"sess_{self._ids.next()}",
            title=title if title is not None else origin.title,
            workspace_path=origin.workspace_path,
            active_model=origin.active_model,
            routing_policy=origin.routing_policy,
            user_id=user_id if user_id is not None else origin.user_id,
            team_id=origin.team_id,
            metadata={key: value for key, value in origin.metadata.items() if key not in (LABELS, SHARE)},
            created_at=now,
            updated_at=now,
        )
        result = await self._write(sessions.fork_session(session_id, seq, session))
        self.mark.add_session(result.id, result.last_seq)
        return result

    async def _seq_of(self, session_id: str, message_id: str) -> int:
        return (await self._read(message_reader.get_message(session_id, message_id))).seq

    # --- messages ----------------------------------------------------------------------------------------------------

    async def append(
        self,
        session_id: str,
        messages: Message | Iterable[Message],
        *,
        expected_seq: int | None = None,
        idempotency_key: str | None = None,
        strict: bool | None = None,
    ) -> list[Row]:
        """Append one or several messages to a session, all or none, and return them with their seqs.

        Messages without a session, as a dialect reads them, get this session, new ids, and the current time if they
        have none. ``expected_seq`` is the last seq that the caller has read: if there are newer messages, nothing is
        appended (``ConflictError``). The same messages again under the same ``idempotency_key``, or with the same
        message ids, change nothing and return the same seqs. With ``strict``, messages that violate a rule raise a
        ``RuleViolationError`` with repaired ones; the default is the setting of the store.
        """
        items = [messages] if isinstance(messages, Message) else message_writer.expect_messages(messages)
        if not items:
            return []
        own_messages = [self._adopt(session_id, message) for message in items]
        if self.strict if strict is None else strict:
            await reject_violations(self, session_id, own_messages)
        drafts = await message_writer.make_drafts(own_messages)
        now = self.clock()
        fields: dict[str, Any] = {"now": now, "expected_seq": expected_seq, "idempotency_key": idempotency_key}
        places = await self._try_append(session_id, drafts, **fields)
        if places is None:
            places = await self._store_messages(
                drafts,
                lambda drafts: message_writer.append_messages(
                    session_id,
                    drafts,
                    end=self._ends.get(session_id),
                    is_listed=session_id in self.listed,
                    **fields,
                ),
            )
        if places.end is not None:
            self.listed.add(session_id)
            self._acknowledge(session_id, places.end, own_messages[-1].id)
            return [Row(seq, message) for seq, message in zip(places.seqs, own_messages, strict=True)]
        return await self._to_rows(await self._read(message_reader.read_at(session_id, places.seqs)))

    def _acknowledge(self, session_id: str, end: SessionEnd, last_message_id: str) -> None:
        """Note what was appended: for the next append, the mark and the search index."""
        if len(self._ends) >= _MAX_ENDS:
            self._ends.clear()
            self.listed.clear()
        self._ends[session_id] = end
        self.mark.acknowledge(session_id, end[0], last_message_id)
        self.search_index.schedule()

    def _adopt(self, session_id: str, message: Message) -> Message:
        if message.session_id == session_id:
            return message
        if message.session_id:
            what = f"it belongs to session {message.session_id!r}"
            raise FormatError(what, where=f"message {message.id}", remedy=f"Append it there, not to {session_id!r}")
        created_at = self.clock() if message.created_at == UNKNOWN_TIME else message.created_at
        # The new fields are valid, and the others were validated when the message was created.
        return _make_message(
            self._ids.next(),
            session_id,
            message.role,
            message.content,
            message.metadata,
            created_at,
            message.schema_version,
            message.unknown_fields,
        )

    async def update(self, session_id: str, message: Message) -> Row:
        """Extend or end a partial message; ``ConflictError`` if it has ended."""
        own_message = self._adopt(session_id, message)
        (draft,) = await message_writer.make_drafts([own_message])
        now = self.clock()
        seq = await self._store_messages(
            [draft], lambda drafts: message_writer.update_message(session_id, drafts[0], now)
        )
        self.search_index.schedule()
        return Row(seq, own_message)

    async def read(self, session_id: str, after_seq: int = 0, limit: int = 50) -> list[Row]:
        """Return the messages after a seq, in order: the next page."""
        return await self._to_rows(
            await self._read(message_reader.read_page_after(session_id, after_seq, limit, self._message_cache))
        )

    async def read_before(self, session_id: str, before_seq: int, limit: int = 50) -> list[Row]:
        """Return the messages before a seq, in order: the previous page."""
        return await self._to_rows(
            await self._read(message_reader.read_page_before(session_id, before_seq, limit, self._message_cache))
        )

    async def tail(self, session_id: str, limit: int = 50) -> list[Row]:
        """Return the newest messages, in order."""
        return await self._to_rows(
            await self._read(message_reader.read_page_before(session_id, None, limit, self._message_cache))
        )

    async def get_message(self, session_id: str, message_id: str) -> Row:
        """Return the message of that id, or raise ``UnknownMessageError``."""
        (row,) = await self._to_rows([await self._read(message_reader.get_message(session_id, message_id))])
        return row

    async def history(self, session_id: str, page: int = 500) -> AsyncIterator[Row]:
        """Yield every message of a session in order, reading a page at a time."""
        after, size = 0, min(page, SMALL_PAGE)  # most sessions are short
        while rows := await self.read(session_id, after, size):
            for row in rows:
                yield row
            if len(rows) < size:  # the last page
                return
            after, size = rows[-1].seq, page

    async def seq_before(self, session_id: str, when: datetime) -> int:
        """Return the seq of the newest message before a time; 0 if there is none.

        Messages are in the order of their times unless they were imported. Otherwise the result is a seq whose message
        is before that time, and the next one is not.
        """
        return await self._read(message_reader.seq_before(session_id, to_micros(when)))

    async def find_message(self, session_id: str, name: str) -> Row:
        """Return the message of that id, or the newest one with that client id; else raise ``UnknownMessageError``."""
        (row,) = await self._to_rows([await self._read(message_reader.find_message(self.engine, session_id, name))])
        return row

    async def count_messages(self, session_id: str, role: Role) -> int:
        """Count the messages of a role in a session, without those that it shares as a fork."""
        return await self._read(message_reader.count_messages(session_id, role))

    async def find_calls(self, session_id: str, call_ids: Sequence[str]) -> dict[str, CallInfo]:
        """Return the stored details of these calls of a history."""
        return await self._read(tool_call_rows.find_calls(session_id, call_ids)) if call_ids else {}

    async def list_sessions_of(
        self, owners: Owners, *, before: tuple[datetime, str] | None = None, limit: int = 50
    ) -> list[Session]:
        """Return sessions by owner, the last changed first; ``before``: time and id of the last one already read."""
        return await self._read(sessions.list_sessions_of(owners, before, limit))

    async def lineage(self, session_id: str) -> list[Segment]:
        """Return the segments of a history: which session owns which messages, the oldest first."""
        return await self._read(sessions.lineage(session_id))

    async def list_forks(self, parents: Sequence[str], owners: Owners) -> list[Session]:
        """Return the forks of these sessions that belong to the owners, the oldest first."""
        return await self._read(sessions.list_forks(parents, owners)) if parents else []

    async def find_attachment_refs(self, session_id: str, owners: Owners, prefix: str) -> AttachmentRefs:
        """Return the files of this session only, and shared ones: in other sessions of the owners or under a prefix."""
        return await self._read(message_reader.find_attachment_refs(session_id, owners, prefix))

    async def _store_messages(
        self, drafts: Sequence[Draft], change: Callable[[Sequence[Draft]], AnyOperation[Outcome]]
    ) -> Outcome:
        """Store messages after their blobs."""
        return await self._run_with_blobs(self._write, drafts, change)

    async def _commit_messages(
        self, drafts: Sequence[Draft], change: Callable[[Sequence[Draft]], AnyOperation[Outcome]]
    ) -> tuple[Outcome, Awaitable[Any]]:
        """Store messages after their blobs; see ``_commit``."""
        return await self._run_with_blobs(self._commit, drafts, change)

    async def _run_with_blobs(
        self,
        run: Callable[[AnyOperation[Outcome]], Awaitable[Stored]],
        drafts: Sequence[Draft],
        change: Callable[[Sequence[Draft]], AnyOperation[Outcome]],
    ) -> Stored:
        while True:
            for draft in drafts:
                if draft.columns.blobs:
                    await self._put_blobs(draft)
            try:
                return await run(change(drafts))
            except message_writer.BlobCollectedError as error:
                drafts = await blob_gc.prepare_retry(self, drafts, error)

    async def _put_blobs(self, draft: Draft) -> None:
        """Store the blobs of a message before a row refers to them."""
        for sha256, data in draft.columns.blobs.items():
            await self.blobs.put(sha256, data)

    async def _to_rows(self, items: Sequence[MessageRow | Row]) -> list[Row]:
        """Decode rows; a long page in a thread, so that the event loop stays responsive."""
        new_items = [item for item in items if isinstance(item, MessageRow)]
        blobs = {item.seq: await self._get_blobs(item) for item in new_items if item.columns.blobs_json is not None}
        size = sum(map(message_reader.row_size, new_items)) + sum(
            len(data) for parts in blobs.values() for data in parts.values()
        )
        rows = await run_off_loop(size, message_reader.decode_rows, items, blobs)
        if len(items) <= MAX_CACHED_PAGE:
            for item, message in await run_off_loop(size, message_reader.find_cacheable, items, rows):
                self._message_cache.put(item.session_id, item.seq, item.hash, message, message_reader.row_size(item))
        return rows

    async def _get_blobs(self, row: MessageRow) -> dict[str, bytes]:
        """Return the blobs of a row; none if the hash of the row does not match."""
        columns = row.columns
        if columns.blobs_json is None or message_hash(row.session_id, row.seq, columns) != row.hash:
            return {}
        return {sha256: await self.blobs.get(sha256) for _, sha256, _ in msgspec.json.decode(columns.blobs_json)}

    # --- search ------------------------------------------------------------------------------------------------------

    async def search(
        self,
        words: str,
        *,
        session_id: str | None = None,
        role: str | None = None,
        model: str | None = None,
        user_id: str | None = None,
        team_id: str | None = None,
        owners: Owners | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        has_tool: bool = False,
        limit: int = 20,
        offset: int = 0,
    ) -> list[Hit]:
        """Return messages that contain all words, the best first, including all that were stored before the call.

        The last word is a prefix; ``"words in quotes"`` are a phrase. ``session_id`` selects a whole history,
        including what a fork shares. ``user_id`` and ``team_id`` select their sessions, what their forks share, and
        messages that record them; ``owners`` selects sessions only. ``until`` is exclusive. ``has_tool`` selects
        messages with tool calls or results.
        """
        filters = SearchFilters(
            session_id=session_id,
            role=role,
            model=model,
            user_id=user_id,
            team_id=team_id,
            owners=owners,
            since=since,
            until=until,
            has_tool=has_tool,
        )
        return await self.search_index.search(words, filters, limit, offset)

    async def reindex(self) -> None:
        """Rebuild the search index. Searches wait for it."""
        await self.search_index.reindex()

    # --- tools -------------------------------------------------------------------------------------------------------

    async def tool_calls(self, session_id: str, status: ToolCallStatus | None = None) -> list[ToolCall]:
        """Return the tool calls of a session in order, of one status if given."""
        return await self._read(tool_call_rows.tool_calls(session_id, status))

    async def cancel_tool_call(self, session_id: str, call_id: str) -> bool:
        """Cancel a tool call; false if it does not exist or has a result."""
        return await self._write(tool_call_rows.cancel_tool_call(session_id, call_id, self.clock()))

    async def tool_ids(self, session_id: str) -> tuple[tuple[str, str, str], ...]:
        """Return the providers' ids of the tool calls of a session, for ``dragoman.ids.ToolIds``."""
        return tuple(await self._read(tool_call_rows.tool_ids(session_id)))

    async def save_tool_ids(self, session_id: str, entries: Sequence[tuple[str, str, str]]) -> None:
        """Store providers' ids of tool calls: provider, our id, their id."""
        if entries:
            await self._write(tool_call_rows.insert_tool_ids(session_id, entries))

    # --- retention ---------------------------------------------------------------------------------------------------

    async def delete_session(self, session_id: str) -> None:
        """Delete a session. Its forks keep their histories, and the totals keep its costs."""
        self.mark.forget([session_id])
        await self._write(deletion.delete_session(self.engine, session_id, self._ids.next))
        self._message_cache.clear()

    async def retain(
        self, older_than: timedelta, *, user_id: str | None = None, dry_run: bool = False
    ) -> list[Session]:
        """Delete the sessions that have not changed for this time, and return them, the oldest first.

        A session in which a turn is running stays. ``dry_run`` deletes nothing.
        """
        cutoff = self.cutoff(older_than)
        candidates = await self._read(deletion.find_inactive_sessions(cutoff, user_id))
        if dry_run:
            return candidates
        deleted = []
        for session in candidates:
            if await self.delete_if_inactive(session.id, cutoff):
                deleted.append(session)
        return deleted

    def cutoff(self, older_than: timedelta) -> datetime:
        """Return the time that is ``older_than`` ago; ``InputError`` for a time in the future."""
        if older_than < timedelta():
            what = "the age of sessions to delete is negative"
            raise InputError(what, where=f"older_than {older_than}", remedy="Pass a duration")
        try:
            return self.clock() - older_than
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)  # before any session

    async def delete_if_inactive(self, session_id: str, before: datetime, lease_owner: str = "") -> bool:
        """Delete a session that has not changed since; return whether it did. ``lease_owner`` may hold its lease."""
        self.mark.forget([session_id])
        is_deleted = await self._write(
            deletion.delete_inactive_session(self.engine, session_id, before, self._ids.next, lease_owner=lease_owner)
        )
        self._message_cache.clear()
        if not is_deleted:
            with contextlib.suppress(UnknownSessionError):
                self.mark.add_session(session_id, (await self.get_session(session_id)).last_seq)
        return is_deleted

    async def erase_user(
        self,
        user_id: str,
        delete_files: Callable[[], Awaitable[int]] | None = None,
        *,
        delete_copies: bool = False,
    ) -> ErasureReceipt:
        """Erase a user: all sessions of the user, and the user's messages in sessions of others. It cannot be undone.

        The sessions of the user are deleted, including the parts that forks of others share. Messages in sessions of
        others become tombstones. The totals keep the usage without the user. Older copies of the database are not
        changed: the receipt names those beside the database, and ``delete_copies`` deletes those that migrations made.

        ``delete_files`` deletes the uploads of the user and returns their number. It is called after the keys of the
        user are deleted. If it fails, the receipt has the reason; erase the user again to retry.
        """
        return await erasure.erase(self, user_id, delete_files, delete_copies=delete_copies)

    async def erasures(self) -> list[ErasureReceipt]:
        """Return the receipts of all erasures, the oldest first."""
        return await self._read(erasure.erasures())

    async def collect_blobs(self, grace: timedelta = timedelta(hours=1)) -> int:
        """Delete blobs without a reference that were not put within ``grace``; return their number."""
        return await blob_gc.collect_blobs(self, grace)

    async def sizes(self) -> SizeReport:
        """Return the size of the store and of its tables."""
        report = await self._read(tables.sizes(self.engine))
        blobs = [blob.size async for blob in self.blobs.list()]
        return msgspec.structs.replace(report, blobs=len(blobs), blob_bytes=sum(blobs))

    async def verify(
        self, session_id: str | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Verification:
        """Verify all stored rows against their hashes, or those of one session and its lineage.

        ``progress`` receives the number of verified messages and of all messages.
        """
        return await verification.verify(self, session_id, progress)

    async def accept_loss(self) -> None:
        """Accept that messages are missing at the end of sessions: ``verify`` reports only later losses.

        Call this after you have restored an older copy of a SQLite file on purpose, or when its mark is damaged.
        """
        ends = await self._write(high_water.session_ends())
        self.mark.accept_losses(ends, self.clock())
        self.mark.forget(ends.keys() - (await self._read(high_water.session_ends())).keys())  # deleted meanwhile

    # --- archive -----------------------------------------------------------------------------------------------------

    def export(self, session_id: str) -> AsyncIterator[bytes]:
        """Export a session with its whole history as JSON Lines, line by line."""
        return exporter.export_session(self, session_id)

    async def import_session(
        self, lines: AsyncIterable[bytes] | Iterable[bytes], session_id: str | None = None
    ) -> Session:
        """Import a session that ``export`` wrote, or messages alone, one per line; with ``session_id``, as a copy.

        A truncated or changed file is rejected, and nothing of it is stored. The same session again changes nothing;
        another one of the same id is a ``ConflictError``.
        """
        return await importer.import_session(self, lines, session_id)

    def export_store(self, progress: Callable[[int, int], None] | None = None) -> AsyncIterator[bytes]:
        """Export every session as JSON Lines, forks as forks."""
        return exporter.export_store(self, progress)

    async def import_store(
        self,
        lines: AsyncIterable[bytes] | Iterable[bytes],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Session]:
        """Import every session that ``export_store`` wrote. After an interruption, the same call continues."""
        return await importer.import_store(self, lines, progress)

    async def backup(self, target: str | Path, progress: Callable[[int, int], None] | None = None) -> Verification:
        """Copy the store into a SQLite file with a folder of blobs beside it, and verify the copy.

        The store may be in use. The copy is a store: open it to restore it. ``target`` must not exist. ``progress``
        receives the amount copied and the total.
        """
        from dragoman.store.archive import backup  # noqa: PLC0415  only backups need SQLite

        return await backup.backup(self, Path(target), progress)
