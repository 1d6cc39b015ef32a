"""Trace entries of agents, stored beside the messages of a session.

    await store.entries.append(session_id, entries, agent_key="orchestrator")
    await store.entries.conversation(session_id, limit=20)      and agent, broadcast, team: four views
    await store.entries.history(session_id, "orchestrator")     the views of one agent, in one order

Entries of a session are numbered in the order in which they were stored, and every view has that order; a limit selects
the newest. An entry is stored whole as JSON, with a hash of it and its place. A fork starts without entries, and
deleting a session deletes them.

Invariant: an entry is read with every field that it was written with.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import entries as room
from dragoman.entries import Entry
from dragoman.errors import ConflictError, CorruptDataError, FormatError, InputError
from dragoman.jsontext import OWN, read_json
from dragoman.store.operation import FOR_UPDATE, Steps, operation
from dragoman.store.sessions import TOUCH, create_session, touch_arguments, unknown_session
from dragoman.store.types import EntryRow, Session

if TYPE_CHECKING:
    from dragoman.store.store import Store

_COLUMNS: Final = "session_id, seq, agent_key, type, entry_json, hash"
_INSERT_BATCH: Final = 8  # entries per statement; most turns write fewer
_ENCODER: Final = msgspec.json.Encoder()


class Draft(msgspec.Struct, frozen=True):
    """An entry to store."""

    agent_key: str | None
    type: str
    entry_json: str


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the entries of a session that meet any of these conditions."""

    types: tuple[str, ...] = ()  # of these types, of any agent
    agent_key: str | None = None  # of this agent, limited to the types of the agent view
    team: tuple[str, ...] = ()  # of these agents, of any type


