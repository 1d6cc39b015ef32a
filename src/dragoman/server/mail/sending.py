"""``POST /api/v1/mail``: a letter is taken, and safe when this is answered. ``GET /api/v1/mail/schema``: what one is.

What is no letter is refused, kept among the dead letters, and its sender is told by a letter. The one rule: nobody
sends in the name of an agent that their key does not speak as.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import InputError
from dragoman.letters import hints_from, published_schema, read_letter, warnings_of
from dragoman.letters.kept import LetterState
from dragoman.letters.schema import inlined_schema
from dragoman.offload import LARGE, off_loop
from dragoman.server.answers import answer
from dragoman.server.endpoint import Endpoint, Media
from dragoman.server.mailroom import SCOPE, agents_of, letter_body, mail_of, refuse_to_speak_as
from dragoman.server.principal import principal_of
from dragoman.server.refusing import refusal_from


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A letter was taken."""

    letter_id: str
    recipient_id: str
    is_new: bool  # false if the same letter had been taken before
    state: LetterState
    warnings: list[str] = []


async def send(request: Request) -> Response:
    """Take a letter."""
    data = await letter_body(request)
    mail = mail_of(request)
    try:
        letter = await off_loop(len(data), read_letter, data)
    except InputError as error:
        raise await _buried(request, data, error) from None
    refuse_to_speak_as(request, letter.sender_id)
    receipt = await mail.send(letter if len(data) < LARGE else data)  # which it reads again, in a thread
    odd = [f"{warning} [{warning.code}]" for warning in warnings_of(letter)]
    sent = Sent(
        letter_id=receipt.letter_id,
        recipient_id=receipt.recipient_id,
        is_new=receipt.is_new,
        state=receipt.state,
        warnings=odd,
    )
    return answer(sent, 201 if receipt.is_new else 200)


async def _buried(request: Request, data: bytes, error: InputError) -> Exception:
    """The refusal of what is no letter, which is kept; unless it was sent in the name of somebody else."""
    told = refusal_from(error)
    own, sender = agents_of(principal_of(request)), (await off_loop(len(data), hints_from, data)).sender_id
    if data and (not own or sender is None or sender in own):
        dead = await mail_of(request).bury(data, error)
        told.headers["x-dead-letter"] = dead.id
    return told


async def schema(_: Request) -> Response:
    """What a letter is, as a JSON Schema."""
    return Response(published_schema(), media_type="application/schema+json")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/api/v1/mail",
        send,
        name="send_letter",
        summary="Send a letter",
        description="The same letter again, however often, is one letter: 200 in place of 201. What is no letter is"
        " refused and kept among the dead letters; its sender is told by an error letter.",
        asks=inlined_schema(),
        answers={200: Sent, 201: Sent},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/schema",
        schema,
        name="letter_schema",
        summary="What a letter is, as a JSON Schema",
        answers={200: Media("application/schema+json", {"type": "object"})},
        public=True,
    ),
)
