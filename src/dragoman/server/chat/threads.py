"""Threads: list, read, rename, swap, fork, delete and search them.

A thread is a session of the store that belongs to the caller. Invariants: one thread is read with
``get_owned_session``; queries over several threads filter by the caller as owner.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from dragoman.attachments import delete_with_files
from dragoman.errors import CorruptDataError, UnknownMessageError
from dragoman.handoff import Policy
from dragoman.ids import name_from_id
from dragoman.server.auth.principal import Principal, find_session, find_thread, get_owned_session, get_principal
from dragoman.server.chat.history import MAX_PAGE_SIZE, client_message_id, day_param, message_text
from dragoman.server.chat.shares import get_share
from dragoman.server.chat.swap import swap_thread
from dragoman.server.http.endpoint import Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state, int_param, json_body, parse_as, text_param
from dragoman.server.http.responses import json_response
from dragoman.server.state import AppState
from dragoman.store import Hit, Session, Store
from dragoman.store.labels import get_labels
from dragoman.turn.events import make_session_end
from dragoman.turn.image_policy import swap_model

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGEST_BYTES: Final = 12  # to detect a changed cursor
_PAGE_SIZE: Final = 30
_SNIPPET_LENGTH: Final = 160  # characters
_SEARCH_LIMIT: Final = 20

Title = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=50)]


class Thread(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A conversation."""

    id: str
    title: str | None
    model: str | None  # chosen for the thread
    snippet: str | None  # start of the newest message
    parent_id: str | None  # thread that it was forked from, if it belongs to the caller
    parent_seq: int  # last message that it shares with the parent
    last_seq: int  # number of messages
    pinned: bool
    tags: tuple[str, ...]
    shared: SharedInfo | None  # null: not shared
    created_at: datetime
    updated_at: datetime


class SharedInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The link to a read-only page of a thread."""

    last_seq: int  # the newest message of the page
    include: tuple[str, ...]
    created_at: datetime


class Threads(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of threads, most recently changed first."""

    threads: list[Thread]
    has_more: bool
    limit: int
    cursor: str | None  # for the next page


class ThreadUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a thread; ``null`` removes a title or a model."""

    title: Title | UnsetType | None = UNSET
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET
    policy: Policy = "strict"  # how images are sent to a model that cannot read them
    pinned: bool | UnsetType = UNSET
    tags: Annotated[tuple[Tag, ...], msgspec.Meta(max_length=20)] | UnsetType = UNSET


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Where to fork: after a position or a message; by default after the newest one."""

    at_seq: Annotated[int, msgspec.Meta(ge=0, le=999_999_999)] | None = None
    message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    title: Title | None = None


class SearchHit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that matches a search."""

    thread_id: str
    title: str | None  # of the thread
    message_id: str
    seq: int
    role: str
    snippet: str  # text around the first match
    highlights: tuple[tuple[int, int], ...]  # ranges in the snippet, in UTF-16 units
    score: float
    timestamp: datetime


class SearchResults(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The matches of a search, best first."""

    hits: list[SearchHit]
    has_more: bool
    limit: int
    offset: int


# --- listing ---------------------------------------------------------------------------------------------------------


async def list_threads(request: Request) -> Response:
    """Return a page of the caller's threads."""
    principal, store = get_principal(request), app_state(request).store
    limit = int_param(request, "limit", default=_PAGE_SIZE, maximum=MAX_PAGE_SIZE)
    if "pinned" in request.query_params or "tag" in request.query_params:
        return await _list_by_label(request, limit)
    cursor = text_param(request, "cursor", None)
    before = await _resolve_cursor(store, principal, cursor) if cursor is not None else None
    sessions = await store.list_sessions_of(principal.owners, before=before, limit=limit + 1)
    page, has_more = sessions[:limit], len(sessions) > limit
    threads = [await describe_thread(request, session) for session in page]
    next_cursor = make_cursor(principal, page[-1]) if has_more else None
    return json_response(Threads(threads=threads, has_more=has_more, limit=limit, cursor=next_cursor))


