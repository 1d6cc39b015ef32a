"""Import sessions from JSON Lines that ``exporter`` wrote, or from messages alone, one a line.

Invariant: a file is read to its end and found complete before anything of it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Final

import msgspec

from dragoman import codec
from dragoman.errors import ConflictError, FormatError, JsonError, UnknownSessionError
from dragoman.message import Message
from dragoman.store import entries, evaluations, trace
from dragoman.store.message_rows import columns_from
from dragoman.store.message_writer import BlobCollectedError, Draft, append_messages, check_usage
from dragoman.store.operation import UNKNOWN_TIME, Steps, from_micros, operation, to_micros
from dragoman.store.retention import blob_gc, deletion
from dragoman.store.sessions import create_session, get_session
from dragoman.store.tool_call_rows import cancel_tool_call, insert_tool_ids
from dragoman.store.types import Evaluation, Session, TraceEvent

if TYPE_CHECKING:
    from dragoman.store.store import Store
from dragoman.store.archive.exporter import (
    FORMAT,
    PAGE,
    CallRecords,
    EntryLine,
    EvaluationLine,
    EventLine,
    Progress,
    SessionHeader,
    SessionTrailer,
    StoreHeader,
    StoreTrailer,
    stored_entries,
)

Lines = AsyncIterable[bytes] | Iterable[bytes]
_APPEND_BATCH: Final = 50
_CONVERT_HINT: Final = "If the file is in another format, convert it first: dragoman convert FILE messages.jsonl"
_SPOOL_BYTES: Final = 4 * 1024 * 1024


class _Section(msgspec.Struct, kw_only=True):
    """A session of an export file, and the offsets of its lines."""

    session: Session
    offset: int  # of its first message
    messages: int = 0
    entries_offset: int = 0  # of its first entry
    entries: int = 0
    trace_offset: int = 0  # of its first event or evaluation
    trace: int = 0
    call_records: CallRecords = msgspec.field(default_factory=lambda: CallRecords(tool_ids=[]))
    is_bare: bool = False  # messages only, without a session header
    is_copy: bool = False  # its messages become this session's own


async def import_session(store: Store, lines: Lines, session_id: str | None) -> Session:
    """Store a session that was written out."""
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as file:
        reader = await _scan_file(file, lines, f"sess_{store._ids.next()}", session_id)
        if reader.sessions is not None:
            what = f"it is a whole store of {reader.sessions} sessions"
            raise FormatError(what, remedy="Read it with import_store")
        (section,) = reader.sections
        if session_id is not None and session_id != section.session.id:
            section.session = msgspec.structs.replace(section.session, id=session_id)
            section.is_copy = True
        if not await _is_stored(store, file, section):
            await _store_section(store, file, section)
        return await store.get_session(section.session.id)


async def import_store(store: Store, lines: Lines, progress: Progress | None) -> list[Session]:
    """Store every session of a file. A session that is stored already with the same content is skipped."""
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as file:
        sections = (await _scan_file(file, lines, f"sess_{store._ids.next()}", None)).sections
        missing = [section for section in sections if not await _is_stored(store, file, section)]
        done, total = 0, sum(section.messages for section in missing)
        for section in missing:
            await _store_section(store, file, section)
            done += section.messages
            if progress is not None:
                progress(done, total)
        return [await store.get_session(section.session.id) for section in sections]


async def _scan_file(file: IO[bytes], lines: Lines, new_id: str, session_id: str | None) -> _ArchiveReader:
    """Copy the lines into a temporary file and check that the export is complete."""
    reader = _ArchiveReader(new_id, session_id)
    number = 0
    async for line in _split_lines(lines):
        number += 1
        try:
            reader.read_line(line + b"\n", file.tell())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, JsonError) as error:
            raise _incomplete_error(f"line {number} is not a line of an export ({error})") from None
        except FormatError as error:
            if reader.has_header and error.code == FormatError.code:
                raise _incomplete_error(f"line {number} is not a line of an export ({error.what})") from None
            raise _with_line_number(number, error) from None
        file.write(line + b"\n")
        if number % PAGE == 0:
            await asyncio.sleep(0)
    reader.finish()
    return reader


async def _split_lines(lines: Lines) -> AsyncIterator[bytes]:
    """Yield lines from chunks of bytes."""
    rest = b""
    async for chunk in _iterate_chunks(lines):
        first, *others = chunk.split(b"\n")
        rest += first
        for other in others:
            yield rest
            rest = other
    if rest:
        yield rest


async def _iterate_chunks(lines: Lines) -> AsyncIterator[bytes]:
    if isinstance(lines, AsyncIterable):
        async for chunk in lines:
            yield chunk
    else:
        for chunk in lines:
            yield chunk


def _with_line_number(number: int, error: FormatError) -> FormatError:
    """Return the error with its line number, and a hint to convert a line that is not a canonical message."""
    where = f"line {number}, {error.where}" if error.where else f"line {number}"
    remedy = error.remedy or (_CONVERT_HINT if error.code == FormatError.code else "")
    return FormatError(error.what, where=where, remedy=remedy, code=error.code)


def _incomplete_error(what: str) -> FormatError:
    return FormatError(what, remedy="Nothing was stored; use the unchanged file", code="cut_export")


class _ArchiveReader:
    """Read an export line by line: check that it is complete and record the offsets of its sections."""

    def __init__(self, new_id: str, session_id: str | None) -> None:
        self.sections: list[_Section] = []
        self.sessions: int | None = None  # the number of sessions that the header of a store export promises
        self._new_id = new_id
        self._session_id = session_id
        self._current: _Section | None = None
        self._is_complete = False
        self._store_digest = hashlib.sha256()
        self._section_digest = hashlib.sha256()
        self._ids: set[str] = set()

    @property
    def has_header(self) -> bool:
        """Whether the file is an export rather than messages alone."""
        return self.sessions is not None or (self._current is not None and not self._current.is_bare)

    def read_line(self, line: bytes, offset: int) -> None:
        """Read the next line, which starts at ``offset``."""
        if not line.strip():
            return
        if self._is_complete:
            raise _incomplete_error("lines follow its last line")
        match line[: line.find(b":")]:
            case b'{"dragoman_store"' if not self.sections and self.sessions is None:
                head = msgspec.json.decode(line, type=StoreHeader)
                self._check_format(head.dragoman_store)
                self.sessions = head.sessions
            case b'{"dragoman_session"' if self._current is None:
                self._start_section(msgspec.json.decode(line, type=SessionHeader), offset + len(line))
            case b'{"tool_ids"' if self._current is not None:
                self._current.call_records = msgspec.json.decode(line, type=CallRecords)
            case b'{"entry"' if self._current is not None:
                msgspec.json.decode(line, type=EntryLine)
                self._current.entries_offset = self._current.entries_offset or offset
                self._current.entries += 1
            case b'{"event"' | b'{"evaluation"' if self._current is not None:
                record = _decode_trace_line(line)
                if isinstance(record, Evaluation):
                    evaluations.check_evaluation(record)
                self._current.trace_offset = self._current.trace_offset or offset
                self._current.trace += 1
            case b'{"messages"' if self._current is not None:
                self._end_section(msgspec.json.decode(line, type=SessionTrailer))
            case b'{"sessions"' if self._current is None and self.sessions is not None:
                self._end_store(msgspec.json.decode(line, type=StoreTrailer))
            case _:
                self._read_message(codec.decode(line.rstrip(b"\n")), offset)
        self._store_digest.update(line)
        self._section_digest.update(line)

    def _check_format(self, number: int) -> None:
        if number > FORMAT:
            raise FormatError(
                f"a newer Dragoman wrote it (format {number}; this version reads up to {FORMAT})",
                remedy="Read it with a newer Dragoman",
                code="newer_export",
            )

    def _start_section(self, head: SessionHeader, offset: int) -> None:
        self._check_format(head.dragoman_session)
        self._current = _Section(session=head.session, offset=offset)
        self._section_digest = hashlib.sha256()
        self._ids = set()

    def _read_message(self, message: Message, offset: int) -> None:
        if self._current is None:
            if self.sections or self.sessions is not None:
                raise _incomplete_error("a message is outside of every session")
            session_id = self._session_id or message.session_id or self._new_id
            when = message.created_at
            session = Session(id=session_id, created_at=when, updated_at=when)
            self._current = _Section(session=session, offset=offset, is_bare=True, is_copy=self._session_id is not None)
            self._current.is_copy |= not message.session_id
        check_usage(message)
        section = self._current
        if section.is_bare and not section.is_copy and message.session_id != section.session.id:
            what = f"its messages are of several sessions: {section.session.id!r} and {message.session_id!r}"
            raise FormatError(what, remedy="Name the target session with session_id")
        if message.id and message.id in self._ids:
            raise FormatError("two messages have the same id", where=f"message {message.id}")
        self._ids.add(message.id)
        section.messages += 1
        if section.is_bare:
            section.session = msgspec.structs.replace(
                section.session,
                last_seq=section.messages,
                updated_at=max(section.session.updated_at, message.created_at),
            )

    def _end_section(self, end: SessionTrailer) -> None:
        section = self._current
        assert section is not None
        if (end.messages, end.sha256) != (section.messages, self._section_digest.hexdigest()):
            raise _incomplete_error("it was cut or changed: its hash does not match its last line")
        if section.session.last_seq != section.session.parent_seq + section.messages:
            raise _incomplete_error(
                f"it has {section.messages} messages, and should end with message {section.session.last_seq}"
            )
        self.sections.append(section)
        self._current = None
        self._is_complete = self.sessions is None

    def _end_store(self, end: StoreTrailer) -> None:
        if end.sessions != len(self.sections) or end.sha256 != self._store_digest.hexdigest():
            raise _incomplete_error("it was cut or changed: its hash does not match its last line")
        self._is_complete = True

    def finish(self) -> None:
        """End the file; ``FormatError`` if it is incomplete."""
        if self._current is not None and self._current.is_bare:
            self.sections.append(self._current)
            self._is_complete = True
        if self._current is None and not self.sections and self.sessions is None:
            raise FormatError("it is empty", remedy="Use a file that dragoman export wrote", code="cut_export")
        if not self._is_complete:
            raise _incomplete_error("its end is missing")


# --- storage ---------------------------------------------------------------------------------------------------------


def _iterate_messages(store: Store, file: IO[bytes], section: _Section) -> Iterator[Message]:
    """Yield the messages of a session as they will be stored."""
    file.seek(section.offset)
    remaining = section.messages
    while remaining:
        line = file.readline()
        if line.strip():
            remaining -= 1
            message = codec.decode(line.rstrip(b"\n"))
            if section.is_copy:
                detached = message.replace(session_id="" if not message.id else section.session.id)
                message = store._adopt(section.session.id, detached)
            yield message


def _iterate_entries(file: IO[bytes], section: _Section) -> Iterator[EntryLine]:
    file.seek(section.entries_offset)
    for _ in range(section.entries):
        yield msgspec.json.decode(file.readline(), type=EntryLine)


def _decode_trace_line(line: bytes) -> TraceEvent | Evaluation:
    if line.startswith(b'{"event"'):
        return msgspec.json.decode(line, type=EventLine).event
    return msgspec.json.decode(line, type=EvaluationLine).evaluation


def _iterate_trace(file: IO[bytes], section: _Section) -> Iterator[TraceEvent | Evaluation]:
    file.seek(section.trace_offset)
    for _ in range(section.trace):
        yield _decode_trace_line(file.readline())


def _iterate_drafts(store: Store, file: IO[bytes], section: _Section, gone_at: dict[str, int]) -> Iterator[Draft]:
    for message in _iterate_messages(store, file, section):
        columns = columns_from(message)
        if message.session_id != section.session.id:
            columns = deletion.with_origin_session(message.session_id, columns)
        yield Draft(message, columns, gone_at)


async def _is_stored(store: Store, file: IO[bytes], section: _Section) -> bool:
    """Return whether the same session is stored already; ``ConflictError`` if another one has its id."""
    session = section.session
    try:
        stored = await store.get_session(session.id)
    except UnknownSessionError:
        return False
    is_same = stored.last_seq == session.last_seq
    if is_same and not section.is_bare:
        is_same = all(getattr(stored, name) == getattr(session, name) for name in _SESSION_FIELDS)
    messages = _iterate_messages(store, file, section)
    seq = session.parent_seq
    while is_same and seq < session.last_seq:
        rows = await store.read(session.id, seq, PAGE)
        is_same = bool(rows) and all(codec.encode(row.message) == codec.encode(next(messages)) for row in rows)
        seq += len(rows)
    if is_same and not section.is_bare:
        is_same = list(_iterate_entries(file, section)) == [entry async for entry in stored_entries(store, session.id)]
    if not is_same:
        raise ConflictError(
            "another session has this id",
            where=f"session {session.id}",
            remedy="Import it as a copy, with another session_id",
            code="session_exists",
        )
    return True


_SESSION_FIELDS: Final = ("title", "workspace_path", "active_model", "routing_policy", "user_id", "team_id", "metadata")


async def _store_section(store: Store, file: IO[bytes], section: _Section) -> None:
    if section.session.updated_at == UNKNOWN_TIME:  # no message has a time
        now = store.clock()
        section.session = msgspec.structs.replace(section.session, created_at=now, updated_at=now)
    gone_at: dict[str, int] = {}
    while True:
        for draft in _iterate_drafts(store, file, section, gone_at):
            await store._put_blobs(draft)
        try:
            await store._write(_insert_section(store, file, section, gone_at))
            store.mark.add_session(section.session.id, section.session.last_seq)
            store.search_index.schedule()
            return
        except BlobCollectedError as error:
            gone_at |= await blob_gc.await_deletion(store, error)


@operation
def _insert_section(store: Store, file: IO[bytes], section: _Section, gone_at: dict[str, int]) -> Steps[None]:
    session = section.session
    yield from create_session(msgspec.structs.replace(session, last_seq=session.parent_seq))
    yield "UPDATE sessions SET received_at = ? WHERE id = ?", (to_micros(store.clock()), session.id)
    if session.parent_session_id is not None:
        parent = yield from get_session(session.parent_session_id)
        if not parent.parent_seq <= session.parent_seq <= parent.last_seq:
            raise FormatError(f"session {parent.id} has no message {session.parent_seq}", where=f"session {session.id}")
        yield (
            "UPDATE sessions SET last_message_id = (SELECT p.last_message_id FROM sessions AS p WHERE p.id = ?)"
            " WHERE id = ?",
            (parent.id, session.id),
        )
    drafts = _iterate_drafts(store, file, section, gone_at)
    while page := list(itertools.islice(drafts, _APPEND_BATCH)):
        yield from append_messages(session.id, page, now=session.updated_at)
    if section.call_records.tool_ids:
        yield from insert_tool_ids(session.id, section.call_records.tool_ids)
    for call_id, when in section.call_records.cancelled:
        yield from cancel_tool_call(session.id, call_id, from_micros(when))
    entry_lines = _iterate_entries(file, section)
    while batch := [entries.draft_from(line.entry, line.agent_key) for line in itertools.islice(entry_lines, PAGE)]:
        yield from entries.append(session.id, batch, session.updated_at, None)
    yield from _insert_trace(session.id, _iterate_trace(file, section))


def _insert_trace(session_id: str, records: Iterator[TraceEvent | Evaluation]) -> Steps[None]:
    while batch := list(itertools.islice(records, PAGE)):
        events = [trace.import_row(record, session_id) for record in batch if isinstance(record, TraceEvent)]
        if events:
            yield from trace.append_events(events)
        for record in batch:
            if isinstance(record, Evaluation):
                yield from evaluations.insert_evaluation(msgspec.structs.replace(record, session_id=session_id))
