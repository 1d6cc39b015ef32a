"""What is answered: a value as JSON, and where a list goes on.

    answer(value)                              200, never kept by anybody on the way
    await large_json_response(size, make)             the same for a large value, made and encoded off the event loop
    make_cursor(principal, session)             where the next page of sessions begins
    parse_cursor(principal, text)                the same, read again; 400 if we did not make it for them

The one rule: a cursor is a place in the caller's own list. Whoever changes one, or brings another's, is told so, and
what is listed is asked for by its owner in any case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from dragoman.offload import run_off_loop


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return _bytes_response(msgspec.json.encode(value), status, headers)


async def large_json_response(size: int, make: Callable[[], Any]) -> Response:
    """The value that a function returns, as JSON. ``size`` is about how many bytes it has."""
    return _bytes_response(await run_off_loop(size, lambda: msgspec.json.encode(make())))


def _bytes_response(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        data, status, media_type="application/json", headers={"cache-control": "no-store", **(headers or {})}
    )


KEEP_ALIVE: Final = b": keep-alive\n\n"
# Line ends to some readers of lines, though not to JSON: escaped, they are what they are to everybody.
_LINE_ENDS: Final = {ord("\u2028"): "\\u2028", ord("\u2029"): "\\u2029", ord("\u0085"): "\\u0085"}
_TYPE: Final = re.compile(r'\{"type":"([A-Z_]+)"')


def encode_event(event: dict[str, Any]) -> str:
    """An event as one line of JSON that no reader of lines cuts. Its type comes first."""
    text = msgspec.json.encode(event).decode()
    return text if text.isascii() else text.translate(_LINE_ENDS)


def encode_frame(number: int, text: str) -> bytes:
    """An event with its number, as a frame."""
    match = _TYPE.match(text)
    event_line = f"event: {match[1]}\n" if match else ""
    return f"id: {number}\n{event_line}data: {text}\n\n".encode()
