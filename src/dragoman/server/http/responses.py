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

import asyncio
import gzip
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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


class EventStreamResponse(Response):
    """A stream of events, which ends when its client disconnects.

    Starlette's ``StreamingResponse`` has a task group of two tasks for this, which takes memory for each idle client.
    After ``BrokenStreamError`` the connection is closed without the end of the body, so the client gets an error.
    """

    def __init__(
        self, frames: AsyncGenerator[bytes, None], headers: Mapping[str, str], media_type: str = "text/event-stream"
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the frames."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_wait_for_disconnect(receive, task), name="dragoman-disconnect")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._frames):
                async for frame in self._frames:
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BrokenStreamError:
            return  # the server closes a connection whose response is incomplete
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
        finally:
            watch.cancel()


async def _wait_for_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    """Cancel a task when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


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
