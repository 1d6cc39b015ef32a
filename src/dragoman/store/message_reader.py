"""Read messages: pages in order, one by its id, a time or a client's id, and the attachments that messages refer to.

``MessageCache`` holds decoded messages, so that a history that every turn reads is decoded once.

Invariants: a seq without its row is damage and is never skipped. The cost of a page does not depend on the length of
the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.message import Message, MessageStatus, Role
from dragoman.store.message_rows import Columns, message_from
from dragoman.store.operation import Rows, Statement, Steps, operation
from dragoman.store.sessions import Segment, damage_error, lineage
from dragoman.store.types import Owners, Row
from dragoman.value import UNSET

MESSAGE_COLUMNS: Final = (
    "session_id, seq, id, role, content_json, metadata_json, created_at, schema_version, status, unknown_json,"
    " blobs_json, hash"
)
SMALL_PAGE: Final = 100  # messages of the first read of a history
MAX_CACHED_PAGE: Final = 500  # a longer page is a scan, which would only displace what turns read again
_MAX_SEQ: Final = 2**62  # greater than any seq


class MessageRow(msgspec.Struct, frozen=True):
    """A row of ``messages`` that is not decoded yet."""

    session_id: str
    seq: int
    columns: Columns
    hash: bytes


def message_row_from(row: tuple[Any, ...]) -> MessageRow:
    return MessageRow(row[0], row[1], Columns(*row[2:11]), row[11])


@operation
def read_rows(session_id: str, after_seq: int, limit: int) -> Steps[list[MessageRow]]:
    """Read the rows after a seq, in order."""
    page = yield from read_page_after(session_id, after_seq, limit, MessageCache())
    return [item for item in page if isinstance(item, MessageRow)]


@operation
def read_page_after(session_id: str, after_seq: int, limit: int, cache: MessageCache) -> Steps[list[MessageRow | Row]]:
    """Read the messages after a seq, in order, from the cache where possible."""
    return (yield from read_page_in_segments((yield from lineage(session_id)), after_seq, limit, cache))


def read_page_in_segments(
    segments: Sequence[Segment], after_seq: int, limit: int, cache: MessageCache
) -> Steps[list[MessageRow | Row]]:
    """Read the messages after a seq of a history with known segments."""
    items: list[MessageRow | Row] = []
    session_id = segments[-1].session_id
    for segment in segments:
        first, remaining = max(after_seq + 1, segment.first), limit - len(items)
        is_own = segment.session_id == session_id
        if (first <= segment.last or is_own) and remaining > 0:
            last = first + remaining if is_own else segment.last  # its last own message ends the history
            page = Page(segment.session_id, first, last, remaining)
            items.extend((yield from _read_page(page, range(first, min(first + remaining, segment.last + 1)), cache)))
    return items


@operation
def read_page_before(
    session_id: str, before_seq: int | None, limit: int, cache: MessageCache
) -> Steps[list[MessageRow | Row]]:
    """Read the messages before a seq, or the newest ones, in order, from the cache where possible."""
    items: list[MessageRow | Row] = []
    for segment in reversed((yield from lineage(session_id))):
        last = segment.last if before_seq is None else min(segment.last, before_seq - 1)
        remaining = limit - len(items)
        is_newest = before_seq is None and segment.session_id == session_id
        if (last >= segment.first or is_newest) and remaining > 0:
            page = Page(segment.session_id, segment.first, _MAX_SEQ if is_newest else last, remaining, backward=True)
            seqs = range(max(segment.first, last - remaining + 1), last + 1)
            items[:0] = yield from _read_page(page, seqs, cache)
    return items


class Page(msgspec.Struct, frozen=True):
    """Messages of one session from ``first`` to ``last``, at most ``limit``."""

    session_id: str
    first: int
    last: int
    limit: int
    backward: bool = False  # the last ones instead of the first ones

    def statement(self, columns: str) -> Statement:
        order = "seq DESC" if self.backward else "seq"
        sql = f"SELECT {columns} FROM messages WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY {order} LIMIT ?"
        return sql, (self.session_id, self.first, self.last, self.limit)


def _read_page(page: Page, seqs: range, cache: MessageCache) -> Steps[list[MessageRow | Row]]:
    """Read the messages at these seqs, in order; a missing one is damage."""
    if page.limit > MAX_CACHED_PAGE or not cache.has_session(page.session_id):
        rows = yield page.statement(MESSAGE_COLUMNS)
        _check_complete(page, rows, seqs)
        return [message_row_from(row) for row in (reversed(rows) if page.backward else rows)]
    rows = yield page.statement("hash, seq")
    _check_complete(page, rows, seqs)
    ordered = reversed(rows) if page.backward else rows
    cached = [(seq, cache.get(page.session_id, seq, bytes(hash_))) for hash_, seq in ordered]
    missing = [seq for seq, message in cached if message is None]
    other_rows: Rows = []
    if missing:
        part = Page(page.session_id, missing[0], missing[-1], page.limit)
        other_rows = yield part.statement(MESSAGE_COLUMNS)
        _check_complete(part, other_rows, range(missing[0], missing[-1] + 1))
    fresh = {row[1]: message_row_from(row) for row in other_rows}
    return [fresh[seq] if message is None else Row(seq, message) for seq, message in cached]


def _check_complete(page: Page, rows: Rows, seqs: range) -> None:
    """Raise ``CorruptDataError`` unless there is exactly one row for each seq."""
    if [row[1] for row in rows] != list(reversed(seqs) if page.backward else seqs):
        raise damage_error(page.session_id, f"of the messages {seqs.start} to {seqs.stop - 1} some are missing")


@operation
def read_at(session_id: str, seqs: Sequence[int]) -> Steps[list[MessageRow]]:
    """Read the messages of a history at these seqs."""
    results: list[MessageRow] = []
    segments = yield from lineage(session_id)
    for seq in seqs:
        owner = next((each.session_id for each in segments if each.first <= seq <= each.last), session_id)
        rows = yield f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
        results.extend(map(message_row_from, rows))
    return results


@operation
def get_message(session_id: str, message_id: str) -> Steps[MessageRow]:
    """Read the message of that id, or raise ``UnknownMessageError``."""
    for segment in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE session_id = ? AND id = ? AND seq <= ?",
            (segment.session_id, message_id, segment.last),
        )
        if rows:
            return message_row_from(rows[0])
    raise unknown_message(session_id, message_id)


def unknown_message(session_id: str, message_id: str) -> UnknownMessageError:
    return UnknownMessageError(f"no message {message_id!r} in session {session_id!r}")


# --- search by time and client id ------------------------------------------------------------------------------------


@operation
def seq_before(session_id: str, moment: int) -> Steps[int]:
    segments = yield from lineage(session_id)
    low, high = 0, segments[-1].last
    while low < high:
        middle = (low + high + 1) // 2
        created_at = yield from _created_at(segments, middle)
        low, high = (middle, high) if created_at < moment else (low, middle - 1)
    return low


def _created_at(segments: Sequence[Segment], seq: int) -> Steps[int]:
    owner = next(each.session_id for each in segments if each.first <= seq <= each.last)
    rows = yield "SELECT created_at FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
    if not rows:
        raise damage_error(owner, f"message {seq} is missing")
    return int(rows[0][0])


# The expression of the index on client message ids. The engine uses the index for a condition of the same text.
_CLIENT_ID: Final = {
    "sqlite": "instr(metadata_json, '\"message_id\":') > 0 AND substr(CASE WHEN json_valid(metadata_json)"
    " THEN json_extract(metadata_json, '$.message_id') END, 1, 200)",
    "postgres": "strpos(metadata_json, '\"message_id\":') > 0 AND left(coalesce(metadata,"
    " dragoman_jsonb(replace(metadata_json, '\\u0000', '\\u2400'))) ->> 'message_id', 200)",
}
_INDEX_PREFIX: Final = 200  # characters of a client id in the index


@operation
def find_message(engine: str, session_id: str, name: str) -> Steps[MessageRow]:
    try:
        return (yield from get_message(session_id, name))
    except UnknownMessageError:
        pass
    for segment in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE session_id = ? AND {_CLIENT_ID[engine]} = ? AND seq <= ?"
            " ORDER BY seq DESC",
            (segment.session_id, name[:_INDEX_PREFIX], segment.last),
        )
        for row in map(message_row_from, rows):
            if _decode_metadata(row.columns.metadata_json).get("message_id") == name:
                return row
    raise unknown_message(session_id, name)


def _decode_metadata(text: str) -> Mapping[str, Any]:
    """Decode the metadata of a row; empty if it is damaged, which reading the row reports."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


