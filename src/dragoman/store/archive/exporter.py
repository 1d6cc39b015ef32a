"""Export sessions as JSON Lines.

    {"dragoman_session": 1, "session": {…}}            the session; in the file of a whole store, preceded once by
    {"id": …, "role": …, …}                                {"dragoman_store": 1, "sessions": 2}
    …                                                  its messages, in order, as ``dragoman.encode`` writes them
    {"tool_ids": […], "cancelled": […]}                the providers' ids of its calls, and its cancelled calls
    {"entry": {…}, "agent_key": …}                     its trace entries, in order
    {"event": {…}}                                     its events, in order
    {"evaluation": {…}}                                its evaluations
    {"messages": 2, "sha256": "…"}                     the number of messages, and the hash of all lines before this one

A session is exported with its whole history. In the file of a whole store a fork contains its own messages only, after
the session that it shares the others with.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import codec
from dragoman.errors import ConflictError
from dragoman.store.operation import Steps, operation, to_micros
from dragoman.store.sessions import get_session
from dragoman.store.tool_call_rows import tool_calls, tool_ids
from dragoman.store.types import Evaluation, Session, TraceEvent

if TYPE_CHECKING:
    from dragoman.store.store import Store

Progress = Callable[[int, int], None]
FORMAT: Final = 1
PAGE: Final = 200
_MAX_EVALUATIONS: Final = 1_000_000


class SessionHeader(msgspec.Struct, kw_only=True):
    dragoman_session: int
    session: Session


class StoreHeader(msgspec.Struct, kw_only=True):
    dragoman_store: int
    sessions: int


class CallRecords(msgspec.Struct, kw_only=True):
    tool_ids: list[tuple[str, str, str]]
    cancelled: list[tuple[str, int]] = []  # the call, and when, in microseconds since 1970


class EntryLine(msgspec.Struct, kw_only=True):
    entry: dict[str, Any]
    agent_key: str | None


class EventLine(msgspec.Struct, kw_only=True):
    event: TraceEvent


class EvaluationLine(msgspec.Struct, kw_only=True):
    evaluation: Evaluation


class SessionTrailer(msgspec.Struct, kw_only=True):
    messages: int
    sha256: str


class StoreTrailer(msgspec.Struct, kw_only=True):
    sessions: int
    sha256: str


# --- writing ---------------------------------------------------------------------------------------------------------


async def export_session(store: Store, session_id: str) -> AsyncIterator[bytes]:
    """A session with its whole history, a line at a time."""
    session = await store.get_session(session_id)
    async for line in _export_section(store, session, is_whole=True):
        yield line


async def export_store(store: Store, progress: Progress | None) -> AsyncIterator[bytes]:
    """Every session, those that others share messages with before those."""
    sessions = await store._read(_list_parents_first())
    total = sum(session.last_seq - session.parent_seq for session in sessions)
    done, digest = 0, hashlib.sha256()
    line = _encode_line(StoreHeader(dragoman_store=FORMAT, sessions=len(sessions)))
    digest.update(line)
    yield line
    for session in sessions:
        async for line in _export_section(store, session, is_whole=False):
            digest.update(line)
            yield line
        done += session.last_seq - session.parent_seq
        if progress is not None:
            progress(done, total)
    yield _encode_line(StoreTrailer(sessions=len(sessions), sha256=digest.hexdigest()))


async def _export_section(store: Store, session: Session, *, is_whole: bool) -> AsyncIterator[bytes]:
    digest = hashlib.sha256()
    async for line in _export_lines(store, session, is_whole=is_whole):
        digest.update(line)
        yield line
    messages = session.last_seq - (0 if is_whole else session.parent_seq)
    yield _encode_line(SessionTrailer(messages=messages, sha256=digest.hexdigest()))


async def _export_lines(store: Store, session: Session, *, is_whole: bool) -> AsyncIterator[bytes]:
    header = msgspec.structs.replace(session, parent_session_id=None, parent_seq=0) if is_whole else session
    yield _encode_line(SessionHeader(dragoman_session=FORMAT, session=header))
    seq = header.parent_seq
    while seq < session.last_seq:
        rows = await store.read(session.id, seq, min(PAGE, session.last_seq - seq))
        if not rows or rows[0].seq != seq + 1:
            raise ConflictError("it was changed while it was written out", where=f"session {session.id}")
        for row in rows:
            yield codec.encode(row.message) + b"\n"
        seq = rows[-1].seq
    yield _encode_line(await store._read(_read_call_records(session.id, is_whole=is_whole)))
    async for entry in stored_entries(store, session.id):
        yield _encode_line(entry)
    async for line in _export_trace(store, session.id):
        yield line


async def _export_trace(store: Store, session_id: str) -> AsyncIterator[bytes]:
    after_id = ""
    while events := await store.trace.events(session_id, after_id, PAGE):
        for event in events:
            yield _encode_line(EventLine(event=event))
        after_id = events[-1].id
    for evaluation in reversed(await store.evaluations.find(session_id, limit=_MAX_EVALUATIONS)):
        yield _encode_line(EvaluationLine(evaluation=evaluation))


async def stored_entries(store: Store, session_id: str) -> AsyncIterator[EntryLine]:
    after_seq = 0
    while rows := await store.entries.read(session_id, after_seq, PAGE):
        for row in rows:
            yield EntryLine(entry=row.entry, agent_key=row.agent_key)
        after_seq = rows[-1].seq


def _encode_line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


@operation
def _read_call_records(session_id: str, *, is_whole: bool) -> Steps[CallRecords]:
    if is_whole:
        ids = yield from tool_ids(session_id)
        calls = yield from tool_calls(session_id, "cancelled")
        cancelled = [(call.id, to_micros(call.completed_at)) for call in calls if call.completed_at is not None]
        return CallRecords(tool_ids=ids, cancelled=cancelled)
    ids = yield (
        "SELECT provider, tool_id, provider_id FROM tool_ids WHERE session_id = ? ORDER BY number",
        (session_id,),
    )
    rows = yield (
        "SELECT id, completed_at FROM tool_calls WHERE session_id = ? AND status = 'cancelled' ORDER BY seq, block",
        (session_id,),
    )
    return CallRecords(tool_ids=[(row[0], row[1], row[2]) for row in ids], cancelled=[(row[0], row[1]) for row in rows])


@operation
def _list_parents_first() -> Steps[list[Session]]:
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
