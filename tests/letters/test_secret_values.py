"""Secrets in letters: extracted, inserted and masked."""

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
from tests.letters.test_letters import ENDS, NOW

KINDS: dict[str, Any] = {
    "string": "tr0ub4dor&3",
    "number": 471142,
    "boolean": True,
    "enum": "the-third-way",
    "file": {"name": "id_ed25519", "content": "b3BlbnNzaC1rZXk="},
}
REQUEST = needs_input_letter(
    **ENDS,
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


def test_a_request_names_its_sensitive_inputs() -> None:
    assert sensitive_ids(letter_from(EXAMPLES["needs_input"])) == {"api_key"}
    assert sensitive_ids(letter_from(EXAMPLES["error"])) == frozenset()


@pytest.mark.parametrize("is_own", [True, False])
def test_an_option_that_equals_a_secret_default_can_still_be_chosen(is_own: bool) -> None:
    choice = {"id": "e", "type": "enum", "description": "alpha?", "options": ["alpha", "beta"]}
    secret = {"id": "s", "type": "string", "description": "x", "sensitive": True, "default": "alpha"}
    inputs = [{**choice, "sensitive": True, "default": "alpha"}] if is_own else [choice, secret]
    asked = needs_input_letter(**ENDS, requested_inputs=inputs)
    for made in (mask_secrets(asked), extract_secrets(asked)[0]):
        first, last = made.payload.requested_inputs[0], made.payload.requested_inputs[-1]
        assert first.options == ("alpha", "beta")
        assert first.description == "***?"
        assert last.default != "alpha"


def test_the_values_of_sensitive_inputs_are_taken_out_of_an_answer_and_put_back() -> None:
    parted, secrets = extract_secrets(ANSWER, sensitive_ids(REQUEST))
    assert secrets == {f"inputs/{kind}": value for kind, value in KINDS.items()}
    assert parted.payload.result.inputs["colour"] == "green"
    assert insert_secrets(parted, secrets).payload.result.inputs == ANSWER.payload.result.inputs


@pytest.mark.parametrize("secret", ["tr0ub4dor&3", "471142,", "the-third-way", "b3BlbnNzaC1rZXk=", "id_ed25519"])
def test_no_place_of_the_letter_holds_a_secret_after_that(secret: str) -> None:
    for letter in (
        extract_secrets(ANSWER, sensitive_ids(REQUEST))[0],
        mask_secrets(ANSWER),
        extract_secrets(REQUEST)[0],
        mask_secrets(REQUEST),
    ):
        assert secret.encode() not in write_letter(letter)


def test_a_longer_number_that_has_the_secret_inside_stays() -> None:
    assert "94711420" in mask_secrets(ANSWER).payload.result.output


def test_where_the_request_is_not_known_every_answer_is_a_secret() -> None:
    _, secrets = extract_secrets(ANSWER)
    assert "inputs/colour" in secrets


def test_the_default_of_a_sensitive_input_is_a_secret() -> None:
    parted, secrets = extract_secrets(REQUEST)
    assert secrets == {f"default/{kind}": value for kind, value in KINDS.items()}
    assert insert_secrets(parted, secrets) == REQUEST
    assert {wanted.default for wanted in mask_secrets(REQUEST).payload.requested_inputs} == {"***", "green"}


def test_people_see_three_stars_whether_the_values_are_there_or_not() -> None:
    seen = mask_secrets(ANSWER, sensitive_ids(REQUEST))
    assert seen.payload.result.inputs == {**dict.fromkeys(KINDS, "***"), "colour": "green"}
    assert mask_secrets(extract_secrets(ANSWER, sensitive_ids(REQUEST))[0], sensitive_ids(REQUEST)) == seen


@pytest.mark.parametrize("word", ["success", "context", "string", "inputs", "value", "TASK-1"])
def test_a_secret_that_is_also_a_word_of_the_format_leaves_a_letter(word: str) -> None:
    answer = answer_letter(REQUEST, inputs={"value": word}, timestamp=NOW, output=f"said {word}", context={word: 1})
    parted, secrets = extract_secrets(answer)
    assert read_letter(write_letter(parted)) == parted
    assert parted.payload.result.output == "said ***"
    assert insert_secrets(parted, secrets).payload.result.inputs == {"value": word}


def test_parting_twice_takes_nothing_more() -> None:
    parted, _ = extract_secrets(ANSWER)
    assert extract_secrets(parted) == (parted, {})


def test_where_looking_would_take_too_long_no_text_is_left_to_be_looked_through() -> None:
    inputs = {f"i{number}": f"secret number {number}" for number in range(3_000)}
    answer = answer_letter(REQUEST, inputs=inputs, timestamp=NOW, output="said secret number 7 " * 5_000)
    parted, secrets = extract_secrets(answer)
    assert len(secrets) == 3_000
    assert parted.payload.result.output == "***"
    assert insert_secrets(parted, secrets).payload.result.inputs == inputs


def test_a_letter_without_inputs_stays_as_it_is() -> None:
    for letter in (task_result_letter(**ENDS, output="x"), letter_from(EXAMPLES["error"])):
        assert extract_secrets(letter) == (letter, {})
        assert mask_secrets(letter) == letter
