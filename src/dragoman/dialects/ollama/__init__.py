"""Ollama chat, ``/api/chat``: https://docs.ollama.com/api/chat; the shapes come from recorded exchanges.

A message has one text, one reasoning text, a list of images and a list of calls, without an order between them. Most
calls have no id: it is derived from name and position, and a result is matched by the name of its tool, else to the
oldest call without a result. A stream has one such object per line; ``done`` ends it, often without a reason.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.ollama.blocks import NAME as NAME
from dragoman.dialects.ollama.error import read_error as read_error
from dragoman.dialects.ollama.error import write_error as write_error
from dragoman.dialects.ollama.reply import read_reply as read_reply
from dragoman.dialects.ollama.reply import write_reply as write_reply
from dragoman.dialects.ollama.request import read_request as read_request
from dragoman.dialects.ollama.request import write_request as write_request
from dragoman.dialects.ollama.stream_reader import stream_reader as stream_reader
from dragoman.dialects.ollama.stream_writer import stream_writer as stream_writer
from dragoman.dialects.ollama.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/api/chat", stream_type="application/x-ndjson")

# Options without a field in the request, and why nothing is lost.
IMPLIED_OPTIONS: Final = {
    "response_format.strict": "a schema is always enforced",
}
