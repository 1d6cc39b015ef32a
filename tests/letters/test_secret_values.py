"""Tests of secrets in letters: extraction, insertion and masking."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.letters import (
    answer_letter,
    extract_secrets,
    insert_secrets,
    letter_from,
    mask_secrets,
    needs_input_letter,
    read_letter,
    sensitive_ids,
    task_result_letter,
    write_letter,
)
from tests.letters.examples import EXAMPLES
from tests.letters.test_letters import ENVELOPE, NOW

KINDS: dict[str, Any] = {
    "string": "tr0ub4dor&3",
    "number": 471142,
    "boolean": True,
    "enum": "the-third-way",
    "file": {"name": "id_ed25519", "content": "b3BlbnNzaC1rZXk="},
}
REQUEST = needs_input_letter(
    **ENVELOPE,
    requested_inputs=[
        {"id": kind, "type": kind, "description": "x", "sensitive": True, "default": value}
        for kind, value in KINDS.items()
    ]
    + [{"id": "colour", "type": "string", "description": "no secret", "default": "green"}],
)
ANSWER = answer_letter(
    REQUEST,
    inputs={**KINDS, "colour": "green"},
    timestamp=NOW,
    output="I used tr0ub4dor&3, 471142 and b3BlbnNzaC1rZXk=, but not 94711420",
    context={"seen": ["the-third-way", {"tr0ub4dor&3": 1}]},
)


def test_sensitive_ids_lists_sensitive_inputs() -> None:
    assert sensitive_ids(letter_from(EXAMPLES["needs_input"])) == {"api_key"}
    assert sensitive_ids(letter_from(EXAMPLES["error"])) == frozenset()


@pytest.mark.parametrize("is_own", [True, False])
def test_option_equal_to_secret_default_is_not_masked(is_own: bool) -> None:
    choice = {"id": "e", "type": "enum", "description": "alpha?", "options": ["alpha", "beta"]}
    secret = {"id": "s", "type": "string", "description": "x", "sensitive": True, "default": "alpha"}
    inputs = [{**choice, "sensitive": True, "default": "alpha"}] if is_own else [choice, secret]
    request = needs_input_letter(**ENVELOPE, requested_inputs=inputs)
    for letter in (mask_secrets(request), extract_secrets(request)[0]):
        first, last = letter.payload.requested_inputs[0], letter.payload.requested_inputs[-1]
        assert first.options == ("alpha", "beta")
        assert first.description == "***?"
        assert last.default != "alpha"


def test_secrets_of_answer_are_extracted_and_inserted() -> None:
    extracted, secrets = extract_secrets(ANSWER, sensitive_ids(REQUEST))
    assert secrets == {f"inputs/{kind}": value for kind, value in KINDS.items()}
    assert extracted.payload.result.inputs["colour"] == "green"
    assert insert_secrets(extracted, secrets).payload.result.inputs == ANSWER.payload.result.inputs


@pytest.mark.parametrize("secret", ["tr0ub4dor&3", "471142,", "the-third-way", "b3BlbnNzaC1rZXk=", "id_ed25519"])
def test_extracted_and_masked_letters_contain_no_secret(secret: str) -> None:
    for letter in (
        extract_secrets(ANSWER, sensitive_ids(REQUEST))[0],
        mask_secrets(ANSWER),
        extract_secrets(REQUEST)[0],
        mask_secrets(REQUEST),
    ):
        assert secret.encode() not in write_letter(letter)


def test_longer_number_that_contains_secret_is_unchanged() -> None:
    assert "94711420" in mask_secrets(ANSWER).payload.result.output


def test_without_request_every_input_is_secret() -> None:
    _, secrets = extract_secrets(ANSWER)
    assert "inputs/colour" in secrets


def test_default_of_sensitive_input_is_secret() -> None:
    extracted, secrets = extract_secrets(REQUEST)
    assert secrets == {f"default/{kind}": value for kind, value in KINDS.items()}
    assert insert_secrets(extracted, secrets) == REQUEST
    assert {requested.default for requested in mask_secrets(REQUEST).payload.requested_inputs} == {"***", "green"}


def test_masked_letter_equals_masked_extracted_letter() -> None:
    masked = mask_secrets(ANSWER, sensitive_ids(REQUEST))
    assert masked.payload.result.inputs == {**dict.fromkeys(KINDS, "***"), "colour": "green"}
    assert mask_secrets(extract_secrets(ANSWER, sensitive_ids(REQUEST))[0], sensitive_ids(REQUEST)) == masked


@pytest.mark.parametrize("keyword", ["success", "context", "string", "inputs", "value", "TASK-1"])
def test_secret_equal_to_format_keyword_leaves_valid_letter(keyword: str) -> None:
    answer = answer_letter(
        REQUEST, inputs={"value": keyword}, timestamp=NOW, output=f"said {keyword}", context={keyword: 1}
    )
    extracted, secrets = extract_secrets(answer)
    assert read_letter(write_letter(extracted)) == extracted
    assert extracted.payload.result.output == "said ***"
    assert insert_secrets(extracted, secrets).payload.result.inputs == {"value": keyword}


def test_second_extraction_finds_no_secrets() -> None:
    extracted, _ = extract_secrets(ANSWER)
    assert extract_secrets(extracted) == (extracted, {})


def test_text_is_masked_completely_if_search_would_be_too_slow() -> None:
    inputs = {f"i{number}": f"secret number {number}" for number in range(3_000)}
    answer = answer_letter(REQUEST, inputs=inputs, timestamp=NOW, output="said secret number 7 " * 5_000)
    extracted, secrets = extract_secrets(answer)
    assert len(secrets) == 3_000
    assert extracted.payload.result.output == "***"
    assert insert_secrets(extracted, secrets).payload.result.inputs == inputs


def test_letter_without_inputs_is_unchanged() -> None:
    for letter in (task_result_letter(**ENVELOPE, output="x"), letter_from(EXAMPLES["error"])):
        assert extract_secrets(letter) == (letter, {})
        assert mask_secrets(letter) == letter
