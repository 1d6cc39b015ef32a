"""OpenAI Chat Completions and its variants: https://platform.openai.com/docs/api-reference/chat.

System prompts are in the list; results are messages of their own. The arguments of a call are a string; a string that
is not a JSON object stays that string. Reasoning has several keys: ``reasoning_content`` (DeepSeek), ``reasoning`` and
``reasoning_details`` (OpenRouter), ``thinking`` parts (Mistral); the notes of a block name its key. The first of
several choices is the reply.
"""

from __future__ import annotations

from typing import Final

from dragoman.dialects.openai_chat.blocks import NAME as NAME
from dragoman.dialects.openai_chat.error import read_error as read_error
from dragoman.dialects.openai_chat.error import write_error as write_error
from dragoman.dialects.openai_chat.quirks import QUIRKS as QUIRKS
from dragoman.dialects.openai_chat.reply import read_reply as read_reply
from dragoman.dialects.openai_chat.reply import write_reply as write_reply
from dragoman.dialects.openai_chat.request import read_request as read_request
from dragoman.dialects.openai_chat.request import write_request as write_request
from dragoman.dialects.openai_chat.stream_reader import stream_reader as stream_reader
from dragoman.dialects.openai_chat.stream_writer import stream_writer as stream_writer
from dragoman.dialects.openai_chat.support import SUPPORT as SUPPORT
from dragoman.wire.http_endpoint import HttpEndpoint

HTTP: Final = HttpEndpoint("/chat/completions")
RECORDING_NAMES: Final = ("writer-chat",)  # another name in recorded traffic; Writer adds fields of its own
