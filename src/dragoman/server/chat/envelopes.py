"""Agent message envelopes over HTTP: a conversation in either shape, answered by the agent of the server.

    POST /api/v1/envelopes                    rows or envelopes in, the conversation as envelopes out
    GET  /api/v1/envelopes/{threadId}         a thread as envelopes

The conversation is stored as a thread of the caller, named by ``session_id``. A client sends the whole conversation
every time; messages that the thread has are skipped. Tools of the request are run by the client: a result with
``completed`` false ends with their calls, and the next request continues with their results.

Invariants: nothing that a client sends sets an identity, usage, cost, model, time or origin; an envelope that leaves
the server contains no ``provider_raw``. A rejected request stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.envelope import Envelope, envelopes_from_messages, messages_from_envelopes, normalize_many
from dragoman.envelope.normalization import SIDECAR_KEY
from dragoman.errors import ConflictError, EnvelopeError
from dragoman.ids import name_from_id
from dragoman.message import (
    ContentBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.offload import estimate_size, run_off_loop
from dragoman.server.auth.principal import Principal, find_thread, get_owned_session, get_principal
from dragoman.server.auth.scopes import TOOLS
from dragoman.server.chat.swap import load_history
from dragoman.server.http.endpoint import chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, json_body, parse_as, validate_id
from dragoman.server.http.responses import large_json_response
from dragoman.server.runs.registry import run_in_progress_error
from dragoman.server.runs.run_input import MAX_MESSAGES, InputTool, parse_tools
from dragoman.server.state import AppState
from dragoman.store import Session
from dragoman.turn import TurnEnd

_HISTORY_SCOPE: Final = "history:write"
_TITLE_LENGTH: Final = 60
_KEPT_METADATA: Final = ("status", "message_id", "parent_tool_use_id", "extra")  # that an envelope may set


class ConversationRequest(msgspec.Struct, frozen=True):
    """A conversation in either shape."""

    messages: list[dict[str, Any]]
    session_id: str | None = None  # the thread that it continues or creates; none: a new one
    model: str | None = None
    tools: list[InputTool] = []  # that the client runs


class ConversationResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation as envelopes, with the answer."""

    session_id: str
    messages: list[dict[str, Any]]
    final_content: str  # the text of the answer
    completed: bool  # false if calls wait for the client or a person, or the turn failed
    turn_count: int  # calls of the model
    last_tool_calls: list[dict[str, Any]]  # that wait
    tool_execution_results: list[dict[str, Any]]  # of tools that the server ran
    usage: list[dict[str, Any]]
    error: str | None = None


class EnvelopeThread(msgspec.Struct, frozen=True):
    """A thread as envelopes."""

    session_id: str
    messages: list[dict[str, Any]]


async def post_conversation(request: Request) -> Response:
    """Answer a conversation."""
    body = parse_as(await json_body(request), ConversationRequest)
    if len(body.messages) > MAX_MESSAGES:
        raise ApiError(422, "too_many_messages", f"messages has more than {MAX_MESSAGES} items. Send fewer.")
    state, principal = app_state(request), get_principal(request)
    thread_id = validate_id(body.session_id, "session_id") if body.session_id is not None else state.store.new_id()
    session = await find_thread(state.store, principal, thread_id)
    history = [] if session is None else await load_history(state.store, session)
    size = estimate_size(history) + 200 * len(body.messages)
    new = await run_off_loop(size, _find_new, history, body.messages)
    _require_roles(new, principal)
    turn = _make_turn(state, principal, session, new, body)
    with state.runs.count_pending(principal.user_id):
        session_id, end = await _run_turn(state, principal, session, thread_id, turn)
    return await _to_response(state, session_id, end, first=len(history))


def _find_new(history: Sequence[Message], wire: list[dict[str, Any]]) -> list[Message]:
    """The messages after those of the thread, without fields that a client may not set; 409 if the thread differs."""
    stored = [_identity(envelope) for envelope in _to_envelopes(history)]
    try:
        envelopes = _normalize(wire)
        if stored != [_identity(envelope) for envelope in envelopes[: len(stored)]]:
            text = "The thread has other messages. Send its messages, or no session_id."
            raise ApiError(409, "history_differs", text)
        new = messages_from_envelopes(envelopes[len(stored) :], after=history)
    except EnvelopeError as error:
        raise ApiError(422, "invalid_message", f"{error}.") from None
    if not new or new[-1].role not in (Role.USER, Role.TOOL):
        raise ApiError(422, "nothing_to_answer", "The last message must be new: a user message or a tool result.")
    return [message.replace(metadata=_keep_metadata(message.metadata)) for message in new]


def _normalize(wire: list[dict[str, Any]]) -> list[Envelope]:
    """The envelopes of a request, without sidecars, which could set any field of a message."""
    envelopes = normalize_many(wire)
    for at, envelope in enumerate(envelopes):
        envelope["metadata"].pop(SIDECAR_KEY, None)
        if envelope["type"] == "delta":
            raise EnvelopeError("a delta is a part of a message", where=f"messages[{at}]")
    return envelopes


def _identity(envelope: Envelope) -> tuple[Any, ...]:
    """Return a key that is equal for two envelopes of the same message."""
    return envelope["type"], envelope["role"], envelope["content"], envelope["payload"]


def _keep_metadata(metadata: MessageMetadata) -> MessageMetadata:
    return MessageMetadata(**{name: getattr(metadata, name) for name in _KEPT_METADATA})


