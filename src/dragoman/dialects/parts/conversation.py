"""Canonical messages for what stands on a wire: placeholders for what a wire does not say, and tool ids of our own."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from dragoman.dialects.parts.residue import notes_of
from dragoman.exchange import Loss, Reply, Request
from dragoman.ids import TOOL_ID, derived_ulid
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.value import unchecked

UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # a wire does not say when something was said
_ASSISTANT: Final = Role.ASSISTANT
_CALLS: Final = (ToolUseBlock, InvalidToolUseBlock)
_REASONING: Final = (ThinkingBlock, RedactedThinkingBlock)
_COMPLETE: Final = MessageStatus.COMPLETE
_NOTHING: Final = MessageMetadata()
_NUMBERS: Final = tuple(str(number).zfill(26) for number in range(512))
_message: Final = unchecked(Message)  # its blocks have been looked at
_metadata: Final = unchecked(MessageMetadata)


class Conversation:
    """Messages in the making, read from one request."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tool_ids: dict[str, str] = {}
        self._uses: dict[str, int] = {}  # of ids that were used more than once

    def add(
        self, role: Role, blocks: Iterable[ContentBlock], raw: ProviderRaw | None = None, answers: str | None = None
    ) -> None:
        """One more message."""
        metadata = _NOTHING
        if raw is not None or answers is not None:
            metadata = MessageMetadata(provider_raw=raw, parent_tool_use_id=answers)
        self.say(role, tuple(blocks), metadata)

    def say(self, role: Role, blocks: tuple[ContentBlock, ...], metadata: MessageMetadata = _NOTHING) -> None:
        """One more message, of blocks and with metadata that have been looked at."""
        messages = self.messages
        count = len(messages)
        made_id = _NUMBERS[count] if count < 512 else str(count).zfill(26)
        messages.append(_message(made_id, "", role, blocks, metadata, UNKNOWN_TIME))

    def answer(self, result: ToolResultBlock) -> None:
        """One more message, with a result that has been looked at."""
        self.say(Role.TOOL, (result,), _answering(result.tool_use_id))

    def call_id(self, provider_id: str) -> str:
        """Our id for a call. A provider that uses an id again means another call by it."""
        if provider_id in self._tool_ids:
            self._uses[provider_id] = self._uses.get(provider_id, 1) + 1
            made = tool_id_for(provider_id, self._uses[provider_id])
        else:
            made = tool_id_for(provider_id)
        self._tool_ids[provider_id] = made
        return made

    def answered_id(self, provider_id: str) -> str:
        """Our id for the call that a result answers: the latest one of that id."""
        return self._tool_ids.get(provider_id) or tool_id_for(provider_id, 1)


@functools.lru_cache(maxsize=4096)  # a history is read again in every turn
def _answering(tool_use_id: str) -> MessageMetadata:
    return _metadata(parent_tool_use_id=tool_use_id)


def with_ids_of_calls(request: Request, dialect: str) -> Request:
    """The request, with each result under the id that the provider gave its call, as far as the result says none.

    A result that was just made knows our id alone; its call came from the wire and is written under the wire's.
    """
    theirs: dict[str, str] = {}
    for message in request.messages:
        if message.role is _ASSISTANT:
            for block in message.content:
                if type(block) in _CALLS and "id" in (notes := notes_of(block.provider_raw, dialect)):  # type: ignore[union-attr]
                    theirs[block.id] = notes["id"]  # type: ignore[union-attr]
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


def worth_sending(request: Request, dialect: str, losses: list[Loss], *, may_end_in_reasoning: bool = False) -> Request:
    """The request without what a cancelled or failed turn of a session leaves behind, and providers refuse.

    That is messages that say nothing, and reasoning that led to nothing. Those read from a wire stay as they came:
    they are complete, and name no provider.
    """
    kept, is_changed = [], False
    for message in request.messages:
        content = message.content
        if content and not may_end_in_reasoning and message.metadata.provider is not None:
            while content and type(content[-1]) in _REASONING:
                loss = Loss(message.session_id, message.id, content[-1].type, dialect, "reasoning that led to nothing")
                losses.append(loss)
                content = content[:-1]
        if content is message.content and (content or message.metadata.status is _COMPLETE):
            kept.append(message)
            continue
        is_changed = True
        if content:
            kept.append(msgspec.structs.replace(message, content=content))
    return msgspec.structs.replace(request, messages=tuple(kept)) if is_changed else request


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
