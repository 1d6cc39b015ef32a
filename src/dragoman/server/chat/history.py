"""``GET /api/v1/agent/history``: the messages of a thread, by day or by page.

The default is the newest day of a thread, or of the most recently changed thread; ``before`` selects the newest day
before another. ``limit``, ``beforeSeq`` and ``afterSeq`` select pages by position instead. The cost of a page does not
depend on the length of the thread.

A row has the text of a message; files, calls and thinking are in its metadata, beside the application's own fields.
Invariants: ``provider_raw``, signatures, user and team are never returned; a field of ``ServerFields`` has the server's
value or is absent, never an application's value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.attachments import is_attachment_text
from dragoman.ids import name_from_id
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    VideoBlock,
)
from dragoman.server.auth.principal import get_owned_session, get_principal
from dragoman.server.http.endpoint import Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, int_param, text_param
from dragoman.server.http.responses import json_response
from dragoman.store import Row, Session, Store
from dragoman.store.tool_call_rows import CallInfo
from dragoman.turn.state import stage_of

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
_MAX_DAY_SIZE: Final = 1_000  # messages of one day, without a limit in the query
_MAX_SEQ: Final = 999_999_999
_POSITIONS: Final = ("beforeSeq", "afterSeq", "aroundSeq")


class History(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of a thread, in order."""

    thread_id: str | None  # none if the caller has no thread
    messages: list[HistoryRow]
    has_more: bool  # in the requested direction
    limit: int  # effective maximum number of messages
    day: str | None = None  # in UTC, if the page is a day
    before: str | None = None  # for the previous day; none if the day is incomplete, or for a page
    before_seq: int | None = None  # of the previous page; ``None`` on the first page
    after_seq: int | None = None  # for newer messages


async def get_history(request: Request) -> Response:
    """Return a page of one of the caller's threads."""
    session = await _find_session(request)
    position_params = [name for name in ("limit", *_POSITIONS) if name in request.query_params]
    before = day_param(request, "before")
    if before is not None and set(_POSITIONS) & set(position_params):
        raise ApiError(
            422, "invalid_parameter", f"before selects by day, {', '.join(_POSITIONS)} by position. Use one of them."
        )
    is_by_day = before is not None or not position_params
    limit = int_param(request, "limit", default=_MAX_DAY_SIZE if is_by_day else PAGE_SIZE, maximum=MAX_PAGE_SIZE)
    if session is None:
        return json_response(History(thread_id=None, messages=[], has_more=False, limit=limit))
    if is_by_day:
        return json_response(await _read_day(app_state(request).store, session, before, limit))
    return json_response(await _read_page(request, session, limit))


