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

from dragoman.attachments import ROUTE, Opened, Owner, serving_headers
from dragoman.server.answers import answer
from dragoman.server.asking import identifier, text_param
from dragoman.server.endpoint import Endpoint, Media, Query
from dragoman.server.options import address
from dragoman.server.principal import principal_of
from dragoman.server.refusing import Refusal
from dragoman.server.state import doors_of
from dragoman.server.uploads import read_form

_RANGE: Final = re.compile(r"(?i:bytes)=(?P<first>[0-9]{0,15})-(?P<last>[0-9]{0,15})")  # only one part
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
    form = await read_form(request)
    thread, run = (identifier(form.fields.get(name) or _UNSORTED, name) for name in ("threadId", "runId"))
    owner, attachments, file = _owner(request), doors_of(request).attachments, form.file
    stored = await attachments.put(owner, thread, run, file.data, declared_type=file.declared_type, name=file.name)
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
    # Pages of other servers may show it: who has the URL may see the file.
    ours = {"Accept-Ranges": "bytes", "Cross-Origin-Resource-Policy": "cross-origin"}
    headers = {**serving_headers(opened), **ours}
    wanted = part_wanted(request.headers.getlist("range"), opened.size) if "if-range" not in request.headers else None
    if wanted is None:
        return StreamingResponse(_part(opened, range(opened.size)), headers=headers)
    if not wanted:
        await opened.chunks.close()
        there = {"Content-Range": f"bytes */{opened.size}"}
        raise Refusal(416, "range_not_satisfiable", f"The file has {opened.size} bytes.", headers=there)
    told = {"Content-Length": str(len(wanted)), "Content-Range": f"bytes {wanted[0]}-{wanted[-1]}/{opened.size}"}
    return StreamingResponse(_part(opened, wanted), 206, headers={**headers, **told})


def part_wanted(said: Sequence[str], size: int) -> range | None:
    """The bytes that a ``Range`` asks for, none of them if the file has none such; ``None`` for the whole file.

    Who asks for several parts gets the whole file, so that a thousand of them cost nothing; so does who asks for
    something that is no range of bytes.
    """
    found = _RANGE.fullmatch(said[0]) if len(said) == 1 else None
    if found is None or found.group("first", "last") == ("", ""):
        return None
    first, last = (int(one) if one else None for one in found.group("first", "last"))
    if first is None:
        return range(max(0, size - (last or 0)), size)
    if last is not None and last < first:
        return None
    return range(first, size if last is None else min(last + 1, size))


def _as_asked(request: Request) -> str:
    """The URL of a request: the address that we have, and the request line sign for sign, behind the root path."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    path = path.removeprefix(request.scope.get("root_path", ""))
    return f"{address(doors_of(request).options)}{path}{'?' if query else ''}{query}"


async def _part(opened: Opened, wanted: range) -> AsyncIterator[bytes]:
    """Some bytes of a file. Those before are read as well: a file is small, and then every storage is the same."""
    place = 0
    try:
        async for chunk in opened.chunks:
            if part := chunk[max(0, wanted.start - place) : max(0, wanted.stop - place)]:
                yield part
            place += len(chunk)
            if place >= wanted.stop:
                break
    finally:
        await opened.chunks.close()


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
        answers={200: _BYTES, 206: _BYTES, 307: None},
        query=(Query("token", summary="The right to read it", required=True),),
        public=True,
    ),
)
