"""Parse a ``multipart/form-data`` body from its stream: one file and a few short fields, in memory.

    form = await read_form(request)
    form.file                       bytes, declared type and name
    form.fields["threadId"]

Invariants: no data is written to disk, reading stops at the first byte above the limit, and a body without a proper end
is rejected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from dragoman.attachments import MAX_BYTES
from dragoman.server.http.http_errors import ApiError
from dragoman.server.http.requests import too_large_error

_MAX_OVERHEAD_BYTES: Final = 64 * 1024  # a body without its file
_MAX_PARTS: Final = 8
_MAX_FIELD_BYTES: Final = 1_024
_FILE: Final = "file"


class UploadedFile(msgspec.Struct, frozen=True):
    """The file of a form."""

    data: bytes
    declared_type: str | None
    name: str | None


class Form(msgspec.Struct, frozen=True):
    """A parsed form."""

    file: UploadedFile
    fields: dict[str, str]


async def read_form(request: Request) -> Form:
    """The file in the field ``file``, and the text fields."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        raise ApiError(
            415, "unsupported_media_type", "The body must be multipart/form-data, with the file in the field file."
        )
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "unsupported_encoding", "The body must not be compressed.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > MAX_BYTES + _MAX_OVERHEAD_BYTES:
        raise too_large_error(MAX_BYTES)
    parts = _Parts()
    try:
        parser = MultipartParser(options.get(b"boundary", b""), parts.callbacks())
        async for chunk in _read_limited(request):
            parser.write(chunk)
        parser.finalize()
    except (FormParserError, ValueError):
        raise _multipart_error() from None
    except ClientDisconnect:
        raise ApiError(400, "incomplete_body", "The connection closed before the end of the body.") from None
    if not parts.is_complete:
        raise _multipart_error()
    return parts.form()


async def _read_limited(request: Request) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BYTES + _MAX_OVERHEAD_BYTES:
            raise too_large_error(MAX_BYTES)
        yield chunk


def _multipart_error() -> ApiError:
    return ApiError(400, "invalid_multipart", "The body is not valid multipart/form-data.")


class _Part:
    """A part that is being received."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.name: str | None = None
        self.filename: str | None = None
        self.data = bytearray()

    def parse_headers(self) -> None:
        disposition = self.headers.get(b"content-disposition", b"").decode("latin-1")
        kind, options = parse_options_header(disposition)
        if kind != b"form-data" or b"name" not in options:
            raise _multipart_error()
        self.name = options[b"name"].decode("utf-8", "replace")
        if b"filename" in options:
            self.filename = options[b"filename"].decode("utf-8", "replace")


class _Parts:
    """Receives the callbacks of the parser."""

    def __init__(self) -> None:
        self.is_complete = False
        self._parts: list[_Part] = []
        self._header, self._value = b"", b""

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._finish_headers,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self._parts) == _MAX_PARTS:
            raise ApiError(422, "invalid_upload", f"The body has more than {_MAX_PARTS} parts.")
        self._parts.append(_Part())

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._parts[-1].headers[self._header.strip().lower()] = self._value.strip()
        self._header, self._value = b"", b""

    def _finish_headers(self) -> None:
        self._parts[-1].parse_headers()

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._parts[-1]
        if part.filename is None and len(part.data) + end - start > _MAX_FIELD_BYTES:
            raise ApiError(422, "invalid_upload", f"The field {part.name} is too long.")
        part.data += data[start:end]

    def _end(self) -> None:
        self.is_complete = True

    def form(self) -> Form:
        """The form, if it has one file and no repeated field."""
        files = [part for part in self._parts if part.filename is not None]
        if len(files) != 1 or files[0].name != _FILE:
            raise ApiError(422, "invalid_upload", "The body must have exactly one file, in the field file.")
        fields: dict[str, str] = {}
        for part in self._parts:
            if part.filename is None:
                if part.name in (None, _FILE) or part.name in fields:
                    raise ApiError(422, "invalid_upload", f"The field {part.name} is repeated, or is not a file.")
                fields[str(part.name)] = part.data.decode("utf-8", "replace")
        declared_type = files[0].headers.get(b"content-type", b"").decode("latin-1")
        return Form(UploadedFile(bytes(files[0].data), declared_type or None, files[0].filename), fields)
