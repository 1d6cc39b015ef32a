"""The difference between what we would have written and what came."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.residue import apply_diff, diff, get_notes, make_notes
from tests import strategies


def same(one: Any, other: Any) -> bool:
    """Equal as JSON is written, key order aside."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(strategies.plain, strategies.plain)
def test_what_came_is_restored_whatever_it_was(written: Any, wire: Any) -> None:
    before = copy.deepcopy((written, wire))
    residue = diff(written, wire)
    assert same(apply_diff(written, json.loads(json.dumps(residue))), wire)
    assert same((written, wire), before)


@given(strategies.objects, st.data())
def test_what_is_nearly_the_same_leaves_only_the_difference(wire: dict, data: st.DataObject) -> None:
    written = {key: value for key, value in wire.items() if data.draw(st.booleans())}
    residue = diff(written, wire)
    assert same((residue or {}).get("set", {}), {key: value for key, value in wire.items() if key not in written})
    assert set(residue or {}) <= {"set"}


@given(strategies.plain)
def test_the_same_leaves_nothing(value: Any) -> None:
    assert diff(value, copy.deepcopy(value)) is None


@pytest.mark.parametrize(("written", "wire"), [(1, 1.0), (True, 1), (0.0, -0.0), ("1", 1), ([], {}), (None, False)])
def test_numbers_are_told_apart_as_they_are_written(written: Any, wire: Any) -> None:
    residue = diff({"x": [written]}, {"x": [wire]})
    assert residue is not None
    assert json.dumps(apply_diff({"x": [written]}, residue)) == json.dumps({"x": [wire]})


def test_an_edit_shows() -> None:
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


def test_a_note_is_read_by_the_dialect_that_wrote_it() -> None:
    raw = make_notes("anthropic", {"a": 1}, {"a": 1}, id="toolu_1", form=None)
    assert raw == {"dialect": "anthropic", "id": "toolu_1"}
    assert get_notes(raw, "anthropic") == raw
    assert get_notes(raw, "gemini") == {}
    assert make_notes("anthropic", {"a": 1}, {"a": 1}) is None
