"""One conversation, as a format has it.

    write(format, request) -> Text(data, losses)      lines, each with its end
    begin(format), end(format)                        what a file of that format has before and after them

In the canonical format a line is a message, because a message names its session; in every other one a line is a
conversation. The one rule: what is written here is read by ``reading`` again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman import codec, entries, envelope, pages
from dragoman.errors import CriticalLossError
from dragoman.exchange import Loss, Request, Written
from dragoman.formats.heads import KEY, parts_of, without_head
from dragoman.formats.registry import CANONICAL, ENTRIES, ENVELOPES, PAGES, dialect, list_key, transcript

_REASON = "a list of messages has no place for it"


class Text(msgspec.Struct, frozen=True):
    """Bytes, and what is not in them."""

    data: bytes
    losses: tuple[Loss, ...] = ()


def write(name: str, request: Request, *, by_message: bool = False) -> Text:
    """The conversation in a format, on one line, or with ``by_message`` on one for each message.

    A loss on a message that is critical is a ``CriticalLossError``.
    """
    if name == CANONICAL:
        lines = [codec.encode(message) for message in without_head(request)]
        return Text(b"\n".join([*lines, b""]), _lost_head(request, name) if not lines else ())
    if name in PAGES:
        return Text(pages.conversation(name, request.messages))
    written = _written(name, request)
    if written.losses:
        _refuse_critical(request, written.losses)
    lines = _messages_on(name, written.wire) if by_message else [written.wire]
    return Text(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), written.losses)


def begin(name: str, title: str) -> bytes:
    """What a file has before its first conversation."""
    return pages.begin(name, title) if name in PAGES else b""


def end(name: str) -> bytes:
    """What a file has after its last conversation."""
    return pages.end(name) if name in PAGES else b""


def _written(name: str, request: Request) -> Written:
    if (module := dialect(name)) is not None:
        made: Written = module.write_request(request)
        return made
    if name == ENVELOPES:
        return Written(envelope.envelopes_from_messages(without_head(request)))
    if (module := transcript(name)) is not None:
        made = module.write_messages(request.messages)
    else:
        assert name == ENTRIES, name
        made = entries.entries_from_messages(request.messages)
    return Written(made.wire, (*made.losses, *_lost_head(request, name)))


def _messages_on(name: str, wire: Any) -> list[Any]:
    """The messages of a wire, if it says nothing else; else the whole of it."""
    if isinstance(wire, dict) and dialect(name) is not None and wire.keys() == {list_key(name)}:
        wire = wire[list_key(name)]
    return wire if isinstance(wire, list) else [wire]


def _lost_head(request: Request, name: str) -> tuple[Loss, ...]:
    return tuple(_losses_of_head(parts_of(request), name, request.messages[0].session_id if request.messages else ""))


def _losses_of_head(parts: dict[str, Any], name: str, session_id: str) -> Iterator[Loss]:
    for part in parts:
        kind = KEY.partition(".")[2] if part == "provider_raw" else part
        yield Loss(session_id, "", kind, name, _REASON)


def _refuse_critical(request: Request, losses: tuple[Loss, ...]) -> None:
    critical = {message.id for message in request.messages if message.metadata.critical}
    for loss in losses:
        if loss.message_id in critical:
            raise CriticalLossError(loss)
