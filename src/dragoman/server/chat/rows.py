"""A stored message as a history shows it: id, place, role, words, metadata, time.

    row_from(row, calls) -> HistoryRow
    application_fields(extra) -> dict              what an application may keep with a message

Messages come in and rows go out; there is no I/O. The words of a message are one text; files, calls and thoughts stand
in its metadata, beside what an application keeps there. Invariants: what belongs to a provider or to the door stays
here (no ``provider_raw``, no signature, no user or team), and a field of ``ServerFields`` has a value that the server
knows, or is absent; an application's value never stands under such a name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec

from dragoman.attachments import is_attachment_text
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
from dragoman.store.finding import CallInfo
from dragoman.turn.stages import stage_of

_NO_CALLS: Final[Mapping[str, CallInfo]] = {}


class ServerFields(TypedDict, total=False):
    """The metadata that the server itself writes in a row. Every such field is written by ``_given``."""

    run_id: str | None
    message_id: str | None
    stage: str | None
    latency_ms: float | None
    user_message_attachments: dict[str, Any] | list[dict[str, Any]] | None
    model: str | None
    provider: str | None
    status: str | None
    usage: dict[str, Any] | None
    routing: dict[str, Any] | None
    thinking: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    tool_name: str | None
    is_error: bool | None
    media: list[dict[str, Any]] | None


_HIDDEN_FIELDS: Final = ("user_id", "team_id", "provider_raw")
RESERVED_FIELDS: Final = frozenset((*ServerFields.__annotations__, *_HIDDEN_FIELDS))


def application_fields(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of ``extra`` whose names are not reserved for the server."""
    return {name: value for name, value in (extra or {}).items() if name not in RESERVED_FIELDS}


class HistoryRow(msgspec.Struct, frozen=True):
    """One message."""

    id: str  # what the client called it, or our own id
    seq: int  # its place, from 1
    role: str
    content: str  # its words
    metadata: dict[str, Any]
    timestamp: datetime


def to_history_row(row: Row, calls: Mapping[str, CallInfo] = _NO_CALLS) -> HistoryRow:
    """A message as a history shows it. ``calls`` are those that other messages made."""
    message = row.message
    return HistoryRow(
        id=client_message_id(message),
        seq=row.seq,
        role=message.role.value,
        content=message_text(message),
        metadata=dict(_metadata(row, calls)),
        timestamp=message.created_at,
    )


def client_message_id(message: Message) -> str:
    """What a client knows a message by."""
    return message.metadata.message_id or message.id


def result_call_ids(messages: Iterable[Message]) -> list[str]:
    """The calls that results among these messages answer."""
    return [
        block.tool_use_id for message in messages for block in message.content if isinstance(block, ToolResultBlock)
    ]


# --- words -----------------------------------------------------------------------------------------------------------


def message_text(message: Message) -> str:
    """What is said in a message.

    Texts of an assistant that follow each other are one text that its provider cut; what stands apart is a paragraph.
    Everybody else's texts are lines, without those of files that came with them.
    """
    if message.role is Role.ASSISTANT:
        groups = itertools.groupby(message.content, lambda block: isinstance(block, TextBlock))
        return "\n\n".join("".join(_texts(blocks)) for is_text, blocks in groups if is_text)
    return "\n".join(_texts(block for block in message.content if not is_attachment_text(block)))


