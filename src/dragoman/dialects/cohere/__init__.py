"""Cohere Chat, version 2: https://docs.cohere.com/reference/chat; the shapes are those of recorded exchanges.

An assistant's message has content, a plan for its calls, and the calls. The plan is text that was said before calling,
and is a text block that remembers where it stood. Citations belong to the message, not to a text. The input of a call
is a string of JSON. A tool may answer with documents: these are texts here, so that any other model can read them.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.cohere.blocks import NAME, RECORDING_NAMES
from dragoman.dialects.cohere.error import read_error, write_error
from dragoman.dialects.cohere.reply import read_reply, write_reply
from dragoman.dialects.cohere.request import read_request, write_request
from dragoman.dialects.cohere.stream import stream_reader, stream_writer
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/v2/chat")

# Options that a request does not say here, and why nothing is lost by that.
IMPLIED_OPTIONS: Final = {
    "response_format.strict": "a schema is always enforced here",
}

__all__ = [
    "HTTP",
    "IMPLIED_OPTIONS",
    "NAME",
    "RECORDING_NAMES",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]
