"""Share a thread as a read-only page.

    POST   /api/v1/agent/threads/{id}/share     create a link; an earlier link of the thread stops working
    DELETE /api/v1/agent/threads/{id}/share     revoke it
    GET    /share/{token}                       the page, for everyone with the link

A page has the messages up to the newest one at the time of sharing. It has texts of users and models only; the owner
may add tool calls with their results, attachments, thinking and system prompts. It has no cost and no name of a user.
The token is a secret. Only its hash is stored, so a link is shown once. Invariants: a thread is shared only after its
owner asks for it, and a revoked, unknown or damaged link gets the same 404.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman import renderers
from dragoman.attachments import is_attachment_text
from dragoman.humanize import format_count
from dragoman.message import (
    CallBlock,
    ContentBlock,
    MediaBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from dragoman.server.auth.principal import get_owned_session
from dragoman.server.http.endpoint import Media, chat_endpoint, public_endpoint
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state, json_body, parse_as, request_base_url
from dragoman.server.http.responses import json_response
from dragoman.store import Session, Store
from dragoman.store.labels import SHARE

Part = Literal["tools", "attachments", "thinking", "system"]

_THREAD: Final = "/api/v1/agent/threads/{id}/share"
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex, nofollow",
}


class ShareRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts that a shared page has beside the texts."""

    include: tuple[Part, ...] = ()


class ShareResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A new link. It is shown once."""

    url: str
    last_seq: int  # the newest message of the page
    include: tuple[Part, ...]
    created_at: datetime


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share, as the metadata of a session stores it."""

    hash: str  # SHA-256 of the secret
    last_seq: int
    include: tuple[Part, ...] = ()
    created_at: datetime


def get_share(session: Session) -> Share | None:
    """Return how a session is shared; ``None`` if it is not, or the record is damaged."""
    try:
        return msgspec.convert(session.metadata.get(SHARE), Share | None)
    except msgspec.ValidationError:
        return None


# --- sharing ---------------------------------------------------------------------------------------------------------


async def share_thread(request: Request) -> Response:
    """Create the link of a thread."""
    state = app_state(request)
    session = await get_owned_session(request, request.path_params["id"])
    share_request = parse_as(await json_body(request), ShareRequest)
    if not session.last_seq:
        raise ApiError(422, "nothing_to_share", "The thread has no messages.")
    secret = secrets.token_urlsafe(24)
    include = tuple(dict.fromkeys(share_request.include))
    share = Share(hash=_digest(secret), last_seq=session.last_seq, include=include, created_at=state.store.clock())
    await state.store.labels.set_share(session.id, msgspec.to_builtins(share))
    url = f"{request_base_url(request)}/share/{secret}"
    body = ShareResponse(url=url, last_seq=share.last_seq, include=include, created_at=share.created_at)
    return json_response(body, 201)


async def revoke_share(request: Request) -> Response:
    """Revoke the link of a thread."""
    session = await get_owned_session(request, request.path_params["id"])
    await app_state(request).store.labels.set_share(session.id, None)
    return Response(status_code=204)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# --- the page --------------------------------------------------------------------------------------------------------


async def get_shared_page(request: Request) -> Response:
    """Return the page of a link."""
    store = app_state(request).store
    session, share = await _find_shared(store, str(request.path_params["token"]))
    messages = [row.message async for row in store.history(session.id) if row.seq <= share.last_seq]
    html = await asyncio.to_thread(_render, session.title, messages, frozenset(share.include))
    return Response(html, media_type="text/html; charset=utf-8", headers=_HEADERS)


async def _find_shared(store: Store, secret: str) -> tuple[Session, Share]:
    session = await store.labels.find_shared(_digest(secret))
    share = None if session is None else get_share(session)
    if session is None or share is None:
        raise not_found_error()
    return session, share


def _render(title: str | None, messages: Sequence[Message], include: frozenset[str]) -> bytes:
    shown = [part for message in messages if (part := _public_message(message, include)) is not None]
    heading = " ".join((title or "Conversation").split())
    about = renderers.About(title=heading, facts=(format_count(len(shown), "message"), "shared, read-only"))
    return (
        renderers.write_head("html", heading)
        + renderers.write_conversation("html", shown, about)
        + renderers.write_foot("html")
    )


def _public_message(message: Message, include: frozenset[str]) -> Message | None:
    """The message without everything that the owner did not share; ``None`` if nothing is left."""
    if message.role is Role.SYSTEM and "system" not in include:
        return None
    content = tuple(_public_blocks(message.content, include))
    if not content:
        return None
    status = message.metadata.status if message.role is Role.ASSISTANT else MessageStatus.COMPLETE
    metadata = MessageMetadata(model=message.metadata.model, status=status)
    return Message(message.id, "", message.role, content, metadata, message.created_at)


def _public_blocks(blocks: Sequence[ContentBlock], include: frozenset[str]) -> Iterator[ContentBlock]:
    for block in blocks:
        match block:
            case TextBlock() if is_attachment_text(block):
                is_included = "attachments" in include
            case TextBlock():
                is_included = True
            case ThinkingBlock():
                is_included = "thinking" in include
            case ToolResultBlock():
                inner = tuple(_public_blocks(block.content, include)) if "tools" in include else ()
                if "tools" in include:
                    yield block.replace(content=inner, provider_raw=None)
                continue
            case _ if isinstance(block, CallBlock):
                is_included = "tools" in include
            case _ if isinstance(block, MediaBlock):
                is_included = "attachments" in include
            case _:
                is_included = False
        if is_included:
            yield block.replace(provider_raw=None)


ENDPOINTS = (
    chat_endpoint(
        "POST",
        _THREAD,
        share_thread,
        "Create the link to a read-only page of a thread",
        {201: ShareResponse},
        request_body=ShareRequest,
    ),
    chat_endpoint("DELETE", _THREAD, revoke_share, "Revoke the link to a thread", {204: None}),
    public_endpoint(
        "GET",
        "/share/{token}",
        get_shared_page,
        "The read-only page of a shared thread",
        {200: Media("text/html", {"type": "string"})},
        name="shared_page",
    ),
)
