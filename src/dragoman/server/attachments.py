"""Files: uploaded, named by a signed URL again, and served to whoever has one.

    POST /api/v1/agent/attachments               multipart, the file in the field ``file``
    GET  /api/v1/agent/attachments/signed-url    a URL for a file of the caller that was uploaded before
    GET  /storage/v1/object/sign/{bucket}/{path} the file itself; the URL is the right to read it

The rules for files are those of ``dragoman.attachments``. The one rule: a URL is verified as it came in the request
line, behind the address that the server gave itself, and never behind the ``Host`` that a client names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from dragoman.attachments import MAX_BYTES, ROUTE, Opened, Owner, serving_headers
from dragoman.server.answers import answer
from dragoman.server.asking import identifier, text_param, too_large
from dragoman.server.endpoint import Endpoint, Media, Query
from dragoman.server.principal import principal_of
from dragoman.server.refusing import Refusal
from dragoman.server.serving import address
from dragoman.server.state import doors_of

_AROUND: Final = 64 * 1024  # bytes of a body that are not the file
_UNSORTED: Final = "unsorted"  # where a file is that was uploaded for no thread or run yet


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is kept, and a URL to send with a message."""

    bucket: str
    path: str
    mime_type: str
    url: str
    size: int
    name: str | None


class SignedPlace(msgspec.Struct, frozen=True):
    """Where a file can be read for a while."""

    bucket: str
    path: str
    url: str


# --- uploading -------------------------------------------------------------------------------------------------------


async def upload(request: Request) -> Response:
    """Keep a file of the caller."""
    form = await _form(request)
    try:
        file = _one_file(form)
        thread, run = (_field(form, name) for name in ("threadId", "runId"))
        owner, attachments = _owner(request), doors_of(request).attachments
        stored = await attachments.put(
            owner, thread, run, _pieces(file), declared_type=file.content_type, name=file.filename
        )
    finally:
        await form.close()
    url = await attachments.signed_url(stored.bucket, stored.path, owner)
    made = Uploaded(
        bucket=stored.bucket,
        path=stored.path,
        mime_type=stored.mime_type,
        url=url,
        size=stored.size,
        name=stored.name,
    )
    return answer(made)


async def _form(request: Request) -> FormData:
    """The parts of a body. It is read no further than a file may be large."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise Refusal(415, "unsupported_media_type", "The body has to be multipart/form-data, with the file in file.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refusal(415, "unsupported_encoding", "The body must not be compressed.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > MAX_BYTES + _AROUND:
        raise too_large(MAX_BYTES)
    try:
        return await MultiPartParser(request.headers, _limited(request), max_files=2, max_fields=8).parse()
    except MultiPartException as error:
        raise Refusal(400, "invalid_multipart", f"The body cannot be read: {error.message}") from None
    except (KeyError, UnicodeError):
        raise Refusal(400, "invalid_multipart", "The body cannot be read.") from None
    except ClientDisconnect:
        raise Refusal(400, "incomplete_body", "The body ended before its end.") from None


async def _limited(request: Request) -> AsyncGenerator[bytes, None]:
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BYTES + _AROUND:
            raise too_large(MAX_BYTES)
        yield piece


def _one_file(form: FormData) -> UploadFile:
    files = [value for name, value in form.multi_items() if name == "file"]
    others = [name for name, value in form.multi_items() if isinstance(value, UploadFile) and name != "file"]
    if len(files) != 1 or others or not isinstance(files[0], UploadFile):
        raise Refusal(422, "invalid_upload", "The body has to have one file, in the field file.")
    return files[0]


def _field(form: FormData, name: str) -> str:
    said = form.getlist(name)
    if len(said) > 1 or any(not isinstance(one, str) for one in said):
        raise Refusal(422, "invalid_upload", f"{name} is a text, and said once.")
    return identifier(str(said[0]), name) if said and said[0] else _UNSORTED


async def _pieces(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(256 * 1024):
        yield piece


def _owner(request: Request) -> Owner:
    principal = principal_of(request)
    return Owner(principal.user_id, principal.team_id)


# --- signed URLs -----------------------------------------------------------------------------------------------------


async def sign(request: Request) -> Response:
    """A URL for a file of the caller."""
    bucket, path = text_param(request, "bucket"), text_param(request, "path", most=2_000)
    url = await doors_of(request).attachments.signed_url(bucket, path, _owner(request))
    return answer(SignedPlace(bucket, path, url))


async def serve(request: Request) -> Response:
    """The file that a signed URL names."""
    doors = doors_of(request)
    place = doors.attachments.verify(_as_asked(request), None)
    direct = await doors.attachments.direct_url(place.bucket, place.path)
    if direct is not None:
        return RedirectResponse(direct, 307, headers={"cache-control": "private, no-store"})
    opened = await doors.attachments.open(place.bucket, place.path, None)
    # There is no Range: a file is small enough to be sent whole, and then a thousand ranges cost nothing.
    return StreamingResponse(_all(opened), headers={**serving_headers(opened), "accept-ranges": "none"})


def _as_asked(request: Request) -> str:
    """The URL of a request: the address that we have, and the request line sign for sign."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return f"{address(doors_of(request).options)}{path}{'?' if query else ''}{query}"


async def _all(opened: Opened) -> AsyncIterator[bytes]:
    try:
        async for chunk in opened.chunks:
            yield chunk
    finally:
        await opened.chunks.close()


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
        upload,
        name="upload_attachment",
        summary="Keep a file, to be sent with a message",
        scope="chat",
        asks=_FORM,
        answers={200: Uploaded},
    ),
    Endpoint(
        "GET",
        "/api/v1/agent/attachments/signed-url",
        sign,
        name="sign_attachment",
        summary="A URL under which a file can be read for a while",
        scope="chat",
        answers={200: SignedPlace},
        query=(
            Query("bucket", summary="As the message's metadata has it", required=True),
            Query("path", summary="As the message's metadata has it", required=True),
        ),
    ),
    Endpoint(
        "GET",
        f"{ROUTE}{{bucket}}/{{path:path}}",
        serve,
        name="read_attachment",
        summary="The file that a signed URL names",
        answers={200: Media("application/octet-stream", {"type": "string", "format": "binary"}), 307: None},
        query=(Query("token", summary="The right to read it", required=True),),
        public=True,
    ),
)
