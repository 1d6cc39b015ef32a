"""Tests of the conversion of foreign schemas into the subset: accepted values stay accepted."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman import SideEffects, ToolDefinition
from dragoman.tools.schema_compat import to_portable_schema
from dragoman.toolschema import tool_problems


def convert_property(schema: Any, **root: Any) -> Any:
    """Convert the schema of one property."""
    return to_portable_schema({"type": "object", "properties": {"x": schema}, **root}).schema["properties"]["x"]


def test_schema_in_the_subset_is_unchanged() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    converted = to_portable_schema(schema)
    assert (converted.schema, converted.widenings) == (schema, ())


def test_reference_is_expanded() -> None:
    definitions = {
        "$defs": {"P": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}, "N": {"type": "number"}}
    }
    assert convert_property({"$ref": "#/$defs/P", "description": "A place."}, **definitions) == {
        "type": "object",
        "description": "A place.",
        "properties": {"n": {"type": "number"}},
    }


def test_recursive_or_unresolvable_reference_accepts_anything() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/T"}, "v": {"type": "integer"}}}
    converted = convert_property({"$ref": "#/$defs/T"}, **{"$defs": {"T": tree}})
    assert converted["properties"] == {"left": {}, "v": {"type": "integer"}}
    assert convert_property({"$ref": "#/$defs/Missing"}) == {}
    assert convert_property({"$ref": "https://example.org/schema"}) == {}


def test_nullable_alternative_becomes_a_nullable_type() -> None:
    choice = {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}], "default": None, "title": "X"}
    converted = to_portable_schema({"type": "object", "properties": {"x": choice}})
    assert converted.schema["properties"]["x"] == {
        "type": ["string", "null"],
        "minLength": 2,
        "default": None,
        "title": "X",
    }
    assert converted.widenings == ()
    assert convert_property({"type": "integer", "nullable": True}) == {"type": ["integer", "null"]}


def test_alternatives_are_joined_with_a_widening() -> None:
    kinds = {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
                "required": ["kind", "n"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "b"}, "s": {"type": "string"}},
                "required": ["kind"],
                "additionalProperties": False,
            },
        ]
    }
    converted = to_portable_schema({"type": "object", "properties": {"x": kinds}})
    assert converted.schema["properties"]["x"] == {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    assert converted.widenings == ("$.properties.x: oneOf",)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 0}),
        ({"type": "string", "format": "color"}, {"type": "string"}),
        ({"type": "string", "pattern": "(?=a)"}, {"type": "string"}),
        ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, {"type": "array"}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object", "additionalProperties": True}),
        ({"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False}, {"type": "object", "additionalProperties": True}),
        ({"not": {"type": "string"}}, {}),
        ({"allOf": [{"type": "string"}, {"minLength": 3}]}, {"type": "string", "minLength": 3}),
        ({"type": "string", "x-order": 1, "$comment": "no"}, {"type": "string"}),
        (True, {}),
        (False, {}),
    ],
    ids=str,
)  # fmt: skip
def test_unsupported_keywords_are_dropped(schema: Any, expected: Any) -> None:
    assert convert_property(schema) == expected


def test_input_of_a_tool_is_always_an_object() -> None:
    assert to_portable_schema({}).schema == {"type": "object"}
    assert to_portable_schema({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}).schema == {
        "type": "object"
    }


# --- invariant -------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
scalars = st.sampled_from([None, True, False, 0, 1, 2, 3, 1.5, "", "a", "ab", "abc", "2026-05-08"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
types = st.sampled_from(["string", "number", "integer", "boolean", "null", "object", "array"])


def schemas_over(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "items": inner,
            "prefixItems": several,
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "minimum": st.integers(0, 3),
            "exclusiveMaximum": st.integers(0, 3),
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 3),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "pattern": st.sampled_from(["^a", "b$", "^a*$"]),
            "format": st.sampled_from(["date", "regex"]),
            "description": st.just("words"),
            "anyOf": several,
            "oneOf": several,
            "allOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "$ref": st.sampled_from(["#/$defs/P", "#/$defs/Q", "#"]),
        },
    )


schemas: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), schemas_over, max_leaves=6)
roots = st.builds(
    lambda schema, p, q: {**schema, "type": "object", "$defs": {"P": p, "Q": q}},
    schemas_over(schemas),
    schemas,
    schemas,
)


@given(roots, st.dictionaries(names, values, max_size=3))
def test_converted_schema_accepts_every_value_of_the_original(root: dict[str, Any], value: dict[str, Any]) -> None:
    converted = to_portable_schema(root)
    definition = ToolDefinition("probe", "", converted.schema, SideEffects.NONE)
    assert tool_problems(definition) == ()
    try:
        accepted = jsonschema_rs.Draft202012Validator(root, validate_formats=True).is_valid(value)
    except (ValueError, RecursionError):
        accepted = False
    assume(accepted)
    assert jsonschema_rs.Draft7Validator(converted.schema, validate_formats=True).is_valid(value), converted
