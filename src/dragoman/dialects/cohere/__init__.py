"""Cohere Chat, version 2: https://docs.cohere.com/reference/chat; the shapes come from recorded exchanges.

An assistant message has content, a tool plan and calls. The plan is text before the calls; it becomes a text block
with a note. Citations belong to the message, not to a text. The input of a call is JSON text. Documents in tool
results become texts, so that every model can read them.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.cohere.blocks import NAME as NAME
from dragoman.dialects.cohere.blocks import RECORDING_NAMES as RECORDING_NAMES
from dragoman.dialects.cohere.error import read_error as read_error
from dragoman.dialects.cohere.error import write_error as write_error
from dragoman.dialects.cohere.reply import read_reply as read_reply
from dragoman.dialects.cohere.reply import write_reply as write_reply
from dragoman.dialects.cohere.request import read_request as read_request
from dragoman.dialects.cohere.request import write_request as write_request
from dragoman.dialects.cohere.stream_reader import stream_reader as stream_reader
from dragoman.dialects.cohere.stream_writer import stream_writer as stream_writer
from dragoman.dialects.cohere.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/v2/chat")

# Options without a field in the request, and why nothing is lost.
IMPLIED_OPTIONS: Final = {
    "response_format.strict": "a schema is always enforced",
}
