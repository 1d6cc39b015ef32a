"""Encode stored events for the protocol of a client, and send them as a response.

    encoder = AguiSseEncoder()                  or AguiProtoEncoder, UiMessageEncoder
    encoder.encode(events) -> bytes             the bytes of some events; of none, what keeps a connection open
    encoder.has_ended                           whether the last event was the last one of its run
    encoder.close()                             the stream ends
    EventStreamResponse(batches, encoder, first)
    encode_event(event) -> str                  one line of JSON, as it is stored
    encode_frame(7, '{"type":"RUN_STARTED",…}') id: 7 / event: RUN_STARTED / data: {…} / an empty line
    KEEP_ALIVE                                  a comment frame for idle connections

AG-UI clients split frames at two line feeds only, so there is no carriage return and no ``[DONE]``. Each protocol has
one encoder, all over the same stored events. Invariants: one event is one frame, whatever its texts contain. A stream
that ends before its run does not look complete: ``close`` then raises ``BrokenStreamError``, and the response ends the
connection instead of the stream.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dragoman.server.runs import agui_proto
from dragoman.store.runs import RunEvent

SSE: Final = "text/event-stream"
STREAM_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
_LAST_EVENTS: Final = ('{"type":"RUN_FINISHED"', '{"type":"RUN_ERROR"')
KEEP_ALIVE: Final = b": keep-alive\n\n"
# Some line readers split at these characters, which JSON allows; they are escaped.
_LINE_ENDS: Final = "\u2028\u2029\u0085"
_LINE_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in _LINE_ENDS}
_TYPE: Final = re.compile(r'\{"type":"([A-Z_]+)"')


class BrokenStreamError(Exception):
    """A stream ends before the run that it follows."""


def encode_event(event: object) -> str:
    """An event as one line of JSON."""
    text = msgspec.json.encode(event).decode()
    has_line_end = not text.isascii() and any(character in text for character in _LINE_ENDS)
    return text.translate(_LINE_ESCAPES) if has_line_end else text


def encode_frame(number: int, text: str) -> bytes:
    """An event with its number as a frame."""
    match = _TYPE.match(text)
    event_line = f"event: {match[1]}\n" if match else ""
    return f"id: {number}\n{event_line}data: {text}\n\n".encode()


class StreamEncoder(Protocol):
    """Encodes the events of one stream."""

    @property
    def media_type(self) -> str:
        """The type of the response."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Further headers of the response."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the last event was the last one of its run."""
        ...

    def encode(self, events: Sequence[RunEvent]) -> bytes:
        """The bytes of some events, in order."""
        ...

    def close(self) -> None:
        """End the stream; ``BrokenStreamError`` if the last event is not the last one of its run."""
        ...


class _AguiEncoder:
    """The part that both encodings of AG-UI share."""

    headers: Mapping[str, str] = STREAM_HEADERS

    def __init__(self) -> None:
        self.has_ended = False

    def _note_end(self, events: Sequence[RunEvent]) -> None:
        if events:
            self.has_ended = is_last_event(events[-1])

    def close(self) -> None:
        """End the stream after the last event of a run."""
        if not self.has_ended:
            raise BrokenStreamError


class AguiSseEncoder(_AguiEncoder):
    """AG-UI as server-sent events: stored events are sent as they are."""

    media_type = SSE

    def encode(self, events: Sequence[RunEvent]) -> bytes:
        """A frame for each event; its id is the number of the event."""
        self._note_end(events)
        return b"".join([encode_frame(event.number, event.json) for event in events]) or KEEP_ALIVE


class AguiProtoEncoder(_AguiEncoder):
    """AG-UI as protobuf. It has no frame that keeps a connection open."""

    media_type = agui_proto.MEDIA_TYPE

    def encode(self, events: Sequence[RunEvent]) -> bytes:
        """A frame for each event."""
        self._note_end(events)
        return b"".join(agui_proto.encode_frame(msgspec.json.decode(event.json)) for event in events)


def is_last_event(event: RunEvent) -> bool:
    """Whether an event is the last one of its run."""
    return event.json.startswith(_LAST_EVENTS)


def agui_encoder_for(accept: str) -> StreamEncoder | None:
    """The encoder of AG-UI that an Accept header names; ``None`` if it names no stream."""
    names = [item.partition(";")[0].strip() for item in accept.lower().split(",")]
    kinds: dict[str, type[AguiSseEncoder | AguiProtoEncoder]] = {
        SSE: AguiSseEncoder,
        agui_proto.MEDIA_TYPE: AguiProtoEncoder,
    }
    return next((kinds[name]() for name in names if name in kinds), None)


class EventStreamResponse(Response):
    """A stream of batches of events, which ends with a run or when its client disconnects.

    The first bytes are sent immediately, to show that the stream is open. Starlette's ``StreamingResponse`` has a task
    group of two tasks for this, which takes memory for each idle client. After ``BrokenStreamError`` the connection is
    closed without the end of the body, so the client gets an error.
    """

    def __init__(
        self,
        batches: AsyncGenerator[list[RunEvent], None],
        encoder: StreamEncoder,
        first: bytes,
        *,
        is_one_run: bool = True,
    ) -> None:
        super().__init__(None, 200, encoder.headers, encoder.media_type)
        del self.headers["content-length"]
        self._batches = batches
        self._encoder = encoder
        self._first = first
        self._is_one_run = is_one_run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the frames."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_wait_for_disconnect(receive, task), name="dragoman-disconnect")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._batches):
                await self._send_body(send)
        except BrokenStreamError:
            return  # the server closes a connection whose response is incomplete
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
        finally:
            watch.cancel()

    async def _send_body(self, send: Send) -> None:
        """Send the batches; the last one of a run together with the end of the body."""
        encoder, data = self._encoder, self._first
        while not (self._is_one_run and encoder.has_ended):
            await send({"type": "http.response.body", "body": data, "more_body": True})
            events = await anext(self._batches, None)
            if events is None:
                encoder.close()
                data = b""
                break
            data = encoder.encode(events)
        await send({"type": "http.response.body", "body": data, "more_body": False})


async def _wait_for_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    """Cancel a task when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
