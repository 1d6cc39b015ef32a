"""Anthropic Messages: https://platform.claude.com/docs/en/api/messages (read November 2026).

Tool results are part of user messages there and messages of their own here; consecutive results are written as one user
message. System prompts are beside the list. A tool that the provider runs on its servers is an opaque block.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.anthropic.blocks import NAME
from dragoman.dialects.anthropic.error import read_error, write_error
from dragoman.dialects.anthropic.reply import read_reply, write_reply
from dragoman.dialects.anthropic.request import read_request, write_request
from dragoman.dialects.anthropic.stream_reader import stream_reader
from dragoman.dialects.anthropic.stream_writer import stream_writer
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/v1/messages", key_header="x-api-key", headers=(("anthropic-version", "2023-06-01"),))

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
