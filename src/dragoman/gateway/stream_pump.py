"""Read a provider's stream, and return its bytes in the caller's API.

    pump = StreamPump(response, stream)
    await pump.start(patience_s)          read until the answer begins: until then another model can be tried
    while pump.has_more:
        data = await pump.next(ping_s)    the caller's next bytes
    pump.close()

A connection that breaks ends the stream with an error in the caller's API.
"""

from __future__ import annotations

from collections import deque

from dragoman.client.call import NetworkError
from dragoman.gateway.streams import NativeStream
from dragoman.gateway.translation import StreamTranslator
from dragoman.gateway.upstream import UpstreamResponse

Stream = NativeStream | StreamTranslator


class StreamPump:
    """Feeds a provider's chunks to a stream, and returns the bytes for the caller."""

    def __init__(self, response: UpstreamResponse, stream: Stream) -> None:
        self._response = response
        self.stream = stream
        self._ready: deque[bytes] = deque()  # of the beginning of the answer
        self._has_ended = False

    async def start(self, patience_s: float) -> None:
        """Read until the answer begins or fails. Wait at most ``patience_s`` seconds for a silent provider."""
        stream = self.stream
        while not (self._has_ended or stream.has_content or stream.fault is not None):
            data = await self._read(patience_s)
            if data is None:
                return
            self._ready.append(data)

    @property
    def has_more(self) -> bool:
        """Whether ``next`` may be called."""
        return not self._has_ended or bool(self._ready)

    async def next(self, ping_s: float) -> bytes | None:
        """Return the caller's next bytes; none if the provider is silent for ``ping_s`` seconds."""
        return self._ready.popleft() if self._ready else await self._read(ping_s)

    async def _read(self, patience_s: float) -> bytes | None:
        try:
            chunk = await self._response.read_within(patience_s)
        except NetworkError as error:
            self._has_ended = True
            return self.stream.fail(error.fault)
        if chunk is None:
            return None
        data = self.stream.feed(chunk) if chunk else self.stream.close()
        self._has_ended = not chunk or self.stream.fault is not None
        return data

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
