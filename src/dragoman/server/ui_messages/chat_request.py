"""Translate a request of the AI SDK's chat transport to the input of a run.

    request = parse_chat_request(value)
    prepared = await prepare_run(state, principal, request)
    prepared.run_input
    prepared.message_id                   of the UI message that the run continues; none if it starts one
    await start_prepared_run(state, request, run_request, prepared)

A client sends the whole conversation. The last message is a question, or an answer whose calls have new outputs and
decisions. Outputs are results of pending calls; all others are known. If the thread already has the question, the user
edited it or requested another answer: the chat continues in a fork before it, because ``useChat`` keeps the id of its
chat, and a stored history is never changed. The first thread names the newest fork (``find_branch``), and the replaced
messages stay in it. Invariant: a rejected request creates no thread and no fork.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import msgspec

from dragoman.errors import FormatError, UnknownMessageError
from dragoman.ids import name_from_id
from dragoman.message import Message
from dragoman.server.auth.principal import Principal, find_session, find_thread
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import parse_as, validate_id
from dragoman.server.runs.agui_encoder import PROTOCOL_VERSION, interrupt_id
from dragoman.server.runs.registry import RunRequest, run_in_progress_error
from dragoman.server.runs.run_input import RunInput, parse_run_input
from dragoman.server.state import AppState
from dragoman.shield import run_to_completion
from dragoman.store import Session, Store
from dragoman.store.runs import Run
from dragoman.transcripts import ag_ui, vercel
from dragoman.transcripts.base import media_kind
from dragoman.turn import PendingCall

UiMessage = dict[str, Any]
JSON_OUTPUT: Final = "json_output"  # field of a stored result whose text is a JSON value
_BRANCH_KEY: Final = "ui_branch"  # in the metadata of the first thread


class ChatRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The body that ``DefaultChatTransport`` sends, with optional fields of its option ``body``."""

    id: str
    messages: list[dict[str, Any]]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    model: str | None = None
    system: str | None = None  # context for the model in this run
    tools: dict[str, dict[str, Any]] | list[dict[str, Any]] | None = None  # that the client runs


class PreparedRun(msgspec.Struct, frozen=True):
    """The input of a run, and the UI message that its stream continues."""

    run_input: RunInput
    message_id: str | None
    declined: tuple[str, ...]  # calls that the user does not allow
    answered: tuple[str, ...]  # questions that the user answers
    session: Session | None  # the thread of the chat, if it exists
    question_seq: int | None  # position of the question, if the thread has it


def parse_chat_request(value: object) -> ChatRequest:
    """The parsed body, or an error."""
    request = parse_as(value, ChatRequest)
    validate_id(request.id, "id")
    if not request.messages:
        raise ApiError(422, "nothing_to_answer", "messages is empty.")
    for at, message in enumerate(request.messages):
        _validate_message(message, f"messages[{at}]")
    return request


def _validate_message(message: Mapping[str, Any], where: str) -> None:
    match message:
        case {"id": str(), "role": "system" | "user" | "assistant", "parts": list(parts)}:
            if all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts):
                return
    raise ApiError(422, "invalid_message", f"{where} must have an id, a role and parts with a type.")


