"""``POST /threads/{id}/title``: a short title of a thread, written by a model.

The thread's own model writes it, from the start of the first question and the first answer. The call costs like any
other and is counted in the totals, so it is made only when a client asks for it. Invariant: the title is one line of
plain text.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import RemoteFaultError
from dragoman.message import TextBlock
from dragoman.server.auth.principal import get_owned_session
from dragoman.server.chat.history import message_text
from dragoman.server.chat.threads import Thread, describe_thread
from dragoman.server.http.endpoint import chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state
from dragoman.server.http.responses import json_response
from dragoman.server.state import AppState
from dragoman.store import Session
from dragoman.turn.side_call import complete_text

_PROMPT: Final = (
    "Write a title of at most six words for this conversation, in its language."
    " Write only the title, without quotes.\n\n"
)
_MAX_EXCERPT: Final = 1_500  # characters of each message
_MAX_TITLE: Final = 80
_MAX_TOKENS: Final = 40


async def write_title(request: Request) -> Response:
    """Let a model write the title of a thread, and store it."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    rows = await state.store.read(session.id, 0, 6)
    texts = [f"{row.message.role.value}: {message_text(row.message)[:_MAX_EXCERPT]}" for row in rows]
    if not any(message_text(row.message).strip() for row in rows):
        raise ApiError(422, "nothing_to_title", "The thread has no text.")
    title = clean_title(await _complete(state, session, _PROMPT + "\n\n".join(texts)))
    if not title:
        raise ApiError(502, "no_title", "The model wrote no title. Rename the thread instead.")
    session = await state.store.rename_session(session.id, title)
    return json_response(await describe_thread(request, session))


async def _complete(state: AppState, session: Session, prompt: str) -> str:
    services, config = state.agent.services, state.agent.config
    name = session.active_model or services.default_model
    if name is None:
        raise ApiError(422, "unknown_model", "No model is configured. GET /api/v1/agent/models lists them.")
    try:
        model = services.get_model(name)
        return await complete_text(services, config, session, model, TextBlock(prompt), max_tokens=_MAX_TOKENS)
    except RemoteFaultError as error:
        raise ApiError(502, error.code, "The model did not answer.") from None


def clean_title(text: str) -> str:
    """The first line of an answer, without quotes, Markdown and a final dot."""
    lines = [line for line in text.splitlines() if line.strip()]
    line = re.sub(r"^(title|titel)\s*:\s*", "", lines[0].strip(" #*_`"), flags=re.IGNORECASE) if lines else ""
    line = " ".join(line.strip(" \"'“”«»„*_`").split()).rstrip(".")
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 1].rstrip()}…"


ENDPOINTS = (
    chat_endpoint(
        "POST",
        "/api/v1/agent/threads/{id}/title",
        write_title,
        "Let the model of a thread write its title",
        {200: Thread},
    ),
)