@operation
def count_messages(session_id: str, role: Role) -> Steps[int]:
    rows = yield "SELECT count(*) FROM messages WHERE session_id = ? AND role = ?", (session_id, role.value)
    count: int = rows[0][0]
    return count


# --- attachments -----------------------------------------------------------------------------------------------------

File = tuple[str, str]  # bucket and path
_PATHS_PER_STATEMENT: Final = 100  # paths per statement


class AttachmentRefs(msgspec.Struct, frozen=True):
    """Attachments that messages refer to, by bucket and path."""

    exclusive: frozenset[File]  # only in this session
    shared: frozenset[File]  # in other sessions of the user as well


@operation
def find_attachment_refs(session_id: str, owners: Owners, prefix: str) -> Steps[AttachmentRefs]:
    """Return the files of a session, and those of other sessions of the owners: the same files, or under a prefix.

    Teams do not matter: a file belongs to its user, who may use it in all teams.
    """
    rows = yield "SELECT max(parent_seq) FROM sessions WHERE parent_session_id = ?", (session_id,)
    shared_seq = rows[0][0] or 0  # messages up to here are part of a fork as well
    own_rows = yield (
        "SELECT bucket, path FROM attachment_refs WHERE session_id = ? AND seq > ?",
        (session_id, shared_seq),
    )
    own_files = {(str(bucket), str(path)) for bucket, path in own_rows}
    scope = (session_id, shared_seq, owners.user_id)
    user_sql = "(s.user_id = ? OR s.user_id IS NULL)" if owners.is_everywhere else "s.user_id = ?"
    query = (  # SQLite keeps the order of a cross join: from the path to the session
        "SELECT DISTINCT r.bucket, r.path FROM attachment_refs AS r CROSS JOIN sessions AS s"
        f" WHERE s.id = r.session_id AND (r.session_id <> ? OR r.seq <= ?) AND {user_sql}"
    )
    other_rows = yield f"{query} AND r.path >= ? AND r.path < ?", (*scope, prefix, prefix + "\x7f")
    own_paths = sorted({path for _, path in own_files})
    for first in range(0, len(own_paths), _PATHS_PER_STATEMENT):
        paths = own_paths[first : first + _PATHS_PER_STATEMENT]
        placeholders = ", ".join("?" * len(paths))
        other_rows += yield f"{query} AND r.path IN ({placeholders})", (*scope, *paths)
    other_files = frozenset((bucket, path) for bucket, path in other_rows)
    return AttachmentRefs(frozenset(own_files) - other_files, other_files)


