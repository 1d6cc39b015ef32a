"""Ids of letters.

    letter_id(letter)       context.message_id, or a derived id
    derive_id(letter)       SHA-256 over sender, recipient, task, type and payload

The derived id ignores ``retry_count``, ``timestamp`` and ``trace_id``, so that a letter that is sent again keeps its
id. Invariant: the id of a letter never changes between versions; inboxes rely on it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from dragoman.letters.types import Letter
from dragoman.value import encode


def letter_id(letter: Letter) -> str:
    """Return the id of a letter."""
    return letter.message_id or derive_id(letter)


def derive_id(letter: Letter) -> str:
    """Return the id of a letter without ``message_id``: 64 hexadecimal digits."""
    identity = [letter.sender_id, letter.recipient_id, letter.task_id, letter.type, to_canonical(letter.payload)]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def to_canonical(payload: Any) -> str:
    """Return a payload as text with sorted keys, so that the order of keys does not matter."""
    plain = msgspec.json.decode(encode(payload))
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
