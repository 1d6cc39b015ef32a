"""Messages of pydantic-ai, version 2, as ``ModelMessagesTypeAdapter`` writes them: https://ai.pydantic.dev/message-history.

A list of requests and responses, each with parts. A response is one message of an assistant; the parts of a request are
messages of their own. Its reasoning is written with its signature and the provider that made it, because the package
gives a signature back to that provider alone; other formats and wires have their own rules. What the provider did or
made itself (its searches, its pictures, its summaries) is opaque. The one rule is that of each file here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from dragoman.dialects.parts.body import a_list, an_object
from dragoman.errors import FormatError
from dragoman.exchange import Written
from dragoman.message import Message, Role
from dragoman.transcripts.parts import Reading, read_all
from dragoman.transcripts.pydantic_ai.requests import Told, begins_request, read_request, written_request
from dragoman.transcripts.pydantic_ai.responses import read_response, written_response
from dragoman.transcripts.pydantic_ai.words import NAME
from dragoman.transcripts.pydantic_ai.writing import Writing


def read_messages(wire: Any, *, session_id: str, created_at: datetime) -> tuple[Message, ...]:
    """The messages of a history; ``created_at`` is when something was said that does not say so itself."""
    reading = Reading(NAME, session_id, created_at)
    return read_all(wire, lambda history, _: _read(history, Told(reading, created_at)), reading)


def _read(history: Any, told: Told) -> None:
    reading = told.reading
    for index, item in enumerate(a_list(history, "$")):
        where = reading.place = f"$[{index}]"
        message = an_object(item, where)
        match message.get("kind"):
            case "request":
                read_request(message, where, told)
            case "response":
                read_response(message, where, reading)
            case kind:
                raise FormatError(f"a request or a response belongs here, not {kind!r:.100}", where=f"{where}.kind")


def write_messages(messages: Iterable[Message]) -> Written:
    """The history again, and what of the messages is not in it."""
    said = tuple(messages)
    writing = Writing(said)
    wire = [
        written_response(group[0], writing) if group[0].role is Role.ASSISTANT else written_request(group, writing)
        for group in _grouped(said, writing)
    ]
    return Written(wire, tuple(writing.losses))


def _grouped(messages: Iterable[Message], writing: Writing) -> Iterator[list[Message]]:
    """Each answer, and what stands between answers."""
    group: list[Message] = []
    for message in (told for told in map(writing.spoken, messages) if told is not None):
        if group and (message.role is Role.ASSISTANT or begins_request(message)):
            yield group
            group = []
        if message.role is Role.ASSISTANT:
            yield [message]
        else:
            group.append(message)
    if group:
        yield group


def looks_like(wire: Any) -> bool:
    """Whether a value may be a history of this package."""
    match wire:
        case [{"kind": "request" | "response", "parts": list()}, *_]:
            return True
        case _:
            return False


__all__ = ["NAME", "looks_like", "read_messages", "write_messages"]
