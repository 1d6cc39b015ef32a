"""OpenAI Responses, as OpenAI, Azure, xAI, OpenRouter and local servers speak it.

The wire is a flat list of items. What the model said, thought and called, one item after the other, is one assistant
message here, each block with the residue of its own item; the result of a call is a message of its own, as it is
there. ``instructions`` is a system message that stands beside the list. What the provider runs on its own servers is
an opaque block.

What a block remembers beside its residue, in ``provider_raw``:

    item       it begins a message item, and this is the residue of that item (its id, its status, …)
    content    "string": the content of that item is a text instead of a list of parts
    form       "refusal", "bare", "part", "content", "list": which of several shapes the wire has for it
    cuts       the lengths of the summaries that a reasoning text was joined from
    id         what the wire calls the call, where that is not our id

And what a reply remembers:

    output_text    the response repeats its words beside its items
    revised        by the id of an item: what the last event of a stream said otherwise about it
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.openai_responses.blocks import NAME
from dragoman.dialects.openai_responses.error import read_error, write_error
from dragoman.dialects.openai_responses.reply import read_reply, write_reply
from dragoman.dialects.openai_responses.request import QUIRKS, read_request, write_request
from dragoman.dialects.openai_responses.stream_reader import stream_reader
from dragoman.dialects.openai_responses.stream_writer import stream_writer
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/responses")

__all__ = [
    "HTTP",
    "NAME",
    "QUIRKS",
    "read_error",
    "read_reply",
    "read_request",
    "stream_reader",
    "stream_writer",
    "write_error",
    "write_reply",
    "write_request",
]