def _texts(blocks: Iterable[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case TextBlock():
                yield block.text
            case ToolResultBlock():
                yield from _texts(block.content)


# --- metadata --------------------------------------------------------------------------------------------------------


def _metadata(row: Row, calls: Mapping[str, CallInfo]) -> Iterator[tuple[str, Any]]:
    """The server's fields, and then those of the application."""
    message = row.message
    yield from _protocol_fields(message)
    if message.role is not Role.USER:
        yield from _origin_fields(message.metadata)
    yield from _block_fields(row, calls)
    yield from application_fields(message.metadata.extra).items()


def _protocol_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """The fields that every client of the protocol knows."""
    metadata, latency_ms = message.metadata, message.metadata.latency_ms
    if message.role is not Role.USER:  # whose id is the row's, and who begins a run
        yield from _present_fields(run_id=metadata.run_id, message_id=metadata.message_id or _own_id(message))
    if latency_ms is None and metadata.usage is not None:
        latency_ms = metadata.usage.latency_ms
    yield from _present_fields(stage=stage_of(message), latency_ms=latency_ms)
    if metadata.stage == "tool_execution":  # the protocol's own field, of a program that stores such a message itself
        yield from _present_fields(tool_name=(metadata.extra or {}).get("tool_name"))
    files = [{"bucket": file.bucket, "path": file.path, "mime_type": file.mime_type} for file in metadata.attachments]
    if files:
        yield from _present_fields(user_message_attachments=files[0] if len(files) == 1 else files)


def _own_id(message: Message) -> str | None:
    return message.id if stage_of(message) is not None else None


def _origin_fields(metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    yield from _present_fields(model=metadata.model, provider=metadata.provider)
    if metadata.status is not MessageStatus.COMPLETE:
        yield from _present_fields(status=metadata.status.value)
    if metadata.usage is not None:
        yield from _present_fields(usage=usage_to_json(metadata.usage))
    if metadata.routing is not None:
        yield from _present_fields(routing={"mode": metadata.routing.mode.value, "reason": metadata.routing.reason})


def usage_to_json(usage: Usage) -> dict[str, Any]:
    """What a message consumed, as JSON. Amounts are texts: a number would not be exact."""
    fields: dict[str, Any] = msgspec.to_builtins(usage)
    return {**fields, "cost_usd": fields["cost_usd"] if usage.amount_usd is not None else None, "state": usage.state}


def _block_fields(row: Row, calls: Mapping[str, CallInfo]) -> Iterator[tuple[str, Any]]:
    message = row.message
    thinking = [block.text for block in message.content if isinstance(block, ThinkingBlock) and block.text]
    calls_json = [
        _call_json(block) for block in message.content if isinstance(block, ToolUseBlock | InvalidToolUseBlock)
    ]
    yield from _present_fields(thinking="\n\n".join(thinking) or None, tool_calls=calls_json or None)
    for result in message.content:
        if isinstance(result, ToolResultBlock):
            yield from _present_fields(tool_call_id=result.tool_use_id)
            yield from _result_fields(row, calls.get(result.tool_use_id))
            yield from _present_fields(is_error=result.is_error or None)
            break
    media = [_medium_json(block) for block in _all_blocks(message.content) if isinstance(block, _Medium)]
    if media and not message.metadata.attachments:
        yield from _present_fields(media=media)


def _result_fields(row: Row, call: CallInfo | None) -> Iterator[tuple[str, Any]]:
    """What is known of the call that a message answers."""
    if call is not None:
        yield from _present_fields(tool_name=call.name)
        if row.message.metadata.latency_ms is None and call.result_seq == row.seq:
            yield from _present_fields(latency_ms=call.duration_ms)


_Medium = ImageBlock | DocumentBlock | AudioBlock | VideoBlock


def _all_blocks(content: Iterable[ContentBlock]) -> Iterator[ContentBlock]:
    for block in content:
        yield block
        if isinstance(block, ToolResultBlock):
            yield from _all_blocks(block.content)


def _medium_json(block: _Medium) -> dict[str, Any]:
    return {"type": block.type, "media_type": block.media_type}


def _call_json(block: ToolUseBlock | InvalidToolUseBlock) -> dict[str, Any]:
    if isinstance(block, ToolUseBlock):
        return {"id": block.id, "name": block.name, "input": block.input}
    return {"id": block.id, "name": block.name, "input_text": block.input_text, "reason": block.reason}


def _present_fields(**fields: Unpack[ServerFields]) -> Iterator[tuple[str, Any]]:
    """Those fields that have a value."""
    return ((name, value) for name, value in fields.items() if value is not None)
