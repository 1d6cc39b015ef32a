"""Canonical messages for what stands on a wire: placeholders for what a wire does not say, and tool ids of our own."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dragoman.dialects.parts.residue import notes_of
from dragoman.errors import FormatError
from dragoman.exchange import Loss, Reply, Request
from dragoman.ids import TOOL_ID, derived_ulid
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    ProviderRaw,
    Role,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.value import unchecked

UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # a wire does not say when something was said
_NOTHING: Final = MessageMetadata()
_message: Final = unchecked(Message)  # its blocks have been looked at
_metadata: Final = unchecked(MessageMetadata)


class Conversation:
    """Messages in the making, read from one request."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tool_ids: dict[str, str] = {}
        self._uses: dict[str, int] = {}

    def add(
        self, role: Role, blocks: Iterable[ContentBlock], raw: ProviderRaw | None = None, answers: str | None = None
    ) -> None:
        """One more message."""
        metadata = _NOTHING
        if raw is not None:
            metadata = MessageMetadata(provider_raw=raw, parent_tool_use_id=answers)
        elif answers is not None:
            metadata = _metadata(parent_tool_use_id=answers)
        made_id = str(len(self.messages)).zfill(26)
        self.messages.append(_message(made_id, "", role, tuple(blocks), metadata, UNKNOWN_TIME))

    def call_id(self, provider_id: str) -> str:
        """Our id for a call. A provider that uses an id again means another call by it."""
        count = self._uses[provider_id] = self._uses.get(provider_id, 0) + 1
        made = tool_id_for(provider_id, count)
        self._tool_ids[provider_id] = made
        return made

    def answered_id(self, provider_id: str) -> str:
        """Our id for the call that a result answers: the latest one of that id."""
        return self._tool_ids.get(provider_id) or tool_id_for(provider_id, 1)


def with_ids_of_calls(request: Request, dialect: str) -> Request:
    """The request, with each result under the id that the provider gave its call, as far as the result says none.

    A result that was just made knows our id alone; its call came from the wire and is written under the wire's.
    """
    theirs = {
        block.id: notes["id"]
        for message in request.messages
        for block in message.content
        if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
        and "id" in (notes := notes_of(block.provider_raw, dialect))
    }
    if not theirs:
        return request
    messages = tuple(_named(message, theirs, dialect) for message in request.messages)
    return msgspec.structs.replace(request, messages=messages)


def _named(message: Message, theirs: dict[str, str], dialect: str) -> Message:
    if message.role is not Role.TOOL:
        return message
    blocks = tuple(_named_result(block, theirs, dialect) for block in message.content)
    return msgspec.structs.replace(message, content=blocks)


def _named_result(block: ContentBlock, theirs: dict[str, str], dialect: str) -> ContentBlock:
    if not isinstance(block, ToolResultBlock) or block.tool_use_id not in theirs:
        return block
    notes = notes_of(block.provider_raw, dialect)
    if "id" in notes:
        return block
    raw = {"dialect": dialect, **notes, "id": theirs[block.tool_use_id]}
    return msgspec.structs.replace(block, provider_raw=raw)


def lost_fault(reply: Reply, dialect: str) -> tuple[Loss, ...]:
    """A whole reply has no place for a fault: it is to be written as an error, or as the end of a stream."""
    if reply.fault is None:
        return ()
    return (Loss("", "", "fault", dialect, f"a whole reply cannot say that it failed ({reply.fault.code})"),)


@functools.lru_cache(maxsize=16_384)  # a history is read again in every turn
def tool_id_for(provider_id: str, count: int = 1) -> str:
    """Always the same id of ours for the same id of theirs; one of ours stays what it is."""
    if count == 1 and TOOL_ID.fullmatch(provider_id):
        return provider_id
    return "tu_" + derived_ulid(0, provider_id, str(count))


def an_object(value: Any, where: str) -> dict[str, Any]:
    """The value, if it is an object."""
    if type(value) is not dict:
        raise FormatError(f"an object belongs here, not {type(value).__name__}", where=where)
    return value


def a_list(value: Any, where: str) -> list[Any]:
    """The value, if it is a list."""
    if type(value) is not list:
        raise FormatError(f"a list belongs here, not {type(value).__name__}", where=where)
    return value
