"""Calls of the gateway: transcripts that grow as sessions, and the objects of the Responses API.

    place = await store.gateway.find(hashes)               the longest known transcript among these
    row = await store.gateway.record(call)                 append to its session, fork it, or create one
    await store.gateway.read_parts(session_id, hashes)     long parts of requests, such as tools
    await store.gateway.find_object(owner, id)             a stored response or conversation
    await store.gateway.delete_object(owner, id)

A call and the places by which the next call finds it are stored in one transaction. If the session has grown beyond the
place that a call continues, the call is a fork. Invariant: an object is found by its owner only.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import CorruptDataError
from dragoman.message import Message, MessageMetadata
from dragoman.shield import run_to_completion
from dragoman.store import message_writer, sessions
from dragoman.store.message_rows import Columns
from dragoman.store.message_writer import (
    Draft,
    MessageRange,
    SessionEnd,
    message_values,
    messages_insert_sql,
    quick_if_small,
    usage_columns,
    usage_insert_sql,
)
from dragoman.store.operation import (
    NO_GATHER,
    BatchOperation,
    Facet,
    Gather,
    Operation,
    Steps,
    from_micros,
    in_clause_chunks,
    insert_chunks,
    operation,
    quick,
    to_micros,
    values_clause,
)
from dragoman.store.sessions import existing_session, new_session_columns, sessions_insert_sql
from dragoman.store.types import SESSION_VERSION, Session

if TYPE_CHECKING:
    from dragoman.store.store import Store

_MAX_KNOWN_PARTS: Final = 4_096
PartKey = tuple[str, str]  # a session, and the hash of a part


class TranscriptPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a transcript ends in a session."""

    hash: bytes
    session_id: str = ""  # set by ``record``
    seq: int = 0
    system_hash: bytes | None = None
    call_ids: tuple[str, ...] = ()  # of the last answer, as they are stored


class NewPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place to store with a call; ``offset`` counts the messages of the call before it."""

    hash: bytes
    offset: int | None  # none: the session itself
    system_hash: bytes | None = None
    call_ids: tuple[str, ...] = ()


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response or a conversation."""

    id: str
    session_id: str = ""
    seq: int = 0
    created_at: datetime
    body: dict[str, Any]
    input: list[Any] = []


class GatewayCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call to store."""

    session: Session  # of a new session or a fork
    continues: TranscriptPlace | None  # the known transcript before its messages
    parent: TranscriptPlace | None = None  # of a new session: where it comes from
    messages: tuple[Message, ...]
    places: tuple[NewPlace, ...]
    owner: str = ""
    stored_object: StoredObject | None = None
    request_parts: dict[str, bytes] = {}  # long parts of its request, by their SHA-256


class PlainSession(msgspec.Struct, frozen=True, kw_only=True):
    """A call to store as a new session of texts: its rows, without the general steps that find them."""

    id: str
    title: str | None
    user_id: str | None
    team_id: str | None
    metadata_json: str
    created_at: datetime
    messages: tuple[Columns, ...]  # the last one is the answer
    answer: MessageMetadata  # with its usage
    hash: bytes  # of the transcript with the answer
    system_hash: bytes | None


class GatewayRow(msgspec.Struct, frozen=True):
    """Where a call was stored."""

    session_id: str
    seq: int  # of its last message
    is_fork: bool


class GatewayStore(Facet):
    """The calls of the gateway: ``store.gateway``."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._known_parts: set[PartKey] = set()  # that were stored lately

    async def find(self, hashes: Sequence[bytes]) -> TranscriptPlace | None:
        """Return the place of the last of these transcripts that is known."""
        return await self._store._read(_find_place(tuple(hashes)))

    async def record(self, call: GatewayCall, gather: Gather = NO_GATHER) -> GatewayRow:
        """Store a call. It may wait for other calls, so that one commit serves all of them."""
        store = self._store
        drafts = await message_writer.make_drafts(call.messages)
        size = sum(map(len, call.request_parts.values()))

        def make_operation(drafts: Sequence[Draft]) -> Operation[tuple[GatewayRow, MessageRange]]:
            recording = _record(call, drafts, self._known_parts, store.clock())
            return quick_if_small(recording, drafts, gather, size)

        row, places = await store._store_messages(drafts, make_operation)
        self._note_parts(row.session_id, call.request_parts)
        if row.session_id == call.session.id:
            store.mark.note_session(row.session_id, row.seq)
        if places.end is not None:
            store._acknowledge(row.session_id, places.end, call.messages[-1].id)
        return row

    async def record_plain(self, make_session: Callable[[], PlainSession], gather: Gather = NO_GATHER) -> GatewayRow:
        """Do the same as ``record`` for a new session of texts, also if the caller is cancelled meanwhile.

        The rows are made when they are inserted: those of all calls that share a commit take half the time.
        """
        stored = self._store._start_write(quick(BatchOperation(_insert_plain, make_session), gather))
        stored.add_done_callback(self._acknowledge_plain)
        session = await run_to_completion(stored)
        return GatewayRow(session.id, len(session.messages), False)

    def _acknowledge_plain(self, stored: asyncio.Future[PlainSession]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            store, session = self._store, stored.result()
            last_seq, last_id = len(session.messages), session.messages[-1].id
            store.mark.note_session(session.id, last_seq)
            store._acknowledge(session.id, (last_seq, last_id), last_id)

    def _note_parts(self, session_id: str, parts: Iterable[str]) -> None:
        if len(self._known_parts) >= _MAX_KNOWN_PARTS:
            self._known_parts.clear()
        self._known_parts.update((session_id, sha256) for sha256 in parts)

    async def read_parts(self, session_id: str, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the parts of requests of a session that are stored, by their SHA-256."""
        parts = await self._store._read(_read_parts(session_id, tuple(hashes)))
        for sha256, content in parts.items():
            if not is_part_intact(sha256, content):
                raise CorruptDataError("a part of a request does not match its hash", where=f"session {session_id}")
        return parts

    async def find_object(self, owner: str, object_id: str) -> StoredObject | None:
        """Return a stored response or conversation of an owner."""
        return await self._store._read(_find_object(owner, object_id))

    async def save_object(self, owner: str, item: StoredObject) -> None:
        """Store or replace an object."""
        await self._store._write(_save_object(owner, item))

    async def append_items(self, owner: str, object_id: str, items: list[Any]) -> None:
        """Add items to an object; nothing if it was deleted."""
        await self._store._write(_append_items(owner, object_id, items))

    async def delete_item(self, owner: str, object_id: str, item_id: str) -> bool:
        """Delete an item of an object; whether there was one."""
        return await self._store._write(_delete_item(owner, object_id, item_id))

    async def delete_object(self, owner: str, object_id: str) -> bool:
        """Delete an object; whether there was one."""
        return await self._store._write(_delete_object(owner, object_id))


@operation
def _find_place(hashes: tuple[bytes, ...]) -> Steps[TranscriptPlace | None]:
    found: dict[bytes, tuple[Any, ...]] = {}
    for clause, arguments in in_clause_chunks(hashes):
        rows = yield (
            f"SELECT hash, session_id, seq, system_hash, calls_json FROM gateway_transcripts WHERE hash IN ({clause})",
            arguments,
        )
        found |= {bytes(row[0]): row for row in rows}
    row = next((found[key] for key in reversed(hashes) if key in found), None)
    if row is None:
        return None
    return TranscriptPlace(
        hash=bytes(row[0]),
        session_id=row[1],
        seq=row[2],
        system_hash=None if row[3] is None else bytes(row[3]),
        call_ids=tuple(msgspec.json.decode(row[4])) if row[4] is not None else (),
    )


@operation
def _record(
    call: GatewayCall, drafts: Sequence[Draft], known_parts: Container[PartKey], now: datetime
) -> Steps[tuple[GatewayRow, MessageRange]]:
    if call.continues is None and call.parent is None:
        is_fork, session_id = False, call.session.id
        places = yield from message_writer.create_with_messages(call.session, drafts)
    else:
        session_id, is_fork, end = yield from _open_session(call)
        places = yield from message_writer.append_messages(session_id, drafts, now=now, end=end)
    first_seq, last_seq = places.seqs[0], places.seqs[-1]
    rows = [
        (
            place.hash,
            session_id,
            0 if place.offset is None else first_seq + place.offset - 1,
            place.system_hash,
            msgspec.json.encode(place.call_ids).decode() if place.call_ids else None,
        )
        for place in {place.hash: place for place in call.places}.values()
    ]
    yield _places_sql(len(rows)), _flatten(rows)
    for sha256, content in call.request_parts.items():
        if (session_id, sha256) not in known_parts:
            yield (
                "INSERT INTO request_parts (session_id, sha256, seq, content) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (session_id, sha256) DO NOTHING",
                (session_id, sha256, last_seq, content),
            )
    if call.stored_object is not None:
        item = msgspec.structs.replace(call.stored_object, session_id=session_id, seq=last_seq)
        yield from _save_object(call.owner, item)
    return GatewayRow(session_id, last_seq, is_fork), places


@functools.cache
def _places_sql(rows: int) -> str:
    return (
        "INSERT INTO gateway_transcripts (hash, session_id, seq, system_hash, calls_json)"
        f" VALUES {values_clause(5, rows)}"
        " ON CONFLICT (hash) DO UPDATE SET session_id = excluded.session_id, seq = excluded.seq,"
        " system_hash = excluded.system_hash, calls_json = excluded.calls_json"
    )


def _insert_plain(makers: Sequence[Callable[[], PlainSession]]) -> Steps[list[PlainSession]]:
    """Fast path of ``_record``: new sessions of texts, without blobs, tool calls and attachments."""
    items = [make_session() for make_session in makers]
    created = yield from _insert_rows(sessions_insert_sql, [_plain_session_columns(session) for session in items])
    if created < len(items):
        raise existing_session(items[0].id)
    messages = [row for session in items for row in _plain_message_columns(session)]
    yield from _insert_rows(messages_insert_sql, messages)
    usages = [usage_columns(session.id, len(session.messages), session.created_at, session.answer) for session in items]
    yield from _insert_rows(usage_insert_sql, usages)
    places = {
        session.hash: (session.hash, session.id, len(session.messages), session.system_hash, None) for session in items
    }
    yield from _insert_rows(_places_sql, list(places.values()))  # of equal transcripts, the last one is found
    return items


def _insert_rows(make_sql: Callable[[int], str], rows: Sequence[Sequence[Any]]) -> Steps[int]:
    """Insert rows with few statements; return how many rows these returned."""
    returned = 0
    for chunk in insert_chunks(rows):
        returned += len((yield make_sql(len(chunk)), _flatten(chunk)))
    return returned


def _plain_message_columns(session: PlainSession) -> list[tuple[Any, ...]]:
    return [message_values(session.id, seq, message) for seq, message in enumerate(session.messages, 1)]


def _plain_session_columns(session: PlainSession) -> tuple[Any, ...]:
    at, last_seq = session.messages[-1].created_at, len(session.messages)
    owner = (session.user_id, session.team_id)
    columns = (session.id, session.title, "", None, None, *owner, session.metadata_json, None, 0, last_seq, at, at)
    return new_session_columns((*columns, SESSION_VERSION), session.messages[-1].id)


def _flatten(rows: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(itertools.chain.from_iterable(rows))


def _open_session(call: GatewayCall) -> Steps[tuple[str, bool, SessionEnd | None]]:
    """Return the session that the call continues, whether it is a fork, and its end, if known.

    The call is a fork if the session has grown, and a new session if there is none.
    """
    place = call.continues
    if place is None:
        parent = call.parent
        if parent is not None and (yield "SELECT 1 FROM sessions WHERE id = ?", (parent.session_id,)):
            yield from sessions.fork_session(parent.session_id, 0, call.session)
            return call.session.id, True, None
        yield from sessions.create_session(call.session)
        return call.session.id, False, (0, "")
    end = yield from sessions.lock_session(place.session_id)
    if end[0] == place.seq and place.seq > 0:
        return place.session_id, False, end
    yield from sessions.fork_session(place.session_id, place.seq, call.session)
    return call.session.id, True, None


@operation
def _read_parts(session_id: str, hashes: tuple[str, ...]) -> Steps[dict[str, bytes]]:
    parts: dict[str, bytes] = {}
    for clause, arguments in in_clause_chunks(hashes):
        rows = yield (
            f"SELECT sha256, content FROM request_parts WHERE session_id = ? AND sha256 IN ({clause})",
            (session_id, *arguments),
        )
        parts |= {sha256: bytes(content) for sha256, content in rows}
    return parts


def is_part_intact(sha256: str, content: bytes) -> bool:
    """Whether a part of a request is what was stored under its hash."""
    return hashlib.sha256(content).hexdigest() == sha256


@operation
def _find_object(owner: str, object_id: str) -> Steps[StoredObject | None]:
    rows = yield (
        "SELECT id, session_id, seq, created_at, body_json, input_json FROM gateway_objects WHERE owner = ? AND id = ?",
        (owner, object_id),
    )
    if not rows:
        return None
    name, session_id, seq, created_at, body, items = rows[0]
    return StoredObject(
        id=name,
        session_id=session_id,
        seq=seq,
        created_at=from_micros(created_at),
        body=msgspec.json.decode(body),
        input=msgspec.json.decode(items) if items is not None else [],
    )


@operation
def _save_object(owner: str, item: StoredObject) -> Steps[None]:
    yield (
        "INSERT INTO gateway_objects (owner, id, session_id, seq, created_at, body_json, input_json)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, id) DO UPDATE SET session_id = excluded.session_id,"
        " seq = excluded.seq, body_json = excluded.body_json, input_json = excluded.input_json",
        (
            owner,
            item.id,
            item.session_id,
            item.seq,
            to_micros(item.created_at),
            msgspec.json.encode(item.body).decode(),
            msgspec.json.encode(item.input).decode(),
        ),
    )


@operation
def _append_items(owner: str, object_id: str, items: list[Any]) -> Steps[None]:
    stored = yield from _lock_items(owner, object_id)
    if stored is not None:
        yield _items_update(owner, object_id, [*stored, *items])


@operation
def _delete_item(owner: str, object_id: str, item_id: str) -> Steps[bool]:
    stored = (yield from _lock_items(owner, object_id)) or []
    left = [item for item in stored if item.get("id") != item_id]
    if len(left) < len(stored):
        yield _items_update(owner, object_id, left)
    return len(left) < len(stored)


def _lock_items(owner: str, object_id: str) -> Steps[list[Any] | None]:
    """Lock an object, and return its items; none if there is no such object."""
    rows = yield (
        "UPDATE gateway_objects SET seq = seq WHERE owner = ? AND id = ? RETURNING input_json",
        (owner, object_id),
    )
    return next((msgspec.json.decode(stored) if stored else [] for (stored,) in rows), None)


def _items_update(owner: str, object_id: str, items: list[Any]) -> tuple[str, tuple[Any, ...]]:
    text = msgspec.json.encode(items).decode()
    return "UPDATE gateway_objects SET input_json = ? WHERE owner = ? AND id = ?", (text, owner, object_id)


@operation
def _delete_object(owner: str, object_id: str) -> Steps[bool]:
    rows = yield "DELETE FROM gateway_objects WHERE owner = ? AND id = ? RETURNING id", (owner, object_id)
    return bool(rows)