async def _find_session(request: Request) -> Session | None:
    """The requested thread, or the most recently changed one."""
    thread_id = text_param(request, "threadId", None)
    if thread_id is not None:
        return await get_owned_session(request, thread_id)
    sessions = await app_state(request).store.list_sessions_of(get_principal(request).owners, limit=1)
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
    """The newest messages of one day up to a position, and whether they are the whole day."""
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
    """The messages of ``beforeSeq``, ``afterSeq`` or ``aroundSeq``, or the newest; and whether there are more.

    Around a position, "more" are earlier messages.
    """
    store = app_state(request).store
    after = seq_param(request, "afterSeq")
    before = seq_param(request, "beforeSeq")
    around = seq_param(request, "aroundSeq")
    if [after, before, around].count(None) < 2:
        raise ApiError(422, "invalid_parameter", f"{', '.join(_POSITIONS)} exclude each other. Use one of them.")
    if around is not None:
        last_start = max(0, session.last_seq - limit)  # a full page at the end of the thread as well
        rows = await store.read(session.id, min(max(0, around - limit // 2 - 1), last_start), limit)
        return rows, bool(rows) and rows[0].seq > 1
    if after is not None:
        rows = await store.read(session.id, after, limit)
        return rows, bool(rows) and rows[-1].seq < session.last_seq
    rows = await store.tail(session.id, limit) if before is None else await store.read_before(session.id, before, limit)
    return rows, bool(rows) and rows[0].seq > 1


async def to_history_rows(store: Store, session: Session, rows: list[Row]) -> list[HistoryRow]:
    """Messages as history rows."""
    calls = await store.find_calls(session.id, result_call_ids(row.message for row in rows))
    return [to_history_row(row, calls) for row in rows]


# --- what is asked for -----------------------------------------------------------------------------------------------


def seq_param(request: Request, name: str) -> int | None:
    """A message position in the query."""
    if name not in request.query_params:
        return None
    return int_param(request, name, default=0, minimum=0, maximum=_MAX_SEQ)


def day_param(request: Request, name: str) -> date | None:
    """A day in the query, such as 2026-03-13."""
    text = text_param(request, name, None)
    if text is None:
        return None
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise ApiError(422, "invalid_parameter", f"{name} must be a day such as 2026-03-13.") from None


def page_params() -> tuple[Query, ...]:
    """The query parameters of pages by position."""
    number = {"type": "integer", "minimum": 0, "maximum": _MAX_SEQ}
    return (
        Query("limit", {"type": "integer", "minimum": 1}, f"Maximum number of messages, at most {MAX_PAGE_SIZE}"),
        Query("beforeSeq", number, "Messages before this position"),
        Query("afterSeq", number, "Messages after this position"),
        Query("aroundSeq", number, "Messages around this position"),
    )


ENDPOINTS = (
    chat_endpoint(
        "GET",
        "/api/v1/agent/history",
        get_history,
        "Messages of a thread by day or by page",
        {200: History},
        name="history",
        query=(
            Query("threadId", summary="The thread; by default the most recently changed one"),
            Query("before", {"type": "string", "format": "date"}, "Select the newest day before this one, in UTC"),
            *page_params(),
        ),
    ),
)


_NO_CALLS: Final[Mapping[str, CallInfo]] = {}


class ServerFields(TypedDict, total=False):
    """The metadata fields that the server writes in a row, all through ``_present_fields``."""

    run_id: str | None
    message_id: str | None
    stage: str | None
    latency_ms: float | None
    user_message_attachments: dict[str, Any] | list[dict[str, Any]] | None
    model: str | None
    provider: str | None
    status: str | None
    usage: dict[str, Any] | None
    routing: dict[str, Any] | None
    thinking: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    tool_name: str | None
    is_error: bool | None
    media: list[dict[str, Any]] | None


_HIDDEN_FIELDS: Final = ("user_id", "team_id", "provider_raw")
RESERVED_FIELDS: Final = frozenset((*ServerFields.__annotations__, *_HIDDEN_FIELDS))


def application_fields(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of ``extra`` without reserved names."""
    return {name: value for name, value in (extra or {}).items() if name not in RESERVED_FIELDS}


class HistoryRow(msgspec.Struct, frozen=True):
    """A message."""

    id: str  # the client's id, or ours
    seq: int  # position, from 1
    role: str
    content: str  # text
    metadata: dict[str, Any]
    timestamp: datetime


def to_history_row(row: Row, calls: Mapping[str, CallInfo] = _NO_CALLS) -> HistoryRow:
    """A message as a history row. ``calls`` has the calls of other messages."""
    message = row.message
    return HistoryRow(
        id=client_message_id(message),
        seq=row.seq,
        role=message.role.value,
        content=message_text(message),
        metadata=dict(_metadata(row, calls)),
        timestamp=message.created_at,
    )


def client_message_id(message: Message) -> str:
    """The id by which a client knows a message."""
    return message.metadata.message_id or message.id


def result_call_ids(messages: Iterable[Message]) -> list[str]:
    """The ids of the calls that these messages answer."""
    return [
        block.tool_use_id for message in messages for block in message.content if isinstance(block, ToolResultBlock)
    ]


# --- words -----------------------------------------------------------------------------------------------------------


def message_text(message: Message) -> str:
    """The text of a message.

    Adjacent texts of an assistant are one text that its provider split; separate ones are paragraphs. Texts of other
    roles are lines, without the texts of attached files.
    """
    if message.role is Role.ASSISTANT:
        groups = itertools.groupby(message.content, lambda block: isinstance(block, TextBlock))
        return "\n\n".join("".join(_texts(blocks)) for is_text, blocks in groups if is_text)
    return "\n".join(_texts(block for block in message.content if not is_attachment_text(block)))


def _texts(blocks: Iterable[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case TextBlock():
                yield block.text
            case ToolResultBlock():
                yield from _texts(block.content)


# --- metadata --------------------------------------------------------------------------------------------------------


def _metadata(row: Row, calls: Mapping[str, CallInfo]) -> Iterator[tuple[str, Any]]:
    """The server's fields, then the application's."""
    message = row.message
    yield from _protocol_fields(message)
    if message.role is not Role.USER:
        yield from _origin_fields(message.metadata)
    yield from _block_fields(row, calls)
    yield from application_fields(message.metadata.extra).items()


def _protocol_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """The fields of the protocol."""
    metadata, latency_ms = message.metadata, message.metadata.latency_ms
    if message.role is not Role.USER:  # a user message has its id in the row, and no run
        yield from _present_fields(run_id=metadata.run_id, message_id=metadata.message_id or _own_id(message))
    if latency_ms is None and metadata.usage is not None:
        latency_ms = metadata.usage.latency_ms
    yield from _present_fields(stage=stage_of(message), latency_ms=latency_ms)
    if metadata.stage == "tool_execution":  # set by programs that store such messages themselves
        yield from _present_fields(tool_name=(metadata.extra or {}).get("tool_name"))
    files = [{"bucket": file.bucket, "path": file.path, "mime_type": file.mime_type} for file in metadata.attachments]
    if files:
        yield from _present_fields(user_message_attachments=files[0] if len(files) == 1 else files)


def _own_id(message: Message) -> str | None:
    return message.id if stage_of(message) is not None else None


def _origin_fields(metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    yield from _present_fields(model=metadata.model, provider=metadata.provider)
    if metadata.status is not MessageStatus.COMPLETE:
        yield from _present_fields(status=metadata.status.value)
    if metadata.usage is not None:
        yield from _present_fields(usage=usage_to_json(metadata.usage))
    if metadata.routing is not None:
        yield from _present_fields(routing={"mode": metadata.routing.mode.value, "reason": metadata.routing.reason})


def usage_to_json(usage: Usage) -> dict[str, Any]:
    """Usage as JSON. Amounts are strings, because a float is not exact."""
    fields: dict[str, Any] = msgspec.to_builtins(usage)
    return {**fields, "cost_usd": fields["cost_usd"] if usage.amount_usd is not None else None, "state": usage.state}


def _block_fields(row: Row, calls: Mapping[str, CallInfo]) -> Iterator[tuple[str, Any]]:
    message = row.message
    thinking = [block.text for block in message.content if isinstance(block, ThinkingBlock) and block.text]
    calls_json = [
        _call_json(block) for block in message.content if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
    ]
    yield from _present_fields(thinking="\n\n".join(thinking) or None, tool_calls=calls_json or None)
    for result in message.content:
        if isinstance(result, ToolResultBlock):
            yield from _present_fields(tool_call_id=result.tool_use_id)
            yield from _result_fields(row, calls.get(result.tool_use_id))
            yield from _present_fields(is_error=result.is_error or None)
            break
    media = [_medium_json(block) for block in _all_blocks(message.content) if isinstance(block, _Medium)]
    if media and not message.metadata.attachments:
        yield from _present_fields(media=media)


def _result_fields(row: Row, call: CallInfo | None) -> Iterator[tuple[str, Any]]:
    """Fields of the call that a message answers."""
    if call is not None:
        yield from _present_fields(tool_name=call.name)
        if row.message.metadata.latency_ms is None and call.result_seq == row.seq:
            yield from _present_fields(latency_ms=call.duration_ms)


_Medium = ImageBlock | DocumentBlock | AudioBlock | VideoBlock


def _all_blocks(content: Iterable[ContentBlock]) -> Iterator[ContentBlock]:
    for block in content:
        yield block
        if isinstance(block, ToolResultBlock):
            yield from _all_blocks(block.content)


def _medium_json(block: _Medium) -> dict[str, Any]:
    return {"type": block.type, "media_type": block.media_type}


def _call_json(block: ToolUseBlock | InvalidToolUseBlock) -> dict[str, Any]:
    if isinstance(block, ToolUseBlock):
        return {"id": block.id, "name": block.name, "input": block.input}
    return {"id": block.id, "name": block.name, "input_text": block.input_text, "reason": block.reason}


def _present_fields(**fields: Unpack[ServerFields]) -> Iterator[tuple[str, Any]]:
    """The fields that have a value."""
    return ((name, value) for name, value in fields.items() if value is not None)
