"""Letters over HTTP: send a letter, list those of a task, get one with its context, dead letters.

``POST /api/v1/mail`` stores a letter durably. An invalid letter is rejected, stored as a dead letter, and its sender is
notified.

Invariants: a key sends only as its agents. A key with agents reads only letters from them and to them.
"""

from __future__ import annotations

import functools
import re
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import InputError, UnknownLetterError
from dragoman.ids import name_from_id
from dragoman.letters import find_warnings, hints_from, read_letter, read_schema_file
from dragoman.letters.records import DeadLetter, LetterState, Receipt, StoredLetter
from dragoman.letters.schema import inline_schema
from dragoman.mail.graph import Spend, letter_graph
from dragoman.offload import LARGE, run_off_loop
from dragoman.server.auth.principal import get_principal
from dragoman.server.chat.history import HistoryRow, to_history_rows
from dragoman.server.http.endpoint import Media, Query, public_endpoint
from dragoman.server.http.http_errors import not_found_error, to_api_error
from dragoman.server.http.requests import app_state, int_param, text_param
from dragoman.server.http.responses import json_response, large_json_response
from dragoman.server.mail.access import (
    key_agents,
    linked_session,
    mail_endpoint,
    read_letter_body,
    require_sender,
    team_mail,
)
from dragoman.server.mail.evaluations import EvaluationResponse, to_evaluation_response
from dragoman.server.mail.types import (
    DeadLetterDetail,
    DeadLetterResponse,
    LetterResponse,
    Letters,
    Page,
    count_within_size,
    invalid_cursor_error,
    letters_response,
    read_page,
    to_dead_letter_detail,
    to_dead_letter_response,
    to_letter_response,
)
from dragoman.store.mailbox.mail_store import LetterStatus
from dragoman.store.operation import to_micros
from dragoman.store.types import ToolCallStatus

_MAX_LETTERS: Final = 500
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([A-Za-z0-9_.:-]{1,128})")


class SendResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The letter was stored."""

    letter_id: str
    recipient_id: str
    is_new: bool  # false if the letter existed
    state: LetterState
    warnings: list[str] = []


class DeadLetters(msgspec.Struct, frozen=True):
    """Dead letters, newest first."""

    dead_letters: list[DeadLetterResponse]


class LinkedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a letter."""

    id: str
    title: str | None
    model: str | None
    updated_at: datetime


class ToolCallResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call."""

    id: str
    name: str
    status: ToolCallStatus
    message_id: str
    created_at: datetime
    completed_at: datetime | None


class LetterGraphResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A letter and its context."""

    letter: LetterResponse
    session: LinkedSession | None  # none without a session, or if it belongs to another user
    messages: list[HistoryRow]
    tool_calls: list[ToolCallResponse]
    spend: Spend | None
    evaluations: list[EvaluationResponse]
    thread: list[LetterResponse]  # the first letters of its task, up to the size limit of a response


# --- send ------------------------------------------------------------------------------------------------------------


async def send_letter(request: Request) -> Response:
    """Store a letter."""
    data = await read_letter_body(request)
    mail = team_mail(request)
    try:
        letter = await run_off_loop(len(data), read_letter, data)
    except InputError as error:
        raise await _reject(request, data, error) from None
    require_sender(request, letter.sender_id)
    receipt = await mail.send(letter if len(data) < LARGE else data)  # a large letter is parsed again in a thread
    warnings = [f"{warning} [{warning.code}]" for warning in find_warnings(letter)]
    return json_response(_send_response(receipt, warnings), 201 if receipt.is_new else 200)


def _send_response(receipt: Receipt, warnings: list[str]) -> SendResponse:
    return SendResponse(**msgspec.structs.asdict(receipt), warnings=warnings)


async def _reject(request: Request, data: bytes, error: InputError) -> Exception:
    """Store an invalid letter as a dead letter, unless its sender belongs to another key; return the error."""
    api_error = to_api_error(error)
    agents = key_agents(get_principal(request))
    sender = (await run_off_loop(len(data), hints_from, data)).sender_id
    if data and (not agents or sender is None or sender in agents):
        dead = await team_mail(request).reject(data, error)
        api_error.headers["x-dead-letter"] = dead.id
    return api_error


async def letter_schema(_: Request) -> Response:
    """Return the JSON Schema of letters."""
    return Response(read_schema_file(), media_type="application/schema+json")


# --- read ------------------------------------------------------------------------------------------------------------


async def list_task_letters(request: Request) -> Response:
    """Return the letters of a task."""
    limit = int_param(request, "limit", default=200, maximum=_MAX_LETTERS)
    cursor = text_param(request, "cursor", None)
    page = await _read_task_letters(request, request.path_params["task_id"], limit, _parse_cursor(cursor))
    statuses = [status for status in page.items if _is_accessible(request, status)]
    if not statuses and not page.has_more:
        raise not_found_error()
    return await letters_response(statuses, _to_cursor(page.items[-1].letter) if page.has_more else None)


async def _read_task_letters(
    request: Request, task_id: str, limit: int, start: tuple[int, str] | None
) -> Page[LetterStatus]:
    async def read(last: LetterStatus | None, count: int) -> list[LetterStatus]:
        after = start if last is None else last.letter
        return await team_mail(request).letters(task_id=task_id, after=after, limit=count)

    return await read_page(read, limit, _size)


def _to_cursor(stored: StoredLetter) -> str:
    created_us = 0 if stored.created_at is None else to_micros(stored.created_at)
    return f"{created_us}.{stored.letter_id}"


