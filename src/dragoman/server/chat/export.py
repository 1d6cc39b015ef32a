"""``GET /threads/{id}/export`` and ``POST /threads/export``: threads as files.

One thread, or a range of its messages, in any format that ``dragoman convert`` writes; or several threads as a ZIP
archive with one file each. Everything but our own JSON document is rendered in a worker thread; that document is
streamed page by page.
"""

from __future__ import annotations

import asyncio
import io
import re
import zipfile
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman import formats, renderers, transcripts
from dragoman.ids import name_from_id
from dragoman.message import Message
from dragoman.server.auth.principal import get_owned_session
from dragoman.server.chat.history import seq_param
from dragoman.server.chat.messages import strip_foreign_raw, with_client_name
from dragoman.server.http.endpoint import Media, Query, chat_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import app_state, json_body, parse_as, text_param
from dragoman.store import Session, Store
from dragoman.value import identity

_PAGE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"
_JSON: Final = "json"  # our own document with the thread and its messages
_FRONT_ENDS: Final = ("ag_ui", "vercel")  # as a list of messages, without the rest of a request
_RENDERED: Final = ("markdown", "html")
_SUFFIXES: Final = {"markdown": "md", "html": "html", "canonical": "jsonl"}  # of other formats: json
_MEDIA_TYPES: Final = {"markdown": "text/markdown", "html": "text/html", "canonical": "application/jsonl"}
_THREAD: Final = "/api/v1/agent/threads/{id}"


class ExportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Threads to export together."""

    ids: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=200)]
    format: str = "markdown"


def export_formats() -> tuple[str, ...]:
    """The formats of an export."""
    return (_JSON, *(name for name in formats.writable() if name != _JSON))


async def export_thread(request: Request) -> Response:
    """Return a thread, or the messages of a range, as a file."""
    session = await get_owned_session(request, request.path_params["id"])
    format_name = _check_format(text_param(request, "format", _JSON, max_length=40))
    first, last = seq_param(request, "fromSeq") or 1, seq_param(request, "toSeq") or session.last_seq
    headers = _file_headers(f"{_file_name(session)}.{_SUFFIXES.get(format_name, 'json')}")
    store = app_state(request).store
    if format_name == _JSON:
        stream = _stream_json(store, session, first, last)
        return StreamingResponse(stream, media_type="application/json", headers=headers)
    history = [row.message async for row in store.history(session.id) if first <= row.seq <= last]
    data = await asyncio.to_thread(_render, format_name, session, history)
    return Response(data, media_type=_MEDIA_TYPES.get(format_name, "application/json"), headers=headers)


async def export_threads(request: Request) -> Response:
    """Return several threads as a ZIP archive with one file each."""
    export_request = parse_as(await json_body(request), ExportRequest)
    format_name, store = _check_format(export_request.format), app_state(request).store
    sessions = [await get_owned_session(request, name) for name in dict.fromkeys(export_request.ids)]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for number, session in enumerate(sessions, 1):
            name = f"{number:03}-{_file_name(session)}.{_SUFFIXES.get(format_name, 'json')}"
            if format_name == _JSON:
                data = b"".join([part async for part in _stream_json(store, session, 1, session.last_seq)])
            else:
                history = [row.message async for row in store.history(session.id)]
                data = await asyncio.to_thread(_render, format_name, session, history)
            await asyncio.to_thread(file.writestr, name, data)
    return Response(archive.getvalue(), media_type="application/zip", headers=_file_headers("conversations.zip"))


def _check_format(name: str) -> str:
    name = name.lower().replace("-", "_")
    if name not in export_formats():
        raise ApiError(422, "unknown_format", f"Unknown format. Use one of {', '.join(export_formats())}.")
    return name


def _file_name(session: Session) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name_from_id(session.id))[:100]


def _file_headers(name: str) -> dict[str, str]:
    return {
        "content-disposition": f'attachment; filename="{name}"',
        "content-security-policy": _PAGE_POLICY,
        "cache-control": "no-store",
    }


def _render(format_name: str, session: Session, history: Sequence[Message]) -> bytes:
    """A thread for people, or in the format of a program, without the data of other dialects."""
    messages = tuple(with_client_name(message) for message in history)
    if format_name in _FRONT_ENDS:
        return msgspec.json.encode(transcripts.get_format(format_name).write_messages(messages).wire)
    if format_name not in _RENDERED:
        own = tuple(strip_foreign_raw(message, format_name) for message in messages)
        return formats.write(format_name, formats.restore_request(own)).data
    about = renderers.About.from_messages(messages, session.title)
    return (
        renderers.write_head(format_name, about.title)
        + renderers.write_conversation(format_name, messages, about)
        + renderers.write_foot(format_name)
    )


async def _stream_json(store: Store, session: Session, first: int, last: int) -> AsyncIterator[bytes]:
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
        if first <= row.seq <= last:
            yield comma + identity(with_client_name(row.message))
            comma = b","
    yield b"]}\n"


_NUMBER: Final = {"type": "integer", "minimum": 0}

ENDPOINTS = (
    chat_endpoint(
        "GET",
        f"{_THREAD}/export",
        export_thread,
        "A thread as a file",
        {
            200: (
                Media("text/markdown", {"type": "string"}),
                Media("text/html", {"type": "string"}),
                Media("application/jsonl", {"type": "string"}),
                {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
            )
        },
        query=(
            Query("format", {"type": "string", "enum": list(export_formats())}, "The default is json"),
            Query("fromSeq", _NUMBER, "The first message"),
            Query("toSeq", _NUMBER, "The last message"),
        ),
    ),
    chat_endpoint(
        "POST",
        "/api/v1/agent/threads/export",
        export_threads,
        "Several threads as a ZIP archive",
        {200: Media("application/zip", {"type": "string", "format": "binary"})},
        request_body=ExportRequest,
    ),
)
