"""Mailboxes over HTTP: list letters, lease them, and end or extend leases.

    POST …/inbox/{recipient}/receive                  lease letters; wait_s waits for the first one
    POST …/inbox/{recipient}/{letter_id}/ack          acknowledge a letter
    POST …/inbox/{recipient}/{letter_id}/nack         report a failure
    POST …/inbox/{recipient}/{letter_id}/extend       extend a lease
    POST …/inbox/{recipient}/{letter_id}/give-back    end a lease
    POST …/inbox/{recipient}/{letter_id}/open         the letter with its secrets
    POST …/inbox/{recipient}/{letter_id}/answer       send the requested inputs and acknowledge the letter

Invariants: only the holder of a lease can change a letter. A mailbox that the caller may not read is not found.
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
from dragoman.server.http.requests import app_state, int_param, json_body, parse_as, text_param
from dragoman.server.http.responses import json_response, large_json_response
from dragoman.server.mail.access import get_recipient, key_agents, mail_endpoint, team_mail
from dragoman.server.mail.types import (
    SLICE,
    JsonObject,
    Letters,
    count_within_size,
    encode_masked,
    invalid_cursor_error,
    letters_response,
    read_page,
)
from dragoman.store.mailbox.mail_store import LetterStatus

_PATH: Final = "/api/v1/mail/inbox/{recipient}"
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_MAX_LEASE_S: Final = 3_600.0
_MAX_WAIT_S: Final = 30.0
Seconds = Annotated[float, Meta(gt=0, le=_MAX_LEASE_S)]
Body = TypeVar("Body")


class Mailboxes(msgspec.Struct, frozen=True):
    """The mailboxes of the caller and their counts."""

    mailboxes: list[MailboxMetrics]
    dead_without_recipient: int = 0  # invalid letters that name no mailbox; 0 for a key with agents


class ReceiveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of letters, length of the lease, and time to wait for the first letter."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    lease_s: Seconds = 60.0
    wait_s: Annotated[float, Meta(ge=0, le=_MAX_WAIT_S)] = 0.0
    letter_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_.:-]{1,128}$")] | None = None  # only this letter


class LeasedLetterResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A leased letter."""

    letter_id: str
    lease: str  # secret of the holder, for later requests
    until: datetime  # end of the lease
    attempts: int  # number of deliveries, this one included
    letter: JsonObject


class Deliveries(msgspec.Struct, frozen=True):
    """Leased letters in their order, at most one per task."""

    deliveries: list[LeasedLetterResponse]


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lease of a letter."""

    lease: Annotated[str, Meta(min_length=1, max_length=128)]


class NackRequest(LeaseRequest, frozen=True, kw_only=True):
    """A failure, and when to retry."""

    error: Annotated[str, Meta(max_length=2_000)] = ""
    error_class: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    retry_after_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] | None = None


class ExtendRequest(LeaseRequest, frozen=True, kw_only=True):
    """The length of the lease from now on."""

    lease_s: Seconds = 60.0


class AnswerRequest(LeaseRequest, frozen=True, kw_only=True):
    """The requested inputs by id."""

    inputs: dict[str, Any]
    output: Annotated[str, Meta(max_length=10_000)] = "Input given"


class AckResponse(msgspec.Struct, frozen=True):
    """The letter is acknowledged."""

    is_first: bool  # false if it was acknowledged before


class NackResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a failure."""

    retry_at: datetime | None  # none if the letter is dead or was acknowledged before
    attempts: int
    dead_letter_id: str | None = None


class ExtendResponse(msgspec.Struct, frozen=True):
    """The end of the lease."""

    until: datetime


class OpenResponse(msgspec.Struct, frozen=True):
    """The letter with its secrets."""

    letter: JsonObject


class AnswerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer was sent."""

    letter_id: str  # of the answer
    recipient_id: str  # sender of the request


# --- list and lease --------------------------------------------------------------------------------------------------


async def list_mailboxes(request: Request) -> Response:
    """Return the mailboxes of the caller."""
    agents = key_agents(get_principal(request))
    all_counts = await team_mail(request).counts()
    metrics = [
        MailboxMetrics(**{name: getattr(counts, name) for name in MailboxMetrics.__struct_fields__})
        for counts in all_counts
        if counts.recipient_id and (not agents or counts.recipient_id in agents)
    ]
    nameless = 0 if agents else sum(counts.dead for counts in all_counts if not counts.recipient_id)
    return json_response(Mailboxes(metrics, nameless))


async def list_letters(request: Request) -> Response:
    """Return the newest letters of a mailbox, without a lease."""
    recipient = get_recipient(request)
    limit = int_param(request, "limit", default=50, maximum=200)
    start = _parse_cursor(text_param(request, "cursor", None))
    mail = team_mail(request)

    async def read(last: tuple[int, LetterStatus] | None, count: int) -> list[tuple[int, LetterStatus]]:
        before = start if last is None else last[0]
        return await mail.store.mail.newest(recipient, mail.team_id, count, before=before)

    page = await read_page(read, limit, lambda item: len(item[1].letter.text))
    cursor = str(page.items[-1][0]) if page.has_more else None
    return await letters_response([status for _, status in page.items], cursor)


async def receive_letters(request: Request) -> Response:
    """Lease the next letters of a mailbox."""
    recipient = get_recipient(request)
    body = parse_as(await json_body(request), ReceiveRequest)
    mail = team_mail(request)
    until = asyncio.get_running_loop().time() + body.wait_s
    with mail.notifier.waiter(f"{mail.team_id}/{recipient}") as waiter:
        while True:
            deliveries = await _lease_letters(mail, recipient, body)
            remaining_s = until - asyncio.get_running_loop().time()
            is_stopping = app_state(request).runs.is_stopping
            if deliveries or remaining_s <= 0 or is_stopping or await request.is_disconnected():
                break
            await waiter.wait(remaining_s)
    size = sum(map(_size, deliveries))
    return await large_json_response(size, lambda: Deliveries([_to_response(delivery) for delivery in deliveries]))


async def _lease_letters(mail: Mail, recipient: str, body: ReceiveRequest) -> list[Delivery]:
    """Lease letters up to the limits of count and size; release those that do not fit."""
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


# --- leased letters --------------------------------------------------------------------------------------------------


async def ack_letter(request: Request) -> Response:
    """Acknowledge a letter."""
    delivery, _ = await _find_delivery(request, LeaseRequest)
    return json_response(AckResponse((await delivery.ack()).is_first))


async def nack_letter(request: Request) -> Response:
    """Report a failure."""
    delivery, body = await _find_delivery(request, NackRequest)
    outcome = await delivery.nack(body.error, error_class=body.error_class, retry_after_s=body.retry_after_s)
    if outcome is None:
        return json_response(NackResponse(retry_at=None, attempts=0))
    return json_response(NackResponse(**msgspec.structs.asdict(outcome)))


async def extend_lease(request: Request) -> Response:
    """Extend a lease."""
    delivery, body = await _find_delivery(request, ExtendRequest)
    return json_response(ExtendResponse(await delivery.extend(body.lease_s)))


async def release_letter(request: Request) -> Response:
    """End a lease."""
    delivery, _ = await _find_delivery(request, LeaseRequest)
    await team_mail(request).release(delivery)
    return Response(status_code=204)


async def open_letter(request: Request) -> Response:
    """Return a letter with its secrets."""
    delivery, _ = await _find_delivery(request, LeaseRequest)
    letter = await delivery.decrypt()
    return await large_json_response(_size(delivery), lambda: OpenResponse(msgspec.Raw(write_letter(letter))))


async def answer_letter(request: Request) -> Response:
    """Send the requested inputs and acknowledge the letter."""
    delivery, body = await _find_delivery(request, AnswerRequest)
    await delivery.extend()  # fails unless the caller holds the lease
    receipt = await team_mail(request).answer(delivery, body.inputs, output=body.output)
    await delivery.ack()
    return json_response(AnswerResponse(letter_id=receipt.letter_id, recipient_id=receipt.recipient_id), 201)


async def _find_delivery(request: Request, body_type: type[Body]) -> tuple[Delivery, Body]:
    """Return the letter of the path with the lease of the body, and the body."""
    recipient = get_recipient(request)
    body = parse_as(await json_body(request), body_type)
    lease: str = getattr(body, "lease", "")
    return await team_mail(request).delivery(recipient, request.path_params["letter_id"], lease), body


def _parse_cursor(cursor: str | None) -> int | None:
    """Return the number of a cursor."""
    if cursor is None:
        return None
    if not _NUMBER.fullmatch(cursor):
        raise invalid_cursor_error()
    return int(cursor)


def _letter_endpoint(
    verb: str,
    handler: Callable[[Request], Awaitable[Response]],
    summary: str,
    request_body: Any,
    responses: dict[int, Any],
) -> Endpoint:
    return mail_endpoint(
        "POST",
        f"{_PATH}/{{letter_id}}/{verb}",
        handler,
        summary,
        responses,
        name=f"{verb.replace('-', '_')}_letter",
        request_body=request_body,
    )


ENDPOINTS = (
    mail_endpoint(
        "GET",
        "/api/v1/mail",
        list_mailboxes,
        "List the mailboxes of your team and their counts",
        {200: Mailboxes},
        name="mailboxes",
    ),
    mail_endpoint(
        "GET",
        _PATH,
        list_letters,
        "List the newest letters of a mailbox without a lease",
        {200: Letters},
        name="look_into_mailbox",
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "maximum number of letters"),
            Query("cursor", {"type": "string"}, "cursor of the previous page"),
        ),
    ),
    mail_endpoint(
        "POST",
        f"{_PATH}/receive",
        receive_letters,
        "Lease the next letters of a mailbox",
        {200: Deliveries},
        request_body=ReceiveRequest,
        description="In their order, at most one per task. Other consumers cannot receive them until the lease ends.",
    ),
    _letter_endpoint("ack", ack_letter, "Acknowledge a letter", LeaseRequest, {200: AckResponse}),
    _letter_endpoint("nack", nack_letter, "Report that a letter failed", NackRequest, {200: NackResponse}),
    _letter_endpoint("extend", extend_lease, "Extend the lease of a letter", ExtendRequest, {200: ExtendResponse}),
    _letter_endpoint("give-back", release_letter, "End the lease of a letter", LeaseRequest, {204: None}),
    _letter_endpoint("open", open_letter, "Get a letter with its secrets", LeaseRequest, {200: OpenResponse}),
    _letter_endpoint("answer", answer_letter, "Answer a request for input", AnswerRequest, {201: AnswerResponse}),
)
