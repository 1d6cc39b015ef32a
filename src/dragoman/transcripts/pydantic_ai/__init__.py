"""Messages of pydantic-ai, version 2(``ModelMessagesTypeAdapter``): https://ai.pydantic.dev/message-history.

A history is a list of requests and responses, each with parts. A response is one assistant message; the parts of a
request are separate messages. Reasoning is written with its signature and its provider, because the package sends a
signature only to that provider. Searches, files and summaries of a provider are opaque.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.jsontext import expect_list, expect_object
from dragoman.message import Message, Role
from dragoman.transcripts.base import TranscriptReader, read_transcript
from dragoman.transcripts.pydantic_ai.model_requests import ReadState, read_request, starts_request, write_request
from dragoman.transcripts.pydantic_ai.model_responses import read_response, write_response
from dragoman.transcripts.pydantic_ai.shapes import NAME
from dragoman.transcripts.pydantic_ai.write_context import WriteContext


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[Message, ...]:
    """Read a history; ``created_at`` is the time of items without one."""
    reader = TranscriptReader(NAME, session_id, created_at)
    return read_transcript(wire, lambda history, _: _read_history(history, ReadState(reader, created_at)), reader)


def _read_history(history: Any, state: ReadState) -> None:
    reader = state.reader
    for index, item in enumerate(expect_list(history, "$")):
        where = reader.path = f"$[{index}]"
        message = expect_object(item, where)
        match message.get("kind"):
            case "request":
                read_request(message, where, state)
            case "response":
                read_response(message, where, reader)
            case kind:
                raise FormatError(f"expected a request or a response, not {kind!r:.100}", where=f"{where}.kind")


def write_messages(messages: Iterable[Message]) -> Written:
    """Write a history and report losses."""
    history = tuple(messages)
    context = WriteContext(history)
    wire = [
        write_response(group[0], context) if group[0].role is Role.ASSISTANT else write_request(group, context)
        for group in _group_messages(history, context)
    ]
    return Written(wire, tuple(context.losses))


def _group_messages(messages: Iterable[Message], context: WriteContext) -> Iterator[list[Message]]:
    """Yield each assistant message, and the messages between them."""
    group: list[Message] = []
    for message in (supported for supported in map(context.supported_message, messages) if supported is not None):
        if group and (message.role is Role.ASSISTANT or starts_request(message)):
            yield group
            group = []
        if message.role is Role.ASSISTANT:
            yield [message]
        else:
            group.append(message)
    if group:
        yield group


def looks_like(wire: Any) -> bool:
    """Return whether a value may be a history of this package."""
    match wire:
        case [{"kind": "request" | "response", "parts": list()}, *_]:
            return True
        case _:
            return False


__all__ = ["NAME", "looks_like", "read_messages", "write_messages"]
