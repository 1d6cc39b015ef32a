"""What came and was no letter, as people may see it: bytes in, a text without secrets out.

    seen(raw) -> Seen          its text, how much it was, and whether it is shown otherwise than it came

What should have been a letter may hold secrets that nobody can name, because it could not be read. So every value of
``inputs`` and every default of what is asked for is ``***``, and so is whatever looks like a key. The one rule: where
it cannot be told what is a secret, the rest is withheld.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError
from dragoman.jsontext import read_json
from dragoman.letters import MASK
from dragoman.redaction import Redactor

_MAX_CHARS: Final = 20_000  # characters
_SECRET_START: Final = re.compile(r"inputs|default|sensitive", re.IGNORECASE)
_OMISSION: Final = "… [the rest is withheld: it is not JSON, and may hold what is sensitive]"


class RedactedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What came, as people may see it."""

    text: str
    size: int  # in bytes, as it came
    is_changed: bool  # secrets were taken out, it was cut, or it is no text


def redact_invalid(raw: bytes, redactor: Redactor) -> RedactedBytes:
    """Bytes that should have been a letter, as a text."""
    decoded = raw.decode("utf-8", "backslashreplace")
    text = redactor.text(_mask(decoded))
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}…"
    return RedactedBytes(text=text, size=len(raw), is_changed=text.encode() != raw)


def _mask(text: str) -> str:
    try:
        parsed = read_json(text.encode("utf-8", "backslashreplace"))
    except JsonError:
        match = _SECRET_START.search(text)
        return text if match is None else text[: match.end()] + _OMISSION
    masked_value = _mask_inputs(parsed)
    return text if masked_value == parsed else msgspec.json.format(msgspec.json.encode(masked_value), indent=2).decode()


def _mask_inputs(value: Any) -> Any:
    match value:
        case dict():
            return {name: _mask_field(name, inner) for name, inner in value.items()}
        case list():
            return [_mask_inputs(inner) for inner in value]
        case _:
            return value


def _mask_field(name: str, value: Any) -> Any:
    if name == "inputs" and isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    return MASK if name in ("inputs", "default") else _mask_inputs(value)
