"""The history of a thread as UI messages.

    await read_ui_messages(request, chat_id, session) -> UiHistory

All answers and results between two questions are one UI message, as in the stream, under the id of the first answer.
An attached file has a signed URL. The message of an active run is left out: the stream of the run contains it from its
start. A call that waits for an approval has the request in its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.requests import Request

from dragoman.message import Message, Role
from dragoman.server.chat.attachments import with_file_urls
from dragoman.server.chat.history import application_fields
from dragoman.server.http.requests import app_state
from dragoman.server.runs.agui_encoder import INPUT_REQUIRED
from dragoman.server.runs.agui_snapshot import ABANDONED
from dragoman.server.ui_messages.chat_request import JSON_OUTPUT
from dragoman.store import Row, Session, Store
from dragoman.store.runs import Run
from dragoman.transcripts.base import KEY
from dragoman.transcripts.vercel import NAME, write_messages

MAX_MESSAGES: Final = 500
_STEP: Final = {"type": "step-start"}
_TURN_LENGTH: Final = 200  # messages of one turn
UiMessage = dict[str, Any]


class UiHistory(msgspec.Struct, frozen=True, rename="camel"):
    """The newest messages of a chat, for the option ``messages`` of ``useChat``."""

    id: str
    messages: list[UiMessage] = []
    is_running: bool = False  # the answer to the last message arrives in the stream
    has_more: bool = False  # there are earlier messages


async def read_ui_messages(request: Request, chat_id: str, session: Session) -> UiHistory:
    """The conversation of a chat of the caller."""
    store = app_state(request).store
    run = await store.runs.latest(session.id)
    rows = await store.tail(session.id, MAX_MESSAGES)
    has_more = session.last_seq > len(rows)
    if has_more:  # start with a question
        first = next((at for at, row in enumerate(rows) if row.message.role is Role.USER), 0)
        rows = rows[first:]
    is_running = run is not None and run.is_running
    if is_running:
        rows = rows[: _turn_start(rows)]
    messages = [await with_file_urls(request, row.message) for row in rows]
    wires = to_ui_messages(messages)
    if run is not None and not run.is_running:
        wires = [_with_approvals(wire, run.interrupts) for wire in wires]
    return UiHistory(chat_id, wires, is_running, has_more)


async def read_started_message(store: Store, session: Session, run: Run) -> UiMessage | None:
    """The parts that earlier runs added to the UI message of a run; ``None`` if the run starts it."""
    rows = await store.tail(session.id, _TURN_LENGTH)
    rows = rows[_turn_start(rows) :]
    end = next((at for at, row in enumerate(rows) if _is_answer_of(row, run)), len(rows))
    wires = to_ui_messages([row.message for row in rows[:end]])
    return wires[-1] if wires else None


def _is_answer_of(row: Row, run: Run) -> bool:
    return row.message.role is Role.ASSISTANT and row.message.metadata.run_id == run.run_id


def _turn_start(rows: Sequence[Row]) -> int:
    """The position after the last question."""
    questions = (at for at in range(len(rows) - 1, -1, -1) if rows[at].message.role is Role.USER)
    return next(questions, -1) + 1


# --- pure ------------------------------------------------------------------------------------------------------------


def to_ui_messages(messages: Sequence[Message]) -> list[UiMessage]:
    """UI messages with all steps of an answer in one message."""
    by_id = {message.metadata.message_id or message.id: message for message in messages}
    result: list[UiMessage] = []
    for written in write_messages(map(_with_json_output, messages)).wire:
        wire = _clean(written, by_id.get(written["id"]))
        if wire["role"] != "assistant":
            result.append(wire)
            continue
        wire["parts"] = [part for part in wire["parts"] if part != _STEP]
        if result and result[-1]["role"] == "assistant":
            before = result[-1]
            before["parts"] += [_STEP, *wire["parts"]]
            before["metadata"] = _merge_metadata(before.get("metadata", {}), wire.get("metadata", {}))
        else:
            result.append({**wire, "parts": [_STEP, *wire["parts"]]})
    last_question = max((at for at, wire in enumerate(result) if wire["role"] == "user"), default=0)
    return [_close_abandoned_calls(wire) for wire in result[:last_question]] + result[last_question:]


def _close_abandoned_calls(wire: UiMessage) -> UiMessage:
    """A message before a later question: its calls without a result failed."""
    end = {"state": "output-error", "errorText": ABANDONED}
    return {
        **wire,
        "parts": [{**part, **end} if part.get("state") == "input-available" else part for part in wire["parts"]],
    }


def _with_json_output(message: Message) -> Message:
    """A message that writes the result of a client as the JSON value that the client sent."""
    metadata = message.metadata
    if message.role is not Role.TOOL or not ((metadata.extra or {}).get(JSON_OUTPUT) or metadata.stage == "input"):
        return message
    notes = {"dialect": NAME, "form": "json"}
    return message.replace(content=tuple(block.replace(provider_raw=notes) for block in message.content))


def _clean(wire: UiMessage, message: Message | None) -> UiMessage:
    """A UI message with the application's metadata and ours, without the notes of the transcript format."""
    metadata = {key: value for key, value in (wire.get("metadata") or {}).items() if key != KEY}
    if message is not None:
        metadata |= {**application_fields(message.metadata.extra), **_own_metadata(message)}
    parts = [_clean_part(part) for part in wire["parts"]]
    return {"id": wire["id"], "role": wire["role"], **({"metadata": metadata} if metadata else {}), "parts": parts}


def _clean_part(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "resultProviderMetadata"}


def _own_metadata(message: Message) -> dict[str, Any]:
    """Model, usage, cost and status of an answer, under the names that the stream uses."""
    metadata = message.metadata
    if message.role is not Role.ASSISTANT:
        return {}
    fields: dict[str, Any] = {"runId": metadata.run_id, "model": metadata.model}
    if metadata.status is not None:
        fields["status"] = str(metadata.status)
    usage = metadata.usage
    if usage is not None:
        input_tokens = usage.input_tokens + usage.cached_input_tokens + usage.cache_creation_input_tokens
        fields["usage"] = {
            "inputTokens": input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": input_tokens + usage.output_tokens,
            "reasoningTokens": usage.reasoning_tokens,
            "cachedInputTokens": usage.cached_input_tokens,
        }
        fields["costUsd"] = None if usage.amount_usd is None else str(usage.amount_usd)
    return {name: value for name, value in fields.items() if value is not None}


def _merge_metadata(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of two steps. Usage and cost are those of the last run, as in the stream."""
    merged = {**before, **after}
    if before.get("runId") == after.get("runId") and "usage" in before and "usage" in after:
        merged["usage"] = {name: before["usage"][name] + count for name, count in after["usage"].items()}
        if "costUsd" in before and "costUsd" in after:
            merged["costUsd"] = str(Decimal(before["costUsd"]) + Decimal(after["costUsd"]))
    return merged


def _with_approvals(wire: UiMessage, interrupts: Sequence[Mapping[str, Any]]) -> UiMessage:
    """A message whose waiting calls request an approval."""
    waiting = {item["toolCallId"]: item["id"] for item in interrupts if item["reason"] != INPUT_REQUIRED}
    parts = [
        {**part, "state": "approval-requested", "approval": {"id": waiting[part["toolCallId"]]}}
        if part.get("toolCallId") in waiting and part.get("state") == "input-available"
        else part
        for part in wire["parts"]
    ]
    return {**wire, "parts": parts}
