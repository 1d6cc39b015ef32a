"""Tombstones: what stays of a message when its user is erased.

Its place, id, role, time, counts and the ids of its calls stay; its content and its user are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from dragoman import message as msg
from dragoman import value
from dragoman.errors import DragomanError
from dragoman.store.message_reader import MessageRow
from dragoman.store.message_rows import Columns, columns_from, message_from
from dragoman.store.operation import Steps, from_micros
from dragoman.store.row_hash import rehash_sql

ERASED_TEXT: Final = "[erased]"


def anonymize_related_rows(session_id: str, seq: int) -> Steps[None]:
    """Remove the user from the rows of other tables about a message."""
    key = (session_id, seq)
    yield "UPDATE usage SET user_id = NULL WHERE session_id = ? AND seq = ?", key
    without_id = f"provider_id = NULL, {rehash_sql(provider_id='NULL')}"
    yield f"UPDATE tool_calls SET {without_id} WHERE session_id = ? AND seq = ?", key
    for table in ("blob_refs", "attachment_refs", "request_parts"):
        yield f"DELETE FROM {table} WHERE session_id = ? AND seq = ?", key


class _Author(msgspec.Struct):
    user_id: str | None = None


def author_id(columns: Columns) -> str | None:
    """Return the user of a message, if it records one and can be decoded."""
    try:
        return msgspec.json.decode(columns.metadata_json, type=_Author).user_id
    except (msgspec.DecodeError, TypeError):
        return None


class NoBlobs(Mapping[str, bytes]):
    """Empty content in place of every blob."""

    def __getitem__(self, sha256: str) -> bytes:
        return b""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def tombstone(row: MessageRow) -> Columns:
    """Return the columns of a message without its content and user."""
    key = (row.session_id, row.seq)
    try:
        message = message_from(*key, row.columns, row.hash, NoBlobs())
        content = tuple(_block_tombstone(block) for block in message.content if isinstance(block, _CALL_BLOCKS))
        metadata = _anonymous_metadata(message.metadata)
    except DragomanError:  # an unreadable message
        message = msg.Message(row.columns.id, key[0], msg.Role.SYSTEM, (), msg.MessageMetadata(), from_micros(0))
        content, metadata = (), msg.MessageMetadata(extra={"erased": True})
    result = message.replace(
        content=content or (msg.TextBlock(ERASED_TEXT),), metadata=metadata, unknown_fields=value.UNSET
    )
    columns = columns_from(result)
    origin = {} if result.session_id == key[0] else {"session_id": result.session_id}
    return msgspec.structs.replace(
        columns,
        created_at=row.columns.created_at,
        unknown_json=msgspec.json.encode(origin).decode() if origin else None,
    )


_CALL_BLOCKS: Final = (msg.ToolUseBlock, msg.InvalidToolUseBlock, msg.ToolResultBlock)


def _block_tombstone(block: msg.ContentBlock) -> msg.ContentBlock:
    """Return a block with its ids and without its content."""
    match block:
        case msg.ToolUseBlock():
            return msg.ToolUseBlock(block.id, block.name, {})
        case msg.InvalidToolUseBlock():
            return msg.InvalidToolUseBlock(block.id, block.name, "", ERASED_TEXT)
        case msg.ToolResultBlock():
            return msg.ToolResultBlock(block.tool_use_id, (msg.TextBlock(ERASED_TEXT),), block.is_error)
        case _:
            return msg.TextBlock(ERASED_TEXT)


def _anonymous_metadata(metadata: msg.MessageMetadata) -> msg.MessageMetadata:
    is_partial = metadata.status is msg.MessageStatus.PARTIAL
    return msg.MessageMetadata(
        model=metadata.model,
        provider=metadata.provider,
        routing=metadata.routing.replace(reason=ERASED_TEXT) if metadata.routing is not None else None,
        usage=metadata.usage,
        parent_tool_use_id=metadata.parent_tool_use_id,
        status=msg.MessageStatus.CANCELLED if is_partial else metadata.status,  # it will never end
        team_id=metadata.team_id,
        extra={"erased": True},
    )
