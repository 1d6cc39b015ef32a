"""Tests of rewriting JSON texts with their layout."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.formats.layout import rewrite, rewrite_items

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


@given(VALUES, VALUES, st.sampled_from([None, 1, 4, "\t"]), st.booleans())
def test_rewritten_text_parses_to_the_new_value(
    before: Any, after: Any, indent: int | str | None, is_ascii: bool
) -> None:
    text = json.dumps(before, indent=indent, ensure_ascii=is_ascii).encode()
    assert json.loads(rewrite(text, before, after)) == after
    assert rewrite(text, before, before) == text


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_every_item_has_a_text(before: list[Any], after: list[Any]) -> None:
    texts = [json.dumps(item).encode() for item in before]
    assert [json.loads(text) for _, text in rewrite_items(texts, before, after)] == after


def test_unchanged_values_keep_format_and_position() -> None:
    text = b'{ "b": 1.50,\n  "a" : [1, {"x":"\\u00e9"},  3],\n  "gone": 1, "c": "d" }\n'
    before = json.loads(text)
    after = {"a": [1, {"x": "é"}, 2, 3], "b": 1.5, "c": "e", "new": True}
    expected = b'{ "b": 1.50,\n  "a" : [1, {"x":"\\u00e9"}, 2,  3], "c": "e",\n  "new": true }\n'
    assert rewrite(text, before, after) == expected


def test_moved_item_keeps_its_format() -> None:
    text = b'[{"n":  1}, {"n": 2}, {"n": 3}]'
    assert rewrite(text, json.loads(text), [{"n": 2}, {"n": 3}, {"n": 1}]) == b'[{"n": 2}, {"n": 3}, {"n":  1}]'


def test_differences_between_text_and_writer_are_preserved() -> None:
    text = b'{"time": "12:00", "text": "a", "extra": null}'
    before, after = {"time": "12:00:00", "text": "a", "size": 1}, {"time": "12:00:00", "text": "b", "size": 1}
    assert rewrite(text, before, after) == b'{"time": "12:00", "text": "b", "extra": null}'
