"""Attachments: upload a file, get a signed URL, and read the file behind one.

    POST /api/v1/agent/attachments               multipart, with the file in the field ``file``
    GET  /api/v1/agent/attachments/signed-url    a URL for an uploaded file of the caller
    GET  /storage/v1/object/sign/{bucket}/{path} the file; the URL is the permission to read it

``dragoman.attachments`` has the rules for files. Invariant: a URL is verified byte for byte as in the request line,
after the configured address of the server, never after the client's ``Host``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from dragoman.attachments import ROUTE, OpenFile, Owner, response_headers
from dragoman.attachments.file_types import is_text_type
from dragoman.message import ImageSource, MediaBlock, Message
from dragoman.server.auth.principal import get_principal
from dragoman.server.http.endpoint import Media, Query, chat_endpoint, public_endpoint
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.multipart import read_form
from dragoman.server.http.requests import app_state, request_base_url, text_param, validate_id
from dragoman.server.http.responses import json_response

_RANGE_HEADER: Final = re.compile(r"(?i:bytes)=(?P<first>[0-9]{0,15})-(?P<last>[0-9]{0,15})")  # a single range
_DEFAULT_GROUP: Final = "unsorted"  # folder of a file that was uploaded without a thread or a run


class UploadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file, and a URL to send with a message."""

    bucket: str
    path: str
    mime_type: str
    url: str
    size: int
    name: str | None


class SignedUrlResponse(msgspec.Struct, frozen=True):
    """A URL that is valid for a limited time."""

    bucket: str
    path: str
    url: str


# --- uploading -------------------------------------------------------------------------------------------------------


async def upload_attachment(request: Request) -> Response:
    """Store a file of the caller."""
    form = await read_form(request)
    thread, run = (validate_id(form.fields.get(name) or _DEFAULT_GROUP, name) for name in ("threadId", "runId"))
    owner, attachments, file = _owner(request), app_state(request).attachments, form.file
    stored = await attachments.put(owner, thread, run, file.data, declared_type=file.declared_type, name=file.name)
    url = await _sign(request, stored.bucket, stored.path)
    body = UploadResponse(
        bucket=stored.bucket,
        path=stored.path,
        mime_type=stored.mime_type,
        url=url,
        size=stored.size,
        name=stored.name,
    )
    return json_response(body)


def _owner(request: Request) -> Owner:
    principal = get_principal(request)
    return Owner(principal.user_id, principal.team_id)


# --- signed URLs -----------------------------------------------------------------------------------------------------


async def sign_attachment(request: Request) -> Response:
    """Return a signed URL for a file of the caller."""
    bucket, path = text_param(request, "bucket"), text_param(request, "path", max_length=2_000)
    return json_response(SignedUrlResponse(bucket, path, await _sign(request, bucket, path)))


async def _sign(request: Request, bucket: str, path: str) -> str:
    """A signed URL for a file of the caller. A mounted server signs a path, and adds the address of the request."""
    url = await app_state(request).attachments.signed_url(bucket, path, _owner(request))
    return f"{request_base_url(request)}{url}" if url.startswith("/") else url


async def with_file_urls(request: Request, message: Message) -> Message:
    """A message of the caller whose attached files have signed URLs."""
    files = [file for file in message.metadata.attachments if not is_text_type(file.mime_type)]  # those are text blocks
    if not files:
        return message
    blocks = list(message.content)
    for at, block in enumerate(blocks):
        if isinstance(block, MediaBlock) and files:
            file = files.pop(0)
            source = ImageSource("url", await _sign(request, file.bucket, file.path))
            blocks[at] = block.replace(source=source, media_type=file.mime_type)
    return message.replace(content=tuple(blocks))


async def read_attachment(request: Request) -> Response:
    """Return the file of a signed URL."""
    state = app_state(request)
    location = state.attachments.verify(_request_url(request), None)
    direct_url = await state.attachments.direct_url(location.bucket, location.path)
    if direct_url is not None:
        return RedirectResponse(direct_url, 307, headers={"cache-control": "private, no-store"})
    file = await state.attachments.open(location.bucket, location.path, None)
    # Pages of other sites may show it: the URL is the permission.
    own_headers = {"Accept-Ranges": "bytes", "Cross-Origin-Resource-Policy": "cross-origin"}
    headers = {**response_headers(file), **own_headers}
    byte_range = parse_range(request.headers.getlist("range"), file.size) if "if-range" not in request.headers else None
    if byte_range is None:
        return StreamingResponse(_read_range(file, range(file.size)), headers=headers)
    if not byte_range:
        await file.chunks.close()
        size_header = {"Content-Range": f"bytes */{file.size}"}
        raise ApiError(416, "range_not_satisfiable", f"The file has {file.size} bytes.", headers=size_header)
    range_headers = {
        "Content-Length": str(len(byte_range)),
        "Content-Range": f"bytes {byte_range[0]}-{byte_range[-1]}/{file.size}",
    }
    return StreamingResponse(_read_range(file, byte_range), 206, headers={**headers, **range_headers})


def parse_range(headers: Sequence[str], size: int) -> range | None:
    """The bytes of a ``Range`` header, empty if the file does not have them; ``None`` for the whole file.

    Several ranges, and values that are no byte range, return the whole file, so that a request cannot multiply the
    work.
    """
    match = _RANGE_HEADER.fullmatch(headers[0]) if len(headers) == 1 else None
    if match is None or match.group("first", "last") == ("", ""):
        return None
    first, last = (int(group) if group else None for group in match.group("first", "last"))
    if first is None:
        return range(max(0, size - (last or 0)), size)
    if last is not None and last < first:
        return None
    return range(first, size if last is None else min(last + 1, size))


def _request_url(request: Request) -> str:
    """The URL of a request: the server's address and the exact request line without the root path."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    path = path.removeprefix(request.scope.get("root_path", ""))
    return f"{request_base_url(request)}{path}{'?' if query else ''}{query}"


async def _read_range(file: OpenFile, byte_range: range) -> AsyncIterator[bytes]:
    """A part of a file. The bytes before it are read too: files are small, and not every storage supports ranges."""
    offset = 0
    try:
        async for chunk in file.chunks:
            if part := chunk[max(0, byte_range.start - offset) : max(0, byte_range.stop - offset)]:
                yield part
            offset += len(chunk)
            if offset >= byte_range.stop:
                break
    finally:
        await file.chunks.close()


_BYTES: Final = Media("application/octet-stream", {"type": "string", "format": "binary"})
_FORM: Final = Media(
    "multipart/form-data",
    {
        "type": "object",
        "required": ["file"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "threadId": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"},
            "runId": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"},
        },
    },
)

ENDPOINTS = (
    chat_endpoint(
        "POST",
        "/api/v1/agent/attachments",
        upload_attachment,
        "Upload a file for a message",
        {200: UploadResponse},
        request_body=_FORM,
    ),
    chat_endpoint(
        "GET",
        "/api/v1/agent/attachments/signed-url",
        sign_attachment,
        "A signed URL for a file",
        {200: SignedUrlResponse},
        query=(
            Query("bucket", summary="From the message's metadata", required=True),
            Query("path", summary="From the message's metadata", required=True),
        ),
    ),
    public_endpoint(
        "GET",
        f"{ROUTE}{{bucket}}/{{path:path}}",
        read_attachment,
        "The file of a signed URL",
        {200: _BYTES, 206: _BYTES, 307: None},
        query=(Query("token", summary="The signature", required=True),),
    ),
)
