"""Build canonical messages from a wire: placeholders for absent fields, and tool ids of our own."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from dragoman.exchange import Loss, Reply, Request, StopReason
from dragoman.ids import TOOL_ID, derive_ulid
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.value import unvalidated
from dragoman.wire.residue import get_notes

UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # wires have no time of a message
_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL
_CALLS: Final = (ToolUseBlock, InvalidToolUseBlock)
_REASONING: Final = (ThinkingBlock, RedactedThinkingBlock)
_COMPLETE: Final = MessageStatus.COMPLETE
_NO_METADATA: Final = MessageMetadata()
_NUMBERS: Final = tuple(str(number).zfill(26) for number in range(512))
_message: Final = unvalidated(Message)  # the blocks are valid
_metadata: Final = unvalidated(MessageMetadata)


class MessageBuilder:
    """The messages read so far from one request."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tool_ids: dict[str, str] = {}
        self._uses: dict[str, int] = {}  # how often a provider id was used, from the second use
        self._unnamed_results = 0

    def add(
        self, role: Role, blocks: Iterable[ContentBlock], raw: ProviderRaw | None = None, parent_id: str | None = None
    ) -> None:
        """Add a message."""
        if raw is not None:
            is_flat = all(type(note) is str or type(note) is bool for note in raw.values())  # texts of a valid wire
            make = _metadata if is_flat else MessageMetadata
            metadata = make(provider_raw=raw, parent_tool_use_id=parent_id)
        else:
            metadata = _NO_METADATA if parent_id is None else _result_metadata(parent_id)
        self.add_message(role, tuple(blocks), metadata)

    def add_message(
        self, role: Role, blocks: tuple[ContentBlock, ...], metadata: MessageMetadata = _NO_METADATA
    ) -> None:
        """Add a message whose blocks and metadata are valid."""
        messages = self.messages
        count = len(messages)
        message_id = _NUMBERS[count] if count < 512 else str(count).zfill(26)
        messages.append(_message(message_id, "", role, blocks, metadata, UNKNOWN_TIME))

    def add_result(self, result: ToolResultBlock) -> None:
        """Add a message with one valid tool result."""
        self.add_message(_TOOL, (result,), _result_metadata(result.tool_use_id))

    def call_id(self, provider_id: str) -> str:
        """Return our id for a call. A provider id that occurs again names another call."""
        if provider_id in self._tool_ids:
            self._uses[provider_id] = self._uses.get(provider_id, 1) + 1
            tool_id = tool_id_for(provider_id, self._uses[provider_id])
        else:
            tool_id = tool_id_for(provider_id)
        self._tool_ids[provider_id] = tool_id
        return tool_id

    def result_id(self, provider_id: str) -> str:
        """Return our id of the latest call with this provider id."""
        return self._tool_ids.get(provider_id) or tool_id_for(provider_id, 1)

    def next_result_id(self) -> str:
        """Return our id of the oldest call without a provider id that has no result yet."""
        self._unnamed_results += 1
        return tool_id_for("", self._unnamed_results)


def make_message(role: Role, text: str, session_id: str = "") -> Message:
    """Return a message of one text that no sender wrote."""
    return _message("", session_id, role, (TextBlock(text),), _NO_METADATA, UNKNOWN_TIME)


@functools.lru_cache(maxsize=4096)  # every turn reads the history again
def _result_metadata(tool_use_id: str) -> MessageMetadata:
    return _metadata(parent_tool_use_id=tool_use_id)


def fill_result_ids(request: Request, dialect: str) -> Request:
    """Give each tool result the provider id of its call, where it has none.

    A new result has our id only; its call was read from the wire and is written under the provider's id.
    """
    provider_ids: dict[str, str] = {}
    for message in request.messages:
        if message.role is _ASSISTANT:
            for block in message.content:
                if type(block) in _CALLS and "id" in (notes := get_notes(block.provider_raw, dialect)):  # type: ignore[union-attr]
                    provider_ids[block.id] = notes["id"]  # type: ignore[union-attr]
    if not provider_ids:
        return request
    messages = tuple(_fill_message(message, provider_ids, dialect) for message in request.messages)
    return msgspec.structs.replace(request, messages=messages)


def _fill_message(message: Message, provider_ids: dict[str, str], dialect: str) -> Message:
    if message.role is not Role.TOOL:
        return message
    blocks = tuple(_fill_result(block, provider_ids, dialect) for block in message.content)
    return msgspec.structs.replace(message, content=blocks)


def _fill_result(block: ContentBlock, provider_ids: dict[str, str], dialect: str) -> ContentBlock:
    if not isinstance(block, ToolResultBlock) or block.tool_use_id not in provider_ids:
        return block
    notes = get_notes(block.provider_raw, dialect)
    if "id" in notes:
        return block
    raw = {"dialect": dialect, **notes, "id": provider_ids[block.tool_use_id]}
    return msgspec.structs.replace(block, provider_raw=raw)


def drop_failed_turns(
    request: Request, dialect: str, losses: list[Loss], *, may_end_in_reasoning: bool = False
) -> Request:
    """Drop empty messages and trailing reasoning of a cancelled or failed turn, which providers reject.

    Messages read from a wire are complete and name no provider; they stay.
    """
    messages, is_changed = [], False
    for message in request.messages:
        content = message.content
        if content and not may_end_in_reasoning and message.metadata.provider is not None:
            while content and type(content[-1]) in _REASONING:
                loss = Loss(message.session_id, message.id, content[-1].type, dialect, "reasoning without an answer")
                losses.append(loss)
                content = content[:-1]
        if content is message.content and (content or message.metadata.status is _COMPLETE):
            messages.append(message)
            continue
        is_changed = True
        if content:
            messages.append(msgspec.structs.replace(message, content=content))
    return msgspec.structs.replace(request, messages=tuple(messages)) if is_changed else request


def foreign_block_reason(block: OpaqueBlock) -> str:
    """Return why a block of another dialect is lost."""
    kind = {None: "a block", "file": "a file id"}.get(block.kind, f"a {block.kind} block")
    return f"{kind} of {block.dialect}"


def wait_for_results(stop_reason: StopReason, *, has_call: bool) -> StopReason:
    """Return why an answer stopped. Some servers end an answer with calls like any other; it waits for results."""
    return StopReason.TOOL_USE if has_call and stop_reason is StopReason.END_TURN else stop_reason


def fault_loss(reply: Reply, dialect: str) -> tuple[Loss, ...]:
    """Return a loss for the fault of a whole reply, which the wire cannot carry."""
    if reply.fault is None:
        return ()
    return (Loss("", "", "fault", dialect, f"a whole reply has no field for a fault ({reply.fault.code})"),)


@functools.lru_cache(maxsize=16_384)  # every turn reads the history again
def tool_id_for(provider_id: str, count: int = 1) -> str:
    """Return the same id of ours for the same id of the provider; an id of ours stays."""
    if count == 1 and TOOL_ID.fullmatch(provider_id):
        return provider_id
    return "tu_" + derive_ulid(0, provider_id, str(count))
