"""Tests of the published schema: it accepts exactly the letters that the types accept."""

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
from tests.letters.test_letters import INVALID_VALUES, VALID_VALUES, value_id, with_field

VALIDATOR = jsonschema_rs.Draft202012Validator(letter_schema(), validate_formats=True)


def is_letter(value: Any) -> bool:
    try:
        letter_from(value)
    except LetterError:
        return False
    return True


def test_schema_file_equals_generated_schema() -> None:
    assert json.loads(read_schema_file()) == letter_schema(), "the schema file is outdated: write it again"


def test_schema_is_valid_and_has_id() -> None:
    jsonschema_rs.meta.validate(letter_schema())
    assert letter_schema()["$id"] == SCHEMA_ID == "urn:dragoman:letter:1.3"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_match_schema(name: str) -> None:
    VALIDATOR.validate(EXAMPLES[name])


@pytest.mark.parametrize(("name", "path", "value"), VALID_VALUES, ids=value_id)
def test_valid_values_match_schema(name: str, path: str, value: Any) -> None:
    VALIDATOR.validate(with_field(name, path, value))


@pytest.mark.parametrize(("name", "path", "value", "_"), INVALID_VALUES, ids=value_id)
def test_invalid_values_do_not_match_schema(name: str, path: str, value: Any, _: str) -> None:
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


def list_paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(path for key, part in inner for path in list_paths(part, (*before, key)))]


def _has_contradictory_durations(letter: Any) -> bool:
    payload = letter.get("payload")
    metrics = payload.get("metrics") if isinstance(payload, dict) else None
    return isinstance(metrics, dict) and "duration_ms" in metrics and payload.get("duration_sec") != 12.34


@given(data=st.data(), name=st.sampled_from(sorted(EXAMPLES)))
def test_schema_and_types_agree_about_random_letters(data: st.DataObject, name: str) -> None:
    letter: Any = copy.deepcopy(EXAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        *before, last = data.draw(st.sampled_from([place for place in list_paths(letter) if place] or [("type",)]))
        place = letter
        for step in before:
            place = place[step]
        if isinstance(place, dict) and data.draw(st.booleans()) and data.draw(st.booleans()):
            del place[last]
        else:
            place[last] = data.draw(values)
    requested = letter.get("payload", {}).get("requested_inputs", ()) if isinstance(letter.get("payload"), dict) else ()
    ids = (
        [request.get("id") for request in requested if isinstance(request, dict)] if isinstance(requested, list) else []
    )
    if len(ids) != len(set(map(str, ids))) or isinstance(letter.get("retry_count"), float):
        return  # JSON Schema cannot express this rule
    if _has_contradictory_durations(letter):
        return  # nor this one
    assert VALIDATOR.is_valid(letter) == is_letter(letter), letter
