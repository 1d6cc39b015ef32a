"""Messages on their way out: a page of rows, complete and in order, or an error.

The one rule: a place without its row is damage, and never left out in silence.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import UnknownMessageError
from dragoman.store.lineage import Stretch, gone, lineage
from dragoman.store.operation import Rows, Statement, operation
from dragoman.store.recent import Recent
from dragoman.store.rows import Columns
from dragoman.store.values import Row

COLUMNS: Final = (
    "session_id, seq, id, role, content_json, metadata_json, created_at, schema_version, status, unknown_json,"
    " blobs_json, hash"
)
LITTLE: Final = 100  # messages of a page that is read with a few steps
_NO_PLACE: Final = 2**62  # greater than the number of any message


class Found(msgspec.Struct, frozen=True):
    """A row as it was read, not yet a message."""

    session_id: str
    seq: int
    columns: Columns
    hash: bytes


def found_from(row: tuple[Any, ...]) -> Found:
    return Found(row[0], row[1], Columns(*row[2:11]), row[11])


@operation
def read(session_id: str, after_seq: int, limit: int) -> Generator[Statement, Rows, list[Found]]:
    """The rows behind a place, in order."""
    page = yield from page_after(session_id, after_seq, limit, Recent())
    return [one for one in page if isinstance(one, Found)]


@operation
def page_after(
    session_id: str, after_seq: int, limit: int, recent: Recent
) -> Generator[Statement, Rows, list[Found | Row]]:
    """The messages behind a place, in order; those that were read lately as they are."""
    return (yield from page_within((yield from lineage(session_id)), after_seq, limit, recent))


def page_within(
    stretches: Sequence[Stretch], after_seq: int, limit: int, recent: Recent
) -> Generator[Statement, Rows, list[Found | Row]]:
    """The same of a history whose stretches are known."""
    found: list[Found | Row] = []
    session_id = stretches[-1].session_id
    for stretch in stretches:
        first, wanted = max(after_seq + 1, stretch.first), limit - len(found)
        is_own = stretch.session_id == session_id
        if (first <= stretch.last or is_own) and wanted > 0:
            last = first + wanted if is_own else stretch.last  # of its own there is nothing behind the last one
            page = Page(stretch.session_id, first, last, wanted)
            found.extend((yield from _page(page, range(first, min(first + wanted, stretch.last + 1)), recent)))
    return found


@operation
def page_before(
    session_id: str, before_seq: int | None, limit: int, recent: Recent
) -> Generator[Statement, Rows, list[Found | Row]]:
    """The messages before a place, or the newest ones, in order; those that were read lately as they are."""
    found: list[Found | Row] = []
    for stretch in reversed((yield from lineage(session_id))):
        last = stretch.last if before_seq is None else min(stretch.last, before_seq - 1)
        wanted = limit - len(found)
        is_newest = before_seq is None and stretch.session_id == session_id
        if (last >= stretch.first or is_newest) and wanted > 0:
            page = Page(stretch.session_id, stretch.first, _NO_PLACE if is_newest else last, wanted, backward=True)
            places = range(max(stretch.first, last - wanted + 1), last + 1)
            found[:0] = yield from _page(page, places, recent)
    return found


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


def _page(page: Page, places: range, recent: Recent) -> Generator[Statement, Rows, list[Found | Row]]:
    """What stands at these places, in order: exactly one message at each, or something is damaged."""
    if not recent.has_some_of(page.session_id):
        rows = yield page.statement(COLUMNS)
        _check_unbroken(page, rows, places)
        return [found_from(row) for row in (reversed(rows) if page.backward else rows)]
    rows = yield page.statement("hash, seq")
    _check_unbroken(page, rows, places)
    found = reversed(rows) if page.backward else rows
    known = [(seq, recent.get(page.session_id, seq, bytes(hash_))) for hash_, seq in found]
    missing = [seq for seq, message in known if message is None]
    others: Rows = []
    if missing:
        part = Page(page.session_id, missing[0], missing[-1], page.limit)
        others = yield part.statement(COLUMNS)
        _check_unbroken(part, others, range(missing[0], missing[-1] + 1))
    read_now = {row[1]: found_from(row) for row in others}
    return [read_now[seq] if message is None else Row(seq, message) for seq, message in known]


def _check_unbroken(page: Page, rows: Rows, places: range) -> None:
    """There is a row for each of these places, and no other."""
    if [row[1] for row in rows] != list(reversed(places) if page.backward else places):
        raise gone(page.session_id, f"of the messages {places.start} to {places.stop - 1} some are not there")


@operation
def at(session_id: str, seqs: Sequence[int]) -> Generator[Statement, Rows, list[Found]]:
    """The messages of a history at these places."""
    found: list[Found] = []
    stretches = yield from lineage(session_id)
    for seq in seqs:
        owner = next((one.session_id for one in stretches if one.first <= seq <= one.last), session_id)
        rows = yield f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND seq = ?", (owner, seq)
        found.extend(map(found_from, rows))
    return found


@operation
def get_message(session_id: str, message_id: str) -> Generator[Statement, Rows, Found]:
    """The message of that id, or ``UnknownMessageError``."""
    for stretch in reversed((yield from lineage(session_id))):
        rows = yield (
            f"SELECT {COLUMNS} FROM messages WHERE session_id = ? AND id = ? AND seq <= ?",
            (stretch.session_id, message_id, stretch.last),
        )
        if rows:
            return found_from(rows[0])
    raise unknown_message(session_id, message_id)


def unknown_message(session_id: str, message_id: str) -> UnknownMessageError:
    return UnknownMessageError(f"no message {message_id!r} in session {session_id!r}")
