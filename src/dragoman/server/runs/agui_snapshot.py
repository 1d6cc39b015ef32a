"""The messages of a thread for AG-UI clients, sent when a run is interrupted.

A stored file is referenced by its location, never by its content or by a URL: events are stored, and a URL contains a
token. Clients before 1.0 get a ``binary`` part with the location as its id. A thread above the limits is not sent at
all, because a client drops the messages that a snapshot does not contain.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.attachments.file_types import is_text_type
from dragoman.message import ContentBlock, ImageSource, Message
from dragoman.server.chat.history import application_fields
from dragoman.server.runs.agui_encoder import parts_to_text
from dragoman.store import Session, Store
from dragoman.transcripts.ag_ui import write_messages
from dragoman.transcripts.base import KEY

MAX_MESSAGES: Final = 500
MAX_BYTES: Final = 1 << 20


async def make_snapshot(store: Store, session: Session, *, is_modern: bool) -> list[dict[str, Any]] | None:
    """The messages of a thread; ``None`` above the limits."""
    if session.last_seq > MAX_MESSAGES:
        return None
    messages = [_with_file_references(row.message) async for row in store.history(session.id)]
    wires = [_strip_notes(wire) for wire in write_messages(messages).wire]
    if not is_modern:
        wires = [_to_legacy(wire) for wire in wires]
    return wires if len(msgspec.json.encode(wires)) <= MAX_BYTES else None


def _with_file_references(message: Message) -> Message:
    """A message whose files are references to their locations."""
    files = [
        file for file in message.metadata.attachments if not is_text_type(file.mime_type)
    ]  # a text file is a text block
    if not files:
        return message
    blocks: list[ContentBlock] = []
    for block in message.content:
        source = getattr(block, "source", None)
        if source is not None and files:
            file = files.pop(0)
            source = ImageSource("file_ref", f"{file.bucket}/{file.path}")
            blocks.append(block.replace(source=source, media_type=file.mime_type))
        else:
            blocks.append(block)
    return message.replace(content=tuple(blocks))


def _strip_notes(wire: dict[str, Any]) -> dict[str, Any]:
    """A message with the application's metadata, without our own notes."""
    metadata_in = dict(wire.get("metadata", {}))
    notes = metadata_in.pop(KEY, None) or {}
    metadata = {**application_fields(notes.get("metadata", {}).get("extra")), **metadata_in}
    result = {key: value for key, value in wire.items() if key != "metadata"}
    return {**result, "metadata": metadata} if metadata else result


def _to_legacy(wire: dict[str, Any]) -> dict[str, Any]:
    """A message for clients before 1.0."""
    content = wire.get("content")
    if not isinstance(content, list):
        return wire
    if wire["role"] == "tool":
        return {**wire, "content": parts_to_text(content)}
    return {**wire, "content": [_part_to_legacy(part) for part in content]}


def _part_to_legacy(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"source": {"type": "file", "value": reference, "mimeType": media_type}}:
            return {"type": "binary", "mimeType": media_type, "id": reference}
        case _:
            return part
