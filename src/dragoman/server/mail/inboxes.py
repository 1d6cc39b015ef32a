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
from dragoman.mail.measures import MailboxMeasures
from dragoman.server.answers import answer, answer_large
from dragoman.server.asking import json_body, read_as, text_param, whole_number
from dragoman.server.endpoint import Endpoint, Query
from dragoman.server.mail.letter_page import SLICE, read_page, within_size
from dragoman.server.mail.values import JsonObject, Letters, answer_letters, invalid_cursor, plain_letter
from dragoman.server.mailroom import SCOPE, agents_of, mail_of, refuse_mailbox_of
from dragoman.server.principal import principal_of
from dragoman.server.refusing import Refusal
from dragoman.server.state import doors_of
from dragoman.store.mail import Standing

_PATH: Final = "/api/v1/mail/inbox/{recipient}"
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_MOST_S: Final = 3_600.0
_MOST_WAIT_S: Final = 30.0
Seconds = Annotated[float, Meta(gt=0, le=_MOST_S)]
Asked = TypeVar("Asked")


class Mailboxes(msgspec.Struct, frozen=True):
    """The caller's mailboxes, and how much is in them."""

    mailboxes: list[MailboxMeasures]


class Receive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many letters for how long, and how long to wait for the first."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    lease_s: Seconds = 60.0
    wait_s: Annotated[float, Meta(ge=0, le=_MOST_WAIT_S)] = 0.0
    letter_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_.:-]{1,128}$")] | None = None  # this one alone, if it is free


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A letter in the caller's hands."""

    letter_id: str
    lease: str  # what to say to be done with it
    until: datetime  # when somebody else may get it
    attempts: int  # the how-manieth time it is handed out
    letter: JsonObject


class Deliveries(msgspec.Struct, frozen=True):
    """Letters in the caller's hands, in their order, of each task one."""

    deliveries: list[Held]


class ByLease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whoever holds a letter."""

    lease: Annotated[str, Meta(min_length=1, max_length=128)]


class Nack(ByLease, frozen=True, kw_only=True):
    """Why a letter could not be handled, and when it is worth another try."""

    error: Annotated[str, Meta(max_length=2_000)] = ""
    error_class: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    retry_after_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] | None = None


class Extend(ByLease, frozen=True, kw_only=True):
    """For how long from now."""

    lease_s: Seconds = 60.0


class AnswerInputs(ByLease, frozen=True, kw_only=True):
    """What a letter asks for, by the ids of its inputs."""

    inputs: dict[str, Any]
    output: Annotated[str, Meta(max_length=10_000)] = "Input given"


class AckTold(msgspec.Struct, frozen=True):
    """The letter is done."""

    is_first: bool  # false if it had been done before


class NackTold(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the letter."""

    retry_at: datetime | None  # none if it was given up, or done before
    attempts: int
    dead_letter_id: str | None = None


class ExtendTold(msgspec.Struct, frozen=True):
    """Until when it is kept."""

    until: datetime


class OpenTold(msgspec.Struct, frozen=True):
    """The letter with what is sensitive in it."""

    letter: JsonObject


