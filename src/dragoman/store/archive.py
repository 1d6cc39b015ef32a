"""Sessions as JSON Lines, to be carried elsewhere, and back.

    {"dragoman_session": 1, "session": {…}}            what a session is; in a file of a whole store, before it:
    {"id": …, "role": …, …}                                {"dragoman_store": 1, "sessions": 2}
    …                                                  its messages, in order, exactly as ``dragoman.encode`` has them
    {"tool_ids": […], "cancelled": […]}                what providers call its calls, and which calls were given up
    {"entry": {…}, "agent_key": …}                     its trace entries, in order
    {"event": {…}}                                     what happened in it, in order
    {"evaluation": {…}}                                how good that was
    {"messages": 2, "sha256": "…"}                     how many there were, and the hash of everything before this line

A session is written with its whole history. In a file of a whole store a fork is written with its own messages only,
behind the session that it shares the others with. Messages alone, one a line, are read as well. The one rule: a file
is read to its end and found whole before anything of it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from dragoman import codec
from dragoman.errors import ConflictError, FormatError, JsonError, UnknownSessionError
from dragoman.message import Message
from dragoman.store import care, collecting, entries, trace
from dragoman.store.calls import cancel_tool_call, learn_tool_ids, tool_calls, tool_ids
from dragoman.store.operation import Rows, Statement, bulk, operation
from dragoman.store.rows import UNKNOWN_TIME, columns_from, micros, time_from
from dragoman.store.sessions import create_session, get_session
from dragoman.store.values import Evaluation, Session, TraceEvent
from dragoman.store.writing import Draft, LetGoError, append, check_usage

if TYPE_CHECKING:
    from dragoman.store.store import Store

Lines = AsyncIterable[bytes] | Iterable[bytes]
Progress = Callable[[int, int], None]
_FORMAT: Final = 1
_PAGE: Final = 200
_FEW: Final = 50
_MANY: Final = 1_000_000
_OTHER_FORMAT: Final = "If the file is in another format, convert it first: dragoman convert FILE messages.jsonl"
_IN_MEMORY: Final = 4 * 1024 * 1024


class _Head(msgspec.Struct, kw_only=True):
    dragoman_session: int
    session: Session


class _StoreHead(msgspec.Struct, kw_only=True):
    dragoman_store: int
    sessions: int


class _Beside(msgspec.Struct, kw_only=True):
    tool_ids: list[tuple[str, str, str]]
    cancelled: list[tuple[str, int]] = []  # the call, and when, in microseconds since 1970


class _Entry(msgspec.Struct, kw_only=True):
    entry: dict[str, Any]
    agent_key: str | None


class _Event(msgspec.Struct, kw_only=True):
    event: TraceEvent


class _Evaluation(msgspec.Struct, kw_only=True):
    evaluation: Evaluation


class _End(msgspec.Struct, kw_only=True):
    messages: int
    sha256: str


class _StoreEnd(msgspec.Struct, kw_only=True):
    sessions: int
    sha256: str


# --- writing ---------------------------------------------------------------------------------------------------------


async def export_session(store: Store, session_id: str) -> AsyncIterator[bytes]:
    """A session with its whole history, a line at a time."""
    session = await store.get_session(session_id)
    async for line in _section(store, session, is_whole=True):
        yield line


async def export_store(store: Store, progress: Progress | None) -> AsyncIterator[bytes]:
    """Every session, those that others share messages with before those."""
    sessions = await store._read(_parents_first())
    total = sum(session.last_seq - session.parent_seq for session in sessions)
    done, whole = 0, hashlib.sha256()
    line = _line(_StoreHead(dragoman_store=_FORMAT, sessions=len(sessions)))
    whole.update(line)
    yield line
    for session in sessions:
        async for line in _section(store, session, is_whole=False):
            whole.update(line)
            yield line
        done += session.last_seq - session.parent_seq
        if progress is not None:
            progress(done, total)
    yield _line(_StoreEnd(sessions=len(sessions), sha256=whole.hexdigest()))


async def _section(store: Store, session: Session, *, is_whole: bool) -> AsyncIterator[bytes]:
    said = hashlib.sha256()
    async for line in _lines_of(store, session, is_whole=is_whole):
        said.update(line)
        yield line
    messages = session.last_seq - (0 if is_whole else session.parent_seq)
    yield _line(_End(messages=messages, sha256=said.hexdigest()))


async def _lines_of(store: Store, session: Session, *, is_whole: bool) -> AsyncIterator[bytes]:
    told = msgspec.structs.replace(session, parent_session_id=None, parent_seq=0) if is_whole else session
    yield _line(_Head(dragoman_session=_FORMAT, session=told))
    place = told.parent_seq
    while place < session.last_seq:
        rows = await store.read(session.id, place, min(_PAGE, session.last_seq - place))
        if not rows or rows[0].seq != place + 1:
            raise ConflictError("it was changed while it was written out", where=f"session {session.id}")
        for row in rows:
            yield codec.encode(row.message) + b"\n"
        place = rows[-1].seq
    yield _line(await store._read(_beside(session.id, is_whole=is_whole)))
    async for entry in _entries_of(store, session.id):
        yield _line(entry)
    async for line in _trace_of(store, session.id):
        yield line


async def _trace_of(store: Store, session_id: str) -> AsyncIterator[bytes]:
    after = ""
    while events := await store.events(session_id, after, _PAGE):
        for event in events:
            yield _line(_Event(event=event))
        after = events[-1].id
    for made in reversed(await store.evaluations(session_id, limit=_MANY)):
        yield _line(_Evaluation(evaluation=made))


async def _entries_of(store: Store, session_id: str) -> AsyncIterator[_Entry]:
    after = 0
    while rows := await store.entries.read(session_id, after, _PAGE):
        for row in rows:
            yield _Entry(entry=row.entry, agent_key=row.agent_key)
        after = rows[-1].seq


def _line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


@operation
def _beside(session_id: str, *, is_whole: bool) -> Generator[Statement, Rows, _Beside]:
    if is_whole:
        ids = yield from tool_ids(session_id)
        calls = yield from tool_calls(session_id, "cancelled")
        cancelled = [(call.id, micros(call.completed_at)) for call in calls if call.completed_at is not None]
        return _Beside(tool_ids=ids, cancelled=cancelled)
    ids = yield (
        "SELECT provider, tool_id, provider_id FROM tool_ids WHERE session_id = ? ORDER BY number",
        (session_id,),
    )
    rows = yield (
        "SELECT id, completed_at FROM tool_calls WHERE session_id = ? AND status = 'cancelled' ORDER BY seq, block",
        (session_id,),
    )
    return _Beside(tool_ids=[(row[0], row[1], row[2]) for row in ids], cancelled=[(row[0], row[1]) for row in rows])


@operation
def _parents_first() -> Generator[Statement, Rows, list[Session]]:
    rows = yield "SELECT id, parent_session_id FROM sessions ORDER BY created_at, id", ()
    parents: dict[str, str | None] = dict(rows)
    order: dict[str, None] = {}
    for name in parents:
        line = [name]
        while (parent := parents.get(line[-1])) is not None and parent not in order and parent in parents:
            line.append(parent)
        order.update(dict.fromkeys(reversed(line)))
    sessions = []
    for name in order:
        sessions.append((yield from get_session(name)))
    return sessions


# --- reading ---------------------------------------------------------------------------------------------------------


class _Section(msgspec.Struct, kw_only=True):
    """A session in a file that was read: what it is, and where its messages stand."""

    session: Session
    offset: int  # of its first message
    messages: int = 0
    entries_offset: int = 0  # of its first entry
    entries: int = 0
    trace_offset: int = 0  # of its first event or evaluation
    trace: int = 0
    beside: _Beside = msgspec.field(default_factory=lambda: _Beside(tool_ids=[]))
    is_bare: bool = False  # messages alone, of which nothing else is known
    is_copy: bool = False  # its messages become this session's own


async def import_session(store: Store, lines: Lines, session_id: str | None) -> Session:
    """Store a session that was written out."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        reading = await _read_through(file, lines, f"sess_{store._ids.next()}", session_id)
        if reading.sessions is not None:
            what = f"it is a whole store of {reading.sessions} sessions"
            raise FormatError(what, remedy="Read it with import_store")
        (section,) = reading.sections
        if session_id is not None and session_id != section.session.id:
            section.session = msgspec.structs.replace(section.session, id=session_id)
            section.is_copy = True
        if not await _is_there(store, file, section):
            await _add(store, file, section)
        return await store.get_session(section.session.id)


