"""Amazon Bedrock Converse: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html.

Read in November 2026, together with the service model of botocore 1.44. The model stands in the URL. A block is an
object with one key, its kind. Results stand inside user messages there and are messages of their own here; the two
sides take turns, so what stands next to each other on one side is written as one message, unless it came apart. Words
that only some models understand travel in ``additionalModelRequestFields``, and each family of models has its own.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.bedrock_converse.error import read_error, write_error
from dragoman.dialects.bedrock_converse.mappings import NAME
from dragoman.dialects.bedrock_converse.reply import read_reply, write_reply
from dragoman.dialects.bedrock_converse.request import read_request, write_request
from dragoman.dialects.bedrock_converse.stream_reader import stream_reader
from dragoman.dialects.bedrock_converse.stream_writer import stream_writer
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint(
    "/model/{model}/converse",
    "/model/{model}/converse-stream",
    has_stream_field=False,
    stream_type="application/vnd.amazon.eventstream",
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
