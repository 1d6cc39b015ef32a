"""Tests of the difference between the default wire and the received wire."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.residue import apply_diff, diff, get_notes, make_notes
from tests import strategies


def is_equal_json(first: Any, second: Any) -> bool:
    """Return whether two values are equal as JSON text, regardless of key order."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


@given(strategies.plain, strategies.plain)
def test_diff_restores_any_value(written: Any, wire: Any) -> None:
    before = copy.deepcopy((written, wire))
    residue = diff(written, wire)
    assert is_equal_json(apply_diff(written, json.loads(json.dumps(residue))), wire)
    assert is_equal_json((written, wire), before)


@given(strategies.objects, st.data())
def test_diff_contains_only_the_difference(wire: dict, data: st.DataObject) -> None:
    written = {key: value for key, value in wire.items() if data.draw(st.booleans())}
    residue = diff(written, wire)
    assert is_equal_json(
        (residue or {}).get("set", {}), {key: value for key, value in wire.items() if key not in written}
    )
    assert set(residue or {}) <= {"set"}


@given(strategies.plain)
def test_equal_values_have_no_diff(value: Any) -> None:
    assert diff(value, copy.deepcopy(value)) is None


@pytest.mark.parametrize(("written", "wire"), [(1, 1.0), (True, 1), (0.0, -0.0), ("1", 1), ([], {}), (None, False)])
def test_diff_distinguishes_spelling_of_numbers(written: Any, wire: Any) -> None:
    residue = diff({"x": [written]}, {"x": [wire]})
    assert residue is not None
    assert json.dumps(apply_diff({"x": [written]}, residue)) == json.dumps({"x": [wire]})


def test_edit_is_written() -> None:
    residue = diff({"text": "hi", "arguments": '{"a":1}'}, {"text": "hi", "arguments": '{"a": 1}', "cache": True})
    assert apply_diff({"text": "changed", "arguments": '{"a":1}'}, residue) == {
        "text": "changed",
        "arguments": '{"a": 1}',
        "cache": True,
    }
    assert apply_diff({"text": "hi", "arguments": '{"a":2}'}, residue)["arguments"] == '{"a":2}'
    dropped = diff({"stream": True}, {})
    assert apply_diff({"stream": True}, dropped) == {}
    assert apply_diff({"stream": False}, dropped) == {"stream": False}


def test_notes_are_read_only_by_their_dialect() -> None:
    raw = make_notes("anthropic", {"a": 1}, {"a": 1}, id="toolu_1", form=None)
    assert raw == {"dialect": "anthropic", "id": "toolu_1"}
    assert get_notes(raw, "anthropic") == raw
    assert get_notes(raw, "gemini") == {}
    assert make_notes("anthropic", {"a": 1}, {"a": 1}) is None
