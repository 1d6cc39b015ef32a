"""Responses: JSON bodies, and frames of server-sent events.

    json_response(value)                       200, not cached
    await large_json_response(size, make)      made and encoded off the event loop
    encode_frame(7, '{"type":"RUN_STARTED",…}')      id: 7 / event: RUN_STARTED / data: {…} / an empty line
    KEEP_ALIVE                                       a comment frame for idle connections

AG-UI clients split frames at two line feeds only, so there is no carriage return and no ``[DONE]``. Invariant: one
event is one frame, whatever its texts contain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from dragoman.offload import run_off_loop


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


KEEP_ALIVE: Final = b": keep-alive\n\n"
# Some line readers split at these characters, which JSON allows; they are escaped.
_LINE_ENDS: Final = {ord("\u2028"): "\\u2028", ord("\u2029"): "\\u2029", ord("\u0085"): "\\u0085"}
_TYPE: Final = re.compile(r'\{"type":"([A-Z_]+)"')


def encode_event(event: dict[str, Any]) -> str:
    """An event as one line of JSON, with its type first."""
    text = msgspec.json.encode(event).decode()
    return text if text.isascii() else text.translate(_LINE_ENDS)


def encode_frame(number: int, text: str) -> bytes:
    """An event with its number as a frame."""
    match = _TYPE.match(text)
    event_line = f"event: {match[1]}\n" if match else ""
    return f"id: {number}\n{event_line}data: {text}\n\n".encode()
