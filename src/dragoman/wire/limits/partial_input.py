"""Read the part of an invalid tool input that can be read.

    read_partial_object('{"path": "a", "mode": "re') -> {"path": "a", "mode": "re"}

Invariant: a text that is a JSON object gives that object; every member that is returned was in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dragoman.errors import JsonError
from dragoman.jsontext import OWN, read_json

_CLOSERS: Final = {"{": "}", "[": "]"}
_MAX_CUTS: Final = 64  # places to cut an input at, from its end


def read_partial_object(text: str) -> dict[str, Any]:
    """Return the object of a text that is cut off or malformed, as far as it can be read; empty if it cannot."""
    for candidate in _candidates(text):
        try:
            value = read_json(candidate, OWN)
        except (JsonError, ValueError):
            continue
        if isinstance(value, dict) and value:
            return value
    return {}


def _candidates(text: str) -> Iterator[str]:
    """Yield texts that may be JSON: the text, the text with its ends closed, and with its last members left out."""
    yield text
    cuts: list[tuple[int, str]] = []  # before a comma or after an opening bracket, and what closes it there
    open_brackets: list[str] = []
    string_start: int | None = None
    index = 0
    while index < len(text):
        character = text[index]
        if string_start is not None:
            index += character == "\\"
            string_start = None if character == '"' else string_start
        elif character == '"':
            string_start = index
        elif character in _CLOSERS:
            open_brackets.append(_CLOSERS[character])
            cuts.append((index + 1, _join(open_brackets)))
        elif character == ",":
            cuts.append((index, _join(open_brackets)))
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:  # complete; text behind it is left out
                yield text[: index + 1]
                break
        index += 1
    if string_start is not None:
        yield from (_close_string(text, length) + _join(open_brackets) for length in range(7))
    yield text + _join(open_brackets)
    yield from (text[:at] + closers for at, closers in reversed(cuts[-_MAX_CUTS:]))


def _close_string(text: str, dropped: int) -> str:
    """Close a string; an escape at its end may be incomplete, so some characters are dropped."""
    return text[: len(text) - dropped] + '"'


def _join(open_brackets: list[str]) -> str:
    return "".join(reversed(open_brackets))