async def _list_by_label(request: Request, limit: int) -> Response:
    """The pinned threads, or those with a tag, on one page."""
    is_pinned = text_param(request, "pinned", "false", max_length=5) == "true"
    tag = text_param(request, "tag", None, max_length=50)
    store, owners = app_state(request).store, get_principal(request).owners
    sessions = await store.labels.sessions(owners, is_pinned=is_pinned, tag=tag, limit=limit + 1)
    threads = [await describe_thread(request, session) for session in sessions[:limit]]
    return json_response(Threads(threads=threads, has_more=len(sessions) > limit, limit=limit, cursor=None))


async def _resolve_cursor(store: Store, principal: Principal, cursor: str) -> tuple[datetime, str]:
    """The position of a cursor with the id of its session; a cursor has its name."""
    at, name = parse_cursor(principal, cursor)
    session = await find_thread(store, principal, name)
    return at, name if session is None else session.id


def make_cursor(principal: Principal, session: Session) -> str:
    """The cursor of the page after a session. Invariant: a cursor is valid only for its caller."""
    micros = (session.updated_at - _EPOCH) // timedelta(microseconds=1)
    position = msgspec.json.encode((micros, name_from_id(session.id)))
    return base64.urlsafe_b64encode(_digest(principal, position) + position).rstrip(b"=").decode()


def parse_cursor(principal: Principal, text: str) -> tuple[datetime, str]:
    """The time and the session name of a cursor; 400 if it was changed or belongs to another caller."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        digest, position = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        is_valid = base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text and digest == _digest(
            principal, position
        )
        micros, name = msgspec.json.decode(position, type=tuple[int, str]) if is_valid else (None, "")
    except (ValueError, msgspec.MsgspecError):
        micros, name = None, ""
    if micros is None:
        raise ApiError(
            400, "invalid_cursor", "The cursor was changed, or belongs to another user. Start again without one."
        )
    return _EPOCH + timedelta(microseconds=micros), name


def _digest(principal: Principal, position: bytes) -> bytes:
    owner = msgspec.json.encode((principal.user_id, principal.team_id))
    return hashlib.sha256(owner + b"\0" + position).digest()[:_DIGEST_BYTES]


class TagCount(msgspec.Struct, frozen=True):
    """A tag and the number of its threads."""

    tag: str
    threads: int


class Tags(msgspec.Struct, frozen=True):
    """All tags of the caller."""

    tags: list[TagCount]


async def list_tags(request: Request) -> Response:
    """Return the tags of the caller's threads."""
    tags = await app_state(request).store.labels.tags(get_principal(request).owners)
    return json_response(Tags([TagCount(tag, count) for tag, count in tags]))


async def get_thread(request: Request) -> Response:
    """Return a thread of the caller."""
    session = await get_owned_session(request, request.path_params["id"])
    return json_response(await describe_thread(request, session))


