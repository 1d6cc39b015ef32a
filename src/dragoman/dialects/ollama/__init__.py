"""Ollama chat, ``/api/chat``: https://docs.ollama.com/api/chat; the shapes are those of recorded exchanges.

A message is one text, one reasoning, a list of pictures and a list of calls; the order between them is not said. Most
calls have no id: their ids here are made from their name and position, and a result finds its call by the tool's name,
else as the oldest that has no answer yet. A stream is the same object a line, and ``done`` ends it, often without a
reason.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.ollama.blocks import NAME
from dragoman.dialects.ollama.error import read_error, write_error
from dragoman.dialects.ollama.reply import read_reply, write_reply
from dragoman.dialects.ollama.request import read_request, write_request
from dragoman.dialects.ollama.stream import stream_reader, stream_writer
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/api/chat", stream_type="application/x-ndjson")

# Options that a request does not say here, and why nothing is lost by that.
IMPLIED_OPTIONS: Final = {
    "response_format.strict": "a schema is always enforced here",
}

__all__ = [
    "HTTP",
    "IMPLIED_OPTIONS",
    "NAME",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]
