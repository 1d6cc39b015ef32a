"""Amazon Bedrock Converse: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html.

Read in November 2026, with the service model of botocore 1.44. The model is part of the URL. A block is an object with
one key, its type. Tool results are inside user messages on the wire and separate messages here. Roles alternate, so
consecutive messages of one role are written as one, unless they were separate. Model-specific options are in
``additionalModelRequestFields``; each model family has its own names.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.bedrock_converse.error import read_error as read_error
from dragoman.dialects.bedrock_converse.error import write_error as write_error
from dragoman.dialects.bedrock_converse.mappings import NAME as NAME
from dragoman.dialects.bedrock_converse.reply import read_reply as read_reply
from dragoman.dialects.bedrock_converse.reply import write_reply as write_reply
from dragoman.dialects.bedrock_converse.request import read_request as read_request
from dragoman.dialects.bedrock_converse.request import write_request as write_request
from dragoman.dialects.bedrock_converse.stream_reader import stream_reader as stream_reader
from dragoman.dialects.bedrock_converse.stream_writer import stream_writer as stream_writer
from dragoman.dialects.bedrock_converse.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint(
    "/model/{model}/converse",
    "/model/{model}/converse-stream",
    has_stream_field=False,
    stream_type="application/vnd.amazon.eventstream",
)

# Options without a field in the request body, and why nothing is lost.
IMPLIED_OPTIONS: Final = {
    "model": "it is part of the URL",
    "stream": "it is part of the URL",
    "response_format.strict": "a schema is always enforced",
}
