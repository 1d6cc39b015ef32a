"""State of a write: calls, instructions and losses; and the metadata of messages.

WriteContext(messages)                   calls by our ids; current instructions; losses
read_extra(wire), read_own_extra(wire)   metadata of an application, and our extra fields in it
write_metadata(message, expressed)       both again
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dragoman.message import InvalidToolUseBlock, Message, Role, ToolResultBlock, ToolUseBlock
from dragoman.transcripts.base import KEY, KNOWN_ROLES, LossCollector, extra_fields
from dragoman.transcripts.pydantic_ai.shapes import NAME, Wire
from dragoman.wire.residue import get_notes


class CallInfo(NamedTuple):
    """The name and the wire id of a call, for its result."""

    name: str
    wire_id: str


class WriteContext(LossCollector):
    """State of a write."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        super().__init__(NAME, messages)
        self.calls: dict[str, CallInfo] = {}
        self.instructions: str | None = None  # the latest ones
        for block in (block for message in messages for block in message.content):
            if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                notes = get_notes(block.provider_raw, NAME)
                self.calls[block.id] = CallInfo(block.name, notes.get("id", block.id))

    def supported_message(self, message: Message) -> Message | None:
        """Return the message if the format supports its role, a tool message with only its results; else ``None``."""
        if message.role not in KNOWN_ROLES:
            for block_type in ("message", *(block.type for block in message.content)):
                self.add_loss(message, block_type, f"this format has no role {message.role.value!r}")
            return None
        if message.role is not Role.TOOL:
            return message
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                self.add_loss(message, block.type, "a tool message contains only results")
        if not results:
            self.add_loss(message, "message", "a tool message without a result")
            return None
        return message if len(results) == len(message.content) else message.replace(content=results)


# --- metadata --------------------------------------------------------------------------------------------------------


def read_extra(wire: Wire) -> dict[str, Any] | None:
    """Return the metadata of an application without our extra fields."""
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict) or KEY not in metadata:
        return metadata if isinstance(metadata, dict) else None
    return {key: item for key, item in metadata.items() if key != KEY} or None


def read_own_extra(wire: Wire) -> Any:
    """Return our extra fields."""
    metadata = wire.get("metadata")
    return metadata.get(KEY) if isinstance(metadata, dict) else None


def write_metadata(message: Message, expressed: Collection[str]) -> dict[str, Any] | None:
    """Return the metadata of an application with our extra fields."""
    extra = message.metadata.extra
    if extra is None or KEY in extra:
        own_extra = make_own_extra(message, expressed)
        return None if own_extra is None else {KEY: own_extra}
    own_extra = make_own_extra(message, [*expressed, "extra"])
    if own_extra is None:
        return extra
    return {**extra, KEY: own_extra} if extra else {KEY: make_own_extra(message, expressed)}


def make_own_extra(message: Message, expressed: Collection[str], *, has_time: bool = True) -> Wire | None:
    """Return the fields that the format cannot express. ``has_time`` is whether it has a time."""
    fields: dict[str, Any] = dict(extra_fields(message, NAME, expressed, has_id=False) or {})
    if has_time:
        fields.pop("created_at", None)
    return fields or None
