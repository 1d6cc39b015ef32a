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
from dragoman.letters.kept import DeadLetter, Posted
from dragoman.mail.graph import Spend, letter_graph
from dragoman.server.answers import answer, answer_large
from dragoman.server.asking import text_param, whole_number
from dragoman.server.endpoint import Endpoint, Query
from dragoman.server.evaluation import EvaluationTold, told
from dragoman.server.history import shown
from dragoman.server.mail.letter_page import Page, read_page, within_size
from dragoman.server.mail.sending import Sent
from dragoman.server.mail.values import (
    DeadTold,
    DeadWhole,
    Letters,
    LetterTold,
    answer_letters,
    dead_told,
    dead_whole,
    invalid_cursor,
    letter_told,
)
from dragoman.server.mailroom import SCOPE, agents_of, mail_of, session_behind
from dragoman.server.principal import principal_of
from dragoman.server.refusing import not_found
from dragoman.server.rows import HistoryRow
from dragoman.server.state import doors_of
from dragoman.store.mail import Standing
from dragoman.store.rows import micros
from dragoman.store.values import ToolCallStatus

_MOST: Final = 500
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([A-Za-z0-9_.:-]{1,128})")


class DeadLetters(msgspec.Struct, frozen=True):
    """What nobody will get unless it is sent again, the newest first."""

    dead_letters: list[DeadTold]


class SessionBehind(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation behind a letter."""

    id: str
    title: str | None
    model: str | None
    updated_at: datetime


class CallTold(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    name: str
    status: ToolCallStatus
    message_id: str
    created_at: datetime
    completed_at: datetime | None


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A letter, and everything behind it."""

    letter: LetterTold
    session: SessionBehind | None  # none if there is none, or it is not the caller's
    messages: list[HistoryRow]
    tool_calls: list[CallTold]
    spend: Spend | None
    evaluations: list[EvaluationTold]
    thread: list[LetterTold]  # the first letters of its task; all of them if they fit into an answer


async def thread(request: Request) -> Response:
    """The letters of a task."""
    limit = whole_number(request, "limit", default=200, most=_MOST)
    cursor = text_param(request, "cursor", None)
    page = await _thread(request, request.path_params["task_id"], limit, _place_from(cursor))
    seen = [one for one in page.items if _is_seen(request, one)]
    if not seen and not page.has_more:
        raise not_found()
    return await answer_letters(seen, _cursor_of(page.items[-1].posted) if page.has_more else None)


async def _thread(request: Request, task_id: str, limit: int, begin: tuple[int, str] | None = None) -> Page[Standing]:
    """Letters of a task behind a place, as many as one answer may have."""

    async def read(last: Standing | None, count: int) -> list[Standing]:
        after = begin if last is None else last.posted
        return await mail_of(request).letters(task_id=task_id, after=after, limit=count)

    return await read_page(read, limit, _size)


def _cursor_of(posted: Posted) -> str:
    taken = 0 if posted.created_at is None else micros(posted.created_at)
    return f"{taken}.{posted.letter_id}"


def _place_from(cursor: str | None) -> tuple[int, str] | None:
    """When the letter of a cursor was taken, and its id."""
    if cursor is None:
        return None
    if not (place := _CURSOR.fullmatch(cursor)):
        raise invalid_cursor()
    return int(place[1]), place[2]


async def graph(request: Request) -> Response:
    """A letter and everything behind it."""
    recipient, letter_id = request.path_params["recipient"], request.path_params["letter_id"]
    try:
        found = await letter_graph(mail_of(request), recipient, letter_id, functools.partial(session_behind, request))
    except UnknownLetterError:
        raise not_found() from None
    posted = found.letter.posted
    if not _sees(request, posted.sender_id, posted.recipient_id):
        raise not_found()
    session = found.session
    messages = [] if session is None else await shown(doors_of(request).store, session, list(found.messages))
    letters = [one for one in found.thread[: within_size(found.thread, _size)] if _is_seen(request, one)]

    def make() -> Graph:
        return Graph(
            letter=letter_told(found.letter),
            session=None if session is None else _session(session),
            messages=messages,
            tool_calls=[_call(call) for call in found.tool_calls],
            spend=found.spend,
            evaluations=[told(one) for one in found.evaluations],
            thread=[letter_told(one) for one in letters],
        )

    return await answer_large(_size(found.letter) + sum(map(_size, letters)), make)


async def dead_letters(request: Request) -> Response:
    """What nobody will get unless it is sent again."""
    wanted = {"recipient_id": text_param(request, "recipient", None)}
    found = await mail_of(request).dead_letters(
        limit=whole_number(request, "limit", default=100, most=_MOST),
        **{name: value for name, value in wanted.items() if value is not None},
    )
    seen = [dead_told(one) for one in found if _sees(request, one.sender_id or "", one.recipient_id)]
    return answer(DeadLetters(seen))


async def dead_letter(request: Request) -> Response:
    """One of them, with what came."""
    dead, mail = await _dead(request), mail_of(request)
    return await answer_large(len(dead.raw or b""), lambda: dead_whole(dead, mail))


async def _dead(request: Request) -> DeadLetter:
    found = await mail_of(request).dead_letters(dead_id=request.path_params["dead_id"], resent_too=True)
    if not found or not _sees(request, found[0].sender_id or "", found[0].recipient_id):
        raise not_found()
    return found[0]


async def resend(request: Request) -> Response:
    """Send a dead letter again."""
    dead = await _dead(request)
    receipt = await mail_of(request).resend(dead.id)
    return answer(
        Sent(
            letter_id=receipt.letter_id,
            recipient_id=receipt.recipient_id,
            is_new=receipt.is_new,
            state=receipt.state,
        )
    )


def _sees(request: Request, *agents: str) -> bool:
    own = agents_of(principal_of(request))
    return not own or not own.isdisjoint(agents)


def _is_seen(request: Request, standing: Standing) -> bool:
    return _sees(request, standing.posted.sender_id, standing.posted.recipient_id)


def _size(standing: Standing) -> int:
    return len(standing.posted.text)


def _session(session: Any) -> SessionBehind:
    return SessionBehind(
        id=name_from_id(session.id), title=session.title, model=session.active_model, updated_at=session.updated_at
    )


def _call(call: Any) -> CallTold:
    return CallTold(**{name: getattr(call, name) for name in CallTold.__struct_fields__})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/mail/tasks/{task_id}",
        thread,
        name="task_letters",
        summary="The letters of a task, in the order in which they were taken",
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "how many letters at most"),
            Query("cursor", {"type": "string"}, "where to begin: the cursor of the page before"),
        ),
        answers={200: Letters},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/letters/{recipient}/{letter_id}",
        graph,
        name="letter_graph",
        summary="A letter, and the conversation, messages, tool calls, spend and evaluations behind it",
        answers={200: Graph},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/dead",
        dead_letters,
        name="dead_letters",
        summary="What nobody will get unless it is sent again",
        query=(
            Query("recipient", {"type": "string"}, "of one recipient only"),
            Query("limit", {"type": "integer", "minimum": 1}, "how many at most"),
        ),
        answers={200: DeadLetters},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/dead/{dead_id}",
        dead_letter,
        name="dead_letter",
        summary="A dead letter, with what came as a text without secrets",
        answers={200: DeadWhole},
        scope=SCOPE,
    ),
    Endpoint(
        "POST",
        "/api/v1/mail/dead/{dead_id}/resend",
        resend,
        name="resend_letter",
        summary="Send a dead letter again",
        answers={200: Sent},
        scope=SCOPE,
    ),
)
