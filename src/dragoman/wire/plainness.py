"""Whether parts of a wire are plain enough to be taken as they are, asked in a hurry.

    is_sound(text)      bytes can say it
    is_json(value)      an object that can be written down as it is

Both may say no to something that is all right; then the long way looks closely. The one rule: a yes is always true of
what came from JSON.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

_MAX_BRACKETS: Final = 64  # brackets, so that nothing is nested too deep
_encode: Final = msgspec.json.Encoder().encode


def is_encodable(text: str) -> bool:
    """Whether bytes can say it: a lone surrogate they cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_json(value: dict[str, Any]) -> bool:
    """Whether it can be written down as it is. What is no number would be written as null, so a null is not plain."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return _is_simple(data)


@functools.lru_cache(maxsize=1024)  # the same tools come in every turn
def _is_simple(data: bytes) -> bool:
    return b"null" not in data and data.count(b"{") + data.count(b"[") <= _MAX_BRACKETS
