"""Finding things in a store by what others know of them: a day, the name that a client gave a message, whose it is.

    place_before(session, when)            the newest message before a moment, in as many looks as a history has halves
    find_message(session, name)            by our id, or by the one that a client knows it by
    calls_of(session, ids)                 the tools that calls are of, and how long they took
    sessions_of(user)                      a page of what belongs to somebody
    named_attachments(session, user, …)    files that only this session names, and files that others of the user name

The one rule: a page costs a page, however long the history or the list is that it is taken from.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.message import Role
from dragoman.store.attached import Named, named_attachments
from dragoman.store.calls import ROW, call_from
from dragoman.store.lineage import Stretch, gone, lineage
from dragoman.store.operation import Operation, Rows, Statement, operation
from dragoman.store.reading import COLUMNS, Found, found_from, get_message, unknown_message
from dragoman.store.rows import micros
from dragoman.store.sessions import sessions_where
from dragoman.store.values import Owners, Row, Session


class Call(msgspec.Struct, frozen=True):
    """What is known of a call."""

    name: str
    result_seq: int | None  # the place of its answer
    took_ms: int | None  # from when the message that makes it was begun until its answer was there


class FindingMethods:
    """What a store can find."""

    if TYPE_CHECKING:
        engine: str

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
        (row,) = await self._rows([await self._read_little(_find_message(self.engine, session_id, name))])
        return row

    async def count_messages(self, session_id: str, role: Role) -> int:
        """How many messages of a role were stored in a session itself, without those that it shares as a fork."""
        number: int = await self._read_little(_count_messages(session_id, role))
        return number

    async def calls_of(self, session_id: str, call_ids: Sequence[str]) -> dict[str, Call]:
        """What is known of these calls of a history."""
        found: dict[str, Call] = await self._read_little(_calls_of(session_id, call_ids)) if call_ids else {}
        return found

    async def sessions_of(
        self, owners: Owners, *, before: tuple[datetime, str] | None = None, limit: int = 50
    ) -> list[Session]:
        """Somebody's sessions, the one that changed last first; ``before``: time and id of the last one told."""
        found: list[Session] = await self._read(_sessions_of(owners, before, limit))
        return found

    async def named_attachments(self, session_id: str, owners: Owners, prefix: str) -> Named:
        """The files that only this session names; and those of it, or under a prefix, that others of theirs name."""
        named: Named = await self._read(named_attachments(session_id, owners, prefix))
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


# What the index of clients' names is made of: the same words in a condition, and the engine knows that it may use it.
_BY_NAME: Final = {
    "sqlite": "instr(metadata_json, '\"message_id\":') > 0 AND substr(CASE WHEN json_valid(metadata_json)"
    " THEN json_extract(metadata_json, '$.message_id') END, 1, 200)",
    "postgres": "strpos(metadata_json, '\"message_id\":') > 0 AND left(coalesce(metadata,"
    " dragoman_jsonb(replace(metadata_json, '\\u0000', '\\u2400'))) ->> 'message_id', 200)",
}
_BEGINNING: Final = 200  # signs of a name that are in the index


@operation
def _find_message(engine: str, session_id: str, name: str) -> Generator[Statement, Rows, Found]:
    try:
        return (yield from get_message(session_id, name))
    except UnknownMessageError:
        pass
    for stretch in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND {_BY_NAME[engine]} = ? AND seq <= ?"
            " ORDER BY seq DESC",
            (stretch.session_id, name[:_BEGINNING], stretch.last),
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
def _count_messages(session_id: str, role: Role) -> Generator[Statement, Rows, int]:
    rows = yield "SELECT count(*) FROM messages WHERE session_id = ? AND role = ?", (session_id, role.value)
    number: int = rows[0][0]
    return number


@operation
def _calls_of(session_id: str, call_ids: Sequence[str]) -> Generator[Statement, Rows, dict[str, Call]]:
    found: dict[str, Call] = {}
    stretches = yield from lineage(session_id)
    for call_id in call_ids:
        for stretch in reversed(stretches):
            rows = yield (
                f"SELECT session_id, {ROW} FROM tool_calls WHERE session_id = ? AND id = ?",
                (stretch.session_id, call_id),
            )
            if rows:
                call = call_from(rows[0])
                took = None if call.completed_at is None else call.completed_at - call.created_at
                took_ms = None if took is None else max(0, round(took / timedelta(milliseconds=1)))
                found[call_id] = Call(call.name, call.result_seq, took_ms)
                break
    return found


@operation
def _sessions_of(
    owners: Owners, before: tuple[datetime, str] | None, limit: int
) -> Generator[Statement, Rows, list[Session]]:
    condition, arguments = owners.condition("sessions")
    return (yield from sessions_where([condition], list(arguments), before, limit))
