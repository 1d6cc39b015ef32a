"""OpenAI Responses, as OpenAI, Azure, xAI, OpenRouter and local servers implement it.

The wire is a flat list of items. Consecutive items of the model (text, reasoning, calls) are one assistant message
here, each block with the residue of its item; a tool result is a message of its own, as on the wire. ``instructions``
is a system message beside the list. A tool that the provider runs on its servers is an opaque block.

Notes of a block in ``provider_raw``, beside its residue:

    item       the block starts a message item, and this is the residue of that item (id, status, …)
    content    "string": the content of that item is a text instead of a list of parts
    form       "refusal", "bare", "part", "content", "list": which of several shapes the wire has
    cuts       the lengths of the summaries that a reasoning text was joined from
    id         the id of the call on the wire, where it is not our id

Notes of a reply:

    output_text    the response repeats its text beside its items
    revised        by item id: the difference between the item and its repetition in the last event of a stream
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.openai_responses.blocks import NAME as NAME
from dragoman.dialects.openai_responses.error import read_error as read_error
from dragoman.dialects.openai_responses.error import write_error as write_error
from dragoman.dialects.openai_responses.reply import read_reply as read_reply
from dragoman.dialects.openai_responses.reply import write_reply as write_reply
from dragoman.dialects.openai_responses.request import QUIRKS as QUIRKS
from dragoman.dialects.openai_responses.request import read_request as read_request
from dragoman.dialects.openai_responses.request import write_request as write_request
from dragoman.dialects.openai_responses.stream_reader import stream_reader as stream_reader
from dragoman.dialects.openai_responses.stream_writer import stream_writer as stream_writer
from dragoman.dialects.openai_responses.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/responses")
