"""Files: uploaded, named by a signed URL again, and served to whoever has one.

    POST /api/v1/agent/attachments               multipart, the file in the field ``file``
    GET  /api/v1/agent/attachments/signed-url    a URL for a file of the caller that was uploaded before
    GET  /storage/v1/object/sign/{bucket}/{path} the file itself; the URL is the right to read it

The rules for files are those of ``dragoman.attachments``. The one rule: a URL is verified as it came in the request
line, behind the address that the server gave itself, and never behind the ``Host`` that a client names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from dragoman.attachments import ROUTE, OpenFile, Owner, response_headers
from dragoman.server.auth.principal import get_principal
from dragoman.server.config import address
from dragoman.server.http.endpoint import Endpoint, Media, Query
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.multipart import read_form
from dragoman.server.http.requests import app_state, text_param, validate_id
from dragoman.server.http.responses import json_response

_RANGE_HEADER: Final = re.compile(r"(?i:bytes)=(?P<first>[0-9]{0,15})-(?P<last>[0-9]{0,15})")  # only one part
_DEFAULT_GROUP: Final = "unsorted"  # where a file is that was uploaded for no thread or run yet


class UploadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is kept, and a URL to send with a message."""

    bucket: str
    path: str
    mime_type: str
    url: str
    size: int
    name: str | None


class SignedUrlResponse(msgspec.Struct, frozen=True):
    """Where a file can be read for a while."""

    bucket: str
    path: str
    url: str


# --- uploading -------------------------------------------------------------------------------------------------------


async def upload_attachment(request: Request) -> Response:
    """Keep a file of the caller."""
    form = await read_form(request)
    thread, run = (validate_id(form.fields.get(name) or _DEFAULT_GROUP, name) for name in ("threadId", "runId"))
    owner, attachments, file = _owner(request), app_state(request).attachments, form.file
    stored = await attachments.put(owner, thread, run, file.data, declared_type=file.declared_type, name=file.name)
    url = await attachments.signed_url(stored.bucket, stored.path, owner)
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
    """A URL for a file of the caller."""
    bucket, path = text_param(request, "bucket"), text_param(request, "path", max_length=2_000)
    url = await app_state(request).attachments.signed_url(bucket, path, _owner(request))
    return json_response(SignedUrlResponse(bucket, path, url))


async def read_attachment(request: Request) -> Response:
    """The file that a signed URL names."""
    state = app_state(request)
    location = state.attachments.verify(_request_url(request), None)
    direct_url = await state.attachments.direct_url(location.bucket, location.path)
    if direct_url is not None:
        return RedirectResponse(direct_url, 307, headers={"cache-control": "private, no-store"})
    file = await state.attachments.open(location.bucket, location.path, None)
    # Pages of other servers may show it: who has the URL may see the file.
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
    """The bytes that a ``Range`` asks for, none of them if the file has none such; ``None`` for the whole file.

    Who asks for several parts gets the whole file, so that a thousand of them cost nothing; so does who asks for
    something that is no range of bytes.
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
    """The URL of a request: the address that we have, and the request line sign for sign, behind the root path."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    path = path.removeprefix(request.scope.get("root_path", ""))
    return f"{address(app_state(request).config)}{path}{'?' if query else ''}{query}"


async def _read_range(file: OpenFile, byte_range: range) -> AsyncIterator[bytes]:
    """Some bytes of a file. Those before are read as well: a file is small, and then every storage is the same."""
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
    Endpoint(
        "POST",
        "/api/v1/agent/attachments",
        upload_attachment,
        name="upload_attachment",
        summary="Keep a file, to be sent with a message",
        scope="chat",
        request_body=_FORM,
        responses={200: UploadResponse},
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/attachments/signed-url",
        sign_attachment,
        name="sign_attachment",
        summary="A URL under which a file can be read for a while",
        scope="chat",
        responses={200: SignedUrlResponse},
        query=(
            Query("bucket", summary="As the message's metadata has it", required=True),
            Query("path", summary="As the message's metadata has it", required=True),
        ),
    ),
    Endpoint(
        "GET",
        f"{ROUTE}{{bucket}}/{{path:path}}",
        read_attachment,
        name="read_attachment",
        summary="The file that a signed URL names",
        responses={200: _BYTES, 206: _BYTES, 307: None},
        query=(Query("token", summary="The right to read it", required=True),),
        public=True,
    ),
)
