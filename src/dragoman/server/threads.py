"""Threads: listed, renamed, given another model, forked, deleted, searched.

A thread is a session of the store that belongs to the caller. The one rule: a thread is reached by ``owned_session``,
and whatever lists or searches several asks the store for the caller's alone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from dragoman.attachments import delete_with_files
from dragoman.errors import DamagedError, UnknownMessageError
from dragoman.handoff import Policy
from dragoman.ids import name_from_id
from dragoman.server.answers import answer, cursor_for, owners_of, place_from
from dragoman.server.asking import json_body, read_as, text_param, whole_number
from dragoman.server.endpoint import Endpoint, Query
from dragoman.server.history import MOST, day_param
from dragoman.server.principal import Principal, find_session, find_thread, owned_session, principal_of
from dragoman.server.refusing import Refusal, not_found
from dragoman.server.rows import id_of, words_of
from dragoman.server.state import Doors, doors_of
from dragoman.server.swapping import swapped
from dragoman.store import Hit, Session, Store
from dragoman.turn.events import session_ended
from dragoman.turn.seeing import swap_to
from dragoman.turn.telling import tell

_PAGE: Final = 30
_SNIPPET: Final = 160  # characters
_FOUND: Final = 20

Title = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class Thread(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A conversation."""

    id: str
    title: str | None
    model: str | None  # that a person chose for it
    snippet: str | None  # how its newest message begins
    parent_id: str | None  # the thread that it was forked from, if that is the caller's
    parent_seq: int  # up to which message it shares that one's history
    last_seq: int  # how many messages it has
    created_at: datetime
    updated_at: datetime


