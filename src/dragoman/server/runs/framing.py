"""Events as text: the frames of a stream of server-sent events.

    frame(7, '{"type":"RUN_STARTED",…}')      id: 7 / event: RUN_STARTED / data: {…} / and an empty line
    KEEP_ALIVE                                 a comment, so that nobody thinks the connection is dead

Clients of AG-UI cut frames at two line feeds and nothing else, so there is never a carriage return, and no ``[DONE]``.
The one rule: one event in is one event out, whatever stands in its texts.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

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
