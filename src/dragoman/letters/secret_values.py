"""Secrets in letters.

    sensitive_ids(request)                            ids of the sensitive inputs of a request
    public, secrets = extract_secrets(letter, ids)    replace secrets with references
    insert_secrets(public, secrets)                   restore the secrets
    mask_secrets(letter, ids)                         replace secrets with *** for display

A secret is the value of a sensitive input in an answer, or its default in a request. If the request is unknown, every
value of an answer is a secret. Other texts of the letter that repeat a secret are replaced with ``***`` and not
restored. The ``options`` of an input are public and never masked. Invariant: the letters of ``extract_secrets`` and
``mask_secrets`` contain no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from dragoman.letters.codec import read_stored_letter
from dragoman.letters.types import (
    Artifact,
    ErrorReport,
    InputRequest,
    KnownContext,
    Letter,
    Metrics,
    NeedsInputLetter,
    RequestedInput,
    Result,
    TaskResult,
    TaskResultLetter,
)
from dragoman.value import encode

MASK: Final = "***"
REFERENCE: Final = "$sealed"  # {"$sealed": "inputs/api_key"} is a reference to a secret
_MIN_LENGTH: Final = 4  # shorter texts occur by chance
_MAX_STEPS: Final = 5_000_000  # limit for searching many secrets in much text; beyond it, every text is masked
_ANYTHING: Final = re.compile(r".+", re.DOTALL)


def sensitive_ids(letter: Letter) -> frozenset[str]:
    """Return the ids of the sensitive inputs of a request; empty for any other letter."""
    if not isinstance(letter, NeedsInputLetter):
        return frozenset()
    return frozenset(requested.id for requested in letter.payload.requested_inputs if requested.is_sensitive)


def extract_secrets(letter: Letter, ids: Collection[str] | None = None) -> tuple[Letter, dict[str, Any]]:
    """Return a letter without its secrets, and the secrets by reference name.

    ``ids`` are the sensitive inputs of the request that the letter answers; ``None`` if unknown.
    """
    secrets: dict[str, Any] = {}

    def extract(name: str, value: Any) -> Any:
        if get_reference(value) is not None:
            return value
        secrets[name] = value
        return {REFERENCE: name}

    result = _map_secrets(letter, ids, extract)
    return (_mask_repetitions(result, secrets), secrets) if secrets else (letter, secrets)


def insert_secrets(letter: Letter, secrets: Mapping[str, Any]) -> Letter:
    """Return a letter with its secrets. A reference without a value stays."""

    def insert(_: str, value: Any) -> Any:
        reference = get_reference(value)
        return secrets.get(reference, value) if reference is not None else value

    return _map_secrets(letter, None, insert)


def mask_secrets(letter: Letter, ids: Collection[str] | None = None) -> Letter:
    """Return a letter for display."""
    without_secrets, _ = extract_secrets(letter, ids)
    return _map_secrets(without_secrets, None, lambda _, value: MASK if get_reference(value) is not None else value)


def get_reference(value: Any) -> str | None:
    """Return the name of a reference, or ``None`` for any other value."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(REFERENCE), str):
        name: str = value[REFERENCE]
        return name
    return None


def _map_secrets(letter: Letter, ids: Collection[str] | None, change: Callable[[str, Any], Any]) -> Letter:
    """Return the letter with a function applied to each secret or reference."""
    match letter:
        case NeedsInputLetter():
            requested = tuple(
                requested_input.replace(default=change(f"default/{requested_input.id}", requested_input.default))
                if requested_input.is_sensitive and requested_input.default is not UNSET
                else requested_input
                for requested_input in letter.payload.requested_inputs
            )
            return letter.replace(payload=letter.payload.replace(requested_inputs=requested))
        case TaskResultLetter() if letter.payload.result.inputs:
            inputs = {
                name: change(f"inputs/{name}", value) if ids is None or name in ids else value
                for name, value in letter.payload.result.inputs.items()
            }
            result = letter.payload.result.replace(inputs=inputs)
            return letter.replace(payload=letter.payload.replace(result=result))
        case _:
            return letter


def _mask_repetitions(letter: Letter, secrets: Mapping[str, Any]) -> Letter:
    """Mask texts of the letter that repeat a secret."""
    words = sorted({word for value in secrets.values() for word in _texts_in(value)}, key=len, reverse=True)
    if not words:
        return letter
    data = encode(letter)
    plain = msgspec.json.decode(data)
    is_too_much = len(words) * len(data) > _MAX_STEPS
    pattern = _ANYTHING if is_too_much else re.compile("|".join(map(_pattern, words)))
    for name in ("payload", "context"):
        if name in plain:
            plain[name] = _mask_texts(plain[name], pattern)
    return _restore_options(letter, read_stored_letter(msgspec.json.encode(plain)))


def _restore_options(letter: Letter, masked: Letter) -> Letter:
    """Restore the options of ``letter``, which are public and must stay selectable."""
    if not isinstance(letter, NeedsInputLetter) or not isinstance(masked, NeedsInputLetter):
        return masked
    inputs = zip(letter.payload.requested_inputs, masked.payload.requested_inputs, strict=True)
    requested = tuple(without.replace(options=original.options) for original, without in inputs)
    return masked.replace(payload=masked.payload.replace(requested_inputs=requested))


def _texts_in(value: Any) -> list[str]:
    match value:
        case bool() | None:
            return []
        case str():
            return [value] if len(value) >= _MIN_LENGTH else []
        case int() | float():
            return [text] if len(text := msgspec.json.encode(value).decode()) >= _MIN_LENGTH else []
        case dict():
            return [word for inner in value.values() for word in _texts_in(inner)]
        case _:
            return [word for inner in value for word in _texts_in(inner)]


def _pattern(word: str) -> str:
    """Return a pattern for a text; a number matches only if it is not part of a longer one."""
    quoted = re.escape(word)
    return rf"(?<![0-9.]){quoted}(?![0-9])" if word[:1] in "-0123456789" and _is_number(word) else quoted


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _mask_texts(value: Any, pattern: re.Pattern[str]) -> Any:
    """Mask texts, also in names, except in fields that the letter needs to be valid."""
    match value:
        case str():
            return pattern.sub(MASK, value)
        case dict() if get_reference(value) is not None:
            return value
        case dict():
            return {
                name if name in _DECLARED else pattern.sub(MASK, name): _mask_field(name, inner, pattern)
                for name, inner in value.items()
            }
        case list():
            return [_mask_texts(inner, pattern) for inner in value]
        case _:
            return value


def _mask_field(name: str, value: Any, pattern: re.Pattern[str]) -> Any:
    if name in _NEEDED:
        return value
    if name == "inputs" and isinstance(value, dict):  # by input id
        return {key: _mask_texts(inner, pattern) for key, inner in value.items()}
    return _mask_texts(value, pattern)


_NEEDED: Final = {"status", "type", "id", *KnownContext.__struct_fields__}
_DECLARED: Final = _NEEDED.union(
    *(
        cls.__struct_fields__
        for cls in (Artifact, ErrorReport, InputRequest, Metrics, RequestedInput, Result, TaskResult)
    )
)
