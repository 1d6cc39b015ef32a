"""Convert one envelope to a canonical message.

Fields that a message cannot represent are stored in ``metadata.extra``, under the name of the envelope's schema. The
writer uses them to restore the envelope. The type takes precedence over the role, because hosts send tool results as
user messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dragoman import message as msg
from dragoman.envelope.content_parts import block_from
from dragoman.envelope.normalization import SCHEMA, Envelope
from dragoman.envelope.writer import UNKNOWN_TIME, CallHistory, format_time, write_envelope
from dragoman.errors import JsonError
from dragoman.ids import TOOL_ID, derive_ulid
from dragoman.json_diff import diff
from dragoman.jsontext import read_json

Hints = dict[str, Any]

_STATUS: Final = {"delta": msg.MessageStatus.PARTIAL, "error": msg.MessageStatus.ERROR}
_ROLES: Final = {
    "user": msg.Role.USER,
    "assistant": msg.Role.ASSISTANT,
    "system": msg.Role.SYSTEM,
    "developer": msg.Role.SYSTEM,
    "model": msg.Role.ASSISTANT,
    "tool": msg.Role.USER,  # a tool message without a call is input for the model
}
_QUESTION_TYPES: Final = ("input_required", "approval_required")
_CAPTION: Final = re.compile(r"AI ACTION \(Turn \d+\): ")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def message_from_envelope(envelope: Envelope, history: CallHistory) -> msg.Message:
    """Return the message of a normalized envelope, with the remaining fields in its metadata."""
    hints: Hints = {}
    message = read_bare_message(envelope, blocks_from(envelope, history, hints), history, hints)
    if envelope["payload"] and envelope["metadata"].get("type") == envelope["type"]:
        hints["row"] = True  # a row repeats the payload in its metadata, and an edit must change both
    change = diff(write_envelope(message, hints), envelope, ordered=True)
    return with_stored_fields(message, [{**hints, "left": change} if change is not None else hints])


def read_bare_message(
    envelope: Envelope, blocks: tuple[msg.ContentBlock, ...], history: CallHistory, hints: Hints
) -> msg.Message:
    """Return a message of these blocks with the fields of an envelope, without the stored fields."""
    return msg.Message(
        id=str(history.count).zfill(26),  # a placeholder until the store assigns an id
        session_id="",
        role=_read_role(envelope, blocks),
        content=blocks,
        metadata=msg.MessageMetadata(
            status=_STATUS.get(envelope["type"], msg.MessageStatus.COMPLETE),
            message_id=envelope.get("id"),
            parent_tool_use_id=_result_call_id(blocks),
        ),
        created_at=_read_time(envelope.get("created_at"), hints),
    )


def with_stored_fields(message: msg.Message, stored: Sequence[Hints | None]) -> msg.Message:
    """Return the message with the fields that restore its envelopes."""
    extra = {**(message.metadata.extra or {}), SCHEMA: list(stored)}
    return message.replace(metadata=message.metadata.replace(extra=extra))


def blocks_from(envelope: Envelope, history: CallHistory, hints: Hints) -> tuple[msg.ContentBlock, ...]:
    """Return the blocks of an envelope. ``hints`` receives the shape of the content."""
    match envelope["type"], envelope["payload"]:
        case "tool_call", {"tool_name": str(name)} if name:
            words = () if _is_caption(envelope["content"]) else _read_content(envelope["content"], hints)
            return *words, _read_call(envelope, name, history)
        case "tool_result", _:
            return (_read_result(envelope, history, hints),)
        case "error", {"tool_name": str(name), "input_text": str(text)}:
            tool_id = _find_call_id(envelope) or history.derive_call_id(name)
            return (msg.InvalidToolUseBlock(tool_id, name, text, _error_text(envelope["content"])),)
        case _:
            return _read_content(envelope["content"], hints)


def _read_content(content: Any, hints: Hints) -> tuple[msg.ContentBlock, ...]:
    if isinstance(content, str):
        return (msg.TextBlock(content),) if content else ()
    pairs = [block_from(part) for part in (content if isinstance(content, list) else [content])]
    hints["form"] = "list" if isinstance(content, list) else "object"
    shapes = [shape for _, shape in pairs]
    if any(shapes):
        hints["shapes"] = shapes
    return tuple(block for block, _ in pairs)


def _is_caption(content: Any) -> bool:
    return isinstance(content, str) and _CAPTION.match(content) is not None


def _error_text(content: Any) -> str:
    return content if isinstance(content, str) else "the call cannot be used"


# --- calls and results -----------------------------------------------------------------------------------------------


def _read_call(envelope: Envelope, name: str, history: CallHistory) -> msg.ToolUseBlock | msg.InvalidToolUseBlock:
    tool_id = _find_call_id(envelope) or history.derive_call_id(name)
    raw = envelope["payload"].get("parameters")
    parameters = {} if raw is None or raw == [] else raw
    if isinstance(raw, str):
        try:
            parameters = read_json(raw)
        except JsonError:
            return msg.InvalidToolUseBlock(tool_id, name, raw, "the parameters are not JSON")
    if isinstance(parameters, dict):
        return msg.ToolUseBlock(tool_id, name, parameters)
    text = raw if isinstance(raw, str) else msgspec.json.encode(raw).decode()
    return msg.InvalidToolUseBlock(tool_id, name, text, "the parameters are not an object")


def _read_result(envelope: Envelope, history: CallHistory, hints: Hints) -> msg.ToolResultBlock:
    payload = envelope["payload"]
    name = payload.get("tool_name")
    tool_id = _find_call_id(envelope) or history.open_call(name) or history.derive_call_id(f"{name} answers nothing")
    words = _read_content(envelope["content"], hints)
    if not words and envelope["content"] == "" and (text := _payload_text(payload)):
        words = (msg.TextBlock(text),)
    success = payload.get("success")
    is_error = not success if isinstance(success, bool) else bool(payload.get("error"))
    return msg.ToolResultBlock(tool_id, words, is_error)


def _payload_text(payload: dict[str, Any]) -> str:
    """Return the text of a result in its payload, for an envelope with empty content."""
    value = payload.get("error") or payload.get("tool_data")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode() if value else ""


def _find_call_id(envelope: Envelope) -> str | None:
    for place in ("metadata", "payload"):
        call_id = envelope[place].get("tool_call_id")
        if isinstance(call_id, str) and call_id:
            return call_id if TOOL_ID.fullmatch(call_id) else "tu_" + derive_ulid(0, SCHEMA, call_id)
    return None


def _result_call_id(blocks: tuple[msg.ContentBlock, ...]) -> str | None:
    match blocks:
        case (msg.ToolResultBlock() as result,):
            return result.tool_use_id
    return None


# --- roles and times -------------------------------------------------------------------------------------------------


def _read_role(envelope: Envelope, blocks: tuple[msg.ContentBlock, ...]) -> msg.Role:
    match blocks:
        case (*_, msg.ToolUseBlock() | msg.InvalidToolUseBlock()) if envelope["type"] != "multimodal_part":
            return msg.Role.ASSISTANT
        case (msg.ToolResultBlock(),):
            return msg.Role.TOOL
    word = envelope["role"]
    if word == "tool" and envelope["type"] in _QUESTION_TYPES:  # the agent asks, whatever the role
        return msg.Role.ASSISTANT
    return _ROLES.get(word) or msg.Role.unknown(word)


def _read_time(text: str | None, hints: Hints) -> datetime:
    if text is None or not _TIME.fullmatch(text):
        return UNKNOWN_TIME
    try:
        when = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return UNKNOWN_TIME
    if when == UNKNOWN_TIME or format_time(when) != text:  # UNKNOWN_TIME itself means no time
        return UNKNOWN_TIME
    hints["timed"] = True
    return when
