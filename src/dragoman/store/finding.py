"""Finding things in a store by what others know of them: a day, the name that a client gave a message, whose it is.

    place_before(session, when)            the newest message before a moment, in as many looks as a history has halves
    find_message(session, name)            by our id, or by the one that a client knows it by
    call_names(session, ids)               the tools that calls are of
    sessions_of(user)                      a page of what belongs to somebody
    named_attachments(session, user)       files that only this session names, and files that others of the user name

The one rule: a page costs a page, however long the history or the list is that it is taken from.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.store.lineage import Stretch, gone, lineage
from dragoman.store.operation import Operation, Rows, Statement, operation
from dragoman.store.reading import COLUMNS, Found, found_from, get_message, unknown_message
from dragoman.store.rows import micros
from dragoman.store.sessions import sessions_where
from dragoman.store.values import Owners, Row, Session

_ATTACHED: Final = '%"user_message_attachments":%'


class Named(msgspec.Struct, frozen=True):
    """Paths of files that messages name, by bucket and path."""

    here: frozenset[tuple[str, str]]  # in one session, and in no other one
    elsewhere: frozenset[tuple[str, str]]  # in other sessions of the user


class FindingMethods:
    """What a store can find."""

    if TYPE_CHECKING:

        async def _read(self, operation: Operation[Any]) -> Any: ...
        async def _read_little(self, operation: Operation[Any]) -> Any: ...
        async def _rows(self, found: Iterable[Found | Row]) -> list[Row]: ...

    async def place_before(self, session_id: str, when: datetime) -> int:
        """The place of the newest message that was said before a moment; 0 if there is none.

        Messages stand in the order of their times unless they were brought from elsewhere. Where they do not, it is a
        place whose message was said before, and the next one was not.
        """
        place: int = await self._read_little(_place_before(session_id, micros(when)))
        return place

    async def find_message(self, session_id: str, name: str) -> Row:
        """The message of that id, or the newest one that a client knows by that name, or ``UnknownMessageError``."""
        (row,) = await self._rows([await self._read(_find_message(session_id, name))])
        return row

    async def call_names(self, session_id: str, call_ids: Sequence[str]) -> dict[str, str]:
        """The tools that these calls of a history are of."""
        names: dict[str, str] = await self._read_little(_call_names(session_id, call_ids)) if call_ids else {}
        return names

    async def sessions_of(
        self, owners: Owners, *, before: tuple[datetime, str] | None = None, limit: int = 50
    ) -> list[Session]:
        """Somebody's sessions, the one that changed last first; ``before``: time and id of the last one told."""
        found: list[Session] = await self._read(_sessions_of(owners, before, limit))
        return found

    async def named_attachments(self, session_id: str, owners: Owners) -> Named:
        """The files that the messages of somebody's sessions name. It reads all of them that have files."""
        named: Named = await self._read(_named_attachments(session_id, owners))
        return named


@operation
def _place_before(session_id: str, moment: int) -> Generator[Statement, Rows, int]:
    stretches = yield from lineage(session_id)
    before, last = 0, stretches[-1].last
    while before < last:
        middle = (before + last + 1) // 2
        said = yield from _time_at(stretches, middle)
        before, last = (middle, last) if said < moment else (before, middle - 1)
    return before


def _time_at(stretches: Sequence[Stretch], seq: int) -> Generator[Statement, Rows, int]:
    owner = next(one.session_id for one in stretches if one.first <= seq <= one.last)
    rows = yield "SELECT created_at FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
    if not rows:
        raise gone(owner, f"message {seq} is not there")
    return int(rows[0][0])


@operation
def _find_message(session_id: str, name: str) -> Generator[Statement, Rows, Found]:
    try:
        return (yield from get_message(session_id, name))
    except UnknownMessageError:
        pass
    told = msgspec.json.encode(name).decode()
    pattern = '%"message_id":' + "".join(f"!{sign}" if sign in "!%_" else sign for sign in told) + "%"
    for stretch in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND seq <= ? AND metadata_json LIKE ? ESCAPE '!'"
            " ORDER BY seq DESC",
            (stretch.session_id, stretch.last, pattern),
        )
        for found in map(found_from, rows):
            if _metadata(found.columns.metadata_json).get("message_id") == name:
                return found
    raise unknown_message(session_id, name)


def _metadata(text: str) -> Mapping[str, Any]:
    """What a row says beside its words; nothing if it is damaged, which who reads the row is told."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


@operation
def _call_names(session_id: str, call_ids: Sequence[str]) -> Generator[Statement, Rows, dict[str, str]]:
    names: dict[str, str] = {}
    stretches = yield from lineage(session_id)
    for call_id in call_ids:
        for stretch in reversed(stretches):
            rows = yield "SELECT name FROM tool_calls WHERE session_id = ? AND id = ?", (stretch.session_id, call_id)
            if rows:
                names[call_id] = rows[0][0]
                break
    return names


@operation
def _sessions_of(
    owners: Owners, before: tuple[datetime, str] | None, limit: int
) -> Generator[Statement, Rows, list[Session]]:
    condition, arguments = owners.condition("sessions")
    return (yield from sessions_where([condition], list(arguments), before, limit))


# --- files -----------------------------------------------------------------------------------------------------------


@operation
def _named_attachments(session_id: str, owners: Owners) -> Generator[Statement, Rows, Named]:
    rows = yield "SELECT max(parent_seq) FROM sessions WHERE parent_session_id = ?", (session_id,)
    shared = rows[0][0] or 0  # up to here, what is said here is said in a fork as well
    condition, arguments = owners.condition("s")
    rows = yield (
        "SELECT m.session_id, m.seq, m.metadata_json FROM sessions AS s JOIN messages AS m ON m.session_id = s.id"
        f" WHERE {condition} AND m.metadata_json LIKE ?",
        (*arguments, _ATTACHED),
    )
    here, elsewhere = set[tuple[str, str]](), set[tuple[str, str]]()
    for owner, seq, metadata_json in rows:
        is_here = owner == session_id and seq > shared
        (here if is_here else elsewhere).update(_files(_metadata(metadata_json)))
    return Named(frozenset(here - elsewhere), frozenset(elsewhere))


def _files(metadata: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    told = metadata.get("user_message_attachments")
    for one in told if isinstance(told, list) else [told]:
        if isinstance(one, dict):
            yield str(one.get("bucket")), str(one.get("path"))
