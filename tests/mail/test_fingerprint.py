"""Tests of the fingerprint of letters, which is stable and independent of key order, and of their validation."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import LetterError
from dragoman.letters import Letter, TaskResultLetter, read_letter, write_letter
from dragoman.letters.codec import validate_letter
from dragoman.mail.encryption import Encryptor
from dragoman.mail.stored_letter import to_stored
from dragoman.value import encode
from tests.mail.conftest import failure, request, result

ENCRYPTOR = Encryptor.in_memory()
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def compute_reference_fingerprint(letter: Letter) -> bytes:
    """Return the fingerprint of a letter without secrets, as the first version computed it."""
    fields = [letter.sender_id, letter.recipient_id, letter.task_id, letter.type, msgspec.Raw(encode(letter.payload))]
    sorted_keys = msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(fields)), order="sorted")
    return hashlib.sha256(hashlib.sha256(sorted_keys).digest()).digest()


@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4))
def test_fingerprint_is_stable(details: dict[str, Any]) -> None:
    letter = failure(details=details, suggested_actions=["a", "b"], message_id="L")
    assert to_stored(letter, ENCRYPTOR).fingerprint == compute_reference_fingerprint(letter)


def test_fingerprint_covers_unknown_fields_independent_of_order() -> None:
    values = msgspec.json.decode(write_letter(result(message_id="L")))
    for payload in (
        {"status": "success", "zz": {"b": 1, "a": 2}, "result": {"output": "x"}},
        {"zz": {"a": 2, "b": 1}, "result": {"output": "x"}, "status": "success"},
    ):
        letter = read_letter(msgspec.json.encode({**values, "payload": payload}))
        assert to_stored(letter, ENCRYPTOR).fingerprint == compute_reference_fingerprint(letter)
    first, second = [
        to_stored(
            read_letter(msgspec.json.encode({**values, "payload": {**values["payload"], "zz": value}})), ENCRYPTOR
        )
        for value in (1, 2)
    ]
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize(
    "letter", [result(score=0.5, metrics={"duration_ms": 5}), failure(details={"a": [1]}), request()]
)
def test_validation_equals_a_write_and_read_round_trip(letter: Letter) -> None:
    read, text = validate_letter(letter)
    assert text == write_letter(letter)
    assert read == read_letter(text)
    assert read is not letter


def test_invalid_constructed_letter_is_rejected_like_on_write() -> None:
    letter = result()
    assert isinstance(letter, TaskResultLetter)
    payload = letter.payload
    for wrong in (
        letter.replace(context={"a": float("nan")}),
        letter.replace(context={1: 2}),
        letter.replace(context={"message_id": 5}),
        letter.replace(context={"depends_on": ["not a name"]}),
        letter.replace(timestamp="yesterday"),
        letter.replace(sender_id="not a name"),
        letter.replace(payload=payload.replace(score=float("inf"))),
        letter.replace(payload=payload.replace(success=False)),
        letter.replace(payload=payload.replace(result=payload.result.replace(inputs={"a": {1}}))),
        letter.replace(payload=payload.replace(status="done")),
    ):
        with pytest.raises(LetterError) as written:
            write_letter(wrong)
        with pytest.raises(LetterError) as validated:
            validate_letter(wrong)
        assert validated.value.what == written.value.what
