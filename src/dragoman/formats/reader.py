"""Read one conversation from its fragments.

    read(format, fragments, session_id) -> Request

A conversation is one fragment, or one fragment per message. In a dialect it may be a request body, a list of messages,
or an exchange: an object with a ``request`` and its ``response``, which becomes the last message. Errors contain the
number of the fragment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dragoman import codec, entries, envelope
from dragoman.errors import DragomanError, FormatError, InputError, JsonError
from dragoman.exchange import Reply, Request
from dragoman.formats.registry import (
    CANONICAL,
    ENTRIES,
    ENVELOPES,
    UNKNOWN_TIME,
    dialect,
    has_messages,
    list_key,
    transcript,
)
from dragoman.formats.request_metadata import restore_request
from dragoman.jsontext import OWN, read_json
from dragoman.message import Message, MessageMetadata, MessageStatus, Role

_NUMBER: Final = re.compile(r"(?:\[| )(\d+)\]?")


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """One line of a file, or one item of a document."""

    number: int
    data: bytes
    before: bytes = b""  # text before it in the file: white space, empty lines, a byte order mark
    after: bytes = b"\n"  # the end of its line


class FragmentError(InputError):
    """An error in a fragment; the caller adds the name of the file."""

    def __init__(self, error: DragomanError, number: int) -> None:
        is_text = isinstance(error, JsonError)
        super().__init__(error.what if is_text else str(error), remedy=error.remedy if is_text else "", code=error.code)
        self.number = number
        self.path = error.where if is_text else ""  # within the text of the fragment


def read(name: str, fragments: Sequence[Fragment], session_id: str, *, by_message: bool) -> Request:
    """Read the conversation of one fragment, or of one fragment per message. ``session_id`` is the default session."""
    if name == CANONICAL and by_message:
        return restore_request(_decode_messages(fragments))
    number = fragments[0].number
    try:
        values = [_parse_fragment(fragment) for fragment in fragments]
        request = read_value(name, values if by_message else values[0], session_id)
    except FragmentError:
        raise
    except DragomanError as error:
        match = _NUMBER.search(error.where) if by_message else None
        index = int(match[1]) if match else 0
        raise FragmentError(error, fragments[index].number if index < len(fragments) else number) from None
    return _set_session(request, session_id)


def _decode_messages(fragments: Sequence[Fragment]) -> tuple[Message, ...]:
    messages = []
    for fragment in fragments:
        try:
            messages.append(codec.decode(fragment.data))
        except DragomanError as error:
            raise FragmentError(error, fragment.number) from None
    return tuple(messages)


def _parse_fragment(fragment: Fragment) -> Any:
    try:
        return read_json(fragment.data, OWN)
    except DragomanError as error:
        raise FragmentError(error, fragment.number) from None


def read_value(name: str, value: Any, session_id: str) -> Request:
    """Read the conversation of a JSON value. Messages may have no session yet."""
    if (module := dialect(name)) is not None:
        return _read_dialect_value(module, name, value)
    if (module := transcript(name)) is not None:
        messages = module.read_messages(value, session_id=session_id, created_at=UNKNOWN_TIME)
        return Request(model=None, messages=tuple(messages))
    if not isinstance(value, list):
        raise FormatError(f"expected a list of {name}, not {type(value).__name__}", where="$")
    match name:
        case str() if name == ENVELOPES:
            return restore_request(tuple(envelope.messages_from_envelopes(value)))
        case str() if name == ENTRIES:
            return restore_request(entries.messages_from_entries(value, session_id=session_id))
        case _:
            return restore_request(tuple(_decode_item(item, number) for number, item in enumerate(value)))


def _decode_item(item: Any, number: int) -> Message:
    try:
        return codec.decode(msgspec.json.encode(item))
    except DragomanError as error:
        raise FormatError(str(error), where=f"$[{number}]", code=error.code) from None


# --- dialects --------------------------------------------------------------------------------------------------------


def _read_dialect_value(module: Any, name: str, value: Any) -> Request:
    key = list_key(name)
    if isinstance(value, list):
        value = {key: value}
    if isinstance(value, dict) and not has_messages(name, value) and isinstance(value.get("request"), dict):
        request_part: Request = module.read_request(value["request"])
        if isinstance(value.get("response"), dict):
            return request_part.replace(
                messages=(*request_part.messages, _read_answer(module, value["response"], len(request_part.messages)))
            )
        return request_part
    if isinstance(value, dict) and not has_messages(name, value):
        raise FormatError(f"expected a list of messages under {key!r}", where="$")
    request: Request = module.read_request(value)
    return request


def _read_answer(module: Any, wire: dict[str, Any], number: int) -> Message:
    """Read the response as a message; its cost is unknown."""
    reply: Reply = module.read_reply(wire)
    metadata = MessageMetadata(
        model=reply.model,
        status=MessageStatus.COMPLETE if reply.fault is None else MessageStatus.ERROR,
        provider_raw=reply.provider_raw,
    )
    return Message(answer_id(number), "", Role.ASSISTANT, reply.content, metadata, UNKNOWN_TIME)


def answer_id(number: int) -> str:
    """Return the id of the message for the response of an exchange with ``number`` request messages."""
    return str(number).zfill(26)


# --- sessions --------------------------------------------------------------------------------------------------------


def _set_session(request: Request, session_id: str) -> Request:
    """Set the session of messages without one: most formats have no sessions."""
    for message in request.messages:
        if not message.session_id:  # it is new and not shared yet
            msgspec.structs.force_setattr(message, "session_id", session_id)
    return request
