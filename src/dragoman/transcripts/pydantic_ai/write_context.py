"""What is known while messages are written: the calls that results answer, the instructions, and what is lost.

    Writing(messages)                   calls, by our ids; the instructions in effect; losses
    read_extra(wire), read_own_extra(wire)   what stands in somebody's metadata: of an application, and of ours
    write_metadata(message, said)           the metadata again

The one rule: what nobody can say here is lost before anything is told of what stands beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from dragoman.message import InvalidToolUseBlock, Message, Role, ToolResultBlock, ToolUseBlock
from dragoman.transcripts.base import KEY, KNOWN_ROLES, LossCollector, extra_fields, get_notes
from dragoman.transcripts.pydantic_ai.shapes import NAME, Wire


class CallInfo(NamedTuple):
    """A call, as a result has to name it."""

    name: str
    wire_id: str


class WriteContext(LossCollector):
    """Messages on their way out."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        super().__init__(NAME)
        self.calls: dict[str, CallInfo] = {}
        self.instructions: str | None = None  # that were told last
        for block in (block for message in messages for block in message.content):
            if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                notes = get_notes(block.provider_raw, NAME)
                self.calls[block.id] = CallInfo(block.name, notes.get("id", block.id))

    def supported_message(self, message: Message) -> Message | None:
        """A message, if anybody can say it here; of a tool, its results alone."""
        if message.role not in KNOWN_ROLES:
            for block_type in ("message", *(block.type for block in message.content)):
                self.add_loss(message, block_type, f"nobody speaks as {message.role.value!r} here")
            return None
        if message.role is not Role.TOOL:
            return message
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                self.add_loss(message, block.type, "a tool says nothing but results here")
        if not results:
            self.add_loss(message, "message", "a message of a tool is its result here, and it has none")
            return None
        return message if len(results) == len(message.content) else message.replace(content=results)


# --- metadata --------------------------------------------------------------------------------------------------------


def read_extra(wire: Wire) -> dict[str, Any] | None:
    """What an application keeps with a message, without what we carry in the same place."""
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict) or KEY not in metadata:
        return metadata if isinstance(metadata, dict) else None
    return {key: item for key, item in metadata.items() if key != KEY} or None


def read_own_extra(wire: Wire) -> Any:
    """What we carry in somebody's metadata."""
    metadata = wire.get("metadata")
    return metadata.get(KEY) if isinstance(metadata, dict) else None


def write_metadata(message: Message, expressed: Collection[str], *, has_time: bool = True) -> dict[str, Any] | None:
    """What an application keeps with a message, and beside it what the format has no word for."""
    extra = message.metadata.extra
    if extra is None or KEY in extra:
        own_extra = make_own_extra(message, expressed, has_time=has_time)
        return None if own_extra is None else {KEY: own_extra}
    own_extra = make_own_extra(message, [*expressed, "extra"], has_time=has_time)
    if own_extra is None:
        return extra
    return {**extra, KEY: own_extra} if extra else {KEY: make_own_extra(message, expressed, has_time=has_time)}


def make_own_extra(message: Message, expressed: Collection[str], *, has_time: bool = True) -> Wire | None:
    """What the format has no word for. ``has_time`` is whether it says when."""
    fields: dict[str, Any] = dict(extra_fields(message, NAME, expressed, has_id=False) or {})
    if has_time:
        fields.pop("created_at", None)
    return fields or None