# --- decode -----------------------------------------------------------------------------------------------------------


def row_size(row: MessageRow) -> int:
    """Return the number of characters to decode."""
    return len(row.columns.content_json) + len(row.columns.metadata_json)


def decode_rows(items: Sequence[MessageRow | Row], blobs: Mapping[int, Mapping[str, bytes]]) -> list[Row]:
    """Return rows with their messages; ``blobs`` by seq."""
    return [
        item
        if isinstance(item, Row)
        else Row(item.seq, message_from(item.session_id, item.seq, item.columns, item.hash, blobs.get(item.seq, {})))
        for item in items
    ]


def find_cacheable(items: Sequence[MessageRow | Row], rows: Sequence[Row]) -> list[tuple[MessageRow, Message]]:
    """Return the rows that were decoded without blobs to immutable messages."""
    return [
        (item, row.message)
        for item, row in zip(items, rows, strict=True)
        if isinstance(item, MessageRow) and item.columns.blobs_json is None and is_immutable(row.message)
    ]


# --- cache -----------------------------------------------------------------------------------------------------------

_MAX_CHARACTERS: Final = 32 * 1024 * 1024  # of JSON; a character takes one to four bytes in memory
_OVERHEAD: Final = 700  # bytes of a message besides its texts


class MessageCache:
    """Decoded messages by session and seq, with the hash of their row. The oldest ones are evicted.

    A hit requires the hash that the table has now, so a changed or deleted row is never served. Messages that contain
    mutable values are not cached.
    """

    def __init__(self, max_size: int = _MAX_CHARACTERS) -> None:
        self._max_size = max_size
        self._entries: dict[tuple[str, int], tuple[bytes, Message, int]] = {}
        self._session_counts: dict[str, int] = {}  # how many
        self._size = 0

    def has_session(self, session_id: str) -> bool:
        """Whether messages of a session are cached."""
        return session_id in self._session_counts

    def get(self, session_id: str, seq: int, hash_: bytes) -> Message | None:
        """Return the message at a seq if its row still has this hash."""
        entry = self._entries.get((session_id, seq))
        return entry[1] if entry is not None and entry[0] == hash_ else None

    def put(self, session_id: str, seq: int, hash_: bytes, message: Message, characters: int) -> None:
        """Cache the message of an intact row of so many characters; it must be immutable."""
        size = characters + _OVERHEAD
        key = session_id, seq
        if key in self._entries:
            self._drop(key)
        if size > self._max_size // 8:
            return
        self._entries[key] = (hash_, message, size)
        self._session_counts[session_id] = self._session_counts.get(session_id, 0) + 1
        self._size += size
        while self._size > self._max_size:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: tuple[str, int]) -> None:
        session_id, _ = key
        _, _, size = self._entries.pop(key)
        self._size -= size
        self._session_counts[session_id] -= 1
        if not self._session_counts[session_id]:
            del self._session_counts[session_id]

    def clear(self) -> None:
        """Remove everything, after a deletion."""
        self._entries.clear()
        self._session_counts.clear()
        self._size = 0


_IMMUTABLE: Final = frozenset((str, int, float, bool, type(None), type(UNSET), Decimal, datetime, MessageStatus, Role))


def is_immutable(value: Any) -> bool:
    """Whether a message, or a value in it, contains no mutable value."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.astuple(value)
    if type(value) is tuple:
        return all(type(item) in _IMMUTABLE or is_immutable(item) for item in value)
    return not isinstance(value, dict | list | bytearray | set)
