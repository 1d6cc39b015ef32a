"""``GET /threads/{id}/export``: a thread as Markdown, HTML or JSON, or as the messages of a front end.

JSON is streamed page by page; the other formats are written in a thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman import renderers, transcripts
from dragoman.ids import name_from_id
from dragoman.message import Message
from dragoman.server.auth.principal import get_owned_session
from dragoman.server.chat.messages import with_client_name
from dragoman.server.chat.swap import load_history
from dragoman.server.http.endpoint import Endpoint, Media, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, text_param
from dragoman.store import Session, Store
from dragoman.value import identity

_PAGE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"
_TRANSCRIPTS: Final = ("ag_ui", "vercel")
_SUFFIXES: Final = {"markdown": "md", "html": "html", "json": "json", **dict.fromkeys(_TRANSCRIPTS, "json")}
_MEDIA_TYPES: Final = {"md": "text/markdown", "html": "text/html", "json": "application/json"}
_THREAD: Final = "/api/v1/agent/threads/{id}"


async def export_thread(request: Request) -> Response:
    """Return a thread as a file: Markdown, HTML, canonical JSON, or the messages of a front end."""
    session = await get_owned_session(request, request.path_params["id"])
    format_name = text_param(request, "format", "json", max_length=20)
    if format_name not in _SUFFIXES:
        raise ApiError(422, "unknown_format", f"Unknown format. Use one of {', '.join(_SUFFIXES)}.")
    name = re.sub(r"[^A-Za-z0-9_-]", "-", name_from_id(session.id))[:100]
    headers = {
        "content-disposition": f'attachment; filename="{name}.{_SUFFIXES[format_name]}"',
        "content-security-policy": _PAGE_POLICY,
        "cache-control": "no-store",
    }
    store, media_type = app_state(request).store, _MEDIA_TYPES[_SUFFIXES[format_name]]
    if format_name == "json":
        return StreamingResponse(_stream_json(store, session), media_type=media_type, headers=headers)
    write = _write_transcript if format_name in _TRANSCRIPTS else _render_page
    data = await asyncio.to_thread(write, format_name, session, await load_history(store, session))
    return Response(data, media_type=media_type, headers=headers)


def _write_transcript(format_name: str, _: Session, history: Sequence[Message]) -> bytes:
    """The messages as a front end has them. What only a provider can read is left out."""
    messages = [with_client_name(message) for message in history]
    return msgspec.json.encode(transcripts.get_format(format_name).write_messages(messages).wire)


def _render_page(format_name: str, session: Session, history: Sequence[Message]) -> bytes:
    history = [with_client_name(message) for message in history]
    about = renderers.About.from_messages(history, session.title)
    return (
        renderers.write_head(format_name, about.title)
        + renderers.write_conversation(format_name, history, about)
        + renderers.write_foot(format_name)
    )


async def _stream_json(store: Store, session: Session) -> AsyncIterator[bytes]:
    """The document, one page of messages at a time."""
    head = {
        "id": name_from_id(session.id),
        "title": session.title,
        "model": session.active_model,
        "created_at": session.created_at,
    }
    yield b'{"thread":' + msgspec.json.encode(head) + b',"messages":['
    comma = b""
    async for row in store.history(session.id):
        yield comma + identity(with_client_name(row.message))
        comma = b","
    yield b"]}\n"


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{_THREAD}/export",
        export_thread,
        name="export_thread",
        summary="A thread as a file",
        scope="chat",
        responses={
            200: (
                Media("text/markdown", {"type": "string"}),
                Media("text/html", {"type": "string"}),
                {"type": "object"},
            )
        },
        query=(Query("format", {"type": "string", "enum": list(_SUFFIXES)}, "The default is json"),),
    ),
)
