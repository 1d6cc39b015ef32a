"""Tests of the limits for JSON Schemas from outside."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.errors import SchemaSizeError, ToolSchemaError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.schema_limits import MAX_CHARACTERS, MAX_DEPTH, MAX_PATTERNS, MAX_VALUES, measure_schema
from dragoman.tools import schema_compat
from dragoman.toolschema import ToolSchemas, tool_problems, value_problems

Duplicate = Callable[[dict[str, Any]], dict[str, Any]]


def chain(length: int, duplicate: Duplicate) -> dict[str, Any]:
    """Return definitions of which each uses the next one twice: the last one is used 2^length times."""
    definitions = {f"d{index}": duplicate({"$ref": f"#/$defs/d{index + 1}"}) for index in range(length)}
    definitions[f"d{length}"] = {"type": "string"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def reference_all(count: int) -> dict[str, Any]:
    """Return definitions of which each uses all others: expanded, there are count! paths."""
    names = [f"d{index}" for index in range(count)]
    definition = {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in names}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": dict.fromkeys(names, definition)}


def nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return {"type": "object", "properties": {"x": schema}}


def patterns(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": {"pattern": f"^{at}$"} for at in range(count)}}


BOMBS = {
    "references that double within properties": chain(18, lambda ref: {"properties": {"a": ref, "b": ref}}),
    "references that double within allOf": chain(18, lambda ref: {"allOf": [ref, ref]}),
    "references that double within alternatives": chain(18, lambda ref: {"anyOf": [ref, {"items": ref}]}),
    "references from each to all": reference_all(12),
    "a long text that is used often": {
        "properties": {f"p{at}": {"$ref": "#/$defs/long"} for at in range(100)},
        "$defs": {"long": {"description": "x" * (MAX_CHARACTERS // 50)}},
    },
    "a deep schema": nest(MAX_DEPTH),
    "many patterns": patterns(MAX_PATTERNS + 1),
    "many patterns by a reference": {
        "properties": {f"p{at}": {"$ref": "#/$defs/p"} for at in range(MAX_PATTERNS + 1)},
        "$defs": {"p": {"pattern": "^x$"}},
    },
    "many patterns of names": {"patternProperties": {f"^{at}$": {} for at in range(MAX_PATTERNS + 1)}},
    "many values": {"properties": {"x": {"enum": list(range(MAX_VALUES))}}},
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_schema_beyond_a_limit_is_rejected_with_location_and_limit(bomb: dict[str, Any]) -> None:
    with pytest.raises(SchemaSizeError, match=r"^\$.*: (more than \d+|nested deeper than \d+)") as caught:
        measure_schema(bomb)
    assert caught.value.code == "schema_too_large"


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_schema_beyond_a_limit_is_not_converted_or_used(bomb: dict[str, Any]) -> None:
    for make in (schema_compat.to_portable_schema, lambda schema: value_problems(schema, {"x": 1})):
        with pytest.raises(SchemaSizeError):
            make(bomb)
    tool = ToolDefinition("probe", "", {"type": "object", **bomb}, SideEffects.NONE)
    assert len(tool_problems(tool)) == 1  # only the limit: the rest is not checked
    with pytest.raises(ToolSchemaError, match=r"more than|deeper than"):
        ToolSchemas([tool])


def test_schema_at_every_limit_is_accepted() -> None:
    for schema in (nest(MAX_DEPTH - 4), patterns(MAX_PATTERNS), chain(8, lambda ref: {"items": ref})):
        schema_compat.to_portable_schema(schema)
    assert measure_schema(patterns(7)).patterns == 7


def test_recursive_schema_is_accepted() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/T"}, "right": {"$ref": "#/$defs/T"}}}
    schema = {"$ref": "#/$defs/T", "$defs": {"T": tree}}
    assert measure_schema(schema).is_recursive
    assert value_problems(schema, {"left": {"right": {}}}) == ()
    assert value_problems(schema, {"left": {"right": 1}}) == ("$: it does not match the schema",)


def test_reference_in_data_is_not_a_reference() -> None:
    data = {"$ref": "#/properties/x"}
    assert measure_schema({"properties": {"x": {"const": data, "default": data, "enum": [data]}}}).values < 20


def test_large_pattern_is_rejected_and_dropped_from_a_foreign_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": r"^\p{L}{200}$"}}}
    (problem,) = tool_problems(ToolDefinition("probe", "", schema, SideEffects.NONE))
    assert problem.startswith("$.properties.x.pattern: ")
    converted = schema_compat.to_portable_schema(schema)
    assert converted.schema["properties"]["x"] == {"type": "string"}
    assert converted.widenings == ("$.properties.x: pattern",)


def test_patterns_of_a_schema_share_one_limit() -> None:
    weight = r"^\p{L}{5}"  # allowed for one pattern, but not for many
    alone, many = ({"type": "object", "properties": {f"p{at}": {"pattern": weight}}} for at in range(2))
    assert schema_compat.to_portable_schema(alone).widenings == ()
    many["properties"] = {f"p{at}": {"pattern": f"{weight}{at}$"} for at in range(MAX_PATTERNS)}
    assert len(schema_compat.to_portable_schema(many).widenings) == MAX_PATTERNS


def test_one_problem_is_reported_for_a_large_invalid_input() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string"}}}}
    schemas = ToolSchemas([ToolDefinition("probe", "", schema, SideEffects.NONE)])
    assert schemas.problems("probe", {"x": [1] * 200_000}) == ('$.x[0]: 1 is not of type "string"',)
    assert len(schemas.problems("probe", {"x": [1] * 100})) == 51  # fifty problems, and the note that there are more


def test_number_of_steps_to_join_alternatives_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count()
    join = schema_compat._union_property

    def count_join(*terms: Any) -> dict[str, Any]:
        next(steps)
        return join(*terms)

    monkeypatch.setattr(schema_compat, "_union_property", count_join)
    kinds = [{"type": "object", "properties": {f"p{at}": {}}, "additionalProperties": False} for at in range(1_000)]
    joined = schema_compat.to_portable_schema({"properties": {"x": {"anyOf": kinds}}}).schema["properties"]["x"]
    assert len(joined["properties"]) == 1_000
    assert next(steps) <= 1_000 * 10  # 2^10 alternatives; joined one by one, there are half a million steps