async def prepare_run(state: AppState, principal: Principal, request: ChatRequest) -> PreparedRun:
    """The input of the run that a request starts."""
    session, last = await find_branch(state.store, principal, request.id), request.messages[-1]
    question_seq = None if session is None else await _find_question(state.store, session, last)
    pending: Sequence[PendingCall] = ()
    new_messages = [last]
    if question_seq is None:
        pending = () if session is None else await state.agent.pending_calls(session.id)
        new_messages = await _find_new_messages(state.store, session, request.messages)
    parts = _call_parts(request.messages)
    answered = [(call, parts[call.call_id]) for call in pending if call.call_id in parts]
    wires = [*_results(answered), *_to_agui(new_messages, state)]
    resume = [entry for call, part in answered if (entry := _resume_entry(call, part)) is not None]
    if not wires and not resume:
        raise ApiError(422, "nothing_to_answer", "The last message has no new text, tool output or decision.")
    value = {
        "threadId": request.id if session is None else name_from_id(session.id),
        "runId": f"run_{state.store.new_id()}",
        "messages": wires,
        "protocolVersion": PROTOCOL_VERSION,
        "tools": _tools(request.tools),
        "context": [{"description": "Instructions", "value": request.system}] if request.system else [],
        "forwardedProps": {"model": request.model} if request.model else {},
        "resume": resume,
    }
    return PreparedRun(
        parse_run_input(value),
        last["id"] if last["role"] == "assistant" else None,
        tuple(call.call_id for call, part in answered if _is_declined(call, part)),
        tuple(call.call_id for call, _ in answered if call.reason == "input"),
        session,
        question_seq,
    )


async def _find_question(store: Store, session: Session, message: UiMessage) -> int | None:
    """The position of a question that the thread has; 409 while a run is active."""
    if message["role"] != "user":
        return None
    try:
        row = await store.find_message(session.id, validate_id(message["id"], "The id of the last message"))
    except UnknownMessageError:
        return None
    latest = await store.runs.latest(session.id)
    if latest is not None and latest.is_running and not latest.is_expired:
        raise run_in_progress_error()
    return row.seq


async def start_prepared_run(
    state: AppState, request: ChatRequest, run_request: RunRequest, prepared: PreparedRun
) -> Run:
    """Start the run in the thread of the chat, or in a fork before a question that the thread has."""
    if prepared.session is None or prepared.question_seq is None:
        return (await state.runs.start_run(run_request)).run
    principal, seq = run_request.principal, prepared.question_seq - 1
    async with _fork_branch(state.store, principal, request.id, prepared.session, seq) as fork:
        run_input = msgspec.structs.replace(run_request.run_input, thread_id=name_from_id(fork.id))
        return (await state.runs.start_run(msgspec.structs.replace(run_request, run_input=run_input))).run


# --- messages --------------------------------------------------------------------------------------------------------


async def _find_new_messages(store: Store, session: Session | None, messages: Sequence[UiMessage]) -> list[UiMessage]:
    """The messages after the last one that the thread has."""
    new: list[UiMessage] = []
    for message in reversed(messages):
        if session is not None and await _has_message(store, session, message["id"]):
            break
        new.append(message)
    return new[::-1]


async def _has_message(store: Store, session: Session, name: str) -> bool:
    try:
        await store.find_message(session.id, name)
    except UnknownMessageError:
        return False
    return True


def _to_agui(messages: Iterable[UiMessage], state: AppState) -> list[dict[str, Any]]:
    """Messages of AG-UI. Imported answers are read as a transcript, with their calls and results."""
    wires: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user":
            wires.append(_user_message(message))
        else:
            wires += ag_ui.write_messages(_read_transcript(message, state)).wire
    return wires


def _read_transcript(message: UiMessage, state: AppState) -> tuple[Message, ...]:
    try:
        return vercel.read_messages([message], session_id="", created_at=state.store.clock())
    except FormatError as error:
        raise ApiError(422, "invalid_message", f"Message {message['id']}: {error}.") from None


def _user_message(message: UiMessage) -> dict[str, Any]:
    parts = [wire for part in message["parts"] if (wire := _user_part(part)) is not None]
    metadata = message.get("metadata")
    extra = {"metadata": metadata} if isinstance(metadata, dict) else {}
    return {"id": message["id"], "role": "user", "content": parts, **extra}


def _user_part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """A text or a file; other parts are for the front end."""
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text} if text else None
        case {"type": "file", "mediaType": str(media_type), "url": str(url)}:
            name = part.get("filename")
            metadata = {"metadata": {"filename": name}} if isinstance(name, str) else {}
            return {"type": media_kind(media_type), "source": _source(url, media_type), **metadata}
        case _:
            return None


