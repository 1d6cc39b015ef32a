"""Convert a canonical message to envelopes: text and media together, each call and each result separately.

    write_envelopes(message, history)   the envelopes of a message that was never an envelope
    write_envelope(message, hints)      the envelope of a message that was one, before the stored fields are added

Invariant: the result depends on the message only; for calls and results also on the preceding messages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from dragoman import message as msg
from dragoman.envelope.content_parts import part_from
from dragoman.envelope.normalization import SCHEMA, VERSION, Envelope, default_role
from dragoman.envelope.tool_loop import to_title
from dragoman.ids import derive_ulid

UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ALONE: Final = (msg.ToolUseBlock, msg.InvalidToolUseBlock, msg.ToolResultBlock)
_CALLS: Final = (msg.ToolUseBlock, msg.InvalidToolUseBlock)
_TYPE_BY_STATUS: Final = {msg.MessageStatus.PARTIAL: "delta", msg.MessageStatus.ERROR: "error"}

Parts = tuple[tuple[msg.ContentBlock, ...], ...]


class CallHistory:
    """The calls of the preceding messages."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.turn = 0  # assistant messages since the last user message
        self.names: dict[str, str] = {}  # tool names by call id
        self._open: dict[str, str] = {}  # the same for calls without a result

    def add(self, message: msg.Message) -> None:
        """Add one message."""
        self.count += 1
        if message.role is msg.Role.USER:
            self.turn = 0
        elif message.role is msg.Role.ASSISTANT:
            self.turn += 1
        for block in message.content:
            if isinstance(block, _CALLS):
                self.names[block.id] = self._open[block.id] = block.name
            elif isinstance(block, msg.ToolResultBlock):
                self._open.pop(block.tool_use_id, None)

    def open_call(self, name: Any) -> str | None:
        """Return the oldest open call of a tool; of any tool, if ``name`` is empty."""
        matches = (tool_id for tool_id, tool_name in self._open.items() if tool_name == name or not name)
        return next(matches, None)

    def derive_call_id(self, name: str) -> str:
        """Return an id for a call without one. It depends on its position only."""
        return "tu_" + derive_ulid(0, SCHEMA, str(self.count), name)


def parts_of(message: msg.Message) -> Parts:
    """Group the blocks of a message by envelope."""
    parts: list[list[msg.ContentBlock]] = []
    for block in message.content:
        if parts and not isinstance(block, _ALONE) and not isinstance(parts[-1][-1], _ALONE):
            parts[-1].append(block)
        else:
            parts.append([block])
    return tuple(tuple(part) for part in parts) or ((),)


# --- messages of ours ------------------------------------------------------------------------------------------------


def write_envelopes(message: msg.Message, history: CallHistory) -> list[Envelope]:
    """Return the envelopes of a message that was never one."""
    parts = parts_of(message)
    return [_write_part(message, part, number, history) for number, part in enumerate(parts)]


def _write_part(
    message: msg.Message, part: tuple[msg.ContentBlock, ...], number: int, history: CallHistory
) -> Envelope:
    envelope = _write_base(message, part)
    match part:
        case (msg.ToolUseBlock() as call,):
            turn = history.turn + 1
            envelope["content"] = f"AI ACTION (Turn {turn}): Executing {to_title(call.name)}"
            envelope["payload"]["turn"] = turn
            envelope["metadata"]["tool_call_id"] = call.id
        case (msg.InvalidToolUseBlock() as call,):
            envelope["type"], envelope["content"] = "error", call.reason
            envelope["payload"] = {"tool_name": call.name, "input_text": call.input_text}
            envelope["metadata"]["tool_call_id"] = call.id
        case (msg.ToolResultBlock() as result,):
            name = history.names.get(result.tool_use_id)
            name_field = {} if name is None else {"tool_name": name}
            envelope["payload"] = {**name_field, **envelope["payload"], "turn": max(history.turn, 1)}
            envelope["metadata"]["tool_call_id"] = result.tool_use_id
    if message.session_id:
        named_by = message.metadata.message_id or message.id
        envelope |= {"id": f"{named_by}#{number + 1}" if number else named_by} if named_by else {}
    if message.created_at != UNKNOWN_TIME:
        envelope["created_at"] = format_time(message.created_at)
    return envelope


# --- messages that were envelopes ------------------------------------------------------------------------------------


def write_envelope(message: msg.Message, hints: dict[str, Any]) -> Envelope:
    """Return the envelope of a message, in the shape of the hints."""
    blocks, form, shapes = message.content, hints.get("form"), hints.get("shapes")
    match blocks:
        case (*words, (msg.ToolUseBlock() | msg.InvalidToolUseBlock()) as call) if form is None:
            envelope = _write_base(message, (call,))
            envelope["content"] = _content(tuple(words), None, shapes)
        case (msg.ToolResultBlock() as result,):
            envelope = _write_base(message, blocks)
            envelope["content"] = _content(result.content, form, shapes)
        case _:
            envelope = _write_base(message, blocks)
            envelope["content"] = _content(blocks, form, shapes)
    if hints.get("row"):
        envelope["metadata"] = {"type": envelope["type"], **envelope["payload"]}
    if message.metadata.message_id:
        envelope["id"] = message.metadata.message_id
    if hints.get("timed") and message.created_at != UNKNOWN_TIME:
        envelope["created_at"] = format_time(message.created_at)
    return envelope


# --- parts of both ---------------------------------------------------------------------------------------------------


def _write_base(message: msg.Message, part: tuple[msg.ContentBlock, ...]) -> Envelope:
    kind, payload = _type_and_payload(message, part)
    match part:
        case (msg.ToolResultBlock() as result,):
            content = _content(result.content, None, None)
        case (msg.ToolUseBlock(),) | (msg.InvalidToolUseBlock(),):
            content = ""
        case _:
            content = _content(part, None, None)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "type": kind,
        "role": message.role.value or default_role(kind),
        "content": content,
        "payload": payload,
        "metadata": {},
    }


def _type_and_payload(message: msg.Message, part: tuple[msg.ContentBlock, ...]) -> tuple[str, dict[str, Any]]:
    match part:
        case (msg.ToolUseBlock() as call,):
            return "tool_call", {"tool_name": call.name, "parameters": call.input}
        case (msg.InvalidToolUseBlock() as call,):
            return "tool_call", {"tool_name": call.name, "parameters": call.input_text}
        case (msg.ToolResultBlock() as result,):
            return "tool_result", {"success": not result.is_error}
        case () | (msg.TextBlock(),):
            return _TYPE_BY_STATUS.get(message.metadata.status, "text"), {}
        case _:
            return "multimodal_part", {}


def _content(blocks: tuple[msg.ContentBlock, ...], form: str | None, shapes: list[str | None] | None) -> Any:
    """Return text if the blocks are one plain text, else a list of parts."""
    match blocks:
        case () if form is None:
            return ""
        case (msg.TextBlock() as text_block,) if (
            form is None and text_block == msg.TextBlock(text_block.text) and text_block.provider_raw is None
        ):
            return text_block.text
    if shapes is None or len(shapes) != len(blocks):
        shapes = [None] * len(blocks)
    parts = [part_from(block, shape) for block, shape in zip(blocks, shapes, strict=True)]
    return parts[0] if form == "object" and len(parts) == 1 else parts


def format_time(when: datetime) -> str:
    """``2026-04-28 12:00:00``, in UTC."""
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "seconds")
