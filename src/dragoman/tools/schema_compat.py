"""Convert any JSON Schema to the subset that every provider accepts.

    to_portable_schema(schema) -> PortableSchema(schema, widenings, size)        SchemaSizeError above a limit

References are expanded, a choice between null and a type becomes a nullable type, alternatives are merged, and
restrictions outside the subset are dropped. ``widenings`` lists each place where the result accepts more than the
original; the code that runs the tool must validate the rest, as every MCP server does. Invariant: the result accepts
every input that the original accepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dragoman.schema_limits import SchemaSize, find_reference, measure_schema, shorten_name
from dragoman.toolschema import ALLOWED, FORMATS, TYPES, fits_subset

_MAX_DEPTH: Final = 24
_ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly"}
    | {"contentMediaType", "contentEncoding", "contentSchema", "discriminator", "example", "nullable"}
)
_UNIONS: Final = ("anyOf", "oneOf")
_ANNOTATION_KEYS: Final = ("title", "description", "default", "examples")


class PortableSchema(msgspec.Struct, frozen=True):
    """A schema in the subset, and where it accepts more than the original."""

    schema: dict[str, Any]
    widenings: tuple[str, ...] = ()
    size: SchemaSize = SchemaSize()  # of the original


def to_portable_schema(schema: Mapping[str, Any]) -> PortableSchema:
    """Convert the input schema of a tool. Raises ``SchemaSizeError`` if it is too large."""
    size = measure_schema(schema)
    converter = _SchemaConverter(schema, size)
    result = converter.convert(schema, "$", ())
    result["type"] = "object"  # the input of a tool is always an object
    return PortableSchema(result, tuple(converter.widenings), size)


class _SchemaConverter:
    def __init__(self, root: Mapping[str, Any], size: SchemaSize) -> None:
        self._root = root
        self._pattern_bytes = size.pattern_bytes
        self.widenings: list[str] = []

    def convert(self, schema: Any, where: str, references: tuple[str, ...]) -> dict[str, Any]:
        """Convert one schema. ``references`` are those already expanded; a repeated one is recursive."""
        if not isinstance(schema, Mapping):  # true or false
            return {} if schema is True else self._widen(where, f"the schema {schema!r}")
        if len(references) > _MAX_DEPTH or where.count(".") > 2 * _MAX_DEPTH:
            return self._widen(where, "a schema nested too deep")
        result: dict[str, Any] = {}
        for keyword, value in schema.items():
            result.update(self._convert_keyword(keyword, value, where))
        if result.get("type") == []:
            del result["type"]
        result = self._add_subschemas(result, schema, where, references)
        for constraint in self._constraints(schema, where, references):
            result = _intersection(result, constraint)
        if schema.get("nullable") is True and "type" in result:
            result = _union(result, {"type": "null"})
        return result

    def _widen(self, where: str, text: str) -> dict[str, Any]:
        self.widenings.append(f"{where}: {text}")
        return {}

    def _convert_keyword(self, keyword: str, value: Any, where: str) -> dict[str, Any]:
        """Convert a keyword that does not depend on others."""
        match keyword:
            case "properties" | "items" | "additionalProperties" | "$ref" | "allOf" | "anyOf" | "oneOf":
                return {}  # converted below
            case "type":
                types = [name for name in (value if isinstance(value, list) else [value]) if name in TYPES]
                return {"type": types[0] if len(types) == 1 else list(dict.fromkeys(types))}
            case "exclusiveMinimum" | "exclusiveMaximum" if _is_number(value):
                self._widen(where, keyword)
                return {"minimum" if keyword == "exclusiveMinimum" else "maximum": value}
            case "format" if value not in FORMATS:
                return self._widen(where, f"the format {value!r}")
            case "required" if isinstance(value, list):
                return {"required": list(dict.fromkeys(name for name in value if isinstance(name, str)))}
            case _ if keyword in ALLOWED:
                is_in_subset = fits_subset(keyword, value, self._pattern_bytes)
                return {keyword: value} if is_in_subset else self._widen(where, keyword)
            case _:
                return {} if keyword in _ANNOTATIONS else self._widen(where, keyword)

    def _add_subschemas(
        self, result: dict[str, Any], schema: Mapping[str, Any], where: str, references: tuple[str, ...]
    ) -> dict[str, Any]:
        """Add the converted subschemas."""
        properties, items, rest = schema.get("properties"), schema.get("items"), schema.get("additionalProperties")
        if isinstance(properties, Mapping):
            result["properties"] = {
                str(name): self.convert(inner, f"{where}.properties.{shorten_name(name)}", references)
                for name, inner in properties.items()
            }
        if isinstance(items, Mapping) and "prefixItems" not in schema:
            result["items"] = self.convert(items, f"{where}.items", references)
        elif items is not None and items is not True:
            self._widen(where, "items")
        if isinstance(rest, Mapping):
            result["additionalProperties"] = True
            if rest:
                self._widen(where, "additionalProperties")
        elif isinstance(rest, bool):
            is_closed = rest is False and "patternProperties" not in schema
            result["additionalProperties"] = not is_closed
        return result

    def _constraints(
        self, schema: Mapping[str, Any], where: str, references: tuple[str, ...]
    ) -> Iterable[dict[str, Any]]:
        """The schemas that must hold as well: ``$ref``, ``allOf``, and the union of ``anyOf`` and of ``oneOf``."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield self._resolve(reference, where, references)
        for index, inner in enumerate(_list(schema.get("allOf"))):
            yield self.convert(inner, f"{where}.allOf[{index}]", (*references, ""))
        for keyword in _UNIONS:
            alternatives = [
                self.convert(inner, f"{where}.{keyword}[{index}]", (*references, ""))
                for index, inner in enumerate(_list(schema.get(keyword)))
            ]
            if alternatives:
                if not _is_plain_choice(alternatives):
                    self._widen(where, keyword)
                yield _union_all(alternatives)

    def _resolve(self, reference: str, where: str, references: tuple[str, ...]) -> dict[str, Any]:
        if reference in references or not reference.startswith("#"):
            return self._widen(where, f"the reference {reference!r}")
        target = find_reference(self._root, reference)
        if target is None:
            return self._widen(where, f"the reference {reference!r}, which does not exist")
        return self.convert(target, where, (*references, reference))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _types(schema: Mapping[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _is_plain_choice(alternatives: list[dict[str, Any]]) -> bool:
    """Whether the union is exact: no type occurs twice, and at most one schema restricts more than its type."""
    types = [name for schema in alternatives for name in _types(schema)]
    restricted = [schema for schema in alternatives if set(schema) - {"type", *_ANNOTATION_KEYS}]
    return all("type" in schema for schema in alternatives) and len(set(types)) == len(types) and len(restricted) <= 1


# --- two schemas as one ----------------------------------------------------------------------------------------------


def _union_all(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """The union of schemas, by halves: a sequential union would copy the growing result each time."""
    if len(alternatives) == 1:
        return alternatives[0]
    half = len(alternatives) // 2
    return _union(_union_all(alternatives[:half]), _union_all(alternatives[half:]))


def _union(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """A schema that accepts what at least one of two schemas accepts."""
    result: dict[str, Any] = {
        key: left.get(key, right.get(key)) for key in _ANNOTATION_KEYS if key in left or key in right
    }
    if "type" in left and "type" in right:
        types = list(dict.fromkeys([*_types(left), *_types(right)]))
        result["type"] = types[0] if len(types) == 1 else types
    left_values, right_values = _values(left), _values(right)
    if left_values is not None and right_values is not None:
        result["enum"] = list(
            {json.dumps(value, sort_keys=True): value for value in (*left_values, *right_values)}.values()
        )
        return result
    for type_name, keywords in _KEYWORDS_BY_TYPE.items():
        result.update(_union_for_type(left, right, type_name, keywords))
    return result


# Keywords by the type that they restrict; they do not apply to values of other types.
_KEYWORDS_BY_TYPE: Final = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum"),
}


def _union_for_type(
    left: Mapping[str, Any], right: Mapping[str, Any], type_name: str, keywords: tuple[str, ...]
) -> dict[str, Any]:
    for first, second in ((left, right), (right, left)):
        if not _allows_type(second, type_name):  # then only the first restricts it
            return {
                keyword: first[keyword] for keyword in keywords if keyword in first and _allows_type(first, type_name)
            }
    result: dict[str, Any] = {}
    for keyword in keywords:
        if keyword in left and keyword in right:
            result.update(_union_keyword(keyword, left, right))
    if type_name == "object" and ("properties" in left or "properties" in right):
        names = {**left.get("properties", {}), **right.get("properties", {})}
        result["properties"] = {name: _union_property(name, left, right) for name in names}
    return result


def _allows_type(schema: Mapping[str, Any], type_name: str) -> bool:
    values = _values(schema)
    if values is not None:
        return any(_type_of(value) == type_name for value in values)
    types = _types(schema)
    return not types or type_name in types or (type_name == "number" and "integer" in types)


def _type_of(value: Any) -> str:
    match value:
        case bool() | None:
            return "other"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _union_keyword(keyword: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    left_value, right_value = left[keyword], right[keyword]
    match keyword:
        case "required":
            return {keyword: [name for name in left_value if name in right_value]}
        case "items":
            return {keyword: _union(left_value, right_value)}
        case "additionalProperties":
            return {keyword: left_value or right_value}
        case "minimum" | "minLength" | "minItems":
            return {keyword: min(left_value, right_value)}
        case "maximum" | "maxLength" | "maxItems":
            return {keyword: max(left_value, right_value)}
        case _:
            return {keyword: left_value} if left_value == right_value else {}


def _union_property(name: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """The union of a property of two object schemas.

    A schema that allows additional properties accepts any value for a property that it does not define; then only the
    annotations are kept.
    """
    left_schema, right_schema = left.get("properties", {}).get(name), right.get("properties", {}).get(name)
    if left_schema is not None and right_schema is not None:
        return _union(left_schema, right_schema)
    schema, other_side = (left_schema, right) if left_schema is not None else (right_schema, left)
    assert schema is not None
    if other_side.get("additionalProperties") is False:
        return dict(schema)
    return {key: schema[key] for key in _ANNOTATION_KEYS if key in schema}


def _intersection(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """A schema that accepts at least what both schemas accept."""
    result = {**right, **left}
    if "type" in left and "type" in right:
        types = [name for name in _types(left) if name in _types(right)] or _types(left)
        if "integer" in _types(right) and "number" in _types(left) and "integer" not in types:
            types.append("integer")
        result["type"] = types[0] if len(types) == 1 else types
    if "properties" in left and "properties" in right:
        shared = {
            name: _intersection(left["properties"][name], inner)
            for name, inner in right["properties"].items()
            if name in left["properties"]
        }
        result["properties"] = {**left["properties"], **right["properties"], **shared}
    if "required" in left and "required" in right:
        result["required"] = list(dict.fromkeys([*left["required"], *right["required"]]))
    if ("properties" in left or "properties" in right) and result.get("additionalProperties") is False:
        result = _drop_closed_properties(result, left, right)
    return result


def _drop_closed_properties(result: dict[str, Any], left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Drop properties that a schema without additional properties does not define."""
    closed_parts = [part for part in (left, right) if part.get("additionalProperties") is False]
    names = set.intersection(*(set(part.get("properties", {})) for part in closed_parts))
    return {**result, "properties": {name: inner for name, inner in result["properties"].items() if name in names}}


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None
