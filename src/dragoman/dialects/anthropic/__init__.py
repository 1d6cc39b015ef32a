"""Anthropic Messages: https://platform.claude.com/docs/en/api/messages (read November 2026).

Tool results are part of user messages there and messages of their own here; consecutive results are written as one user
message. System prompts are beside the list. A tool that the provider runs on its servers is an opaque block.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.anthropic.blocks import NAME as NAME
from dragoman.dialects.anthropic.error import read_error as read_error
from dragoman.dialects.anthropic.error import write_error as write_error
from dragoman.dialects.anthropic.reply import read_reply as read_reply
from dragoman.dialects.anthropic.reply import write_reply as write_reply
from dragoman.dialects.anthropic.request import read_request as read_request
from dragoman.dialects.anthropic.request import write_request as write_request
from dragoman.dialects.anthropic.stream_reader import stream_reader as stream_reader
from dragoman.dialects.anthropic.stream_writer import stream_writer as stream_writer
from dragoman.dialects.anthropic.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/v1/messages", key_header="x-api-key", headers=(("anthropic-version", "2023-06-01"),))

# Options without a field in the request, and why they are not lost.
IMPLIED_OPTIONS: Final = {
    "response_format.strict": "a schema is always enforced",
}
