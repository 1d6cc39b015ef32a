"""The published schema accepts what the types accept."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import LetterError
from dragoman.letters import SCHEMA_ID, letter_from, letter_schema, read_schema_file
from tests.letters.examples import EXAMPLES
from tests.letters.test_letters import REFUSED, TAKEN, said, with_field

VALIDATOR = jsonschema_rs.Draft202012Validator(letter_schema(), validate_formats=True)


def is_letter(plain: Any) -> bool:
    try:
        letter_from(plain)
    except LetterError:
        return False
    return True


def test_the_file_that_is_shipped_is_what_the_types_say() -> None:
    assert json.loads(read_schema_file()) == letter_schema(), "write it anew: dragoman letter schema shows the old one"


def test_the_schema_is_one_and_has_a_name_of_its_own() -> None:
    jsonschema_rs.meta.validate(letter_schema())
    assert letter_schema()["$id"] == SCHEMA_ID == "urn:dragoman:letter:1.3"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_valid(name: str) -> None:
    VALIDATOR.validate(EXAMPLES[name])


@pytest.mark.parametrize(("name", "path", "value"), TAKEN, ids=said)
def test_what_the_types_take_is_valid(name: str, path: str, value: Any) -> None:
    VALIDATOR.validate(with_field(name, path, value))


@pytest.mark.parametrize(("name", "path", "value", "_"), REFUSED, ids=said)
def test_what_the_types_refuse_is_not_valid(name: str, path: str, value: Any, _: str) -> None:
    assert not VALIDATOR.is_valid(with_field(name, path, value))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-2, 2)
    | st.sampled_from(["", "A", "a", "success", "failed", "error", "task_result", "string", "1.2", "2.0", "x" * 1001]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["output", "code", "id"]), inner),
    max_leaves=3,
)


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(place for key, part in inner for place in places(part, (*before, key)))]


def _have_durations_that_differ(letter: Any) -> bool:
    payload = letter.get("payload")
    metrics = payload.get("metrics") if isinstance(payload, dict) else None
    return isinstance(metrics, dict) and "duration_ms" in metrics and payload.get("duration_sec") != 12.34


@given(data=st.data(), name=st.sampled_from(sorted(EXAMPLES)))
def test_the_schema_and_the_types_agree_about_letters_that_nobody_thought_of(data: st.DataObject, name: str) -> None:
    letter: Any = copy.deepcopy(EXAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        *before, last = data.draw(st.sampled_from([place for place in places(letter) if place] or [("type",)]))
        place = letter
        for step in before:
            place = place[step]
        if isinstance(place, dict) and data.draw(st.booleans()) and data.draw(st.booleans()):
            del place[last]
        else:
            place[last] = data.draw(values)
    asked = letter.get("payload", {}).get("requested_inputs", ()) if isinstance(letter.get("payload"), dict) else ()
    ids = [wanted.get("id") for wanted in asked if isinstance(wanted, dict)] if isinstance(asked, list) else []
    if len(ids) != len(set(map(str, ids))) or isinstance(letter.get("retry_count"), float):
        return  # no schema can say that
    if _have_durations_that_differ(letter):
        return  # nor that
    assert VALIDATOR.is_valid(letter) == is_letter(letter), letter
