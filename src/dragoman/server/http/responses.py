"""Responses: JSON bodies, and frames of server-sent events.

    json_response(value)                       200, not cached
    await large_json_response(size, make)      made and encoded off the event loop
    await compress(request, response)          with gzip, if the client accepts it
    encode_frame(7, '{"type":"RUN_STARTED",…}')      id: 7 / event: RUN_STARTED / data: {…} / an empty line
    KEEP_ALIVE                                       a comment frame for idle connections

AG-UI clients split frames at two line feeds only, so there is no carriage return and no ``[DONE]``. Invariant: one
event is one frame, whatever its texts contain.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.offload import run_off_loop

_MIN_COMPRESSED: Final = 1_400  # bytes; a smaller body fits into one packet
_GZIP_LEVEL: Final = 4


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return _bytes_response(msgspec.json.encode(value), status, headers)


async def large_json_response(size: int, make: Callable[[], Any]) -> Response:
    """The JSON response of a value that ``make`` returns; ``size`` is its approximate number of bytes."""
    return _bytes_response(await run_off_loop(size, lambda: msgspec.json.encode(make())))


def _bytes_response(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        data, status, media_type="application/json", headers={"cache-control": "no-store", **(headers or {})}
    )


async def compress(request: Request, response: Response) -> Response:
    """A JSON response, compressed if it is large and the client accepts gzip; other responses are returned as they are.

    Small responses fit into one packet. Bodies of other types are compressed already, or streams.
    """
    is_whole_json = type(response) is Response and response.media_type == "application/json"
    if not is_whole_json or len(response.body) < _MIN_COMPRESSED:
        return response
    response.headers["vary"] = "accept-encoding"
    if accepts_gzip(request):
        body = bytes(response.body)
        response.body = await run_off_loop(len(body), lambda: gzip.compress(body, _GZIP_LEVEL, mtime=0))
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    return response


def accepts_gzip(request: Request) -> bool:
    """Whether the client accepts gzip."""
    items = (item.replace(" ", "").lower() for item in request.headers.get("accept-encoding", "").split(","))
    return any(item.partition(";")[0] == "gzip" and not item.endswith((";q=0", ";q=0.0")) for item in items)


class BrokenStreamError(Exception):
    """A stream ends before the run that it follows."""


KEEP_ALIVE: Final = b": keep-alive\n\n"
# Some line readers split at these characters, which JSON allows; they are escaped.
_LINE_ENDS: Final = "\u2028\u2029\u0085"
_LINE_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in _LINE_ENDS}
_TYPE: Final = re.compile(r'\{"type":"([A-Z_]+)"')


def encode_event(event: dict[str, Any]) -> str:
    """An event as one line of JSON, with its type first."""
    text = msgspec.json.encode(event).decode()
    has_line_end = not text.isascii() and any(character in text for character in _LINE_ENDS)
    return text.translate(_LINE_ESCAPES) if has_line_end else text


def encode_frame(number: int, text: str) -> bytes:
    """An event with its number as a frame."""
    match = _TYPE.match(text)
    event_line = f"event: {match[1]}\n" if match else ""
    return f"id: {number}\n{event_line}data: {text}\n\n".encode()
