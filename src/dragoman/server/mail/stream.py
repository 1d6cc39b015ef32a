"""``GET /api/v1/mail/inbox/{recipient}/stream``: what arrives in a mailbox, as server-sent events.

Each event is a letter, its id the place in the mailbox; whoever comes back with ``Last-Event-ID`` misses none. To look
at a letter is not to take it: that is ``receive``. The one rule: a stream does not outlive the right to see it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.offload import run_off_loop
from dragoman.server.auth.principal import authenticate
from dragoman.server.http.endpoint import Endpoint, EventStream, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, text_param
from dragoman.server.http.responses import KEEP_ALIVE
from dragoman.server.mail.access import SCOPE, require_mailbox, team_mail
from dragoman.server.mail.types import to_letter_response
from dragoman.store.mailbox.mail_store import LetterStatus

_PAGE: Final = 16  # letters that are read from the store at once
_QUIET_S: Final = 15.0
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
_LINE_ENDS: Final = {ord("\u2028"): "\\u2028", ord("\u2029"): "\\u2029", ord("\u0085"): "\\u0085"}


async def stream_mailbox(request: Request) -> Response:
    """What arrives in a mailbox from now on, or from a place on."""
    recipient: str = request.path_params["recipient"]
    if "\0" in recipient:
        raise ApiError(422, "invalid_character", "recipient holds a NUL.")
    require_mailbox(request, recipient)
    mail = team_mail(request)
    event_id = request.headers.get("last-event-id") or text_param(request, "last_event_id", None)
    if event_id is not None and event_id != "" and not _NUMBER.fullmatch(event_id):
        raise ApiError(422, "invalid_last_event_id", "Last-Event-ID is not the id of an event of this mailbox.")
    after = int(event_id) if event_id else await mail.store.mail.last_number(recipient, mail.team_id)
    return StreamingResponse(_frames(request, recipient, after), media_type="text/event-stream", headers=_HEADERS)


async def _frames(request: Request, recipient: str, after: int) -> AsyncIterator[bytes]:
    mail = team_mail(request)
    loop = asyncio.get_running_loop()
    quiet_since = loop.time()
    yield f"id: {after}\nretry: 2000\n\n".encode()  # so that who is cut off before the first letter knows its place
    with mail.notifier.waiter(f"{mail.team_id}/{recipient}") as waiter:
        while not app_state(request).runs.is_stopping:
            arrivals = await mail.store.mail.letters_after(recipient, mail.team_id, after, _PAGE)
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
    text = msgspec.json.encode(to_letter_response(status)).decode().translate(_LINE_ENDS)
    return f"id: {number}\nevent: letter\ndata: {text}\n\n".encode()


async def _is_authorized(request: Request) -> bool:
    try:
        return SCOPE in (await authenticate(request)).scopes
    except ApiError:
        return False


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/mail/inbox/{recipient}/stream",
        stream_mailbox,
        name="stream_mailbox",
        summary="What arrives in a mailbox, as it arrives",
        description="With Last-Event-ID everything behind that place, else what arrives from now on.",
        query=(Query("last_event_id", {"type": "string"}, "in place of the header, for those who cannot set one"),),
        responses={200: EventStream},
        scope=SCOPE,
    ),
)