class AnswerTold(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is on its way."""

    letter_id: str  # of the answer
    recipient_id: str  # who asked


# --- what is in them -------------------------------------------------------------------------------------------------


async def mailboxes(request: Request) -> Response:
    """The caller's mailboxes."""
    own = agents_of(principal_of(request))
    found = [
        MailboxMeasures(**{name: getattr(counts, name) for name in MailboxMeasures.__struct_fields__})
        for counts in await mail_of(request).counts()
        if counts.recipient_id and (not own or counts.recipient_id in own)
    ]
    return answer(Mailboxes(found))


async def look(request: Request) -> Response:
    """The newest letters of a mailbox, without a lease."""
    recipient = _recipient(request)
    limit = whole_number(request, "limit", default=50, most=200)
    begin = _number_from(text_param(request, "cursor", None))
    mail = mail_of(request)

    async def read(last: tuple[int, Standing] | None, count: int) -> list[tuple[int, Standing]]:
        before = begin if last is None else last[0]
        return await mail.store.mail.newest(recipient, mail.team_id, count, before=before)

    page = await read_page(read, limit, lambda item: len(item[1].posted.text))
    cursor = str(page.items[-1][0]) if page.has_more else None
    return await answer_letters([standing for _, standing in page.items], cursor)


async def receive(request: Request) -> Response:
    """The next letters of a mailbox, for a while."""
    recipient = _recipient(request)
    asked = read_as(await json_body(request), Receive)
    mail = mail_of(request)
    until = asyncio.get_running_loop().time() + asked.wait_s
    with mail.waking.wait_for(f"{mail.team_id}/{recipient}") as wait:
        while True:
            found = await _take(mail, recipient, asked)
            left = until - asyncio.get_running_loop().time()
            if found or left <= 0 or doors_of(request).runs.is_stopping or await request.is_disconnected():
                break
            await wait.pause(left)
    size = sum(map(_size, found))
    return await answer_large(size, lambda: Deliveries([_held(delivery) for delivery in found]))


async def _take(mail: Mail, recipient: str, asked: Receive) -> list[Delivery]:
    """Lease letters until there are enough, by count or by size; give back what does not fit into the answer."""
    taken: list[Delivery] = []
    while len(taken) < asked.limit:
        wanted = min(SLICE, asked.limit - len(taken))
        found = await mail.receive(recipient, lease_s=asked.lease_s, limit=wanted, letter_id=asked.letter_id)
        taken.extend(found)
        room = within_size(taken, _size)
        for delivery in taken[room:]:
            await mail.give_back(delivery)
        if room < len(taken):
            return taken[:room]
        if len(found) < wanted:
            break
    return taken


def _size(delivery: Delivery) -> int:
    return len(delivery.handed.posted.text)


def _held(delivery: Delivery) -> Held:
    return Held(
        letter_id=delivery.letter_id,
        lease=delivery.lease,
        until=delivery.until,
        attempts=delivery.attempts,
        letter=plain_letter(delivery.handed.posted, delivery.attempts),
    )


# --- what is held ----------------------------------------------------------------------------------------------------


async def ack(request: Request) -> Response:
    """A letter is done."""
    delivery, _ = await _delivery(request, ByLease)
    done = await delivery.ack()
    return answer(AckTold(done.is_first))


async def nack(request: Request) -> Response:
    """A letter could not be handled."""
    delivery, asked = await _delivery(request, Nack)
    outcome = await delivery.nack(asked.error, error_class=asked.error_class, retry_after_s=asked.retry_after_s)
    if outcome is None:
        return answer(NackTold(retry_at=None, attempts=0))
    return answer(NackTold(retry_at=outcome.retry_at, attempts=outcome.attempts, dead_letter_id=outcome.dead_letter_id))


async def extend(request: Request) -> Response:
    """Keep a letter for longer."""
    delivery, asked = await _delivery(request, Extend)
    return answer(ExtendTold(await delivery.extend(asked.lease_s)))


async def give_back(request: Request) -> Response:
    """Let somebody else have a letter."""
    delivery, _ = await _delivery(request, ByLease)
    await mail_of(request).give_back(delivery)
    return Response(status_code=204)


async def open_letter(request: Request) -> Response:
    """A letter with what is sensitive in it."""
    delivery, _ = await _delivery(request, ByLease)
    letter = await delivery.opened()
    return await answer_large(_size(delivery), lambda: OpenTold(msgspec.Raw(write_letter(letter))))


async def answer_letter(request: Request) -> Response:
    """The inputs that a letter asks for, and the letter is done."""
    delivery, asked = await _delivery(request, AnswerInputs)
    await delivery.extend()  # which only its holder can
    receipt = await mail_of(request).answer(delivery, asked.inputs, output=asked.output)
    await delivery.ack()
    return answer(AnswerTold(letter_id=receipt.letter_id, recipient_id=receipt.recipient_id), 201)


async def _delivery(request: Request, wanted: type[Asked]) -> tuple[Delivery, Asked]:
    """A letter that the caller says to hold, and what else they say."""
    recipient = _recipient(request)
    asked = read_as(await json_body(request), wanted)
    lease: str = getattr(asked, "lease", "")
    return await mail_of(request).delivery(recipient, request.path_params["letter_id"], lease), asked


def _number_from(cursor: str | None) -> int | None:
    """The place in a mailbox that a cursor names."""
    if cursor is None:
        return None
    if not _NUMBER.fullmatch(cursor):
        raise invalid_cursor()
    return int(cursor)


def _recipient(request: Request) -> str:
    recipient: str = request.path_params["recipient"]
    if "\0" in recipient:
        raise Refusal(422, "invalid_character", "recipient holds a NUL.")
    refuse_mailbox_of(request, recipient)
    return recipient


def _of_letter(
    verb: str, respond: Callable[[Request], Awaitable[Response]], summary: str, asks: Any, answers: dict[int, Any]
) -> Endpoint:
    name = f"{verb.replace('-', '_')}_letter"
    path = f"{_PATH}/{{letter_id}}/{verb}"
    return Endpoint("POST", path, respond, name=name, summary=summary, asks=asks, answers=answers, scope=SCOPE)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/mail",
        mailboxes,
        name="mailboxes",
        summary="The mailboxes of your team, and how much is in them",
        answers={200: Mailboxes},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        _PATH,
        look,
        name="look_into_mailbox",
        summary="The newest letters of a mailbox, without taking them",
        query=(
            Query("limit", {"type": "integer", "minimum": 1}, "how many letters at most"),
            Query("cursor", {"type": "string"}, "where to begin: the cursor of the page before"),
        ),
        answers={200: Letters},
        scope=SCOPE,
    ),
    Endpoint(
        "POST",
        f"{_PATH}/receive",
        receive,
        name="receive_letters",
        summary="Take the next letters of a mailbox, for a while",
        description="In their order, of each task one. Nobody else gets them until the lease is over.",
        asks=Receive,
        answers={200: Deliveries},
        scope=SCOPE,
    ),
    _of_letter("ack", ack, "A letter is done", ByLease, {200: AckTold}),
    _of_letter("nack", nack, "A letter could not be handled", Nack, {200: NackTold}),
    _of_letter("extend", extend, "Keep a letter for longer", Extend, {200: ExtendTold}),
    _of_letter("give-back", give_back, "Let somebody else have a letter", ByLease, {204: None}),
    _of_letter("open", open_letter, "A letter with what is sensitive in it", ByLease, {200: OpenTold}),
    _of_letter("answer", answer_letter, "Answer a request for input", AnswerInputs, {201: AnswerTold}),
)
