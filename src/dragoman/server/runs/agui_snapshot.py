"""The messages of a thread for AG-UI clients, sent when a run is interrupted, and when a client opens the thread.

In an interrupted run a stored file is referenced by its location, never by its content or by a URL: events are stored,
and a URL contains a token. Clients before 1.0 get a ``binary`` part with the location as its id. A thread above the
limits is not sent at all, because a client drops the messages that a snapshot does not contain.

A client that opens a thread has no messages yet. It gets the newest ones within the limits, with signed URLs of files.
An answer that is not complete has its status in its metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request

from dragoman.attachments.file_types import is_text_type
from dragoman.message import ContentBlock, ImageSource, Message, MessageStatus, Role
from dragoman.server.chat.attachments import with_file_urls
from dragoman.server.chat.history import application_fields
from dragoman.server.http.requests import app_state
from dragoman.server.runs.agui_encoder import parts_to_text
from dragoman.store import Session, Store
from dragoman.transcripts.ag_ui import write_messages
from dragoman.transcripts.base import KEY, get_wire_id

ABANDONED: Final = "The call was cancelled by a later message."
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


async def make_restore_snapshot(
    request: Request, session: Session, active_run_id: str | None, *, is_modern: bool
) -> list[dict[str, Any]]:
    """The newest messages of a thread of the caller, without the answers of the active run."""
    rows = await app_state(request).store.tail(session.id, MAX_MESSAGES)
    end = next((at for at, row in enumerate(rows) if _is_answer(row.message, active_run_id)), len(rows))
    messages = [await with_file_urls(request, row.message) for row in rows[:end]]
    if session.last_seq > len(rows):
        messages = messages[_find_question(messages, 0) :]
    while len(msgspec.json.encode(wires := _write_restored(messages, is_modern=is_modern))) > MAX_BYTES:
        messages = messages[_find_question(messages, max(1, len(messages) // 2)) :]
    return wires


def _is_answer(message: Message, run_id: str | None) -> bool:
    return run_id is not None and message.role is Role.ASSISTANT and message.metadata.run_id == run_id


def _find_question(messages: Sequence[Message], start: int) -> int:
    """The position of the first question from a position on."""
    return next((at for at in range(start, len(messages)) if messages[at].role is Role.USER), len(messages))


def _write_restored(messages: Sequence[Message], *, is_modern: bool) -> list[dict[str, Any]]:
    incomplete = {
        get_wire_id(message): str(message.metadata.status)
        for message in messages
        if message.metadata.status not in (None, MessageStatus.COMPLETE)
    }
    wires = [_strip_notes(wire) for wire in write_messages(messages).wire]
    for wire in wires:
        if wire["id"] in incomplete:
            wire["metadata"] = {**wire.get("metadata", {}), "status": incomplete[wire["id"]]}
        if not is_modern and wire["role"] == "tool" and isinstance(wire["content"], list):
            wire["content"] = parts_to_text(wire["content"])
    return _close_abandoned_calls(wires)


def _close_abandoned_calls(wires: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with an error for each call before the last question that has no result: a client would run it."""
    last_question = max((at for at, wire in enumerate(wires) if wire["role"] == "user"), default=0)
    answered = {wire["toolCallId"] for wire in wires if wire["role"] == "tool"}
    result: list[dict[str, Any]] = []
    for at, wire in enumerate(wires):
        result.append(wire)
        calls = wire.get("toolCalls", ()) if at < last_question else ()
        for call_id in (call["id"] for call in calls if call["id"] not in answered):
            head = {"id": f"result-{call_id}", "role": "tool", "toolCallId": call_id}
            result.append({**head, "content": ABANDONED, "error": ABANDONED})
    return result


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