class EntryStore:
    """The entries of a store: ``store.entries``. A view of an unknown session is empty."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def append(
        self,
        session_id: str,
        entries: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        agent_key: str | None = None,
        create: bool = False,
    ) -> list[int]:
        """Append one or several entries, all or none, and return their seqs.

        The agent of an entry is ``agent_key``, else the one in the entry, else none. An invalid entry raises
        ``FormatError``. With ``create``, a missing session is created.
        """
        items = [entries] if isinstance(entries, Mapping) else list(entries)
        drafts = [draft_from(entry, agent_key, number) for number, entry in enumerate(items)]
        if not drafts:
            return []
        now = self._store.clock()
        new_session = Session(id=session_id, created_at=now, updated_at=now) if create else None
        return await self._store._write(append(session_id, drafts, now, new_session))

    async def conversation(self, session_id: str, limit: int | None = None) -> list[Entry]:
        """Return the conversation with the user; with a limit, its newest entries."""
        return await self._view(session_id, Selection(types=room.CONVERSATION_TYPES), limit)

    async def agent(self, session_id: str, agent_key: str, limit: int | None = None) -> list[Entry]:
        """Return the entries of one agent; with a limit, the newest."""
        return await self._view(session_id, Selection(agent_key=agent_key), limit)

    async def broadcast(self, session_id: str, limit: int | None = None) -> list[Entry]:
        """Return the entries for every agent; with a limit, the newest."""
        return await self._view(session_id, Selection(types=room.GLOBAL_TYPES), limit)

    async def team(self, session_id: str, agent_keys: Sequence[str], limit: int | None = None) -> list[Entry]:
        """Return all entries of several agents with their ``agent_key``; with a limit, the newest."""
        return await self._view(session_id, Selection(team=tuple(agent_keys)), limit)

    async def history(
        self, session_id: str, agent_key: str, subordinates: Sequence[str] = (), limit: int | None = None
    ) -> list[Entry]:
        """Return the context of an agent: conversation, own entries, those of subordinates, and those for all.

        An entry that fits several of these is in it once.
        """
        selection = Selection(
            types=(*room.CONVERSATION_TYPES, *room.GLOBAL_TYPES), agent_key=agent_key, team=tuple(subordinates)
        )
        return await self._view(session_id, selection, limit)

    async def _view(self, session_id: str, selection: Selection, limit: int | None) -> list[Entry]:
        if limit is not None and limit < 0:
            raise InputError(f"limit is {limit}", where="limit", remedy="Use a number from 0")
        rows = await self._store._read(select(session_id, selection, limit))
        return [_with_agent_key(row, row.agent_key if row.agent_key in selection.team else None) for row in rows]

    async def read(self, session_id: str, after_seq: int = 0, limit: int = 500) -> list[EntryRow]:
        """Return all entries after a seq, in order: the next page."""
        return await self._store._read(read(session_id, after_seq, limit))


def draft_from(entry: Mapping[str, Any], agent_key: str | None, index: int = 0) -> Draft:
    """Return a valid entry as it is stored, or raise ``FormatError``."""
    where = f"entry {index}"
    valid = room.validate_entry(entry, where)
    own_key = valid.get("agent_key")
    if own_key is not None and (not isinstance(own_key, str) or not own_key):
        raise FormatError("agent_key is not a text, or empty", where=where, code="invalid_entry")
    if agent_key is not None and own_key not in (None, agent_key):
        what = f"it is of {own_key!r}, and was to be stored as of {agent_key!r}"
        raise FormatError(what, where=where, code="invalid_entry")
    return Draft(agent_key if agent_key is not None else own_key, valid["type"], _ENCODER.encode(valid).decode())


def _with_agent_key(row: EntryRow, agent_key: str | None) -> Entry:
    return row.entry if agent_key is None else {**row.entry, "agent_key": agent_key}


# --- operations ------------------------------------------------------------------------------------------------------


@operation
def append(session_id: str, drafts: Sequence[Draft], now: datetime, new_session: Session | None) -> Steps[list[int]]:
    """Append entries; ``new_session`` is created if the session does not exist."""
    alone = f"SELECT id FROM sessions WHERE id = ?{FOR_UPDATE}", (session_id,)
    if not (yield alone):
        if new_session is None:
            raise unknown_session(session_id)
        with contextlib.suppress(ConflictError):  # another process has created it meanwhile
            yield from create_session(new_session)
        yield alone
    places = yield from insert_entries(session_id, drafts)
    yield f"UPDATE sessions SET {TOUCH} WHERE id = ?", (*touch_arguments(now), session_id)
    return places


def insert_entries(session_id: str, drafts: Sequence[Draft]) -> Steps[list[int]]:
    """Insert entries into a locked session."""
    rows = yield "SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = ?", (session_id,)
    first = rows[0][0] + 1
    for start in range(0, len(drafts), _INSERT_BATCH):
        arguments: list[Any] = []
        for seq, draft in enumerate(drafts[start : start + _INSERT_BATCH], first + start):
            row = (session_id, seq, draft.agent_key, draft.type, draft.entry_json)
            arguments += (*row, hash_of(row))
        values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * (len(arguments) // 6))
        yield f"INSERT INTO entries ({_COLUMNS}) VALUES {values}", arguments
    return list(range(first, first + len(drafts)))


@operation
def select(session_id: str, selection: Selection, limit: int | None) -> Steps[list[EntryRow]]:
    """Read the selected entries in order; with a limit, the newest."""
    conditions = _conditions(selection)
    if not conditions or limit == 0:
        return []
    query = f"SELECT {_COLUMNS} FROM entries WHERE session_id = ? AND"
    if limit is None or len(conditions) > _MAX_CONDITIONS:
        either = " OR ".join(sql for sql, _ in conditions)
        order = "seq" if limit is None else "seq DESC LIMIT ?"
        arguments = [argument for _, some in conditions for argument in some]
        sql, parameters = f"{query} ({either}) ORDER BY {order}", (session_id, *arguments)
        rows = yield (sql, parameters) if limit is None else (sql, (*parameters, limit))
    else:
        parts = [f"SELECT seq FROM ({_NEWEST.format(sql)}) AS part" for sql, _ in conditions]
        newest = [argument for _, some in conditions for argument in (session_id, *some, limit)]
        sql = f"{query} seq IN ({' UNION ALL '.join(parts)}) ORDER BY seq DESC LIMIT ?"
        rows = yield sql, (session_id, *newest, limit)
    return [row_from(row) for row in (rows if limit is None else rows[::-1])]


# Each condition is a range of an index and is read from its end, so the cost depends only on the limit.
_NEWEST: Final = "SELECT seq FROM entries WHERE session_id = ? AND {} ORDER BY seq DESC LIMIT ?"
_MAX_CONDITIONS: Final = 100  # SQLite allows 500 in one statement


def _conditions(selection: Selection) -> list[tuple[str, tuple[str, ...]]]:
    """Return the conditions with their arguments; an entry may meet several."""
    conditions: list[tuple[str, tuple[str, ...]]] = [("type = ?", (kind,)) for kind in selection.types]
    if selection.agent_key is not None:
        types = ", ".join("?" * len(room.AGENT_TYPES))
        conditions.append((f"(agent_key = ? AND type IN ({types}))", (selection.agent_key, *room.AGENT_TYPES)))
    return conditions + [("agent_key = ?", (agent_key,)) for agent_key in dict.fromkeys(selection.team)]


@operation
def read(session_id: str, after_seq: int, limit: int) -> Steps[list[EntryRow]]:
    """Read the entries after a seq, in order."""
    rows = yield (
        f"SELECT {_COLUMNS} FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        (session_id, after_seq, limit),
    )
    return [row_from(row) for row in rows]


@operation
def find_damage(session_id: str) -> Steps[list[str]]:
    """Describe what is wrong with the entries of a session."""
    problems: list[str] = []
    after_seq, page = 0, 200
    while rows := (
        yield (
            f"SELECT {_COLUMNS} FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (session_id, after_seq, page),
        )
    ):
        for expected, row in enumerate(rows, after_seq + 1):
            if row[1] != expected:
                problems.append(f"entry {expected} is missing")
                break
            if hash_of(row[:5]) != bytes(row[5]):
                problems.append(f"entry {row[1]}: its hash does not match its content")
        after_seq = rows[-1][1]
    return problems


def row_from(row: tuple[Any, ...]) -> EntryRow:
    """Return the entry of a row; ``CorruptDataError`` if its hash does not match."""
    if hash_of(row[:5]) != bytes(row[5]):
        raise CorruptDataError("its hash does not match its content", where=f"session {row[0]}, entry {row[1]}")
    return EntryRow(row[1], row[2], read_json(row[4], OWN))


def hash_of(row: Sequence[Any]) -> bytes:
    """Return the SHA-256 of a row."""
    session_id, seq, agent_key, kind, entry_json = row
    return hashlib.sha256(f"{session_id}\n{seq}\n{agent_key!r}\n{kind}\n{entry_json}".encode()).digest()
