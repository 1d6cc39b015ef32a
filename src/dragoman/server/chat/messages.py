"""Messages of a thread in the canonical format, or one message in any other format.

Conversions run in a thread, so that they do not block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman import formats
from dragoman.exchange import Loss
from dragoman.exchange import Request as Conversation
from dragoman.ids import name_from_id
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    Message,
    ProviderRaw,
    ToolResultBlock,
    VideoBlock,
)
from dragoman.server.auth.principal import get_owned_session
from dragoman.server.chat.history import MAX_PAGE_SIZE, PAGE_SIZE, client_message_id, page_params, read_page_rows
from dragoman.server.http.endpoint import chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, int_param
from dragoman.server.http.responses import json_response
from dragoman.value import identity

_MAX_MEDIUM_LENGTH: Final = 256 * 1024  # characters of base64 that are sent inline
_THREAD: Final = "/api/v1/agent/threads/{id}"


class PositionedMessage(msgspec.Struct, frozen=True):
    """A message with its position."""

    seq: int
    message: dict[str, Any]  # canonical, without the notes of one dialect


class MessagePage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of a thread in the canonical format, in order."""

    thread_id: str
    messages: list[PositionedMessage]
    has_more: bool  # in the requested direction; around a position, earlier ones
    has_later: bool
    limit: int


class LossResponse(msgspec.Struct, frozen=True):
    """Something that a format cannot represent."""

    block_type: str
    reason: str


class RenderedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message in another format."""

    thread_id: str
    message_id: str
    format: str
    wire: Any
    losses: list[LossResponse]  # parts that the format cannot represent


class FormatList(msgspec.Struct, frozen=True):
    """The formats of a message."""

    formats: tuple[str, ...]


async def list_messages(request: Request) -> Response:
    """Return a page of a thread with every block."""
    session = await get_owned_session(request, request.path_params["id"])
    limit = int_param(request, "limit", default=PAGE_SIZE, maximum=MAX_PAGE_SIZE)
    rows, has_more = await read_page_rows(request, session, limit)
    items = [{"seq": row.seq, "message": msgspec.Raw(identity(_strip_media(row.message)))} for row in rows]
    return json_response(
        {
            "threadId": name_from_id(session.id),
            "messages": items,
            "hasMore": has_more,
            "hasLater": bool(rows) and rows[-1].seq < session.last_seq,
            "limit": limit,
        }
    )


def _strip_media(message: Message) -> Message:
    """A message without the bytes of attached or large media."""
    content = tuple(_strip_medium(block, message) for block in message.content)
    return with_client_name(message.replace(content=content))


def with_client_name(message: Message) -> Message:
    """A message with the session name that its owner knows."""
    return message.replace(session_id=name_from_id(message.session_id))


def _strip_medium(block: ContentBlock, message: Message) -> ContentBlock:
    match block:
        case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock() if block.source.kind == "base64":
            if message.metadata.attachments or len(block.source.data) > _MAX_MEDIUM_LENGTH:
                return block.replace(source=ImageSource("base64", ""))
    return block


async def show_message_as(request: Request) -> Response:
    """Return a message as the wire of a dialect, as a transcript, or in the canonical format."""
    session = await get_owned_session(request, request.path_params["id"])
    format_name = str(request.path_params["dialect"]).lower().replace("-", "_")
    if format_name not in formats.readable():
        raise ApiError(422, "unknown_format", f"Unknown format. Use one of {', '.join(formats.readable())}.")
    row = await app_state(request).store.find_message(session.id, request.path_params["messageId"])
    data, losses = await asyncio.to_thread(_render_message, format_name, with_client_name(row.message))
    body = RenderedMessage(
        thread_id=name_from_id(session.id),
        message_id=client_message_id(row.message),
        format=format_name,
        wire=msgspec.json.decode(data),
        losses=[LossResponse(loss.block_type, loss.reason) for loss in losses],
    )
    return json_response(body)


def _render_message(format_name: str, message: Message) -> tuple[bytes, tuple[Loss, ...]]:
    """A message in a format, and its losses. ``provider_raw`` is included only in the wire of its own dialect."""
    if format_name == formats.CANONICAL:
        return identity(message), ()
    written = formats.write(format_name, Conversation(model=None, messages=(strip_foreign_raw(message, format_name),)))
    return written.data, written.losses


def strip_foreign_raw(message: Message, dialect: str) -> Message:
    """A message without the ``provider_raw`` of other dialects."""
    metadata = message.metadata
    if not _is_from_dialect(metadata.provider_raw, dialect):
        metadata = metadata.replace(provider_raw=None)
    return message.replace(metadata=metadata, content=_strip_foreign_block_raw(message.content, dialect))


def _strip_foreign_block_raw(blocks: Sequence[ContentBlock], dialect: str) -> tuple[ContentBlock, ...]:
    result: list[ContentBlock] = []
    for block in blocks:
        stripped = (
            block
            if _is_from_dialect(getattr(block, "provider_raw", None), dialect)
            else block.replace(provider_raw=None)
        )
        if isinstance(stripped, ToolResultBlock):
            stripped = stripped.replace(content=_strip_foreign_block_raw(stripped.content, dialect))
        result.append(stripped)
    return tuple(result)


def _is_from_dialect(raw: ProviderRaw | None, dialect: str) -> bool:
    return raw is None or raw.get("dialect") == dialect


async def list_formats(_: Request) -> Response:
    """Return the formats of a message."""
    return json_response(FormatList(formats.readable()))


ENDPOINTS = (
    chat_endpoint("GET", "/api/v1/agent/formats", list_formats, "Formats of a message", {200: FormatList}),
    chat_endpoint(
        "GET",
        f"{_THREAD}/messages",
        list_messages,
        "A page of a thread in the canonical format",
        {200: MessagePage},
        query=page_params(),
    ),
    chat_endpoint(
        "GET",
        f"{_THREAD}/messages/{{messageId}}/as/{{dialect}}",
        show_message_as,
        "A message as the wire of a dialect, as a transcript, or in the canonical format",
        {200: RenderedMessage},
    ),
)
