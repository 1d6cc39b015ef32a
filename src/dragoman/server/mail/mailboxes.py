"""Mailboxes over HTTP: what is in them, and letters handed out for a while to somebody who is done with them or not.

    POST …/inbox/{recipient}/receive                  letters with a lease; wait_s waits for the first
    POST …/inbox/{recipient}/{letter_id}/ack          done: it is not handed out again
    POST …/inbox/{recipient}/{letter_id}/nack         later again, or given up
    POST …/inbox/{recipient}/{letter_id}/extend       keep it for longer
    POST …/inbox/{recipient}/{letter_id}/give-back    somebody else may have it
    POST …/inbox/{recipient}/{letter_id}/open         with what is sensitive in it, for whoever holds it
    POST …/inbox/{recipient}/{letter_id}/answer       the inputs that a letter asks for; it is done by that

The one rule: whoever does not hold a letter changes nothing about it, and a mailbox that is not the caller's is not
there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from dragoman.letters import write_letter
from dragoman.mail import Delivery, Mail
from dragoman.mail.metrics import MailboxMetrics
from dragoman.server.auth.principal import get_principal
from dragoman.server.http.endpoint import Endpoint, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, int_param, json_body, parse_as, text_param
from dragoman.server.http.responses import json_response, large_json_response
from dragoman.server.mail.access import SCOPE, key_agents, require_mailbox, team_mail
from dragoman.server.mail.letter_page import SLICE, count_within_size, read_page
from dragoman.server.mail.types import JsonObject, Letters, encode_masked, invalid_cursor_error, letters_response
from dragoman.store.mailbox.mail_store import LetterStatus

_PATH: Final = "/api/v1/mail/inbox/{recipient}"
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_MAX_LEASE_S: Final = 3_600.0
_MAX_WAIT_S: Final = 30.0
Seconds = Annotated[float, Meta(gt=0, le=_MAX_LEASE_S)]
Body = TypeVar("Body")


class Mailboxes(msgspec.Struct, frozen=True):
    """The caller's mailboxes, and how much is in them."""

    mailboxes: list[MailboxMetrics]


class ReceiveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many letters for how long, and how long to wait for the first."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    lease_s: Seconds = 60.0
    wait_s: Annotated[float, Meta(ge=0, le=_MAX_WAIT_S)] = 0.0
    letter_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_.:-]{1,128}$")] | None = None  # this one alone, if it is free


class LeasedLetterResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A letter in the caller's hands."""

    letter_id: str
    lease: str  # what to say to be done with it
    until: datetime  # when somebody else may get it
    attempts: int  # the how-manieth time it is handed out
    letter: JsonObject


class Deliveries(msgspec.Struct, frozen=True):
    """Letters in the caller's hands, in their order, of each task one."""

    deliveries: list[LeasedLetterResponse]


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whoever holds a letter."""

    lease: Annotated[str, Meta(min_length=1, max_length=128)]


class NackRequest(LeaseRequest, frozen=True, kw_only=True):
    """Why a letter could not be handled, and when it is worth another try."""

    error: Annotated[str, Meta(max_length=2_000)] = ""
    error_class: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    retry_after_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] | None = None


class ExtendRequest(LeaseRequest, frozen=True, kw_only=True):
    """For how long from now."""

    lease_s: Seconds = 60.0


class AnswerRequest(LeaseRequest, frozen=True, kw_only=True):
    """What a letter asks for, by the ids of its inputs."""

    inputs: dict[str, Any]
    output: Annotated[str, Meta(max_length=10_000)] = "Input given"


class AckResponse(msgspec.Struct, frozen=True):
    """The letter is done."""

    is_first: bool  # false if it had been done before


class NackResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the letter."""

    retry_at: datetime | None  # none if it was given up, or done before
    attempts: int
    dead_letter_id: str | None = None


class ExtendResponse(msgspec.Struct, frozen=True):
    """Until when it is kept."""

    until: datetime


class OpenResponse(msgspec.Struct, frozen=True):
    """The letter with what is sensitive in it."""

    letter: JsonObject


class AnswerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is on its way."""

    letter_id: str  # of the answer
    recipient_id: str  # who asked


# --- what is in them -------------------------------------------------------------------------------------------------


async def list_mailboxes(request: Request) -> Response:
    """The caller's mailboxes."""
    agents = key_agents(get_principal(request))
    metrics = [
        MailboxMetrics(**{name: getattr(counts, name) for name in MailboxMetrics.__struct_fields__})
        for counts in await team_mail(request).counts()
        if counts.recipient_id and (not agents or counts.recipient_id in agents)
    ]
    return json_response(Mailboxes(metrics))


async def list_letters(request: Request) -> Response:
    """The newest letters of a mailbox, without a lease."""
    recipient = _get_recipient(request)
    limit = int_param(request, "limit", default=50, maximum=200)
    begin = _parse_cursor(text_param(request, "cursor", None))
    mail = team_mail(request)

    async def read(last: tuple[int, LetterStatus] | None, count: int) -> list[tuple[int, LetterStatus]]:
        before = begin if last is None else last[0]
        return await mail.store.mail.newest(recipient, mail.team_id, count, before=before)

    page = await read_page(read, limit, lambda item: len(item[1].letter.text))
    cursor = str(page.items[-1][0]) if page.has_more else None
    return await letters_response([standing for _, standing in page.items], cursor)


async def receive_letters(request: Request) -> Response:
    """The next letters of a mailbox, for a while."""
    recipient = _get_recipient(request)
    body = parse_as(await json_body(request), ReceiveRequest)
    mail = team_mail(request)
    until = asyncio.get_running_loop().time() + body.wait_s
    with mail.notifier.waiter(f"{mail.team_id}/{recipient}") as waiter:
        while True:
            deliveries = await _lease_letters(mail, recipient, body)
            remaining_s = until - asyncio.get_running_loop().time()
            if deliveries or remaining_s <= 0 or app_state(request).runs.is_stopping or await request.is_disconnected():
                break
            await waiter.wait(remaining_s)
    size = sum(map(_size, deliveries))
    return await large_json_response(size, lambda: Deliveries([_to_response(delivery) for delivery in deliveries]))


async def _lease_letters(mail: Mail, recipient: str, body: ReceiveRequest) -> list[Delivery]:
    """Lease letters until there are enough, by count or by size; give back what does not fit into the answer."""
    deliveries: list[Delivery] = []
    while len(deliveries) < body.limit:
        count = min(SLICE, body.limit - len(deliveries))
        batch = await mail.receive(recipient, lease_s=body.lease_s, limit=count, letter_id=body.letter_id)
        deliveries.extend(batch)
        room = count_within_size(deliveries, _size)
        for delivery in deliveries[room:]:
            await mail.release(delivery)
        if room < len(deliveries):
            return deliveries[:room]
        if len(batch) < count:
            break
    return deliveries


def _size(delivery: Delivery) -> int:
    return len(delivery.leased.letter.text)


def _to_response(delivery: Delivery) -> LeasedLetterResponse:
    return LeasedLetterResponse(
        letter_id=delivery.letter_id,
        lease=delivery.lease,
        until=delivery.until,
        attempts=delivery.attempts,
        letter=encode_masked(delivery.leased.letter, delivery.attempts),
    )


# --- what is held ----------------------------------------------------------------------------------------------------


async def ack_letter(request: Request) -> Response:
    """A letter is done."""
    delivery, _ = await _find_delivery(request, LeaseRequest)
    result = await delivery.ack()
    return json_response(AckResponse(result.is_first))


async def nack_letter(request: Request) -> Response:
    """A letter could not be handled."""
    delivery, body = await _find_delivery(request, NackRequest)
    outcome = await delivery.nack(body.error, error_class=body.error_class, retry_after_s=body.retry_after_s)
    if outcome is None:
        return json_response(NackResponse(retry_at=None, attempts=0))
    return json_response(
        NackResponse(retry_at=outcome.retry_at, attempts=outcome.attempts, dead_letter_id=outcome.dead_letter_id)
    )


