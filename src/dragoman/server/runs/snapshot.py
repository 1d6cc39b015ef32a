"""The messages of a thread as a client of AG-UI keeps them, for a run that stops in the middle.

A file that we keep is named by its place and not by its content, and never by a URL: what a run tells is stored, and a
URL holds a token. A client before 1.0 knows no such source, and is told a ``binary`` part with the place as its id. The
one rule: a thread that is too long to be told whole is not told in part, because a client drops what it is not told.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.message import ContentBlock, ImageSource, Message
from dragoman.server.rows import application_fields
from dragoman.server.runs.telling import as_text
from dragoman.store import Session, Store
from dragoman.transcripts.ag_ui import write_messages
from dragoman.transcripts.parts import KEY

MOST_MESSAGES: Final = 500
MOST_BYTES: Final = 1 << 20


async def snapshot_of(store: Store, session: Session, *, is_modern: bool) -> list[dict[str, Any]] | None:
    """The messages of a thread; nothing if they are too many, or too much."""
    if session.last_seq > MOST_MESSAGES:
        return None
    messages = [_with_places(row.message) async for row in store.history(session.id)]
    wires = [_bare(wire) for wire in write_messages(messages).wire]
    if not is_modern:
        wires = [_before_1_0(wire) for wire in wires]
    return wires if len(msgspec.json.encode(wires)) <= MOST_BYTES else None


def _with_places(message: Message) -> Message:
    """A message whose files are named by where they are kept."""
    files = [file for file in message.metadata.attachments if file.mime_type != "text/plain"]  # which is a text block
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


def _bare(wire: dict[str, Any]) -> dict[str, Any]:
    """A message with the application's metadata, and without what we note under our own key."""
    noted = dict(wire.get("metadata", {}))
    ours = noted.pop(KEY, None) or {}
    metadata = {**application_fields(ours.get("metadata", {}).get("extra")), **noted}
    bare = {key: value for key, value in wire.items() if key != "metadata"}
    return {**bare, "metadata": metadata} if metadata else bare


def _before_1_0(wire: dict[str, Any]) -> dict[str, Any]:
    """A message as clients before 1.0 can read it."""
    content = wire.get("content")
    if not isinstance(content, list):
        return wire
    if wire["role"] == "tool":
        return {**wire, "content": as_text(content)}
    return {**wire, "content": [_part_before_1_0(part) for part in content]}


def _part_before_1_0(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"source": {"type": "file", "value": place, "mimeType": media_type}}:
            return {"type": "binary", "mimeType": media_type, "id": place}
        case _:
            return part
