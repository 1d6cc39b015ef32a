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
from dragoman.server.auth.principal import get_owned_session, get_principal
from dragoman.server.chat.rows import HistoryRow, result_call_ids, to_history_row
from dragoman.server.http.endpoint import Endpoint, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import int_param, text_param
from dragoman.server.http.responses import get_owners, json_response
from dragoman.server.state import app_state
from dragoman.store import Row, Session, Store

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
_MAX_DAY_SIZE: Final = 1_000  # messages of one day, unless a limit is given
_MAX_SEQ: Final = 999_999_999


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


async def get_history(request: Request) -> Response:
    """A part of a thread of the caller."""
    session = await _find_session(request)
    position_params = [name for name in ("limit", "beforeSeq", "afterSeq") if name in request.query_params]
    before = day_param(request, "before")
    if before is not None and {"beforeSeq", "afterSeq"} & set(position_params):
        raise ApiError(
            422, "invalid_parameter", "before goes by day, beforeSeq and afterSeq by place. Use one of them."
        )
    is_by_day = before is not None or not position_params
    limit = int_param(request, "limit", default=_MAX_DAY_SIZE if is_by_day else PAGE_SIZE, maximum=MAX_PAGE_SIZE)
    if session is None:
        return json_response(History(thread_id=None, messages=[], has_more=False, limit=limit))
    if is_by_day:
        return json_response(await _read_day(app_state(request).store, session, before, limit))
    return json_response(await _read_page(request, session, limit))


async def _find_session(request: Request) -> Session | None:
    """The thread that is meant; the one in which something happened last, if none is named."""
    thread_id = text_param(request, "threadId", None)
    if thread_id is not None:
        return await get_owned_session(request, thread_id)
    sessions = await app_state(request).store.list_sessions_of(get_owners(get_principal(request)), limit=1)
    return sessions[0] if sessions else None


# --- by day ----------------------------------------------------------------------------------------------------------


async def _read_day(store: Store, session: Session, before: date | None, limit: int) -> History:
    last = session.last_seq
    if before is not None:
        last = await store.seq_before(session.id, datetime(before.year, before.month, before.day, tzinfo=UTC))
    rows, is_complete = await _newest_day_rows(store, session, last, limit)
    if not rows:
        return History(thread_id=name_from_id(session.id), messages=[], has_more=False, limit=limit)
    day, first = rows[-1].message.created_at.date().isoformat(), rows[0].seq
    return History(
        thread_id=name_from_id(session.id),
        messages=await to_history_rows(store, session, rows),
        has_more=first > 1,
        limit=limit,
        day=day,
        before=day if first > 1 and is_complete else None,
        before_seq=first if first > 1 else None,
        after_seq=rows[-1].seq,
    )


async def _newest_day_rows(store: Store, session: Session, last: int, limit: int) -> tuple[list[Row], bool]:
    """The messages of one day that end at a place, and whether they are all of that day."""
    rows: list[Row] = []
    before = last + 1
    while before > 1:
        page = await store.read_before(session.id, before, PAGE_SIZE)
        day = (rows or page)[-1].message.created_at.date()
        start = len(page)
        while start and page[start - 1].message.created_at.date() == day:
            start -= 1
        rows = [*page[start:], *rows]
        if len(rows) > limit:
            return rows[-limit:], False
        if start:
            break
        before = page[0].seq
    return rows, True


# --- by page ---------------------------------------------------------------------------------------------------------


async def _read_page(request: Request, session: Session, limit: int) -> History:
    rows, has_more = await read_page_rows(request, session, limit)
    first, last = (rows[0].seq, rows[-1].seq) if rows else (0, session.last_seq)
    return History(
        thread_id=name_from_id(session.id),
        messages=await to_history_rows(app_state(request).store, session, rows),
        has_more=has_more,
        limit=limit,
        before_seq=first if first > 1 else None,
        after_seq=last,
    )


async def read_page_rows(request: Request, session: Session, limit: int) -> tuple[list[Row], bool]:
    """The messages that ``beforeSeq`` or ``afterSeq`` ask for, or the newest; and whether there are more."""
    store = app_state(request).store
    after = seq_param(request, "afterSeq")
    before = seq_param(request, "beforeSeq")
    if after is not None and before is not None:
        raise ApiError(422, "invalid_parameter", "afterSeq and beforeSeq go in two directions. Use one of them.")
    if after is not None:
        rows = await store.read(session.id, after, limit)
        return rows, bool(rows) and rows[-1].seq < session.last_seq
    rows = await store.tail(session.id, limit) if before is None else await store.read_before(session.id, before, limit)
    return rows, bool(rows) and rows[0].seq > 1


async def to_history_rows(store: Store, session: Session, rows: list[Row]) -> list[HistoryRow]:
    """Messages as a history shows them."""
    calls = await store.find_calls(session.id, result_call_ids(row.message for row in rows))
    return [to_history_row(row, calls) for row in rows]


# --- what is asked for -----------------------------------------------------------------------------------------------


def seq_param(request: Request, name: str) -> int | None:
    """The place of a message in the query."""
    if name not in request.query_params:
        return None
    return int_param(request, name, default=0, minimum=0, maximum=_MAX_SEQ)


def day_param(request: Request, name: str) -> date | None:
    """A day in the query, as 2026-03-13."""
    text = text_param(request, name, None)
    if text is None:
        return None
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise ApiError(422, "invalid_parameter", f"{name} has to be a day, as 2026-03-13.") from None


def page_params() -> tuple[Query, ...]:
    """The parameters that turn pages by places."""
    number = {"type": "integer", "minimum": 0, "maximum": _MAX_SEQ}
    return (
        Query("limit", {"type": "integer", "minimum": 1}, f"At most so many messages, {MAX_PAGE_SIZE} if it is more"),
        Query("beforeSeq", number, "Those before this place"),
        Query("afterSeq", number, "Those behind this place"),
    )


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/agent/history",
        get_history,
        name="history",
        summary="What was said in a thread, by day or by page",
        scope="chat",
        responses={200: History},
        query=(
            Query("threadId", summary="The thread; without it, the one in which something happened last"),
            Query("before", {"type": "string", "format": "date"}, "The newest day before this one, in UTC"),
            *page_params(),
        ),
    ),
)
