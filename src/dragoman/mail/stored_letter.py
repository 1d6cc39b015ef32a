"""From a letter to what is kept of it, and back to what people may see.

    to_stored(letter, sealing, …)       its text with references, its secrets sealed, its id and its fingerprint
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
    derive_id,
    extract_secrets,
    insert_secrets,
    mask_secrets,
    read_stored_letter,
    write_letter,
)
from dragoman.letters.records import SealedValue, StoredLetter
from dragoman.letters.secret_values import REFERENCE
from dragoman.mail.encryption import Encryptor
from dragoman.value import SlowPathRequired, encode


def to_stored(
    letter: Letter,
    encryptor: Encryptor,
    *,
    text: bytes | None = None,
    ids: Collection[str] | None = None,
    team_id: str = "",
    user_id: str | None = None,
    session_id: str | None = None,
    message_id: str | None = None,
    turn_id: str | None = None,
) -> StoredLetter:
    """What is kept of a letter; ``ids`` are the sensitive inputs of the request that it answers, if that is known.

    ``text`` is what ``write_letter`` gives for it, where somebody has it already.
    """
    public_letter, secrets = extract_secrets(letter, ids)
    content_hash = _hash_content(public_letter)
    secret_hash = encryptor.keyed_hash(json.dumps([content_hash.hex(), secrets], sort_keys=True)) if secrets else ""
    letter_id = letter.message_id or secret_hash or derive_id(public_letter)
    sealed: tuple[SealedValue, ...] = ()
    if secrets:
        context = (letter.recipient_id, team_id, letter_id)
        sealed = tuple(
            SealedValue(input_id, *encryptor.encrypt(value, *context, input_id)) for input_id, value in secrets.items()
        )
    is_result = isinstance(letter, TaskResultLetter) and not letter.is_answer
    return StoredLetter(
        recipient_id=letter.recipient_id,
        team_id=team_id,
        letter_id=letter_id,
        sender_id=letter.sender_id,
        task_id=letter.task_id,
        type=letter.type,
        text=(text if text is not None and public_letter is letter else write_letter(public_letter)).decode(),
        fingerprint=hashlib.sha256(content_hash + secret_hash.encode()).digest(),
        status=letter.payload.status if is_result else None,
        needs=letter.depends_on,
        sealed=sealed,
        trace_id=letter.trace_id or None,
        session_id=session_id or letter.session_id,
        message_id=message_id,
        turn_id=turn_id or letter.turn_id,
        user_id=user_id,
    )


def _hash_content(letter: Letter) -> bytes:
    """What makes a letter this one and no other, whatever order its keys have."""
    header = (letter.sender_id, letter.recipient_id, letter.task_id, letter.type)
    try:
        data = _SORTED_ENCODER.encode((*header, letter.payload))
    except SlowPathRequired:  # it holds what is not known here, in bytes of its own
        plain = msgspec.json.decode(encode(letter.payload))
        data = _SORTED_ENCODER.encode((*header, plain))
    return hashlib.sha256(data).digest()


def _raise_slow_path(_: object) -> None:
    raise SlowPathRequired


_SORTED_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=_raise_slow_path)


def to_masked(stored: StoredLetter, attempts: int = 0) -> Letter:
    """A letter as people may see it, handed out so many times."""
    letter = read_stored_letter(stored.text.encode()).with_attempts(attempts)
    return mask_secrets(letter, ()) if REFERENCE in stored.text else letter


def to_decrypted(stored: StoredLetter, encryptor: Encryptor) -> Letter:
    """A letter with its secrets, for its recipient. ``posted`` has its sealed values."""
    context = (stored.recipient_id, stored.team_id, stored.letter_id)
    secrets: dict[str, Any] = {
        value.input_id: encryptor.decrypt(value.key_id, value.box, *context, value.input_id) for value in stored.sealed
    }
    return insert_secrets(read_stored_letter(stored.text.encode()), secrets)


def to_transport(stored: StoredLetter) -> bytes:
    """What a transport carries: the letter as it is kept, sealed values included."""
    return msgspec.json.encode(stored)


def from_transport(data: bytes) -> StoredLetter:
    """What a transport has brought; ``msgspec.MsgspecError`` if it is no letter that was packed."""
    return msgspec.json.decode(data, type=StoredLetter)