def _source(url: str, media_type: str) -> dict[str, str]:
    head, mark, data = url.partition(";base64,")
    if head.startswith("data:") and mark:
        return {"type": "data", "value": data, "mimeType": media_type}
    return {"type": "url", "value": url, "mimeType": media_type}


# --- calls -----------------------------------------------------------------------------------------------------------


def _call_parts(messages: Iterable[UiMessage]) -> dict[str, dict[str, Any]]:
    """The parts of calls, by call."""
    answers = (message for message in messages if message["role"] == "assistant")
    parts = (part for message in answers for part in message["parts"])
    return {part["toolCallId"]: part for part in parts if isinstance(part.get("toolCallId"), str)}


def _results(answered: Iterable[tuple[PendingCall, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The outputs of tools that the client ran, as messages."""
    messages: list[dict[str, Any]] = []
    for call, part in answered:
        head = {"id": f"result-{call.call_id}", "role": "tool", "toolCallId": call.call_id}
        match call.reason, part:
            case "caller", {"state": "output-available"}:
                output = part.get("output")
                mark = {} if isinstance(output, str) else {"metadata": {JSON_OUTPUT: True}}
                messages.append({**head, "content": _to_text(output), **mark})
            case "caller", {"state": "output-error"}:
                text = str(part.get("errorText") or "The tool failed.")
                messages.append({**head, "content": text, "error": text})
    return messages


def _to_text(output: Any) -> str:
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def _resume_entry(call: PendingCall, part: Mapping[str, Any]) -> dict[str, Any] | None:
    """The decision about a call, or the answer to a question."""
    entry = {"interruptId": interrupt_id(call.call_id), "status": "resolved"}
    match call.reason, part:
        case "approval", {"state": "approval-responded", "approval": {"approved": bool(approved)} as approval}:
            reason = {"reason": approval["reason"]} if isinstance(approval.get("reason"), str) else {}
            return {**entry, "payload": {"approved": approved, **reason}}
        case "input", {"state": "output-available"}:
            output = part.get("output")
            return {**entry, "payload": output if isinstance(output, dict) else {"answer": _to_text(output)}}
        case "input", {"state": "output-error"}:
            return {**entry, "status": "cancelled", "payload": {}}
        case _:
            return None


def _is_declined(call: PendingCall, part: Mapping[str, Any]) -> bool:
    match call.reason, part:
        case "approval", {"state": "approval-responded", "approval": {"approved": False}}:
            return True
        case _:
            return False


def _tools(tools: dict[str, dict[str, Any]] | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Tools as a list. An object has them by name, as assistant-ui sends them."""
    items = [{"name": name, **tool} for name, tool in tools.items()] if isinstance(tools, dict) else tools or []
    return [{**_without_parameters(tool), "parameters": _parameters(tool)} for tool in items]


def _without_parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}


def _parameters(tool: Mapping[str, Any]) -> Any:
    return tool.get("parameters", tool.get("inputSchema"))


# --- the thread of a chat --------------------------------------------------------------------------------------------


async def find_branch(store: Store, principal: Principal, chat_id: str) -> Session | None:
    """The thread of a chat, or its newest fork; ``None`` if there is no thread."""
    first = await find_thread(store, principal, chat_id)
    fork_id = None if first is None else first.metadata.get(_BRANCH_KEY)
    fork = await find_session(store, principal, fork_id) if isinstance(fork_id, str) else None
    return fork or first  # the fork may have been deleted


@asynccontextmanager
async def _fork_branch(
    store: Store, principal: Principal, chat_id: str, session: Session, seq: int
) -> AsyncIterator[Session]:
    """Fork the current thread of a chat after a position. The chat continues in the fork unless the block raises."""
    fork = await store.fork(session.id, seq)
    try:
        yield fork
    except BaseException:
        await run_to_completion(store.delete_session(fork.id))
        raise
    first = await find_thread(store, principal, chat_id)
    if first is not None:
        await store.change_session(first.id, metadata={**first.metadata, _BRANCH_KEY: fork.id})
