"""Gemini generateContent: https://ai.google.dev/api/generate-content (read November 2026); Vertex speaks the same.

The model stands in the URL, so a request may name none. Results stand inside user contents there and are messages of
their own here; system prompts stand beside the list. Keys come in camelCase and in snake_case: they are read alike, and
which of them were spelled the second way is noted. A call may have no id; then its name and its place are its id.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.gemini.error import read_error, write_error
from dragoman.dialects.gemini.key_case import NAME
from dragoman.dialects.gemini.reply import read_reply, write_reply
from dragoman.dialects.gemini.request import read_request, write_request
from dragoman.dialects.gemini.stream_reader import stream_reader
from dragoman.dialects.gemini.stream_writer import stream_writer
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint(
    "/v1beta/models/{model}:generateContent",
    "/v1beta/models/{model}:streamGenerateContent?alt=sse",
    key_header="x-goog-api-key",
    has_stream_field=False,
)

# Options that a request does not say here, and why nothing is lost by that.
IMPLIED_OPTIONS: Final = {
    "model": "it stands in the address",
    "stream": "the address says whether",
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
