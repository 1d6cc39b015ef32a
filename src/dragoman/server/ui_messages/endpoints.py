"""The endpoints of chats. The paths are those that ``DefaultChatTransport`` derives from its option ``api``."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from dragoman.jsontext import read_json
from dragoman.offload import LARGE, run_off_loop
from dragoman.server.auth.principal import get_principal
from dragoman.server.http.endpoint import EventStream, chat_endpoint
from dragoman.server.http.http_errors import not_found_error
from dragoman.server.http.requests import app_state, json_bytes
from dragoman.server.http.responses import json_response
from dragoman.server.runs.registry import RunRequest, run_in_progress_error
from dragoman.server.runs.stream_encoder import EventStreamResponse
from dragoman.server.ui_messages.chat_request import (
    ChatRequest,
    find_branch,
    parse_chat_request,
    prepare_run,
    start_prepared_run,
)
from dragoman.server.ui_messages.ui_history import UiHistory, read_started_message, read_ui_messages
from dragoman.server.ui_messages.ui_message_encoder import UiMessageEncoder, chunks_from_parts

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.store import Session

_CHAT: Final = "/api/v1/agent/chat"


class ChatCancelResponse(msgspec.Struct, frozen=True):
    """The result of a cancel request."""

    id: str
    cancelled: bool  # whether a run was active; it ends soon


async def post_chat(request: Request) -> Response:
    """Start a run and stream it."""
    data = await json_bytes(request)
    value: Any = await run_off_loop(len(data), read_json, data)
    has_tools = isinstance(value, dict) and bool(value.get("tools"))
    chat = await run_off_loop(LARGE if has_tools else len(data), parse_chat_request, value)
    state, principal = app_state(request), get_principal(request)
    prepared = await prepare_run(state, principal, chat)
    run_request = RunRequest(principal, prepared.run_input, hashlib.sha256(data).digest())
    run = await start_prepared_run(state, chat, run_request, prepared)
    events = state.runs.follow(run.session_id, run.first_number - 1, run_id=run.run_id)
    first = await anext(events, None)
    if first is None:  # the request that started it was rejected
        raise run_in_progress_error()
    encoder = UiMessageEncoder(prepared.message_id, declined=prepared.declined, answered=prepared.answered)
    return EventStreamResponse(events, encoder, encoder.encode(first))


async def get_stream(request: Request) -> Response:
    """Stream the active run of a chat from the start of its UI message."""
    state = app_state(request)
    session = await _find_chat(request)
    run = None if session is None else await state.store.runs.latest(session.id)
    if session is None or run is None or not run.is_running:
        return Response(status_code=204)
    message = await read_started_message(state.store, session, run)
    encoder = UiMessageEncoder() if message is None else _continue_message(message)
    events = state.runs.follow(session.id, run.first_number - 1, run_id=run.run_id)
    return EventStreamResponse(events, encoder, encoder.encode(()))


def _continue_message(message: dict[str, Any]) -> UiMessageEncoder:
    answered = [part["toolCallId"] for part in message["parts"] if part.get("state", "").startswith("output-")]
    return UiMessageEncoder(message["id"], chunks_from_parts(message["parts"]), answered=answered)


async def get_messages(request: Request) -> Response:
    """Return a chat as UI messages; a new chat has none."""
    session, chat_id = await _find_chat(request), request.path_params["id"]
    if session is None:
        return json_response(UiHistory(chat_id))
    return json_response(await read_ui_messages(request, chat_id, session))


async def post_cancel(request: Request) -> Response:
    """Cancel the active run of a chat."""
    session = await _find_chat(request)
    if session is None:
        raise not_found_error()
    run = await app_state(request).runs.cancel(session.id)
    return json_response(
        ChatCancelResponse(request.path_params["id"], run is not None), 202 if run is not None else 200
    )


async def _find_chat(request: Request) -> Session | None:
    return await find_branch(app_state(request).store, get_principal(request), request.path_params["id"])


ENDPOINTS: Final = (
    chat_endpoint(
        "POST",
        _CHAT,
        post_chat,
        "Start a run of a chat, as the AI SDK requests it",
        {200: EventStream},
        name="chat",
        request_body=ChatRequest,
        description="The response is a UI message stream, version 1. The chat is the thread of the same id.",
    ),
    chat_endpoint(
        "GET",
        f"{_CHAT}/{{id}}/stream",
        get_stream,
        "The active run of a chat, from the start of its message",
        {200: EventStream, 204: None},
        name="chat_stream",
        description="A UI message stream; 204 if no run is active.",
    ),
    chat_endpoint(
        "GET", f"{_CHAT}/{{id}}/messages", get_messages, "A chat as UI messages", {200: UiHistory}, name="chat_messages"
    ),
    chat_endpoint(
        "POST",
        f"{_CHAT}/{{id}}/cancel",
        post_cancel,
        "Cancel the active run of a chat",
        {200: ChatCancelResponse, 202: ChatCancelResponse},
        name="cancel_chat",
    ),
)