async def describe_thread(request: Request, session: Session) -> Thread:
    """The description of a thread."""
    labels = get_labels(session)
    return Thread(
        id=name_from_id(session.id),
        title=session.title,
        model=session.active_model,
        snippet=await _snippet(app_state(request).store, session),
        parent_id=await _parent_name(request, session),
        parent_seq=session.parent_seq,
        last_seq=session.last_seq,
        pinned=labels.pinned,
        tags=labels.tags,
        shared=_share_info(session),
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


def _share_info(session: Session) -> SharedInfo | None:
    share = get_share(session)
    if share is None:
        return None
    return SharedInfo(last_seq=share.last_seq, include=share.include, created_at=share.created_at)


async def _parent_name(request: Request, session: Session) -> str | None:
    """The parent thread, if it belongs to the caller."""
    if session.parent_session_id is None:
        return None
    parent = await find_session(app_state(request).store, get_principal(request), session.parent_session_id)
    return None if parent is None else name_from_id(parent.id)


async def _snippet(store: Store, session: Session) -> str | None:
    """The start of the newest text on one line; none for a damaged thread, which is still listed."""
    if not session.last_seq:
        return None
    try:
        rows = await store.tail(session.id, 2)
    except CorruptDataError:
        return None
    words = next((words for row in reversed(rows) if (words := message_text(row.message).strip())), None)
    if words is None:
        return None
    line = " ".join(words[: _SNIPPET_LENGTH * 2].split())
    return line if len(line) <= _SNIPPET_LENGTH else f"{line[: _SNIPPET_LENGTH - 1]}…"


# --- changing --------------------------------------------------------------------------------------------------------


async def update_thread(request: Request) -> Response:
    """Change the title or the model of a thread. A model that cannot continue it is rejected."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    update = parse_as(await json_body(request), ThreadUpdate)
    title = update.title if update.title is UNSET else _validate_title(update.title)
    if update.model is None:
        session = await swap_model(state.store, session, None, "strict")
    elif update.model is not UNSET:
        session = await swap_thread(request, session, update.model, update.policy)
    if title is not UNSET:
        session = await state.store.rename_session(session.id, title)
    if update.pinned is not UNSET or update.tags is not UNSET:
        is_pinned = None if update.pinned is UNSET else update.pinned
        tags = None if update.tags is UNSET else _clean_tags(update.tags)
        session = await state.store.labels.change(session.id, is_pinned=is_pinned, tags=tags)
    return json_response(await describe_thread(request, session))


def _clean_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags without surrounding spaces and duplicates, in order."""
    cleaned = [" ".join(tag.split()) for tag in tags]
    if any("\0" in tag or not tag for tag in cleaned):
        raise ApiError(422, "invalid_character", "A tag is empty or contains a NUL.")
    return tuple(dict.fromkeys(cleaned))


def _validate_title(title: str | None) -> str | None:
    if title is not None and "\0" in title:
        raise ApiError(422, "invalid_character", "title contains a NUL.")
    return title


async def fork_thread(request: Request) -> Response:
    """Create a thread that shares the history up to a message."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    fork = parse_as(await json_body(request), ForkRequest)
    if fork.at_seq is not None and fork.message_id is not None:
        raise ApiError(422, "invalid_request", "atSeq and messageId exclude each other. Use one of them.")
    at = fork.at_seq
    if fork.message_id is not None:
        at = (await state.store.find_message(session.id, fork.message_id)).seq
    elif at is not None and at > session.last_seq:
        raise not_found_error()
    new_session = await state.store.fork(session.id, at, title=_validate_title(fork.title))
    return json_response(await describe_thread(request, new_session), 201)


# --- deleting --------------------------------------------------------------------------------------------------------


async def delete_thread(request: Request) -> Response:
    """Delete a thread and the files that only it uses. 409 while a turn runs in it."""
    state, principal = app_state(request), get_principal(request)
    session = await get_owned_session(request, request.path_params["id"])
    end_event = await make_session_end(state.store, session)
    await delete_with_files(state.store, session.id, principal.owners, state.attachments)
    state.agent.bus.try_emit(end_event, session_id=session.id)
    return Response(status_code=204)


# --- searching -------------------------------------------------------------------------------------------------------


async def search_messages(request: Request) -> Response:
    """Return messages of the caller's threads that contain all words."""
    state, principal = app_state(request), get_principal(request)
    query = text_param(request, "q")
    thread_id = text_param(request, "threadId", None)
    if thread_id is not None:
        thread_id = (await get_owned_session(request, thread_id)).id
    limit = int_param(request, "limit", default=_SEARCH_LIMIT, maximum=100)
    offset = int_param(request, "offset", default=0, minimum=0, maximum=10_000)
    until = time_param(request, "to")
    hits = await state.store.search(
        query,
        session_id=thread_id,
        role=text_param(request, "role", None, max_length=20),
        model=_model_param(state, text_param(request, "model", None, max_length=200)),
        owners=principal.owners,
        since=time_param(request, "from"),
        has_tool=text_param(request, "hasTool", "false", max_length=5) == "true",
        until=_end_of_day(until) if until is not None and "T" not in request.query_params["to"] else until,
        limit=limit + 1,
        offset=offset,
    )
    threads: dict[str, Session] = {}
    results = [
        search_hit for hit in hits[:limit] if (search_hit := await _to_search_hit(request, hit, threads)) is not None
    ]
    return json_response(SearchResults(hits=results, has_more=len(hits) > limit, limit=limit, offset=offset))


def _end_of_day(day: datetime) -> datetime | None:
    """The start of the next day; none after the last day of the calendar."""
    try:
        return day + timedelta(days=1)
    except OverflowError:
        return None


async def _to_search_hit(request: Request, hit: Hit, threads: dict[str, Session]) -> SearchHit | None:
    """A search hit; ``None`` if the message was deleted meanwhile."""
    store = app_state(request).store
    if hit.session_id not in threads:
        session = await find_session(store, get_principal(request), hit.session_id)
        if session is None:
            return None
        threads[hit.session_id] = session
    try:
        row = await store.get_message(hit.session_id, hit.message_id)
    except UnknownMessageError:
        return None
    return SearchHit(
        thread_id=name_from_id(hit.session_id),
        title=threads[hit.session_id].title,
        message_id=client_message_id(row.message),
        seq=hit.seq,
        role=hit.role,
        snippet=hit.snippet,
        highlights=to_utf16_ranges(hit.snippet, hit.highlights),
        score=hit.score,
        timestamp=hit.created_at,
    )


def to_utf16_ranges(text: str, ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Ranges of a text in UTF-16 units."""

    def to_units(offset: int) -> int:
        return len(text[:offset].encode("utf-16-le")) // 2

    return tuple((to_units(first), to_units(last)) for first, last in ranges)


def _model_param(state: AppState, name: str | None) -> str | None:
    """The id of a model; an unknown name is used as it is."""
    if name is None:
        return None
    model = state.agent.services.registry.find(name)
    return model.id if model is not None else name


class _Timestamp(msgspec.Struct):
    at: Annotated[datetime, msgspec.Meta(tz=True)]


def time_param(request: Request, name: str) -> datetime | None:
    """A day or a time such as 2026-03-13T10:00:00Z in the query."""
    text = text_param(request, name, None, max_length=40)
    if text is None:
        return None
    if "T" not in text:
        day = day_param(request, name)
        return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)
    try:
        return msgspec.convert({"at": text}, _Timestamp).at.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        raise ApiError(
            422, "invalid_parameter", f"{name} must be a time such as 2026-03-13T10:00:00Z, or a day."
        ) from None


_NUMBER: Final = {"type": "integer", "minimum": 1}
_THREAD: Final = "/api/v1/agent/threads/{id}"

ENDPOINTS = (
    chat_endpoint(
        "GET",
        "/api/v1/agent/threads",
        list_threads,
        "The caller's threads, most recently changed first",
        {200: Threads},
        query=(
            Query("limit", _NUMBER, f"Maximum number of threads, at most {MAX_PAGE_SIZE}"),
            Query("cursor", summary="From the previous page"),
            Query("pinned", {"type": "boolean"}, "Only pinned threads, on one page"),
            Query("tag", summary="Only threads with this tag, on one page"),
        ),
    ),
    chat_endpoint("GET", "/api/v1/agent/tags", list_tags, "The tags of the caller's threads", {200: Tags}),
    chat_endpoint("GET", _THREAD, get_thread, "One thread", {200: Thread}),
    chat_endpoint(
        "PATCH",
        _THREAD,
        update_thread,
        "Change the title, the model, the pin or the tags of a thread",
        {200: Thread},
        name="change_thread",
        request_body=ThreadUpdate,
    ),
    chat_endpoint("DELETE", _THREAD, delete_thread, "Delete a thread and its files", {204: None}),
    chat_endpoint(
        "POST",
        f"{_THREAD}/fork",
        fork_thread,
        "Create a thread that shares the history up to a message",
        {201: Thread},
        request_body=ForkRequest,
    ),
    chat_endpoint(
        "GET",
        "/api/v1/agent/search",
        search_messages,
        "Search the messages of the caller's threads",
        {200: SearchResults},
        name="search",
        query=(
            Query("q", summary='Words; "words in quotes" are a phrase', required=True),
            Query("threadId", summary="Search only this thread"),
            Query("role", {"type": "string", "enum": ["user", "assistant", "system", "tool"]}),
            Query("model", summary="Only messages of this model"),
            Query("hasTool", {"type": "boolean"}, "Only messages with tool calls or results"),
            Query("from", summary="First day or time"),
            Query("to", summary="Last day, or end time"),
            Query("limit", _NUMBER, "Maximum number of hits, at most 100"),
            Query("offset", {"type": "integer", "minimum": 0}, "Number of hits to skip"),
        ),
    ),
)
