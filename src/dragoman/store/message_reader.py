"""Messages on their way out: a page of rows, complete and in order, or an error.

The one rule: a place without its row is damage, and never left out in silence.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.store.lineage import Segment, damage_error, lineage
from dragoman.store.message_rows import Columns
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.recent import MessageCache
from dragoman.store.types import Row

COLUMNS: Final = (
    "session_id, seq, id, role, content_json, metadata_json, created_at, schema_version, status, unknown_json,"
    " blobs_json, hash"
)
SMALL_PAGE: Final = 100  # messages of a page that is read with a few steps
_MAX_SEQ: Final = 2**62  # greater than the number of any message


class MessageRow(msgspec.Struct, frozen=True):
    """A row as it was read, not yet a message."""

    session_id: str
    seq: int
    columns: Columns
    hash: bytes


def message_row_from(row: tuple[Any, ...]) -> MessageRow:
    return MessageRow(row[0], row[1], Columns(*row[2:11]), row[11])


@operation
def read_rows(session_id: str, after_seq: int, limit: int) -> Generator[Statement, Rows, list[MessageRow]]:
    """The rows behind a place, in order."""
    page = yield from read_page_after(session_id, after_seq, limit, MessageCache())
    return [one for one in page if isinstance(one, MessageRow)]


@operation
def read_page_after(
    session_id: str, after_seq: int, limit: int, cache: MessageCache
) -> Generator[Statement, Rows, list[MessageRow | Row]]:
    """The messages behind a place, in order; those that were read lately as they are."""
    return (yield from read_page_in_segments((yield from lineage(session_id)), after_seq, limit, cache))


def read_page_in_segments(
    segments: Sequence[Segment], after_seq: int, limit: int, cache: MessageCache
) -> Generator[Statement, Rows, list[MessageRow | Row]]:
    """The same of a history whose stretches are known."""
    items: list[MessageRow | Row] = []
    session_id = segments[-1].session_id
    for segment in segments:
        first, remaining = max(after_seq + 1, segment.first), limit - len(items)
        is_own = segment.session_id == session_id
        if (first <= segment.last or is_own) and remaining > 0:
            last = first + remaining if is_own else segment.last  # of its own there is nothing behind the last one
            page = Page(segment.session_id, first, last, remaining)
            items.extend((yield from _read_page(page, range(first, min(first + remaining, segment.last + 1)), cache)))
    return items


@operation
def read_page_before(
    session_id: str, before_seq: int | None, limit: int, cache: MessageCache
) -> Generator[Statement, Rows, list[MessageRow | Row]]:
    """The messages before a place, or the newest ones, in order; those that were read lately as they are."""
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
    """Messages of one session from ``first`` to ``last``, at most so many of them."""

    session_id: str
    first: int
    last: int
    limit: int
    backward: bool = False  # the last ones, rather than the first ones

    def statement(self, columns: str) -> Statement:
        order = "seq DESC" if self.backward else "seq"
        sql = f"SELECT {columns} FROM messages WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY {order} LIMIT ?"
        return sql, (self.session_id, self.first, self.last, self.limit)


def _read_page(page: Page, seqs: range, cache: MessageCache) -> Generator[Statement, Rows, list[MessageRow | Row]]:
    """What stands at these places, in order: exactly one message at each, or something is damaged."""
    if not cache.has_session(page.session_id):
        rows = yield page.statement(COLUMNS)
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
        other_rows = yield part.statement(COLUMNS)
        _check_complete(part, other_rows, range(missing[0], missing[-1] + 1))
    fresh = {row[1]: message_row_from(row) for row in other_rows}
    return [fresh[seq] if message is None else Row(seq, message) for seq, message in cached]


def _check_complete(page: Page, rows: Rows, seqs: range) -> None:
    """There is a row for each of these places, and no other."""
    if [row[1] for row in rows] != list(reversed(seqs) if page.backward else seqs):
        raise damage_error(page.session_id, f"of the messages {seqs.start} to {seqs.stop - 1} some are not there")


@operation
def read_at(session_id: str, seqs: Sequence[int]) -> Generator[Statement, Rows, list[MessageRow]]:
    """The messages of a history at these places."""
    results: list[MessageRow] = []
    segments = yield from lineage(session_id)
    for seq in seqs:
        owner = next((one.session_id for one in segments if one.first <= seq <= one.last), session_id)
        rows = yield f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
        results.extend(map(message_row_from, rows))
    return results


@operation
def get_message(session_id: str, message_id: str) -> Generator[Statement, Rows, MessageRow]:
    """The message of that id, or ``UnknownMessageError``."""
    for segment in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND id = ? AND seq <= ?",
            (segment.session_id, message_id, segment.last),
        )
        if rows:
            return message_row_from(rows[0])
    raise unknown_message(session_id, message_id)


def unknown_message(session_id: str, message_id: str) -> UnknownMessageError:
    return UnknownMessageError(f"no message {message_id!r} in session {session_id!r}")
