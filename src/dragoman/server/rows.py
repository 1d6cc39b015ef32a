"""A stored message as a history shows it: id, place, role, words, metadata, time.

    row_from(row, calls) -> HistoryRow

Messages come in and rows go out; there is no I/O. The words of a message are one text; files, calls and thoughts stand
in its metadata, beside what an application keeps there. The one rule: what belongs to a provider or to the door stays
here: no ``provider_raw``, no signature, no user or team.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from dragoman.attachments import is_attached_text
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    VideoBlock,
)
from dragoman.store import Row
from dragoman.store.finding import Call
from dragoman.turn.stages import stage_of

_NO_CALLS: Final[Mapping[str, Call]] = {}


class HistoryRow(msgspec.Struct, frozen=True):
    """One message."""

    id: str  # what the client called it, or our own id
    seq: int  # its place, from 1
    role: str
    content: str  # its words
    metadata: dict[str, Any]
    timestamp: datetime


def row_from(row: Row, calls: Mapping[str, Call] = _NO_CALLS) -> HistoryRow:
    """A message as a history shows it. ``calls`` are those that other messages made."""
    message = row.message
    return HistoryRow(
        id=id_of(message),
        seq=row.seq,
        role=message.role.value,
        content=words_of(message),
        metadata=dict(_metadata(row, calls)),
        timestamp=message.created_at,
    )


def id_of(message: Message) -> str:
    """What a client knows a message by."""
    return message.metadata.message_id or message.id


def calls_answered(messages: Iterable[Message]) -> list[str]:
    """The calls that results among these messages answer."""
    return [block.tool_use_id for one in messages for block in one.content if isinstance(block, ToolResultBlock)]


# --- words -----------------------------------------------------------------------------------------------------------


def words_of(message: Message) -> str:
    """What is said in a message.

    Texts of an assistant that follow each other are one text that its provider cut; what stands apart is a paragraph.
    Everybody else's texts are lines, without those of files that came with them.
    """
    if message.role is Role.ASSISTANT:
        groups = itertools.groupby(message.content, lambda block: isinstance(block, TextBlock))
        return "\n\n".join("".join(_texts(blocks)) for is_text, blocks in groups if is_text)
    return "\n".join(_texts(block for block in message.content if not is_attached_text(block)))


def _texts(blocks: Iterable[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case TextBlock():
                yield block.text
            case ToolResultBlock():
                yield from _texts(block.content)


# --- metadata --------------------------------------------------------------------------------------------------------


def _metadata(row: Row, calls: Mapping[str, Call]) -> Iterator[tuple[str, Any]]:
    """What is known of a message. What an application keeps with it stands beside, and takes no other's place."""
    message = row.message
    told = dict(_seed_fields(message))
    if message.role is not Role.USER:
        told |= dict(_made_by(message.metadata))
    told |= dict(_blocks(row, calls))
    yield from told.items()
    yield from ((name, value) for name, value in (message.metadata.extra or {}).items() if name not in told)


def _seed_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """The fields that every client of the protocol knows."""
    metadata, latency_ms = message.metadata, message.metadata.latency_ms
    if message.role is not Role.USER:  # whose id is the row's, and who begins a run
        yield from _given(run_id=metadata.run_id, message_id=metadata.message_id or _own_id(message))
    if latency_ms is None and metadata.usage is not None:
        latency_ms = metadata.usage.latency_ms
    yield from _given(stage=stage_of(message), latency_ms=latency_ms)
    files = [{"bucket": one.bucket, "path": one.path, "mime_type": one.mime_type} for one in metadata.attachments]
    if files:
        yield "user_message_attachments", files[0] if len(files) == 1 else files


def _own_id(message: Message) -> str | None:
    return message.id if stage_of(message) is not None else None


def _made_by(metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    yield from _given(model=metadata.model, provider=metadata.provider)
    if metadata.status is not MessageStatus.COMPLETE:
        yield "status", metadata.status.value
    if metadata.usage is not None:
        yield "usage", usage_of(metadata.usage)
    if metadata.routing is not None:
        yield "routing", {"mode": metadata.routing.mode.value, "reason": metadata.routing.reason}


def usage_of(usage: Usage) -> dict[str, Any]:
    """What a message consumed, as JSON. Amounts are texts: a number would not be exact."""
    told: dict[str, Any] = msgspec.to_builtins(usage)
    return {**told, "cost_usd": told["cost_usd"] if usage.amount_usd is not None else None, "state": usage.state}


def _blocks(row: Row, calls: Mapping[str, Call]) -> Iterator[tuple[str, Any]]:
    message = row.message
    thoughts = [block.text for block in message.content if isinstance(block, ThinkingBlock) and block.text]
    made = [_call(block) for block in message.content if isinstance(block, ToolUseBlock | InvalidToolUseBlock)]
    if thoughts:
        yield "thinking", "\n\n".join(thoughts)
    if made:
        yield "tool_calls", made
    for result in message.content:
        if isinstance(result, ToolResultBlock):
            yield "tool_call_id", result.tool_use_id
            yield from _answered(row, calls.get(result.tool_use_id))
            if result.is_error:
                yield "is_error", True
            break
    media = [_medium(block) for block in _all_blocks(message.content) if isinstance(block, _Medium)]
    if media and not message.metadata.attachments:
        yield "media", media


def _answered(row: Row, call: Call | None) -> Iterator[tuple[str, Any]]:
    """What is known of the call that a message answers."""
    if call is not None:
        yield "tool_name", call.name
        if row.message.metadata.latency_ms is None and call.result_seq == row.seq:
            yield from _given(latency_ms=call.took_ms)


_Medium = ImageBlock | DocumentBlock | AudioBlock | VideoBlock


def _all_blocks(content: Iterable[ContentBlock]) -> Iterator[ContentBlock]:
    for block in content:
        yield block
        if isinstance(block, ToolResultBlock):
            yield from _all_blocks(block.content)


def _medium(block: _Medium) -> dict[str, Any]:
    return {"type": block.type, "media_type": block.media_type}


def _call(block: ToolUseBlock | InvalidToolUseBlock) -> dict[str, Any]:
    if isinstance(block, ToolUseBlock):
        return {"id": block.id, "name": block.name, "input": block.input}
    return {"id": block.id, "name": block.name, "input_text": block.input_text, "reason": block.reason}


def _given(**fields: Any) -> Iterator[tuple[str, Any]]:
    """Those that say something."""
    return ((name, value) for name, value in fields.items() if value is not None)
