"""Tests of strict JSON: each invalid text has one outcome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import JsonError
from dragoman.jsontext import OWN, REQUEST, JsonLimits, has_lone_surrogate, join_surrogates, read_json
from tests import strategies

GRAMMAR = JsonLimits(unique_keys=False)


def code_of(text: bytes | str, limits: JsonLimits = REQUEST) -> str:
    with pytest.raises(JsonError) as caught:
        read_json(text, limits)
    assert str(caught.value)
    return caught.value.code


def test_every_valid_json_text_is_accepted(suites: Path) -> None:
    files = sorted((suites / "json-test-suite" / "test_parsing").glob("y_*.json"))
    assert len(files) == 95
    for file in files:
        assert read_json(file.read_bytes(), GRAMMAR) == json.loads(file.read_bytes())


def test_ambiguous_json_is_rejected_by_default(suites: Path) -> None:
    files = sorted((suites / "json-test-suite" / "test_parsing").glob("y_*.json"))
    rejected = {}
    for file in files:
        try:
            read_json(file.read_bytes())
        except JsonError as error:
            rejected[file.name] = error.code
    assert rejected == {
        "y_object_duplicated_key.json": "duplicate_key",
        "y_object_duplicated_key_and_value.json": "duplicate_key",
    }


def test_every_invalid_json_text_is_rejected(suites: Path) -> None:
    files = sorted((suites / "json-test-suite" / "test_parsing").glob("n_*.json"))
    assert len(files) == 188
    for file in files:
        for limits in (REQUEST, GRAMMAR, OWN):
            assert code_of(file.read_bytes(), limits) in ("invalid_json", "too_deep"), file.name


def test_texts_that_parsers_disagree_about_never_crash(suites: Path) -> None:
    outcomes = {}
    for file in sorted((suites / "json-test-suite" / "test_parsing").glob("i_*.json")):
        try:
            read_json(file.read_bytes())
            outcomes[file.name] = "accepted"
        except JsonError as error:
            outcomes[file.name] = error.code
    assert len(outcomes) == 35
    assert [name for name, outcome in outcomes.items() if outcome == "accepted"] == [
        "i_number_double_huge_neg_exp.json",
        "i_number_real_underflow.json",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "invalid_json"),
        (b"{}{}", "invalid_json"),
        (b"{} x", "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        ("{}".encode("utf-16"), "invalid_json"),
        (b'"\xc0\xaf"', "invalid_json"),
        (b'"\xff"', "invalid_json"),
        (b'{"threadId":"a","threadId":"b"}', "duplicate_key"),
        (b'[{"x":[{"a":1,"b":2,"a":3}]}]', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b"NaN", "invalid_json"),
        (b"[Infinity]", "invalid_json"),
        (b'{"a":-Infinity}', "invalid_json"),
        (b"1e400", "number_out_of_range"),
        (b"-1e400", "number_out_of_range"),
        (b"9" * 5000, "number_out_of_range"),
        (b"18446744073709551616", "number_out_of_range"),
        (b"18446744073709551617", "number_out_of_range"),
        (b"-9223372036854775809", "number_out_of_range"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
        (b"[{}," * 60_000, "too_deep"),
        (b"[" * 65 + b"]" * 65, "too_deep"),
        (b'{"a":[' * 33 + b"]}" * 33, "too_deep"),
        (b'"\\ud800"', "invalid_unicode"),
        (b'"\\udc00\\ud800"', "invalid_unicode"),
        (b'{"\\ud800":1}', "invalid_unicode"),
        ('["\ud800"]', "invalid_unicode"),
        (b'"\x01"', "invalid_json"),
        (b'"a\nb"', "invalid_json"),
        (b'"' + b"x" * (4 * 1024 * 1024) + b'"', "too_large"),
        (json.dumps({str(key): 1 for key in range(10_001)}).encode(), "too_many_keys"),
        (json.dumps({str(key): 1 for key in range(90_000)}, separators=(",", ":")).encode(), "too_many_keys"),
        (b"[" + b"{}," * 100_000 + b"{}]", "too_many_values"),
        (b"[" + b"1," * 100_000 + b"1]", "too_many_values"),
        (b"[" + b'"",' * 100_000 + b'""]', "too_many_values"),
        (b'"",' * 300_000, "too_many_values"),
        (b'{"a":[' + b'{"a":1},' * 100_000 + b"1]}", "too_many_values"),
    ],
)
def test_each_invalid_text_has_its_error_code(text: bytes | str, code: str) -> None:
    assert code_of(text) == code


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9007199254740993", 9007199254740993),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b'{"a": 9007199254740993}', {"a": 9007199254740993}),
        (b'"1234567890123456789012345"', "1234567890123456789012345"),
        (b"-0", 0),
        (b"1.0", 1.0),
        (b"1e2", 100.0),
        (b"1e-400", 0.0),
        (b'"\\u0000"', "\0"),
        (b'"\\ud83d\\ude00"', "😀"),
        ('"a\u2028b\x85c"', "a\u2028b\x85c"),
        (b"[" * 64 + b"]" * 64, None),
        (b'["' + b"[{" * 100 + b'"]', ["[{" * 100]),
        (b'["\\"' + b"[" * 100 + b'"]', ['"' + "[" * 100]),
        (json.dumps({str(key): 1 for key in range(10_000)}).encode(), None),
        (b"[" + b"1," * 99_998 + b"1]", None),
        (json.dumps(["{[,]}:" * 100_000, "[{,"]).encode(), None),
    ],
)
def test_unusual_but_valid_text_is_accepted(text: bytes | str, value: Any) -> None:
    result = read_json(text)
    if value is not None:
        assert (result, type(result)) == (value, type(value))


def test_numbers_are_returned_with_their_digits() -> None:
    assert json.dumps(read_json('{"a":9007199254740993}')) == '{"a": 9007199254740993}'


def test_depth_limit_beyond_the_interpreter_raises_json_error() -> None:
    assert code_of("[" * 90_000 + "]" * 90_000, JsonLimits(max_depth=200_000)) == "too_deep"


def test_error_has_its_location() -> None:
    with pytest.raises(JsonError, match="line 3 column 8"):
        read_json('{\n  "a": 1,\n  "b": }')
    with pytest.raises(JsonError, match="'threadId'"):
        read_json('{"threadId":1,"threadId":2}')


@given(strategies.plain)
def test_result_equals_the_standard_library_for_ordinary_json(value: Any) -> None:
    for text in (
        json.dumps(value),
        json.dumps(value, separators=(",", ":"), ensure_ascii=False),
        json.dumps(value, indent=1),
    ):
        assert json.dumps(read_json(text)) == json.dumps(json.loads(text))


@pytest.mark.parametrize("colon", [b":", b" :", b": ", b"\n:\t"])
@pytest.mark.parametrize("text", [b":", b"\\u003a", b"\\u003A", b'\\":', b""])
def test_duplicate_key_is_found_in_every_notation(colon: bytes, text: bytes) -> None:
    once = b'{ "a"%s"%s", "b"%s{"c"%s1}}' % (colon, text, colon, colon)
    assert read_json(once) == json.loads(once)
    assert code_of(once.replace(b'"b"', b'"a"')) == "duplicate_key"
    assert code_of(once.replace(b'{"c"', b'{"c"%s"%s", "c"' % (colon, text))) == "duplicate_key"


@given(st.binary(max_size=60) | st.text('[]{}",:\\u0dD8123eE.- \n', max_size=60))
def test_read_json_raises_only_json_errors(text: bytes | str) -> None:
    try:
        read_json(text)
    except JsonError as error:
        assert error.code  # noqa: PT017


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 4_000_000,
        b"[]" * 2_000_000,
        b'"' * 4_000_000,
        b'{"a":' * 800_000,
        b"[" * 64 + b"[]," * 1_000_000,
        b"[" * 65 + b'"' + b'\\"' * 2_000_000,
        b"[" * 2_000_000 + b"]" * 2_000_000,
    ],
    ids=["openers", "pairs", "quotes", "objects", "wide", "escapes", "deep"],
)
def test_hostile_texts_of_four_megabytes_are_rejected(text: bytes) -> None:
    assert code_of(text) in ("invalid_json", "too_deep", "too_many_values")


@pytest.mark.parametrize(
    ("text", "joined", "is_lossy"),
    [
        ("plain", "plain", False),
        ("\ud83d\ude00", "😀", False),
        ("a\ud83d", "a", True),
        ("\ude00\ud83d", "", True),
        ("😀\ud83d\ude00é", "😀😀é", False),
    ],
)
def test_split_surrogates_are_joined_and_lone_ones_are_dropped(text: str, joined: str, is_lossy: bool) -> None:
    assert join_surrogates(text) == joined
    assert has_lone_surrogate(text) is is_lossy
