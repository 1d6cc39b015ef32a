"""How a dialect is asked over HTTP: the path behind the base URL, the header for the key, and others that it wants.

The base URL is meant as the providers' own SDKs mean it: OpenAI's ends in a version, the others' do not.
"""

from __future__ import annotations

from typing import Final

import msgspec

BEARER: Final = "authorization"


class HttpEndpoint(msgspec.Struct, frozen=True):
    """How a dialect is asked. ``{model}`` in a path stands for the model."""

    path: str  # the path
    stream_path: str | None = None  # the same, where it differs for a stream
    key_header: str = BEARER  # with ``Bearer`` before the key; any other has the key alone
    headers: tuple[tuple[str, str], ...] = ()
    has_stream_field: bool = True  # whether a request says itself, by ``stream``, that it wants one
    stream_type: str = "text/event-stream"