def _parse_cursor(cursor: str | None) -> tuple[int, str] | None:
    """Return the time and the id of the letter of a cursor."""
    if cursor is None:
        return None
    if not (match := _CURSOR.fullmatch(cursor)):
        raise invalid_cursor_error()
    return int(match[1]), match[2]


async def get_letter(request: Request) -> Response:
    """Return a letter and its context."""
    recipient, letter_id = request.path_params["recipient"], request.path_params["letter_id"]
    try:
        graph = await letter_graph(team_mail(request), recipient, letter_id, functools.partial(linked_session, request))
    except UnknownLetterError:
        raise not_found_error() from None
    if not _is_accessible(request, graph.letter):
        raise not_found_error()
    session = graph.session
    messages = [] if session is None else await to_history_rows(app_state(request).store, session, list(graph.messages))
    thread = graph.thread[: count_within_size(graph.thread, _size)]
    statuses = [status for status in thread if _is_accessible(request, status)]

    def make() -> LetterGraphResponse:
        return LetterGraphResponse(
            letter=to_letter_response(graph.letter),
            session=None if session is None else _to_linked_session(session),
            messages=messages,
            tool_calls=[_to_tool_call(call) for call in graph.tool_calls],
            spend=graph.spend,
            evaluations=[to_evaluation_response(evaluation) for evaluation in graph.evaluations],
            thread=[to_letter_response(status) for status in statuses],
        )

    return await large_json_response(_size(graph.letter) + sum(map(_size, statuses)), make)


def _can_access(request: Request, *agents: str) -> bool:
    own = key_agents(get_principal(request))
    return not own or not own.isdisjoint(agents)


def _is_accessible(request: Request, status: LetterStatus) -> bool:
    return _can_access(request, status.letter.sender_id, status.letter.recipient_id)


def _size(status: LetterStatus) -> int:
    return len(status.letter.text)


def _to_linked_session(session: Any) -> LinkedSession:
    return LinkedSession(
        id=name_from_id(session.id), title=session.title, model=session.active_model, updated_at=session.updated_at
    )


def _to_tool_call(call: Any) -> ToolCallResponse:
    return ToolCallResponse(**{name: getattr(call, name) for name in ToolCallResponse.__struct_fields__})


# --- dead letters ----------------------------------------------------------------------------------------------------


async def list_dead_letters(request: Request) -> Response:
    """Return the dead letters."""
    recipient = text_param(request, "recipient", None)
    filters = {} if recipient is None else {"recipient_id": recipient}
    limit = int_param(request, "limit", default=100, maximum=_MAX_LETTERS)
    found = await team_mail(request).dead_letters(limit=limit, **filters)
    accessible = [dead for dead in found if _can_access(request, dead.sender_id or "", dead.recipient_id)]
    return json_response(DeadLetters([to_dead_letter_response(dead) for dead in accessible]))


async def get_dead_letter(request: Request) -> Response:
    """Return a dead letter with its redacted bytes."""
    dead, mail = await _find_dead_letter(request), team_mail(request)
    return await large_json_response(len(dead.raw or b""), lambda: to_dead_letter_detail(dead, mail))


async def _find_dead_letter(request: Request) -> DeadLetter:
    matches = await team_mail(request).dead_letters(dead_id=request.path_params["dead_id"], include_resent=True)
    if not matches or not _can_access(request, matches[0].sender_id or "", matches[0].recipient_id):
        raise not_found_error()
    return matches[0]


async def resend_letter(request: Request) -> Response:
    """Send a dead letter again."""
    dead = await _find_dead_letter(request)
    return json_response(_send_response(await team_mail(request).resend(dead.id), []))


_LIMIT: Final = Query("limit", {"type": "integer", "minimum": 1}, "maximum number of letters")

ENDPOINTS = (
    mail_endpoint(
        "POST",
        "/api/v1/mail",
        send_letter,
        "Send a letter",
        {200: SendResponse, 201: SendResponse},
        request_body=inline_schema(),
        description="Sending the same letter again has no effect and returns 200 instead of 201. An invalid letter is"
        " rejected and stored as a dead letter, and its sender receives an error letter.",
    ),
    public_endpoint(
        "GET",
        "/api/v1/mail/schema",
        letter_schema,
        "Get the JSON Schema of letters",
        {200: Media("application/schema+json", {"type": "object"})},
    ),
    mail_endpoint(
        "GET",
        "/api/v1/mail/tasks/{task_id}",
        list_task_letters,
        "List the letters of a task in the order of sending",
        {200: Letters},
        name="task_letters",
        query=(_LIMIT, Query("cursor", {"type": "string"}, "cursor of the previous page")),
    ),
    mail_endpoint(
        "GET",
        "/api/v1/mail/letters/{recipient}/{letter_id}",
        get_letter,
        "Get a letter with its session, messages, tool calls, spend and evaluations",
        {200: LetterGraphResponse},
        name="letter_graph",
    ),
    mail_endpoint(
        "GET",
        "/api/v1/mail/dead",
        list_dead_letters,
        "List dead letters",
        {200: DeadLetters},
        name="dead_letters",
        query=(Query("recipient", {"type": "string"}, "only of this recipient"), _LIMIT),
    ),
    mail_endpoint(
        "GET",
        "/api/v1/mail/dead/{dead_id}",
        get_dead_letter,
        "Get a dead letter with its bytes as redacted text",
        {200: DeadLetterDetail},
        name="dead_letter",
    ),
    mail_endpoint(
        "POST", "/api/v1/mail/dead/{dead_id}/resend", resend_letter, "Send a dead letter again", {200: SendResponse}
    ),
)