async def extend_lease(request: Request) -> Response:
    """Keep a letter for longer."""
    delivery, body = await _find_delivery(request, ExtendRequest)
    return json_response(ExtendResponse(await delivery.extend(body.lease_s)))


async def release_letter(request: Request) -> Response:
    """Let somebody else have a letter."""
    delivery, _ = await _find_delivery(request, LeaseRequest)
    await team_mail(request).release(delivery)
    return Response(status_code=204)


async def open_letter(request: Request) -> Response:
    """A letter with what is sensitive in it."""
    delivery, _ = await _find_delivery(request, LeaseRequest)
    letter = await delivery.decrypt()
    return await large_json_response(_size(delivery), lambda: OpenResponse(msgspec.Raw(write_letter(letter))))


async def answer_letter(request: Request) -> Response:
    """The inputs that a letter asks for, and the letter is done."""
    delivery, body = await _find_delivery(request, AnswerRequest)
    await delivery.extend()  # which only its holder can
    receipt = await team_mail(request).answer(delivery, body.inputs, output=body.output)
    await delivery.ack()
    return json_response(AnswerResponse(letter_id=receipt.letter_id, recipient_id=receipt.recipient_id), 201)


async def _find_delivery(request: Request, body_type: type[Body]) -> tuple[Delivery, Body]:
    """A letter that the caller says to hold, and what else they say."""
    recipient = _get_recipient(request)
    body = parse_as(await json_body(request), body_type)
    lease: str = getattr(body, "lease", "")
    return await team_mail(request).delivery(recipient, request.path_params["letter_id"], lease), body


def _parse_cursor(cursor: str | None) -> int | None:
    """The place in a mailbox that a cursor names."""
    if cursor is None:
        return None
    if not _NUMBER.fullmatch(cursor):
        raise invalid_cursor_error()
    return int(cursor)


def _get_recipient(request: Request) -> str:
    recipient: str = request.path_params["recipient"]
    if "\0" in recipient:
        raise ApiError(422, "invalid_character", "recipient holds a NUL.")
    require_mailbox(request, recipient)
    return recipient


def _letter_endpoint(
    verb: str, respond: Callable[[Request], Awaitable[Response]], summary: str, asks: Any, answers: dict[int, Any]
) -> Endpoint:
    name = f"{verb.replace('-', '_')}_letter"
    path = f"{_PATH}/{{letter_id}}/{verb}"
    return Endpoint(
        "POST", path, respond, name=name, summary=summary, request_body=asks, responses=answers, scope=SCOPE
    )


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/mail",
        list_mailboxes,
        name="mailboxes",
        summary="The mailboxes of your team, and how much is in them",
        responses={200: Mailboxes},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        _PATH,
        list_letters,
        name="look_into_mailbox",
        summary="The newest letters of a mailbox, without taking them",
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "how many letters at most"),
            Query("cursor", {"type": "string"}, "where to begin: the cursor of the page before"),
        ),
        responses={200: Letters},
        scope=SCOPE,
    ),
    Endpoint(
        "POST",
        f"{_PATH}/receive",
        receive_letters,
        name="receive_letters",
        summary="Take the next letters of a mailbox, for a while",
        description="In their order, of each task one. Nobody else gets them until the lease is over.",
        request_body=ReceiveRequest,
        responses={200: Deliveries},
        scope=SCOPE,
    ),
    _letter_endpoint("ack", ack_letter, "A letter is done", LeaseRequest, {200: AckResponse}),
    _letter_endpoint("nack", nack_letter, "A letter could not be handled", NackRequest, {200: NackResponse}),
    _letter_endpoint("extend", extend_lease, "Keep a letter for longer", ExtendRequest, {200: ExtendResponse}),
    _letter_endpoint("give-back", release_letter, "Let somebody else have a letter", LeaseRequest, {204: None}),
    _letter_endpoint("open", open_letter, "A letter with what is sensitive in it", LeaseRequest, {200: OpenResponse}),
    _letter_endpoint("answer", answer_letter, "Answer a request for input", AnswerRequest, {201: AnswerResponse}),
)
