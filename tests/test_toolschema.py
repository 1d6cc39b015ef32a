"""Tests of schemas of tools, and of the validation of inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ToolInputError, ToolSchemaError
from dragoman.exchange import ResponseFormat, SideEffects, ToolDefinition
from dragoman.toolschema import ALLOWED, FORMATS, REFUSED, TYPES, ToolSchemas, output_problems, tool_problems
from tests import strategies


def tool(schema: dict[str, Any], name: str = "read_file") -> ToolDefinition:
    return ToolDefinition(name, "Reads a file.", schema, SideEffects.READ)


def tool_with_property(schema: Any) -> ToolDefinition:
    return tool({"type": "object", "properties": {"x": schema}})


FULL = {
    "type": "object",
    "title": "Everything",
    "description": "Every keyword of the subset.",
    "additionalProperties": False,
    "required": ["path"],
    "properties": {
        "path": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[a-z./]+$", "examples": ["a"]},
        "when": {"type": ["string", "null"], "format": "date-time", "default": None},
        "count": {"type": "integer", "minimum": 1, "maximum": 5},
        "kind": {"enum": ["a", "b", 3]},
        "fixed": {"const": {"any": "value"}},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "nested": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    },
}


def test_whole_subset_is_accepted() -> None:
    assert tool_problems(tool(FULL)) == ()
    used = set(FULL) | {key for inner in FULL["properties"].values() for key in inner}  # type: ignore[attr-defined]
    assert used == set(ALLOWED)
    for name in TYPES:
        assert tool_problems(tool_with_property({"type": name})) == ()
    for name in FORMATS:
        assert tool_problems(tool_with_property({"type": "string", "format": name})) == ()


@pytest.mark.parametrize("keyword", REFUSED)
def test_keyword_that_a_provider_rejects_is_named(keyword: str) -> None:
    assert tool_problems(tool_with_property({keyword: {}})) == (
        f"$.properties.x: {keyword!r} is not accepted by every provider",
    )


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "text"}, "$.properties.x.type"),
        ({"type": []}, "$.properties.x.type"),
        ({"type": ["string", "string"]}, "$.properties.x.type"),
        ({"properties": []}, "$.properties.x.properties"),
        ({"items": [{"type": "string"}]}, "$.properties.x.items"),
        ({"items": True}, "$.properties.x.items"),
        ({"required": "path"}, "$.properties.x.required"),
        ({"required": ["a", "a"]}, "$.properties.x.required"),
        ({"enum": []}, "$.properties.x.enum"),
        ({"description": 5}, "$.properties.x.description"),
        ({"format": "regex"}, "$.properties.x.format"),
        ({"minimum": "1"}, "$.properties.x.minimum"),
        ({"maximum": True}, "$.properties.x.maximum"),
        ({"minLength": -1}, "$.properties.x.minLength"),
        ({"maxItems": 1.5}, "$.properties.x.maxItems"),
        ({"examples": "a"}, "$.properties.x.examples"),
        ({"additionalProperties": {"type": "string"}}, "$.properties.x.additionalProperties"),
        ({"pattern": "["}, "$.properties.x.pattern"),
        ({"pattern": "(?=look)ahead"}, "$.properties.x.pattern"),
        ({"pattern": "(?<!look)behind"}, "$.properties.x.pattern"),
        ({"pattern": r"(back)\1"}, "$.properties.x.pattern"),
        ({"uniqueItems": True}, "$.properties.x"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$.properties.x"),
        ({"items": {"oneOf": []}}, "$.properties.x.items"),
        ({"properties": {"y": {"anyOf": []}}}, "$.properties.x.properties.y"),
        (True, "$.properties.x"),
        ("string", "$.properties.x"),
    ],
)
def test_problem_is_reported_with_its_location(schema: Any, place: str) -> None:
    (problem,) = tool_problems(tool_with_property(schema))
    assert problem.startswith(f"{place}: ")


def test_every_problem_is_collected_before_registration_fails() -> None:
    with pytest.raises(ToolSchemaError) as caught:
        ToolSchemas(
            [tool({"type": "array", "$ref": "#", "properties": {"a": {"not": {}}, "b": {"foo": 1}}}, "Read-File")]
        )
    assert caught.value.code == "invalid_tool_schema"
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "name",
        "$",
        "$",
        "$.properties.a",
        "$.properties.b",
    ]


@pytest.mark.parametrize(
    "name", ["", "ReadFile", "read-file", "1read", "read__", "a__b__c", "read___file", "read_", "a" * 65, "réad", "a\n"]
)
def test_tool_name_is_snake_case(name: str) -> None:
    assert tool_problems(tool({"type": "object"}, name))


def test_tool_name_is_registered_once() -> None:
    schemas = ToolSchemas([tool({"type": "object"})])
    with pytest.raises(ToolSchemaError, match="already registered"):
        schemas.add(tool({"type": "object"}))
    assert list(schemas.definitions) == ["read_file"]


def test_input_is_validated_and_every_problem_has_its_location() -> None:
    schemas = ToolSchemas([tool(FULL)])
    assert schemas.problems("read_file", {"path": "a", "tags": ["x"], "when": None}) == ()
    problems = schemas.problems(
        "read_file", {"count": 9, "when": "noon", "tags": [1, "b", "c"], "nested": {"deep": 1}, "zzz": 1}
    )
    assert sorted({problem.partition(":")[0] for problem in problems}) == [
        "$",
        "$.count",
        "$.nested.deep",
        "$.tags",
        "$.tags[0]",
        "$.when",
    ]
    with pytest.raises(ToolInputError, match=r"\$\.count") as caught:
        schemas.check_input("read_file", {"path": "a", "count": 0})
    assert caught.value.code == "tool_input_invalid"
    schemas.check_input("unknown_tool", {"anything": 1})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2026-05-08T12:00:00Z", "noon"),
        ("date", "2026-05-08", "2026-02-30"),
        ("time", "12:00:00Z", "25:00:00Z"),
        ("duration", "P1Y2M3DT4H5M6S", "1D"),
        ("duration", "P2W", "PT"),
        ("email", "a@example.com", "a"),
        ("hostname", "example.com", "-x"),
        ("ipv4", "127.0.0.1", "256.0.0.1"),
        ("ipv6", "::1", "1"),
        ("uri", "https://example.com/", "x y"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "0"),
    ],
)
def test_every_format_is_an_assertion(name: str, good: str, bad: str) -> None:
    schemas = ToolSchemas([tool_with_property({"type": "string", "format": name})])
    assert schemas.problems("read_file", {"x": good}) == ()
    assert schemas.problems("read_file", {"x": bad}) != ()


def test_problems_are_bounded_in_number_and_length() -> None:
    schemas = ToolSchemas([tool_with_property({"type": "array", "items": {"type": "integer"}})])
    problems = schemas.problems("read_file", {"x": ["y" * 10_000] * 10_000})
    assert len(problems) == 51
    assert problems[-1] == "$: and more"
    assert max(map(len, problems)) < 400


def test_registered_tool_is_independent_of_its_input() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schemas = ToolSchemas([tool(schema)])
    schema["properties"]["x"] = {"anyOf": []}
    assert schemas.definitions["read_file"].input_schema == {"type": "object", "properties": {}}


def test_input_with_a_lone_surrogate_has_a_problem() -> None:
    assert ToolSchemas([tool(FULL)]).problems("read_file", {"path": "\ud800"}) == ("$: a lone surrogate in a text",)


def test_pattern_with_backtracking_is_matched_in_linear_time() -> None:
    """A backtracking engine would not end on the first pattern."""
    schemas = ToolSchemas([tool_with_property({"type": "string", "pattern": pattern}).replace(name=f"t{index}") for index, pattern in
                   enumerate(["(a+)+$", "(a|aa)+$", "(.*a){12}$", "^(([a-z])+.)+[A-Z]([a-z])+$"])])  # fmt: skip
    for index in range(4):
        assert schemas.problems(f"t{index}", {"x": "a" * 50_000 + "!"})


def test_validation_agrees_with_the_json_schema_test_suite(suites: Path) -> None:
    """Runs every case of JSON-Schema-Test-Suite for draft 7 with a schema in the subset."""
    checked = 0
    for file in sorted((suites / "json-schema-test-suite" / "tests" / "draft7").glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            if not isinstance(group["schema"], dict) or tool_problems(tool_with_property(group["schema"])):
                continue
            schemas = ToolSchemas([tool_with_property(group["schema"])])
            for case in group["tests"]:
                where = f"{file.name}: {group['description']}: {case['description']}"
                assert (schemas.problems("read_file", {"x": case["data"]}) == ()) is case["valid"], where
                checked += 1
    assert checked > 150


anything: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        strategies.scalars
        | st.lists(anything, max_size=3)
        | st.dictionaries(st.sampled_from([*ALLOWED, *REFUSED, "x"]), anything, max_size=4)
    )
)


@given(anything)
def test_any_schema_is_registered_or_rejected_with_problems(schema: Any) -> None:
    definition = tool_with_property(schema)
    try:
        ToolSchemas([definition])
    except ToolSchemaError as error:
        assert error.problems == tool_problems(definition) != ()  # noqa: PT017
    else:
        assert tool_problems(definition) == ()


# --- structured output -----------------------------------------------------------------------------------------------


def test_structured_output_supports_all_of_json_schema() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/sum"}], "$defs": {"sum": {"type": "integer", "not": {"const": 4}}}}
    expected = ResponseFormat("json_schema", schema)
    assert output_problems(expected, "3") == ()
    assert output_problems(expected, "4") != ()
    assert output_problems(ResponseFormat("json"), "[1]") == ()
    assert output_problems(ResponseFormat("text"), "words") == ()
    assert output_problems(ResponseFormat("json"), "words")[0].startswith("$: the answer is not JSON")


def test_schema_reference_reads_no_file_and_no_server(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("true")
    for reference in ((tmp_path / "other.json").as_uri(), "http://127.0.0.1:9/other.json"):
        (problem,) = output_problems(ResponseFormat("json_schema", {"$ref": reference}), "{}")
        assert problem.startswith("$: the schema cannot be used")


@pytest.mark.parametrize("schema", [{"type": 5}, {"pattern": "(?=a)b"}, {"$ref": "#/nowhere"}])
def test_invalid_schema_is_a_problem_and_raises_nothing(schema: dict[str, Any]) -> None:
    assert output_problems(ResponseFormat("json_schema", schema), '"b"') != ()
