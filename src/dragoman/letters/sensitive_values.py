"""Secrets in letters: which values they are, and how a letter looks without them.

    sensitive_ids(request)                the inputs that a request for input calls sensitive
    parted, secrets = part(letter, ids)   the letter with references in their place, and what was taken out
    joined(parted, secrets)               the letter with the values back
    masked(letter, ids)                   the letter as people may see it: *** for each of them

A secret is the value of a sensitive input in an answer, and the default of one in a request. Where it is not known what
was asked, every value of an answer is one. A text elsewhere in the letter that repeats a secret has ``***`` there, and
that stays so. The ``options`` of an input are public and are never masked. Invariant: ``part`` and ``masked`` return a
letter that holds a secret nowhere else.
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
REFERENCE: Final = "$sealed"  # {"$sealed": "inputs/api_key"} stands for a value that is kept elsewhere
_MIN_LENGTH: Final = 4  # what is shorter occurs in any text by chance
_MAX_STEPS: Final = 5_000_000  # of looking for many secrets in much text; beyond, every text counts as one
_ANYTHING: Final = re.compile(r".+", re.DOTALL)


def sensitive_ids(letter: Letter) -> frozenset[str]:
    """The ids of the inputs that a request calls sensitive; none in any other letter."""
    if not isinstance(letter, NeedsInputLetter):
        return frozenset()
    return frozenset(wanted.id for wanted in letter.payload.requested_inputs if wanted.is_sensitive)


def extract_secrets(letter: Letter, ids: Collection[str] | None = None) -> tuple[Letter, dict[str, Any]]:
    """A letter without its secrets, and the secrets by the names that its references use.

    ``ids`` are the sensitive inputs of the request that an answer answers; ``None`` where that is not known.
    """
    secrets: dict[str, Any] = {}
    if not _may_hold_secrets(letter):
        return letter, secrets

    def extract(name: str, value: Any) -> Any:
        if get_reference(value) is not None:
            return value
        secrets[name] = value
        return {REFERENCE: name}

    result = _map_secrets(letter, ids, extract)
    return (_mask_repetitions(result, secrets), secrets) if secrets else (letter, secrets)


def insert_secrets(letter: Letter, secrets: Mapping[str, Any]) -> Letter:
    """A letter with the values back in their places. A reference for which there is no value stays."""

    def insert(_: str, value: Any) -> Any:
        reference = get_reference(value)
        return secrets.get(reference, value) if reference is not None else value

    return _map_secrets(letter, None, insert)


def mask_secrets(letter: Letter, ids: Collection[str] | None = None) -> Letter:
    """A letter as people may see it."""
    without_secrets, _ = extract_secrets(letter, ids)
    return _map_secrets(without_secrets, None, lambda _, value: MASK if get_reference(value) is not None else value)


def get_reference(value: Any) -> str | None:
    """The name that a reference has, if the value is one."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(REFERENCE), str):
        name: str = value[REFERENCE]
        return name
    return None


def _may_hold_secrets(letter: Letter) -> bool:
    """Whether ``_map_secrets`` has anything to look at."""
    return isinstance(letter, NeedsInputLetter) or (
        isinstance(letter, TaskResultLetter) and bool(letter.payload.result.inputs)
    )


def _map_secrets(letter: Letter, ids: Collection[str] | None, change: Callable[[str, Any], Any]) -> Letter:
    """The letter with each secret, or what stands in its place, changed."""
    match letter:
        case NeedsInputLetter():
            requested = tuple(
                wanted.replace(default=change(f"default/{wanted.id}", wanted.default))
                if wanted.is_sensitive and wanted.default is not UNSET
                else wanted
                for wanted in letter.payload.requested_inputs
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
    """The letter without what its other texts repeat of its secrets."""
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
    """The letter ``made`` with the options of ``letter``: they are public, and one has to be chosen as it is."""
    if not isinstance(letter, NeedsInputLetter) or not isinstance(masked, NeedsInputLetter):
        return masked
    inputs = zip(letter.payload.requested_inputs, masked.payload.requested_inputs, strict=True)
    requested = tuple(without.replace(options=wanted.options) for wanted, without in inputs)
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
    """The word, and a number only where it is not a part of a longer one."""
    quoted = re.escape(word)
    return rf"(?<![0-9.]){quoted}(?![0-9])" if word[:1] in "-0123456789" and _is_number(word) else quoted


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _mask_texts(value: Any, pattern: re.Pattern[str]) -> Any:
    """The same without those words, in names as well; but for what the letter needs to be one."""
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
    if name == "inputs" and isinstance(value, dict):  # by the ids that were asked for
        return {key: _mask_texts(inner, pattern) for key, inner in value.items()}
    return _mask_texts(value, pattern)


_NEEDED: Final = {"status", "type", "id", *KnownContext.__struct_fields__}
_DECLARED: Final = _NEEDED.union(
    *(
        cls.__struct_fields__
        for cls in (Artifact, ErrorReport, InputRequest, Metrics, RequestedInput, Result, TaskResult)
    )
)
