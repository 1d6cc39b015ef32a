"""What became of letters: a task's thread, one letter with everything behind it, dead letters, and sending them again.

The one rule: a key that speaks as certain agents sees letters from them and to them, and no others.
"""

from __future__ import annotations

import functools
import re
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import UnknownLetterError
from dragoman.ids import name_from_id
from dragoman.letters.records import DeadLetter, StoredLetter
from dragoman.mail.graph import Spend, letter_graph
from dragoman.server.auth.principal import get_principal
from dragoman.server.chat.history import HistoryRow, to_history_rows
from dragoman.server.http.endpoint import Endpoint, Query
from dragoman.server.http.http_errors import not_found_error
from dragoman.server.http.requests import app_state, int_param, text_param
from dragoman.server.http.responses import json_response, large_json_response
from dragoman.server.mail.access import SCOPE, key_agents, linked_session, team_mail
from dragoman.server.mail.evaluations import EvaluationResponse, to_evaluation_response
from dragoman.server.mail.letter_page import Page, count_within_size, read_page
from dragoman.server.mail.letters import SendResponse
from dragoman.server.mail.types import (
    DeadLetterDetail,
    DeadLetterResponse,
    LetterResponse,
    Letters,
    invalid_cursor_error,
    letters_response,
    to_dead_letter_detail,
    to_dead_letter_response,
    to_letter_response,
)
from dragoman.store.mailbox.mail_store import LetterStatus
from dragoman.store.message_rows import to_micros
from dragoman.store.types import ToolCallStatus

_MAX_LETTERS: Final = 500
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([A-Za-z0-9_.:-]{1,128})")


class DeadLetters(msgspec.Struct, frozen=True):
    """What nobody will get unless it is sent again, the newest first."""

    dead_letters: list[DeadLetterResponse]


class LinkedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation behind a letter."""

    id: str
    title: str | None
    model: str | None
    updated_at: datetime


class ToolCallResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    name: str
    status: ToolCallStatus
    message_id: str
    created_at: datetime
    completed_at: datetime | None


class LetterGraphResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A letter, and everything behind it."""

    letter: LetterResponse
    session: LinkedSession | None  # none if there is none, or it is not the caller's
    messages: list[HistoryRow]
    tool_calls: list[ToolCallResponse]
    spend: Spend | None
    evaluations: list[EvaluationResponse]
    thread: list[LetterResponse]  # the first letters of its task; all of them if they fit into an answer


async def list_task_letters(request: Request) -> Response:
    """The letters of a task."""
    limit = int_param(request, "limit", default=200, maximum=_MAX_LETTERS)
    cursor = text_param(request, "cursor", None)
    page = await _read_task_letters(request, request.path_params["task_id"], limit, _parse_cursor(cursor))
    statuses = [one for one in page.items if _is_accessible(request, one)]
    if not statuses and not page.has_more:
        raise not_found_error()
    return await letters_response(statuses, _to_cursor(page.items[-1].letter) if page.has_more else None)


async def _read_task_letters(
    request: Request, task_id: str, limit: int, begin: tuple[int, str] | None = None
) -> Page[LetterStatus]:
    """Letters of a task behind a place, as many as one answer may have."""

    async def read(last: LetterStatus | None, count: int) -> list[LetterStatus]:
        after = begin if last is None else last.letter
        return await team_mail(request).letters(task_id=task_id, after=after, limit=count)

    return await read_page(read, limit, _size)


def _to_cursor(stored: StoredLetter) -> str:
    created_us = 0 if stored.created_at is None else to_micros(stored.created_at)
    return f"{created_us}.{stored.letter_id}"


def _parse_cursor(cursor: str | None) -> tuple[int, str] | None:
    """When the letter of a cursor was taken, and its id."""
    if cursor is None:
        return None
    if not (match := _CURSOR.fullmatch(cursor)):
        raise invalid_cursor_error()
    return int(match[1]), match[2]


async def get_letter(request: Request) -> Response:
    """A letter and everything behind it."""
    recipient, letter_id = request.path_params["recipient"], request.path_params["letter_id"]
    try:
        found = await letter_graph(team_mail(request), recipient, letter_id, functools.partial(linked_session, request))
    except UnknownLetterError:
        raise not_found_error() from None
    stored = found.letter.posted
    if not _can_access(request, stored.sender_id, stored.recipient_id):
        raise not_found_error()
    session = found.session
    messages = [] if session is None else await to_history_rows(app_state(request).store, session, list(found.messages))
    letters = [one for one in found.thread[: count_within_size(found.thread, _size)] if _is_accessible(request, one)]

    def make() -> LetterGraphResponse:
        return LetterGraphResponse(
            letter=to_letter_response(found.letter),
            session=None if session is None else _to_linked_session(session),
            messages=messages,
            tool_calls=[_to_tool_call(call) for call in found.tool_calls],
            spend=found.spend,
            evaluations=[to_evaluation_response(one) for one in found.evaluations],
            thread=[to_letter_response(one) for one in letters],
        )

    return await large_json_response(_size(found.letter) + sum(map(_size, letters)), make)


async def list_dead_letters(request: Request) -> Response:
    """What nobody will get unless it is sent again."""
    filters = {"recipient_id": text_param(request, "recipient", None)}
    found = await team_mail(request).dead_letters(
        limit=int_param(request, "limit", default=100, maximum=_MAX_LETTERS),
        **{name: value for name, value in filters.items() if value is not None},
    )
    responses = [
        to_dead_letter_response(one) for one in found if _can_access(request, one.sender_id or "", one.recipient_id)
    ]
    return json_response(DeadLetters(responses))


async def get_dead_letter(request: Request) -> Response:
    """One of them, with what came."""
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
    receipt = await team_mail(request).resend(dead.id)
    return json_response(
        SendResponse(
            letter_id=receipt.letter_id,
            recipient_id=receipt.recipient_id,
            is_new=receipt.is_new,
            state=receipt.state,
        )
    )


def _can_access(request: Request, *agents: str) -> bool:
    allowed = key_agents(get_principal(request))
    return not allowed or not allowed.isdisjoint(agents)


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


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/mail/tasks/{task_id}",
        list_task_letters,
        name="task_letters",
        summary="The letters of a task, in the order in which they were taken",
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "how many letters at most"),
            Query("cursor", {"type": "string"}, "where to begin: the cursor of the page before"),
        ),
        responses={200: Letters},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/letters/{recipient}/{letter_id}",
        get_letter,
        name="letter_graph",
        summary="A letter, and the conversation, messages, tool calls, spend and evaluations behind it",
        responses={200: LetterGraphResponse},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/dead",
        list_dead_letters,
        name="dead_letters",
        summary="What nobody will get unless it is sent again",
        query=(
            Query("recipient", {"type": "string"}, "of one recipient only"),
            Query("limit", {"type": "integer", "minimum": 1}, "how many at most"),
        ),
        responses={200: DeadLetters},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/dead/{dead_id}",
        get_dead_letter,
        name="dead_letter",
        summary="A dead letter, with what came as a text without secrets",
        responses={200: DeadLetterDetail},
        scope=SCOPE,
    ),
    Endpoint(
        "POST",
        "/api/v1/mail/dead/{dead_id}/resend",
        resend_letter,
        name="resend_letter",
        summary="Send a dead letter again",
        responses={200: SendResponse},
        scope=SCOPE,
    ),
)
