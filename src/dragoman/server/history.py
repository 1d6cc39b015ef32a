"""``GET /api/v1/agent/history``: what was said in a thread, by day or by page.

Without anything else said it is the newest day of a thread, or of the thread in which something happened last;
``before`` a day it is the newest day before that. ``limit``, ``beforeSeq`` and ``afterSeq`` turn pages by places
instead. The one rule: a page is read from its place, so it costs the same in a thread of any length.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.ids import name_from_id
from dragoman.server.answers import answer, owners_of
from dragoman.server.asking import text_param, whole_number
from dragoman.server.endpoint import Endpoint, Query
from dragoman.server.principal import owned_session, principal_of
from dragoman.server.refusing import Refusal
from dragoman.server.rows import HistoryRow, calls_answered, row_from
from dragoman.server.state import doors_of
from dragoman.store import Row, Session, Store

PAGE: Final = 50
MOST: Final = 200
_DAY: Final = 1_000  # messages of one day, unless a limit is given
_FARTHEST: Final = 999_999_999


class History(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a thread, in the order in which it was said."""

    thread_id: str | None  # none if the caller has no thread yet
    messages: list[HistoryRow]
    has_more: bool  # whether there is more in the direction that was asked for
    limit: int  # how many messages there are at most
    day: str | None = None  # the day in UTC that this is, if it was asked for by day
    before: str | None = None  # what to ask for the day before with; none if a day is not complete, or by page
    before_seq: int | None = None  # what to ask for the page before with; none if there is none
    after_seq: int | None = None  # what to ask for whatever comes later with


async def history(request: Request) -> Response:
    """A part of a thread of the caller."""
    session = await _session(request)
    by_place = [name for name in ("limit", "beforeSeq", "afterSeq") if name in request.query_params]
    before = day_param(request, "before")
    if before is not None and {"beforeSeq", "afterSeq"} & set(by_place):
        raise Refusal(422, "invalid_parameter", "before goes by day, beforeSeq and afterSeq by place. Use one of them.")
    is_by_day = before is not None or not by_place
    limit = whole_number(request, "limit", default=_DAY if is_by_day else PAGE, most=MOST)
    if session is None:
        return answer(History(thread_id=None, messages=[], has_more=False, limit=limit))
    if is_by_day:
        return answer(await _by_day(doors_of(request).store, session, before, limit))
    return answer(await _by_page(request, session, limit))


async def _session(request: Request) -> Session | None:
    """The thread that is meant; the one in which something happened last, if none is named."""
    thread_id = text_param(request, "threadId", None)
    if thread_id is not None:
        return await owned_session(request, thread_id)
    found = await doors_of(request).store.sessions_of(owners_of(principal_of(request)), limit=1)
    return found[0] if found else None


# --- by day ----------------------------------------------------------------------------------------------------------


async def _by_day(store: Store, session: Session, before: date | None, limit: int) -> History:
    last = session.last_seq
    if before is not None:
        last = await store.place_before(session.id, datetime(before.year, before.month, before.day, tzinfo=UTC))
    rows, is_whole = await _newest_day(store, session, last, limit)
    if not rows:
        return History(thread_id=name_from_id(session.id), messages=[], has_more=False, limit=limit)
    day, first = rows[-1].message.created_at.date().isoformat(), rows[0].seq
    return History(
        thread_id=name_from_id(session.id),
        messages=await shown(store, session, rows),
        has_more=first > 1,
        limit=limit,
        day=day,
        before=day if first > 1 and is_whole else None,
        before_seq=first if first > 1 else None,
        after_seq=rows[-1].seq,
    )


async def _newest_day(store: Store, session: Session, last: int, limit: int) -> tuple[list[Row], bool]:
    """The messages of one day that end at a place, and whether they are all of that day."""
    rows: list[Row] = []
    before = last + 1
    while before > 1:
        page = await store.read_back(session.id, before, PAGE)
        day = (rows or page)[-1].message.created_at.date()
        kept = len(page)
        while kept and page[kept - 1].message.created_at.date() == day:
            kept -= 1
        rows = [*page[kept:], *rows]
        if len(rows) > limit:
            return rows[-limit:], False
        if kept:
            break
        before = page[0].seq
    return rows, True


# --- by page ---------------------------------------------------------------------------------------------------------


async def _by_page(request: Request, session: Session, limit: int) -> History:
    rows, has_more = await rows_of_page(request, session, limit)
    first, last = (rows[0].seq, rows[-1].seq) if rows else (0, session.last_seq)
    return History(
        thread_id=name_from_id(session.id),
        messages=await shown(doors_of(request).store, session, rows),
        has_more=has_more,
        limit=limit,
        before_seq=first if first > 1 else None,
        after_seq=last,
    )


async def rows_of_page(request: Request, session: Session, limit: int) -> tuple[list[Row], bool]:
    """The messages that ``beforeSeq`` or ``afterSeq`` ask for, or the newest; and whether there are more."""
    store = doors_of(request).store
    after = place_param(request, "afterSeq")
    before = place_param(request, "beforeSeq")
    if after is not None and before is not None:
        raise Refusal(422, "invalid_parameter", "afterSeq and beforeSeq go in two directions. Use one of them.")
    if after is not None:
        rows = await store.read(session.id, after, limit)
        return rows, bool(rows) and rows[-1].seq < session.last_seq
    rows = await store.tail(session.id, limit) if before is None else await store.read_back(session.id, before, limit)
    return rows, bool(rows) and rows[0].seq > 1


async def shown(store: Store, session: Session, rows: list[Row]) -> list[HistoryRow]:
    """Messages as a history shows them."""
    calls = await store.calls_of(session.id, calls_answered(row.message for row in rows))
    return [row_from(row, calls) for row in rows]


# --- what is asked for -----------------------------------------------------------------------------------------------


def place_param(request: Request, name: str) -> int | None:
    """The place of a message in the query."""
    if name not in request.query_params:
        return None
    return whole_number(request, name, default=0, least=0, most=_FARTHEST)


def day_param(request: Request, name: str) -> date | None:
    """A day in the query, as 2026-03-13."""
    said = text_param(request, name, None)
    if said is None:
        return None
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", said):
            raise ValueError
        return date.fromisoformat(said)
    except ValueError:
        raise Refusal(422, "invalid_parameter", f"{name} has to be a day, as 2026-03-13.") from None


def places() -> tuple[Query, ...]:
    """The parameters that turn pages by places."""
    number = {"type": "integer", "minimum": 0, "maximum": _FARTHEST}
    return (
        Query("limit", {"type": "integer", "minimum": 1}, f"At most so many messages, {MOST} if it is more"),
        Query("beforeSeq", number, "Those before this place"),
        Query("afterSeq", number, "Those behind this place"),
    )


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/agent/history",
        history,
        name="history",
        summary="What was said in a thread, by day or by page",
        scope="chat",
        answers={200: History},
        query=(
            Query("threadId", summary="The thread; without it, the one in which something happened last"),
            Query("before", {"type": "string", "format": "date"}, "The newest day before this one, in UTC"),
            *places(),
        ),
    ),
)
