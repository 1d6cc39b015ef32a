"""``POST /api/v1/mail``: a letter is taken, and safe when this is answered. ``GET /api/v1/mail/schema``: what one is.

What is no letter is refused, kept among the dead letters, and its sender is told by a letter. The one rule: nobody
sends in the name of an agent that their key does not speak as.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import InputError
from dragoman.letters import find_warnings, hints_from, read_letter, read_schema_file
from dragoman.letters.records import LetterState
from dragoman.letters.schema import inline_schema
from dragoman.offload import LARGE, run_off_loop
from dragoman.server.auth.principal import get_principal
from dragoman.server.http.endpoint import Endpoint, Media
from dragoman.server.http.http_errors import to_api_error
from dragoman.server.http.responses import json_response
from dragoman.server.mail.access import SCOPE, key_agents, read_letter_body, require_sender, team_mail


class SendResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A letter was taken."""

    letter_id: str
    recipient_id: str
    is_new: bool  # false if the same letter had been taken before
    state: LetterState
    warnings: list[str] = []


async def send_letter(request: Request) -> Response:
    """Take a letter."""
    data = await read_letter_body(request)
    mail = team_mail(request)
    try:
        letter = await run_off_loop(len(data), read_letter, data)
    except InputError as error:
        raise await _reject(request, data, error) from None
    require_sender(request, letter.sender_id)
    receipt = await mail.send(letter if len(data) < LARGE else data)  # which it reads again, in a thread
    warnings = [f"{warning} [{warning.code}]" for warning in find_warnings(letter)]
    response = SendResponse(
        letter_id=receipt.letter_id,
        recipient_id=receipt.recipient_id,
        is_new=receipt.is_new,
        state=receipt.state,
        warnings=warnings,
    )
    return json_response(response, 201 if receipt.is_new else 200)


async def _reject(request: Request, data: bytes, error: InputError) -> Exception:
    """The refusal of what is no letter, which is kept; unless it was sent in the name of somebody else."""
    api_error = to_api_error(error)
    allowed, sender = key_agents(get_principal(request)), (await run_off_loop(len(data), hints_from, data)).sender_id
    if data and (not allowed or sender is None or sender in allowed):
        dead = await team_mail(request).reject(data, error)
        api_error.headers["x-dead-letter"] = dead.id
    return api_error


async def letter_schema(_: Request) -> Response:
    """What a letter is, as a JSON Schema."""
    return Response(read_schema_file(), media_type="application/schema+json")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/api/v1/mail",
        send_letter,
        name="send_letter",
        summary="Send a letter",
        description="The same letter again, however often, is one letter: 200 in place of 201. What is no letter is"
        " refused and kept among the dead letters; its sender is told by an error letter.",
        request_body=inline_schema(),
        responses={200: SendResponse, 201: SendResponse},
        scope=SCOPE,
    ),
    Endpoint(
        "GET",
        "/api/v1/mail/schema",
        letter_schema,
        name="letter_schema",
        summary="What a letter is, as a JSON Schema",
        responses={200: Media("application/schema+json", {"type": "object"})},
        public=True,
    ),
)
