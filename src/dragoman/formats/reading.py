"""One conversation, from the texts that it is written down in.

    read(format, pieces, session_id) -> Request

A conversation is one piece, a JSON text of all of it, or a piece for each message. One in a dialect may be a request's
body, a list of messages, or an exchange: an object with a ``request`` and the ``response`` to it, whose answer is then
the last message. The one rule: an error says which piece it is about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dragoman import codec, entries, envelope
from dragoman.errors import DragomanError, FormatError, InputError, JsonError
from dragoman.exchange import Reply, Request
from dragoman.formats.heads import with_head
from dragoman.formats.registry import CANONICAL, ENTRIES, ENVELOPES, UNKNOWN_TIME, dialect, list_key, transcript
from dragoman.jsontext import OWN, read_json
from dragoman.message import Message, MessageMetadata, MessageStatus, Role

_NUMBER: Final = re.compile(r"(?:\[| )(\d+)\]?")


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One line of a file, or one item of a document."""

    number: int
    data: bytes
    before: bytes = b""  # what stands before it in the file: white space, empty lines, a byte order mark
    after: bytes = b"\n"  # and the end of its line


class PieceError(InputError):
    """What is wrong, and with which piece; whoever knows the file says its name."""

    def __init__(self, error: DragomanError, number: int) -> None:
        is_text = isinstance(error, JsonError)
        super().__init__(error.what if is_text else str(error), remedy=error.remedy if is_text else "", code=error.code)
        self.number = number
        self.place = error.where if is_text else ""  # within the text of the piece


def read(name: str, pieces: Sequence[Piece], session_id: str, *, by_message: bool) -> Request:
    """The conversation that one piece is, or that several messages are. Where it names no session, it is this one."""
    if name == CANONICAL and by_message:
        return with_head(_decoded(pieces))
    number = pieces[0].number
    try:
        values = [_value(piece) for piece in pieces]
        request = read_value(name, values if by_message else values[0], session_id)
    except PieceError:
        raise
    except DragomanError as error:
        found = _NUMBER.search(error.where) if by_message else None
        at = int(found[1]) if found else 0
        raise PieceError(error, pieces[at].number if at < len(pieces) else number) from None
    return _in_session(request, session_id)


def _decoded(pieces: Sequence[Piece]) -> tuple[Message, ...]:
    messages = []
    for piece in pieces:
        try:
            messages.append(codec.decode(piece.data))
        except DragomanError as error:
            raise PieceError(error, piece.number) from None
    return tuple(messages)


def _value(piece: Piece) -> Any:
    try:
        return read_json(piece.data, OWN)
    except DragomanError as error:
        raise PieceError(error, piece.number) from None


def read_value(name: str, value: Any, session_id: str) -> Request:
    """The conversation that a JSON value is. Messages may still be without a session."""
    if (module := dialect(name)) is not None:
        return _asked(module, name, value)
    if (module := transcript(name)) is not None:
        messages = module.read_messages(value, session_id=session_id, created_at=UNKNOWN_TIME)
        return Request(model=None, messages=tuple(messages))
    if not isinstance(value, list):
        raise FormatError(f"a conversation is a list of {name}, not {type(value).__name__}", where="$")
    match name:
        case str() if name == ENVELOPES:
            return with_head(tuple(envelope.messages_from_envelopes(value)))
        case str() if name == ENTRIES:
            return with_head(entries.messages_from_entries(value, session_id=session_id))
        case _:
            return with_head(tuple(_canonical(item, number) for number, item in enumerate(value)))


def _canonical(item: Any, number: int) -> Message:
    try:
        return codec.decode(msgspec.json.encode(item))
    except DragomanError as error:
        raise FormatError(str(error), where=f"$[{number}]", code=error.code) from None


# --- dialects --------------------------------------------------------------------------------------------------------


def _asked(module: Any, name: str, value: Any) -> Request:
    key = list_key(name)
    if isinstance(value, list):
        value = {key: value}
    if isinstance(value, dict) and key not in value and isinstance(value.get("request"), dict):
        asked: Request = module.read_request(value["request"])
        if isinstance(value.get("response"), dict):
            return asked.replace(messages=(*asked.messages, _answer(module, value["response"], len(asked.messages))))
        return asked
    if isinstance(value, dict) and key not in value:
        raise FormatError(f"a conversation has a list of messages under {key!r}", where="$")
    request: Request = module.read_request(value)
    return request


def _answer(module: Any, wire: dict[str, Any], number: int) -> Message:
    """What was answered, as a message. What it cost in money nobody has said."""
    reply: Reply = module.read_reply(wire)
    metadata = MessageMetadata(
        model=reply.model,
        status=MessageStatus.COMPLETE if reply.fault is None else MessageStatus.ERROR,
        provider_raw=reply.provider_raw,
    )
    return Message(answer_id(number), "", Role.ASSISTANT, reply.content, metadata, UNKNOWN_TIME)


def answer_id(number: int) -> str:
    """The id of the message that the response of an exchange is read as, after so many messages of its request."""
    return str(number).zfill(26)


# --- sessions --------------------------------------------------------------------------------------------------------


def _in_session(request: Request, session_id: str) -> Request:
    """The same with each message in a session: most formats do not say which it is."""
    for message in request.messages:
        if not message.session_id:  # it was made a moment ago, and nobody else has seen it yet
            msgspec.structs.force_setattr(message, "session_id", session_id)
    return request
