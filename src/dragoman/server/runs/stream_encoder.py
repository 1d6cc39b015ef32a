"""Encode stored events for the protocol of a client. One encoder per protocol, all over the same stored events.

    encoder = AguiSseEncoder()                  or AguiProtoEncoder, UiMessageEncoder
    encoder.encode(events) -> bytes             the bytes of some events; of none, what keeps a connection open
    encoder.close() -> bytes                    the last bytes of a stream that ended with its run

Invariant: a stream that ends before its run does not look complete. ``close`` then raises ``BrokenStreamError``, and
the response ends the connection instead of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from dragoman.server.http.responses import KEEP_ALIVE, BrokenStreamError, encode_frame
from dragoman.server.runs import agui_proto
from dragoman.store.runs import RunEvent

SSE: Final = "text/event-stream"
STREAM_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
_LAST_EVENTS: Final = ('{"type":"RUN_FINISHED"', '{"type":"RUN_ERROR"')


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

    def encode(self, events: Sequence[RunEvent]) -> bytes:
        """The bytes of some events, in order."""
        ...

    def close(self) -> bytes:
        """The last bytes; ``BrokenStreamError`` if the last event is not the last one of its run."""
        ...


class _AguiEncoder:
    """The part that both encodings of AG-UI share."""

    headers: Mapping[str, str] = STREAM_HEADERS

    def __init__(self) -> None:
        self._has_ended = False

    def _note_end(self, events: Sequence[RunEvent]) -> None:
        if events:
            self._has_ended = is_last_event(events[-1])

    def close(self) -> bytes:
        """No more bytes: the last event is the end."""
        if not self._has_ended:
            raise BrokenStreamError
        return b""


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
