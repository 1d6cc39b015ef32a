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

_MOST: Final = 20_000  # characters
_SECRET_FROM: Final = re.compile(r"inputs|default|sensitive", re.IGNORECASE)
_WITHHELD: Final = "… [the rest is withheld: it is not JSON, and may hold what is sensitive]"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What came, as people may see it."""

    text: str
    size: int  # in bytes, as it came
    is_changed: bool  # secrets were taken out, it was cut, or it is no text


def seen(raw: bytes, redactor: Redactor) -> Seen:
    """Bytes that should have been a letter, as a text."""
    said = raw.decode("utf-8", "backslashreplace")
    text = redactor.text(_masked(said))
    if len(text) > _MOST:
        text = f"{text[:_MOST]}…"
    return Seen(text=text, size=len(raw), is_changed=text.encode() != raw)


def _masked(said: str) -> str:
    try:
        plain = read_json(said.encode("utf-8", "backslashreplace"))
    except JsonError:
        found = _SECRET_FROM.search(said)
        return said if found is None else said[: found.end()] + _WITHHELD
    masked = _without_inputs(plain)
    return said if masked == plain else msgspec.json.format(msgspec.json.encode(masked), indent=2).decode()


def _without_inputs(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_values(name, inner) for name, inner in value.items()}
        case list():
            return [_without_inputs(inner) for inner in value]
        case _:
            return value


def _without_values(name: str, value: Any) -> Any:
    if name == "inputs" and isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    return MASK if name in ("inputs", "default") else _without_inputs(value)