class Threads(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of threads, the one in which something happened last first."""

    threads: list[Thread]
    has_more: bool
    limit: int
    cursor: str | None  # what to ask for the next page with


class ChangedThread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change about a thread; ``null`` takes a title or a model away."""

    title: Title | UnsetType | None = UNSET
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET
    policy: Policy = "strict"  # what becomes of a picture that the new model cannot see


class ForkAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Where to fork: behind a place or a message; without either, behind the newest one."""

    at_seq: Annotated[int, msgspec.Meta(ge=0, le=999_999_999)] | None = None
    message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    title: Title | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that fits a search."""

    thread_id: str
    title: str | None  # of the thread
    message_id: str
    seq: int
    role: str
    snippet: str  # the words around the first match
    highlights: tuple[tuple[int, int], ...]  # where the matches are in the snippet, in UTF-16 units: from, to
    score: float
    timestamp: datetime


class SearchFound(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a search has found, the best first."""

    hits: list[Found]
    has_more: bool
    limit: int
    offset: int


# --- listing ---------------------------------------------------------------------------------------------------------


async def list_threads(request: Request) -> Response:
    """The caller's threads."""
    principal, store = principal_of(request), doors_of(request).store
    limit = whole_number(request, "limit", default=_PAGE, most=MOST)
    cursor = text_param(request, "cursor", None)
    before = await _place(store, principal, cursor) if cursor is not None else None
    found = await store.sessions_of(owners_of(principal), before=before, limit=limit + 1)
    page, has_more = found[:limit], len(found) > limit
    threads = [await described(request, session) for session in page]
    told = cursor_for(principal, page[-1]) if has_more else None
    return answer(Threads(threads=threads, has_more=has_more, limit=limit, cursor=told))


async def _place(store: Store, principal: Principal, cursor: str) -> tuple[datetime, str]:
    """The place of a cursor as the store knows it: with the id of the session whose name the cursor holds."""
    at, name = place_from(principal, cursor)
    session = await find_thread(store, principal, name)
    return at, name if session is None else session.id


async def get_thread(request: Request) -> Response:
    """One thread of the caller."""
    session = await owned_session(request, request.path_params["id"])
    return answer(await described(request, session))


async def described(request: Request, session: Session) -> Thread:
    """What is told of a thread."""
    return Thread(
        id=name_from_id(session.id),
        title=session.title,
        model=session.active_model,
        snippet=await _snippet(doors_of(request).store, session),
        parent_id=await _parent(request, session),
        parent_seq=session.parent_seq,
        last_seq=session.last_seq,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


async def _parent(request: Request, session: Session) -> str | None:
    """The thread that it was forked from, unless that is somebody else's."""
    if session.parent_session_id is None:
        return None
    parent = await find_session(doors_of(request).store, principal_of(request), session.parent_session_id)
    return None if parent is None else name_from_id(parent.id)


async def _snippet(store: Store, session: Session) -> str | None:
    """How the newest words begin, on one line. Of a thread that is damaged there is none, and it is listed."""
    if not session.last_seq:
        return None
    try:
        rows = await store.tail(session.id, 2)
    except DamagedError:
        return None
    words = next((words for row in reversed(rows) if (words := words_of(row.message).strip())), None)
    if words is None:
        return None
    line = " ".join(words[: _SNIPPET * 2].split())
    return line if len(line) <= _SNIPPET else f"{line[: _SNIPPET - 1]}…"


# --- changing --------------------------------------------------------------------------------------------------------


async def change_thread(request: Request) -> Response:
    """Give a thread another title or another model. A model that cannot go on with it is refused."""
    doors = doors_of(request)
    session = await owned_session(request, request.path_params["id"])
    asked = read_as(await json_body(request), ChangedThread)
    title = asked.title if asked.title is UNSET else _shown(asked.title)
    if asked.model is None:
        session = await swap_to(doors.store, session, None, "strict")
    elif asked.model is not UNSET:
        session = await swapped(doors, session, asked.model, asked.policy)
    if title is not UNSET:
        session = await doors.store.rename_session(session.id, title)
    return answer(await described(request, session))


def _shown(title: str | None) -> str | None:
    if title is not None and "\0" in title:
        raise Refusal(422, "invalid_character", "title holds a NUL.")
    return title


async def fork_thread(request: Request) -> Response:
    """Another thread that shares the history up to a message."""
    doors = doors_of(request)
    session = await owned_session(request, request.path_params["id"])
    asked = read_as(await json_body(request), ForkAsked)
    if asked.at_seq is not None and asked.message_id is not None:
        raise Refusal(422, "invalid_request", "atSeq and messageId both say where. Use one of them.")
    at = asked.at_seq
    if asked.message_id is not None:
        at = (await doors.store.find_message(session.id, asked.message_id)).seq
    elif at is not None and at > session.last_seq:
        raise not_found()
    made = await doors.store.fork(session.id, at, title=_shown(asked.title))
    return answer(await described(request, made), 201)


# --- deleting --------------------------------------------------------------------------------------------------------


async def delete_thread(request: Request) -> Response:
    """Delete a thread and the files that only it names. While a turn runs in it, 409."""
    doors, principal = doors_of(request), principal_of(request)
    session = await owned_session(request, request.path_params["id"])
    ended = await session_ended(doors.store, session)
    await delete_with_files(doors.store, session.id, owners_of(principal), doors.attachments)
    tell(doors.agent.bus, ended, session_id=session.id)
    return Response(status_code=204)


# --- searching -------------------------------------------------------------------------------------------------------


async def search(request: Request) -> Response:
    """Messages of the caller's threads in which all these words are."""
    doors, principal = doors_of(request), principal_of(request)
    words = text_param(request, "q")
    thread_id = text_param(request, "threadId", None)
    if thread_id is not None:
        thread_id = (await owned_session(request, thread_id)).id
    limit = whole_number(request, "limit", default=_FOUND, most=100)
    offset = whole_number(request, "offset", default=0, least=0, most=10_000)
    until = moment_param(request, "to")
    hits = await doors.store.search(
        words,
        session_id=thread_id,
        role=text_param(request, "role", None, most=20),
        model=_model_param(doors, text_param(request, "model", None, most=200)),
        owners=owners_of(principal),
        since=moment_param(request, "from"),
        until=_end_of_day(until) if until is not None and "T" not in request.query_params["to"] else until,
        limit=limit + 1,
        offset=offset,
    )
    threads: dict[str, Session] = {}
    found = [shown for hit in hits[:limit] if (shown := await _found(request, hit, threads)) is not None]
    return answer(SearchFound(hits=found, has_more=len(hits) > limit, limit=limit, offset=offset))


def _end_of_day(day: datetime) -> datetime | None:
    """When the next day begins; nothing after the last day of the calendar, which ends after every message."""
    try:
        return day + timedelta(days=1)
    except OverflowError:
        return None


async def _found(request: Request, hit: Hit, threads: dict[str, Session]) -> Found | None:
    """What is told of a hit; nothing if it was deleted meanwhile."""
    store = doors_of(request).store
    if hit.session_id not in threads:
        session = await find_session(store, principal_of(request), hit.session_id)
        if session is None:
            return None
        threads[hit.session_id] = session
    try:
        row = await store.get_message(hit.session_id, hit.message_id)
    except UnknownMessageError:
        return None
    return Found(
        thread_id=name_from_id(hit.session_id),
        title=threads[hit.session_id].title,
        message_id=id_of(row.message),
        seq=hit.seq,
        role=hit.role,
        snippet=hit.snippet,
        highlights=in_utf16(hit.snippet, hit.highlights),
        score=hit.score,
        timestamp=hit.created_at,
    )


def in_utf16(text: str, places: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Places in a text, counted as browsers count."""

    def units(place: int) -> int:
        return len(text[:place].encode("utf-16-le")) // 2

    return tuple((units(first), units(last)) for first, last in places)


def _model_param(doors: Doors, name: str | None) -> str | None:
    """The id of the model that is meant; a name that is known no more is taken as it is."""
    if name is None:
        return None
    known = doors.agent.registry.find(name)
    return known.id if known is not None else name


class _Moment(msgspec.Struct):
    at: Annotated[datetime, msgspec.Meta(tz=True)]


def moment_param(request: Request, name: str) -> datetime | None:
    """A day, or a moment as 2026-03-13T10:00:00Z, in the query."""
    said = text_param(request, name, None, most=40)
    if said is None:
        return None
    if "T" not in said:
        day = day_param(request, name)
        return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)
    try:
        return msgspec.convert({"at": said}, _Moment).at.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        raise Refusal(422, "invalid_parameter", f"{name} has to be as 2026-03-13T10:00:00Z, or a day.") from None


_NUMBER: Final = {"type": "integer", "minimum": 1}
_THREAD: Final = "/api/v1/agent/threads/{id}"

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/agent/threads",
        list_threads,
        name="list_threads",
        summary="The caller's threads, the one in which something happened last first",
        scope="chat",
        answers={200: Threads},
        query=(
            Query("limit", _NUMBER, f"At most so many, {MOST} if it is more"),
            Query("cursor", summary="Where the page before said that it goes on"),
        ),
    ),
    Endpoint("GET", _THREAD, get_thread, name="get_thread", summary="One thread", scope="chat", answers={200: Thread}),
    Endpoint(
        "PATCH",
        _THREAD,
        change_thread,
        name="change_thread",
        summary="Give a thread another title or another model",
        scope="chat",
        asks=ChangedThread,
        answers={200: Thread},
    ),
    Endpoint(
        "DELETE",
        _THREAD,
        delete_thread,
        name="delete_thread",
        summary="Delete a thread, and the files that came with it",
        scope="chat",
        answers={204: None},
    ),
    Endpoint(
        "POST",
        f"{_THREAD}/fork",
        fork_thread,
        name="fork_thread",
        summary="Another thread that shares the history up to a message",
        scope="chat",
        asks=ForkAsked,
        answers={201: Thread},
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/search",
        search,
        name="search",
        summary="Messages of the caller's threads in which all these words are",
        scope="chat",
        answers={200: SearchFound},
        query=(
            Query("q", summary='The words; "several in quotes" stand in a row', required=True),
            Query("threadId", summary="Only in this thread"),
            Query("role", {"type": "string", "enum": ["user", "assistant", "system", "tool"]}),
            Query("model", summary="Only what this model said"),
            Query("from", summary="Only from this day or moment on"),
            Query("to", summary="Only up to this day, or before this moment"),
            Query("limit", _NUMBER, "At most so many, 100 if it is more"),
            Query("offset", {"type": "integer", "minimum": 0}, "Go on behind so many"),
        ),
    ),
)