async def import_store(store: Store, lines: Lines, progress: Progress | None) -> list[Session]:
    """Store every session of a file. What is there already, and the same, stays as it is."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        sections = (await _read_through(file, lines, f"sess_{store._ids.next()}", None)).sections
        missing = [section for section in sections if not await _is_there(store, file, section)]
        done, total = 0, sum(section.messages for section in missing)
        for section in missing:
            await _add(store, file, section)
            done += section.messages
            if progress is not None:
                progress(done, total)
        return [await store.get_session(section.session.id) for section in sections]


async def _read_through(file: IO[bytes], lines: Lines, new_id: str, session_id: str | None) -> _Reading:
    """Keep what is given in a file of our own, and find out whether it is whole."""
    reading = _Reading(new_id, session_id)
    number = 0
    async for line in _whole_lines(lines):
        number += 1
        try:
            reading.take(line + b"\n", file.tell())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, JsonError) as error:
            raise _cut(f"line {number} is none of an export ({error})") from None
        except FormatError as error:
            raise _at_line(number, error) from None
        file.write(line + b"\n")
        if number % _PAGE == 0:
            await asyncio.sleep(0)
    reading.end()
    return reading


async def _whole_lines(lines: Lines) -> AsyncIterator[bytes]:
    """The lines, however the bytes are cut."""
    rest = b""
    async for piece in _pieces(lines):
        first, *others = piece.split(b"\n")
        rest += first
        for other in others:
            yield rest
            rest = other
    if rest:
        yield rest


async def _pieces(lines: Lines) -> AsyncIterator[bytes]:
    if isinstance(lines, AsyncIterable):
        async for piece in lines:
            yield piece
    else:
        for piece in lines:
            yield piece


def _at_line(number: int, error: FormatError) -> FormatError:
    """Return the same error with the number of its line; what is no message may be one in another format."""
    where = f"line {number}, {error.where}" if error.where else f"line {number}"
    remedy = error.remedy or (_OTHER_FORMAT if error.code == FormatError.code else "")
    return FormatError(error.what, where=where, remedy=remedy, code=error.code)


def _cut(what: str) -> FormatError:
    return FormatError(what, remedy="Nothing was stored; take the file as it was written", code="cut_export")


class _Reading:
    """A file as it is read, line by line: is it whole, and what is where?"""

    def __init__(self, new_id: str, session_id: str | None) -> None:
        self.sections: list[_Section] = []
        self.sessions: int | None = None  # in a file of a whole store: how many there should be
        self._new_id = new_id
        self._session_id = session_id
        self._open: _Section | None = None
        self._is_over = False
        self._whole = hashlib.sha256()
        self._part = hashlib.sha256()
        self._ids: set[str] = set()

    def take(self, line: bytes, offset: int) -> None:
        """Look at the next line, which stands there."""
        if not line.strip():
            return
        if self._is_over:
            raise _cut("something follows its end")
        match line[: line.find(b":")]:
            case b'{"dragoman_store"' if not self.sections and self.sessions is None:
                head = msgspec.json.decode(line, type=_StoreHead)
                self._check_format(head.dragoman_store)
                self.sessions = head.sessions
            case b'{"dragoman_session"' if self._open is None:
                self._begin(msgspec.json.decode(line, type=_Head), offset + len(line))
            case b'{"tool_ids"' if self._open is not None:
                self._open.beside = msgspec.json.decode(line, type=_Beside)
            case b'{"entry"' if self._open is not None:
                msgspec.json.decode(line, type=_Entry)
                self._open.entries_offset = self._open.entries_offset or offset
                self._open.entries += 1
            case b'{"event"' | b'{"evaluation"' if self._open is not None:
                traced = _traced(line)
                if isinstance(traced, Evaluation):
                    trace.check_evaluation(traced)
                self._open.trace_offset = self._open.trace_offset or offset
                self._open.trace += 1
            case b'{"messages"' if self._open is not None:
                self._end_section(msgspec.json.decode(line, type=_End))
            case b'{"sessions"' if self._open is None and self.sessions is not None:
                self._end_store(msgspec.json.decode(line, type=_StoreEnd))
            case _:
                self._take_message(codec.decode(line.rstrip(b"\n")), offset)
        self._whole.update(line)
        self._part.update(line)

    def _check_format(self, number: int) -> None:
        if number > _FORMAT:
            raise FormatError(
                f"a newer Dragoman wrote it (format {number}; this one knows up to {_FORMAT})",
                remedy="Read it with a newer Dragoman",
                code="newer_export",
            )

    def _begin(self, head: _Head, offset: int) -> None:
        self._check_format(head.dragoman_session)
        self._open = _Section(session=head.session, offset=offset)
        self._part = hashlib.sha256()
        self._ids = set()

    def _take_message(self, message: Message, offset: int) -> None:
        if self._open is None:
            if self.sections or self.sessions is not None:
                raise _cut("a message stands outside of every session")
            named = self._session_id or message.session_id or self._new_id
            when = message.created_at
            bare = Session(id=named, created_at=when, updated_at=when)
            self._open = _Section(session=bare, offset=offset, is_bare=True, is_copy=self._session_id is not None)
            self._open.is_copy |= not message.session_id
        check_usage(message)
        section = self._open
        if section.is_bare and not section.is_copy and message.session_id != section.session.id:
            what = f"its messages are of several sessions: {section.session.id!r} and {message.session_id!r}"
            raise FormatError(what, remedy="Say which session they are to be, with session_id")
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

    def _end_section(self, end: _End) -> None:
        section = self._open
        assert section is not None
        if (end.messages, end.sha256) != (section.messages, self._part.hexdigest()):
            raise _cut("it was cut or changed: its hash is not the one that it names")
        if section.session.last_seq != section.session.parent_seq + section.messages:
            raise _cut(f"it has {section.messages} messages, and should end with message {section.session.last_seq}")
        self.sections.append(section)
        self._open = None
        self._is_over = self.sessions is None

    def _end_store(self, end: _StoreEnd) -> None:
        if end.sessions != len(self.sections) or end.sha256 != self._whole.hexdigest():
            raise _cut("it was cut or changed: its hash is not the one that it names")
        self._is_over = True

    def end(self) -> None:
        """There are no more lines."""
        if self._open is not None and self._open.is_bare:
            self.sections.append(self._open)
            self._is_over = True
        if self._open is None and not self.sections and self.sessions is None:
            raise FormatError("it is empty", remedy="Take a file that dragoman export wrote", code="cut_export")
        if not self._is_over:
            raise _cut("its end is missing")


# --- storing what was read -------------------------------------------------------------------------------------------


def _messages(store: Store, file: IO[bytes], section: _Section) -> Iterator[Message]:
    """The messages of a session, as they will be read from the store."""
    file.seek(section.offset)
    left = section.messages
    while left:
        line = file.readline()
        if line.strip():
            left -= 1
            message = codec.decode(line.rstrip(b"\n"))
            if section.is_copy:
                bare = message.replace(session_id="" if not message.id else section.session.id)
                message = store._owned(section.session.id, bare)
            yield message


def _entries(file: IO[bytes], section: _Section) -> Iterator[_Entry]:
    file.seek(section.entries_offset)
    for _ in range(section.entries):
        yield msgspec.json.decode(file.readline(), type=_Entry)


def _traced(line: bytes) -> TraceEvent | Evaluation:
    if line.startswith(b'{"event"'):
        return msgspec.json.decode(line, type=_Event).event
    return msgspec.json.decode(line, type=_Evaluation).evaluation


def _trace(file: IO[bytes], section: _Section) -> Iterator[TraceEvent | Evaluation]:
    file.seek(section.trace_offset)
    for _ in range(section.trace):
        yield _traced(file.readline())


def _drafts(store: Store, file: IO[bytes], section: _Section, renewed: dict[str, int]) -> Iterator[Draft]:
    for message in _messages(store, file, section):
        columns = columns_from(message)
        if message.session_id != section.session.id:
            columns = care.said_in(message.session_id, columns)
        yield Draft(message, columns, renewed)


async def _is_there(store: Store, file: IO[bytes], section: _Section) -> bool:
    """Whether a session is there already, and the same; ``ConflictError`` if another one has its id."""
    wanted = section.session
    try:
        there = await store.get_session(wanted.id)
    except UnknownSessionError:
        return False
    is_same = there.last_seq == wanted.last_seq
    if is_same and not section.is_bare:
        is_same = all(getattr(there, name) == getattr(wanted, name) for name in _TELLING)
    messages = _messages(store, file, section)
    place = wanted.parent_seq
    while is_same and place < wanted.last_seq:
        rows = await store.read(wanted.id, place, _PAGE)
        is_same = bool(rows) and all(codec.encode(row.message) == codec.encode(next(messages)) for row in rows)
        place += len(rows)
    if is_same and not section.is_bare:
        is_same = list(_entries(file, section)) == [entry async for entry in _entries_of(store, wanted.id)]
    if not is_same:
        raise ConflictError(
            "there is another one of that id",
            where=f"session {wanted.id}",
            remedy="Import it as a copy, with another session_id",
            code="session_exists",
        )
    return True


_TELLING: Final = ("title", "workspace_path", "active_model", "routing_policy", "user_id", "team_id", "metadata")


async def _add(store: Store, file: IO[bytes], section: _Section) -> None:
    if section.session.updated_at == UNKNOWN_TIME:  # no message says when it was said
        now = store.clock()
        section.session = msgspec.structs.replace(section.session, created_at=now, updated_at=now)
    renewed: dict[str, int] = {}
    while True:
        for draft in _drafts(store, file, section, renewed):
            await store._keep_large(draft)
        try:
            await store._write(_added(store, file, section, renewed))
            store.mark.begin(section.session.id, section.session.last_seq)
            store.searching.soon()
            return
        except LetGoError as gone:
            renewed |= await collecting.settled(store, gone)


@bulk
def _added(
    store: Store, file: IO[bytes], section: _Section, renewed: dict[str, int]
) -> Generator[Statement, Rows, None]:
    session = section.session
    yield from create_session(msgspec.structs.replace(session, last_seq=session.parent_seq))
    yield "UPDATE sessions SET received_at = ? WHERE id = ?", (micros(store.clock()), session.id)
    if session.parent_session_id is not None:
        parent = yield from get_session(session.parent_session_id)
        if not parent.parent_seq <= session.parent_seq <= parent.last_seq:
            raise FormatError(f"session {parent.id} has no message {session.parent_seq}", where=f"session {session.id}")
        yield (
            "UPDATE sessions SET last_message_id = (SELECT p.last_message_id FROM sessions AS p WHERE p.id = ?)"
            " WHERE id = ?",
            (parent.id, session.id),
        )
    drafts = _drafts(store, file, section, renewed)
    while page := list(itertools.islice(drafts, _FEW)):
        yield from append(session.id, page, now=session.updated_at)
    if section.beside.tool_ids:
        yield from learn_tool_ids(session.id, section.beside.tool_ids)
    for call_id, when in section.beside.cancelled:
        yield from cancel_tool_call(session.id, call_id, time_from(when))
    written = _entries(file, section)
    while some := [entries.draft_from(one.entry, one.agent_key) for one in itertools.islice(written, _PAGE)]:
        yield from entries.append(session.id, some, session.updated_at, None)
    yield from _add_trace(store.engine, session.id, _trace(file, section))


def _add_trace(
    engine: str, session_id: str, traced: Iterator[TraceEvent | Evaluation]
) -> Generator[Statement, Rows, None]:
    while some := list(itertools.islice(traced, _PAGE)):
        events = [trace.added_row(one, session_id) for one in some if isinstance(one, TraceEvent)]
        if events:
            yield from trace.append_events(engine, events)
        for one in some:
            if isinstance(one, Evaluation):
                yield from trace.record(engine, msgspec.structs.replace(one, session_id=session_id))