def _require_roles(new: Sequence[Message], principal: Principal) -> None:
    """Reject messages of other roles, as runs do. Results of calls that the thread has are allowed."""
    for message in new:
        if message.role not in (Role.USER, Role.TOOL) and _HISTORY_SCOPE not in principal.scopes:
            text = f"A new message has the role {message.role.value}. Its import needs the scope {_HISTORY_SCOPE}."
            raise ApiError(403, "role_not_allowed", text)


def _make_turn(
    state: AppState, principal: Principal, session: Session | None, new: list[Message], body: ConversationRequest
) -> dict[str, Any]:
    """The fields of the turn."""
    owner = {"user_id": principal.user_id, "team_id": principal.team_id}
    now = state.store.clock()
    messages = [
        message.replace(session_id="", created_at=now, metadata=message.metadata.replace(**owner)) for message in new
    ]
    fields: dict[str, Any] = {
        "tools": parse_tools(body.tools),
        "may_use_tools": TOOLS in principal.scopes,
        "model": body.model,
        **owner,
    }
    if session is not None and all(message.role is Role.TOOL for message in messages):
        fields["answers"] = [block for message in messages for block in message.content]
        return fields
    question = messages.pop() if messages[-1].role is Role.USER else None
    fields["imported"] = messages
    if question is not None:
        fields |= {"content": question.content, "message_id": question.metadata.message_id}
        fields["extra"] = question.metadata.extra
    return fields


async def _run_turn(
    state: AppState, principal: Principal, session: Session | None, thread_id: str, fields: dict[str, Any]
) -> tuple[str, TurnEnd]:
    content = fields.pop("content", ())
    if session is not None:
        return session.id, await state.agent.run(session.id, content, **fields)
    for session_id in principal.session_ids(thread_id):  # another user's thread may have the name
        new_session = _new_session(state, principal, session_id, content)
        try:
            return session_id, await state.agent.run(session_id, content, new_session=new_session, **fields)
        except ConflictError as error:
            if error.code != "session_exists":
                raise
    raise run_in_progress_error()  # another request has just created it


def _new_session(state: AppState, principal: Principal, session_id: str, content: Sequence[ContentBlock]) -> Session:
    now = state.store.clock()
    texts = " ".join(block.text for block in content if isinstance(block, TextBlock))
    return Session(
        id=session_id,
        title=" ".join(texts.split())[:_TITLE_LENGTH] or None,
        user_id=principal.user_id,
        team_id=principal.team_id,
        created_at=now,
        updated_at=now,
    )


async def _to_response(state: AppState, session_id: str, end: TurnEnd, *, first: int) -> Response:
    history = [row.message async for row in state.store.history(session_id)]
    result = ConversationResponse(
        session_id=name_from_id(session_id),
        messages=_to_envelopes(history),
        final_content=_final_text(history),
        completed=end.fault is None and not end.pending,
        turn_count=end.llm_calls,
        last_tool_calls=[{"name": call.name, "parameters": call.input, "id": call.call_id} for call in end.pending],
        tool_execution_results=_tool_results(history[first:], end.llm_calls),
        usage=[
            {
                "prompt_tokens": end.input_tokens,
                "completion_tokens": end.output_tokens,
                "total_tokens": end.input_tokens + end.output_tokens,
            }
        ],
        error=None if end.fault is None else end.fault.message,
    )
    return await large_json_response(estimate_size(history), lambda: result)


def _final_text(history: Sequence[Message]) -> str:
    last = history[-1]
    is_answer = last.role is Role.ASSISTANT and last.metadata.status is MessageStatus.COMPLETE
    return "\n".join(block.text for block in last.content if isinstance(block, TextBlock)) if is_answer else ""


def _tool_results(messages: Sequence[Message], turn_count: int) -> list[dict[str, Any]]:
    """The calls of the last turn that have results."""
    blocks = [block for message in messages for block in message.content]
    calls = {block.id: block for block in blocks if isinstance(block, ToolUseBlock)}
    results = [block for block in blocks if isinstance(block, ToolResultBlock) and block.tool_use_id in calls]
    return [
        {
            "tool_name": calls[block.tool_use_id].name,
            "parameters": calls[block.tool_use_id].input,
            "result": {
                "success": not block.is_error,
                "data": "\n".join(part.text for part in block.content if isinstance(part, TextBlock)),
            },
            "is_handler_tool": False,
            "turn_count": turn_count,
        }
        for block in results
    ]


def _to_envelopes(messages: Sequence[Message]) -> list[Envelope]:
    """Envelopes without what stays on the server."""
    visible = [message.replace(metadata=message.metadata.replace(provider_raw=None)) for message in messages]
    envelopes = envelopes_from_messages(visible, verbatim=True)
    for envelope in envelopes:
        envelope["metadata"].pop(SIDECAR_KEY, None)
    return envelopes


async def get_conversation(request: Request) -> Response:
    """Return a thread as envelopes."""
    session = await get_owned_session(request, request.path_params["threadId"])
    history = await load_history(app_state(request).store, session)
    name = name_from_id(session.id)
    return await large_json_response(estimate_size(history), lambda: EnvelopeThread(name, _to_envelopes(history)))


ENDPOINTS = (
    chat_endpoint(
        "POST",
        "/api/v1/envelopes",
        post_conversation,
        "Answer a conversation of agent message envelopes",
        {200: ConversationResponse},
        request_body=ConversationRequest,
        description="messages are rows of role, content and metadata, or envelopes; the response has envelopes.",
    ),
    chat_endpoint(
        "GET",
        "/api/v1/envelopes/{threadId}",
        get_conversation,
        "A thread as agent message envelopes",
        {200: EnvelopeThread},
    ),
)
