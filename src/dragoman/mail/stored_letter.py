"""Conversions between a letter and its stored form.

    to_stored(letter, encryptor, …)        text with references, encrypted secrets, id and fingerprint
    to_masked(stored)                      the letter with *** for every secret
    to_decrypted(stored, encryptor)        the letter with its secrets, for its recipient
    to_transport(stored), from_transport   bytes for a transport

Invariant: the text of a stored letter contains no secret; ``extract_secrets`` runs before anything is written.
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
    """Convert a letter. ``ids`` are the sensitive inputs of the request that it answers, if known.

    ``text`` is the output of ``write_letter``, if the caller has it.
    """
    public_letter, secrets = extract_secrets(letter, ids) if letter.may_hold_secrets else (letter, {})
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
    """Hash what identifies a letter, independent of the order of its keys."""
    header = (letter.sender_id, letter.recipient_id, letter.task_id, letter.type)
    try:
        data = _SORTED_ENCODER.encode((*header, letter.payload))
    except SlowPathRequired:  # it contains unknown fields as raw bytes
        data = _SORTED_ENCODER.encode((*header, msgspec.json.decode(encode(letter.payload))))
    return hashlib.sha256(data).digest()


def _raise_slow_path(_: object) -> None:
    raise SlowPathRequired


_SORTED_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=_raise_slow_path)


def to_masked(stored: StoredLetter, attempts: int = 0) -> Letter:
    """Return a letter with masked secrets and its number of deliveries."""
    letter = read_stored_letter(stored.text.encode()).with_attempts(attempts)
    return mask_secrets(letter, ()) if REFERENCE in stored.text else letter


def to_decrypted(stored: StoredLetter, encryptor: Encryptor) -> Letter:
    """Return a letter with its secrets. ``stored`` must contain its sealed values."""
    context = (stored.recipient_id, stored.team_id, stored.letter_id)
    secrets: dict[str, Any] = {
        value.input_id: encryptor.decrypt(value.key_id, value.box, *context, value.input_id) for value in stored.sealed
    }
    return insert_secrets(read_stored_letter(stored.text.encode()), secrets)


def to_transport(stored: StoredLetter) -> bytes:
    """Encode a letter for a transport, including its sealed values."""
    return msgspec.json.encode(stored)


def from_transport(data: bytes) -> StoredLetter:
    """Decode a letter from a transport; ``msgspec.MsgspecError`` if it is invalid."""
    return msgspec.json.decode(data, type=StoredLetter)
