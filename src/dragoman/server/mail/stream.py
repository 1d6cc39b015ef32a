"""``GET /api/v1/mail/inbox/{recipient}/stream``: new letters of a mailbox as server-sent events.

Each event is a letter; its id is its number in the mailbox. A client that reconnects with ``Last-Event-ID`` misses
none. The stream does not lease letters; ``receive`` does. It ends when the caller loses access.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.offload import run_off_loop
from dragoman.server.auth.principal import authenticate
from dragoman.server.http.endpoint import EventStream, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, text_param
from dragoman.server.mail.access import SCOPE, get_recipient, mail_endpoint, team_mail
from dragoman.server.mail.types import SLICE, to_letter_response
from dragoman.server.runs.stream_encoder import KEEP_ALIVE, SSE, STREAM_HEADERS, encode_event
from dragoman.store.mailbox.mail_store import LetterStatus

_QUIET_S: Final = 15.0
_NUMBER: Final = re.compile(r"[0-9]{1,15}")


async def stream_mailbox(request: Request) -> Response:
    """Stream the letters of a mailbox from now on, or after an event id."""
    recipient = get_recipient(request)
    mail = team_mail(request)
    event_id = request.headers.get("last-event-id") or text_param(request, "last_event_id", None)
    if event_id is not None and event_id != "" and not _NUMBER.fullmatch(event_id):
        raise ApiError(422, "invalid_last_event_id", "Last-Event-ID is not the id of an event of this mailbox.")
    after = int(event_id) if event_id else await mail.store.mail.last_number(recipient, mail.team_id)
    return StreamingResponse(_frames(request, recipient, after), media_type=SSE, headers=STREAM_HEADERS)


async def _frames(request: Request, recipient: str, after: int) -> AsyncIterator[bytes]:
    mail = team_mail(request)
    loop = asyncio.get_running_loop()
    quiet_since = loop.time()
    yield f"id: {after}\nretry: 2000\n\n".encode()  # a client that reconnects before the first letter has its position
    with mail.notifier.waiter(f"{mail.team_id}/{recipient}") as waiter:
        while not app_state(request).runs.is_stopping:
            arrivals = await mail.store.mail.letters_after(recipient, mail.team_id, after, SLICE)
            for number, status in arrivals:
                yield await run_off_loop(len(status.letter.text), _frame, number, status)
                after = number
            if arrivals:
                waiter.reset()
                quiet_since = loop.time()
                continue
            await waiter.wait()
            if loop.time() - quiet_since >= _QUIET_S:
                quiet_since = loop.time()
                if not await _is_authorized(request):
                    return
                yield KEEP_ALIVE


def _frame(number: int, status: LetterStatus) -> bytes:
    return f"id: {number}\nevent: letter\ndata: {encode_event(to_letter_response(status))}\n\n".encode()


async def _is_authorized(request: Request) -> bool:
    try:
        return SCOPE in (await authenticate(request)).scopes
    except ApiError:
        return False


ENDPOINTS = (
    mail_endpoint(
        "GET",
        "/api/v1/mail/inbox/{recipient}/stream",
        stream_mailbox,
        "Stream the new letters of a mailbox",
        {200: EventStream},
        query=(Query("last_event_id", {"type": "string"}, "replaces the header, for clients that cannot set one"),),
        description="With Last-Event-ID, the stream starts after that letter, else with the next letter.",
    ),
)
