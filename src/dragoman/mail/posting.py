"""From a letter to what is kept of it, and back to what people may see.

    posted_of(letter, sealing, …)       its text with references, its secrets sealed, its id and its fingerprint
    shown(posted)                       the letter with *** for every secret
    opened(posted, sealing)             the letter with its secrets back, for its recipient

The one rule: whatever is made of a letter here goes through ``part`` first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any, Final

import msgspec

from dragoman.letters import (
    Letter,
    TaskResultLetter,
    derived_id,
    joined,
    masked,
    part,
    read_stored_letter,
    write_letter,
)
from dragoman.letters.kept import Posted, SealedValue
from dragoman.letters.sensitive import REFERENCE
from dragoman.mail.sealing import Sealing
from dragoman.value import NeedsCareError, encode


def posted_of(
    letter: Letter,
    sealing: Sealing,
    *,
    text: bytes | None = None,
    ids: Collection[str] | None = None,
    team_id: str = "",
    user_id: str | None = None,
    session_id: str | None = None,
    message_id: str | None = None,
    turn_id: str | None = None,
) -> Posted:
    """What is kept of a letter; ``ids`` are the sensitive inputs of the request that it answers, if that is known.

    ``text`` is what ``write_letter`` gives for it, where somebody has it already.
    """
    parted, secrets = part(letter, ids)
    words = _words(parted)
    hidden = sealing.named(json.dumps([words.hex(), secrets], sort_keys=True)) if secrets else ""
    name = letter.message_id or hidden or derived_id(parted)
    sealed: tuple[SealedValue, ...] = ()
    if secrets:
        where = (letter.recipient_id, team_id, name)
        sealed = tuple(
            SealedValue(input_id, *sealing.seal(value, *where, input_id)) for input_id, value in secrets.items()
        )
    is_result = isinstance(letter, TaskResultLetter) and not letter.is_answer
    return Posted(
        recipient_id=letter.recipient_id,
        team_id=team_id,
        letter_id=name,
        sender_id=letter.sender_id,
        task_id=letter.task_id,
        type=letter.type,
        text=(text if text is not None and parted is letter else write_letter(parted)).decode(),
        fingerprint=hashlib.sha256(words + hidden.encode()).digest(),
        status=letter.payload.status if is_result else None,
        needs=letter.depends_on,
        sealed=sealed,
        trace_id=letter.trace_id or None,
        session_id=session_id or letter.session_id,
        message_id=message_id,
        turn_id=turn_id or letter.turn_id,
        user_id=user_id,
    )


def _words(letter: Letter) -> bytes:
    """What makes a letter this one and no other, whatever order its keys have."""
    said = (letter.sender_id, letter.recipient_id, letter.task_id, letter.type)
    try:
        data = _SORTED.encode((*said, letter.payload))
    except NeedsCareError:  # it holds what is not known here, in bytes of its own
        plain = msgspec.json.decode(encode(letter.payload))
        data = _SORTED.encode((*said, plain))
    return hashlib.sha256(data).digest()


def _care(_: object) -> None:
    raise NeedsCareError


_SORTED: Final = msgspec.json.Encoder(order="sorted", enc_hook=_care)


def shown(posted: Posted, attempts: int = 0) -> Letter:
    """A letter as people may see it, handed out so many times."""
    letter = read_stored_letter(posted.text.encode()).after(attempts)
    return masked(letter, ()) if REFERENCE in posted.text else letter


def opened(posted: Posted, sealing: Sealing) -> Letter:
    """A letter with its secrets, for its recipient. ``posted`` has its sealed values."""
    where = (posted.recipient_id, posted.team_id, posted.letter_id)
    secrets: dict[str, Any] = {
        value.input_id: sealing.open(value.key_id, value.box, *where, value.input_id) for value in posted.sealed
    }
    return joined(read_stored_letter(posted.text.encode()), secrets)


def packed(posted: Posted) -> bytes:
    """What a transport carries: the letter as it is kept, sealed values included."""
    return msgspec.json.encode(posted)


def unpacked(data: bytes) -> Posted:
    """What a transport has brought; ``msgspec.MsgspecError`` if it is no letter that was packed."""
    return msgspec.json.decode(data, type=Posted)
