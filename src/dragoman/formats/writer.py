"""Write one conversation in a format.

    write(format, request) -> Text                    lines, each with its end, and their losses and adjustments
    write_header(format), write_footer(format)        text before and after them in a file

In the canonical format a line is a message, because a message contains its session id; in every other format a line is
a conversation. Invariant: ``formats.reader`` reads everything that is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman import codec, entries, envelope, renderers
from dragoman.errors import CriticalLossError, DragomanError
from dragoman.exchange import Loss, Reply, Request, Written
from dragoman.formats.reader import answer_id
from dragoman.formats.registry import CANONICAL, ENTRIES, ENVELOPES, PAGES, dialect, has_messages, list_key, transcript
from dragoman.formats.request_metadata import KEY, embed_request, request_fields
from dragoman.message import Message

_NO_PLACE = "a list of messages has no place for it"


class Text(msgspec.Struct, frozen=True):
    """Bytes, losses and adjustments."""

    data: bytes
    losses: tuple[Loss, ...] = ()
    adjustments: tuple[Loss, ...] = ()


def write(name: str, request: Request, *, by_message: bool = False) -> Text:
    """Write the conversation on one line, or with ``by_message`` on one line per message.

    A loss on a critical message raises ``CriticalLossError``.
    """
    if name == CANONICAL:
        lines = [codec.encode(message) for message in embed_request(request)]
        return Text(b"\n".join([*lines, b""]), _request_losses(request, name) if not lines else ())
    if name in PAGES:
        return Text(renderers.write_conversation(name, request.messages))
    written = _write_request(name, request)
    if written.losses:
        _reject_critical(request, written.losses)
    lines = _get_messages(name, written.wire) if by_message else [written.wire]
    return Text(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), written.losses, written.adjustments)


def write_like(name: str, request: Request, original: Any, *, by_message: bool = False) -> tuple[Any, tuple[Loss, ...]]:
    """Return the conversation as a JSON value in the shape of the original, and its losses.

    The shape is a list of messages, a request, or an exchange, whose response is its last message.
    """
    if _is_exchange(name, original):
        return _write_exchange(name, request, original)
    text = write(name, request, by_message=by_message)
    values = [json.loads(line) for line in text.data.splitlines()]
    if by_message or name == CANONICAL:
        return values, text.losses
    is_list = isinstance(original, list) and dialect(name) is not None
    return _get_messages(name, values[0]) if is_list else values[0], text.losses


def write_message(name: str, message: Message) -> Any:
    """Return one message as a JSON value in a format, or in the canonical one if the format cannot express it."""
    try:
        written = _write_request(name, Request(model=None, messages=(message,))) if name != CANONICAL else Written([])
    except DragomanError:
        written = Written([])
    wire = written.wire
    if isinstance(wire, dict) and dialect(name) is not None:
        wire = wire.get(list_key(name))
    if isinstance(wire, list) and len(wire) == 1 and not written.losses:
        return wire[0]
    return json.loads(codec.encode(message))


def _is_exchange(name: str, original: Any) -> bool:
    is_object = dialect(name) is not None and isinstance(original, dict) and not has_messages(name, original)
    return is_object and isinstance(original.get("request"), dict)


def _write_exchange(name: str, request: Request, original: dict[str, Any]) -> tuple[Any, tuple[Loss, ...]]:
    response, module = original.get("response"), dialect(name)
    assert module is not None
    *question, last = request.messages or (None,)
    question_count = len(module.read_request(original["request"]).messages)
    if not isinstance(response, dict) or last is None or last.id != answer_id(question_count):
        value, losses = write_like(name, request, original["request"])
        return {"request": value}, losses
    value, losses = write_like(name, request.replace(messages=tuple(question)), original["request"])
    reply: Reply = module.read_reply(response)
    if reply.content != last.content:
        response = module.write_reply(msgspec.structs.replace(reply, content=last.content)).wire
    return {"request": value, "response": response}, losses


def write_header(name: str, title: str) -> bytes:
    """Return the text before the first conversation of a file."""
    return renderers.write_head(name, title) if name in PAGES else b""


def write_footer(name: str) -> bytes:
    """Return the text after the last conversation of a file."""
    return renderers.write_foot(name) if name in PAGES else b""


def _write_request(name: str, request: Request) -> Written:
    if (module := dialect(name)) is not None:
        is_request = request.provider_raw is not None  # a session or a transcript is written as it is
        written: Written = module.write_request(request, fit=is_request)
        return written
    if name == ENVELOPES:
        return Written(envelope.envelopes_from_messages(embed_request(request)))
    if (module := transcript(name)) is not None:
        written = module.write_messages(request.messages)
    else:
        assert name == ENTRIES, name
        written = entries.entries_from_messages(request.messages)
    return Written(written.wire, (*written.losses, *_request_losses(request, name)))


def _get_messages(name: str, wire: Any) -> list[Any]:
    """Return the messages of a wire value without other fields; else the whole value."""
    key = list_key(name) if dialect(name) is not None else ""
    if isinstance(wire, dict) and wire.keys() == {key} and isinstance(wire[key], list):
        wire = wire[key]
    return wire if isinstance(wire, list) else [wire]


def _request_losses(request: Request, name: str) -> tuple[Loss, ...]:
    return tuple(
        _field_losses(request_fields(request), name, request.messages[0].session_id if request.messages else "")
    )


def _field_losses(fields: dict[str, Any], name: str, session_id: str) -> Iterator[Loss]:
    for field in fields:
        kind = KEY.partition(".")[2] if field == "provider_raw" else field
        yield Loss(session_id, "", kind, name, _NO_PLACE)


def _reject_critical(request: Request, losses: tuple[Loss, ...]) -> None:
    critical = {message.id for message in request.messages if message.metadata.critical}
    for loss in losses:
        if loss.message_id in critical:
            raise CriticalLossError(loss)
