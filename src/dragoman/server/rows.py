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


_NEVER_SHOWN: Final = ("user_id", "team_id", "provider_raw")
RESERVED_FIELDS: Final = frozenset((*ServerFields.__annotations__, *_NEVER_SHOWN))


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
    """The server's fields, and then those of the application."""
    message = row.message
    yield from _seed_fields(message)
    if message.role is not Role.USER:
        yield from _made_by(message.metadata)
    yield from _blocks(row, calls)
    yield from application_fields(message.metadata.extra).items()


def _seed_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """The fields that every client of the protocol knows."""
    metadata, latency_ms = message.metadata, message.metadata.latency_ms
    if message.role is not Role.USER:  # whose id is the row's, and who begins a run
        yield from _given(run_id=metadata.run_id, message_id=metadata.message_id or _own_id(message))
    if latency_ms is None and metadata.usage is not None:
        latency_ms = metadata.usage.latency_ms
    yield from _given(stage=stage_of(message), latency_ms=latency_ms)
    if metadata.stage == "tool_execution":  # the protocol's own field, of a program that stores such a message itself
        yield from _given(tool_name=(metadata.extra or {}).get("tool_name"))
    files = [{"bucket": one.bucket, "path": one.path, "mime_type": one.mime_type} for one in metadata.attachments]
    if files:
        yield from _given(user_message_attachments=files[0] if len(files) == 1 else files)


def _own_id(message: Message) -> str | None:
    return message.id if stage_of(message) is not None else None


def _made_by(metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    yield from _given(model=metadata.model, provider=metadata.provider)
    if metadata.status is not MessageStatus.COMPLETE:
        yield from _given(status=metadata.status.value)
    if metadata.usage is not None:
        yield from _given(usage=usage_of(metadata.usage))
    if metadata.routing is not None:
        yield from _given(routing={"mode": metadata.routing.mode.value, "reason": metadata.routing.reason})


def usage_of(usage: Usage) -> dict[str, Any]:
    """What a message consumed, as JSON. Amounts are texts: a number would not be exact."""
    told: dict[str, Any] = msgspec.to_builtins(usage)
    return {**told, "cost_usd": told["cost_usd"] if usage.amount_usd is not None else None, "state": usage.state}


def _blocks(row: Row, calls: Mapping[str, Call]) -> Iterator[tuple[str, Any]]:
    message = row.message
    thoughts = [block.text for block in message.content if isinstance(block, ThinkingBlock) and block.text]
    made = [_call(block) for block in message.content if isinstance(block, ToolUseBlock | InvalidToolUseBlock)]
    yield from _given(thinking="\n\n".join(thoughts) or None, tool_calls=made or None)
    for result in message.content:
        if isinstance(result, ToolResultBlock):
            yield from _given(tool_call_id=result.tool_use_id)
            yield from _answered(row, calls.get(result.tool_use_id))
            yield from _given(is_error=result.is_error or None)
            break
    media = [_medium(block) for block in _all_blocks(message.content) if isinstance(block, _Medium)]
    if media and not message.metadata.attachments:
        yield from _given(media=media)


def _answered(row: Row, call: Call | None) -> Iterator[tuple[str, Any]]:
    """What is known of the call that a message answers."""
    if call is not None:
        yield from _given(tool_name=call.name)
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


def _given(**fields: Unpack[ServerFields]) -> Iterator[tuple[str, Any]]:
    """Those fields that have a value."""
    return ((name, value) for name, value in fields.items() if value is not None)
