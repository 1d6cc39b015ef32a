"""What is known while messages are written: the calls that results answer, the instructions, and what is lost.

    Writing(messages)                   calls, by our ids; the instructions in effect; losses
    read_extra(wire), read_ride(wire)   what stands in somebody's metadata: of an application, and of ours
    with_extra(message, said)           the metadata again

The one rule: what nobody can say here is lost before anything is told of what stands beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from dragoman.message import InvalidToolUseBlock, Message, Role, ToolResultBlock, ToolUseBlock
from dragoman.transcripts.parts import KEY, KNOWN_ROLES, Losing, carried, notes_of
from dragoman.transcripts.pydantic_ai.words import NAME, Wire


class Called(NamedTuple):
    """A call, as a result has to name it."""

    name: str
    wire_id: str


class Writing(Losing):
    """Messages on their way out."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        super().__init__(NAME)
        self.calls: dict[str, Called] = {}
        self.instructions: str | None = None  # that were told last
        for block in (block for message in messages for block in message.content):
            if isinstance(block, ToolUseBlock | InvalidToolUseBlock):
                notes = notes_of(block.provider_raw, NAME)
                self.calls[block.id] = Called(block.name, notes.get("id", block.id))

    def spoken(self, message: Message) -> Message | None:
        """A message, if anybody can say it here; of a tool, its results alone."""
        if message.role not in KNOWN_ROLES:
            for lost in ("message", *(block.type for block in message.content)):
                self.lose(message, lost, f"nobody speaks as {message.role.value!r} here")
            return None
        if message.role is not Role.TOOL:
            return message
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                self.lose(message, block.type, "a tool says nothing but results here")
        if not results:
            self.lose(message, "message", "a message of a tool is its result here, and it has none")
            return None
        return message if len(results) == len(message.content) else message.replace(content=results)


# --- metadata --------------------------------------------------------------------------------------------------------


def read_extra(wire: Wire) -> dict[str, Any] | None:
    """What an application keeps with a message, without what we carry in the same place."""
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict) or KEY not in metadata:
        return metadata if isinstance(metadata, dict) else None
    return {key: item for key, item in metadata.items() if key != KEY} or None


def read_ride(wire: Wire) -> Any:
    """What we carry in somebody's metadata."""
    metadata = wire.get("metadata")
    return metadata.get(KEY) if isinstance(metadata, dict) else None


def with_extra(message: Message, said: Collection[str], *, has_time: bool = True) -> dict[str, Any] | None:
    """What an application keeps with a message, and beside it what the format has no word for."""
    extra = message.metadata.extra
    if extra is None or KEY in extra:
        kept = ride(message, said, has_time=has_time)
        return None if kept is None else {KEY: kept}
    kept = ride(message, [*said, "extra"], has_time=has_time)
    if kept is None:
        return extra
    return {**extra, KEY: kept} if extra else {KEY: ride(message, said, has_time=has_time)}


def ride(message: Message, said: Collection[str], *, has_time: bool = True) -> Wire | None:
    """What the format has no word for. ``has_time`` is whether it says when."""
    kept: dict[str, Any] = dict(carried(message, NAME, said, has_id=False) or {})
    if has_time:
        kept.pop("created_at", None)
    return kept or None
