"""The HTTP endpoint of a dialect: path behind the base URL, header for the key, other headers.

The base URL has the meaning that it has in the provider's own SDK: OpenAI's ends in a version, others do not.
"""

from __future__ import annotations

from typing import Final

import msgspec

BEARER: Final = "authorization"


class HttpEndpoint(msgspec.Struct, frozen=True):
    """The address and the method of a request. ``{model}`` in a path is replaced by the model."""

    path: str  # the path
    stream_path: str | None = None  # for a stream, if it is another one
    key_header: str = BEARER  # ``authorization`` has ``Bearer`` before the key; other headers have the key only
    headers: tuple[tuple[str, str], ...] = ()
    has_stream_field: bool = True  # whether the field ``stream`` of a request selects streaming
    stream_type: str = "text/event-stream"
