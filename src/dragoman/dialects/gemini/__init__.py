"""Gemini generateContent: https://ai.google.dev/api/generate-content (read November 2026). Vertex uses the same format.

The model is part of the URL, so a request may not contain one. Tool results are parts of user contents on the wire and
separate messages here; system prompts are outside the list of contents. Keys may be in camelCase or snake_case: both
are read, and the notes record which keys were in snake_case. A call may have no id; its id is then derived from its
name and position.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.gemini.error import read_error as read_error
from dragoman.dialects.gemini.error import write_error as write_error
from dragoman.dialects.gemini.key_case import NAME as NAME
from dragoman.dialects.gemini.reply import read_reply as read_reply
from dragoman.dialects.gemini.reply import write_reply as write_reply
from dragoman.dialects.gemini.request import read_request as read_request
from dragoman.dialects.gemini.request import write_request as write_request
from dragoman.dialects.gemini.stream_reader import stream_reader as stream_reader
from dragoman.dialects.gemini.stream_writer import stream_writer as stream_writer
from dragoman.dialects.gemini.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint(
    "/v1beta/models/{model}:generateContent",
    "/v1beta/models/{model}:streamGenerateContent?alt=sse",
    key_header="x-goog-api-key",
    has_stream_field=False,
)

# Options without a field in the request body, and why nothing is lost.
IMPLIED_OPTIONS: Final = {
    "model": "it is part of the URL",
    "stream": "it is part of the URL",
    "response_format.strict": "a schema is always enforced",
}
