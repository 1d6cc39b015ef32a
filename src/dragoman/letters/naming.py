"""How a letter is known: by the id that its sender gave it, or by what it says.

    letter_id(letter)       context.message_id, or one that is derived
    derived_id(letter)      SHA-256 over sender, recipient, task, type and payload

``retry_count``, ``timestamp`` and ``trace_id`` are left out, so that a letter that is sent again with a higher count is
still the same letter. The one rule: the same words give the same id for ever; inboxes rely on it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from dragoman.letters.types import Letter
from dragoman.value import encode


def letter_id(letter: Letter) -> str:
    """The id of a letter."""
    return letter.message_id or derive_id(letter)


def derive_id(letter: Letter) -> str:
    """The id of a letter that was given none: 64 hexadecimal digits."""
    identity = [letter.sender_id, letter.recipient_id, letter.task_id, letter.type, to_canonical(letter.payload)]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def to_canonical(payload: Any) -> str:
    """A payload as text in which keys are sorted: two senders that order them differently say the same."""
    plain = msgspec.json.decode(encode(payload))
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
