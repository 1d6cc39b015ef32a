"""Convert schemas between JSON Schema and Google's OpenAPI variant.

    to_json_schema(schema)      JSON Schema for a schema of Google's
    from_json_schema(schema)    the reverse

Keywords without an equivalent are unchanged; the residue keeps the rest.
"""

from __future__ import annotations

from typing import Any, Final

_TYPES: Final = {1: "string", 2: "number", 3: "integer", 4: "boolean", 5: "array", 6: "object", 7: "null"}
_OPENAPI_FORMATS: Final = frozenset({"enum", "int32", "int64", "float", "double"})
_NOT_JSON_SCHEMA: Final = frozenset({"nullable", "propertyOrdering", "property_ordering"})
_INTEGER_KEYWORDS: Final = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_SCHEMA_MAPS: Final = frozenset({"properties", "$defs", "defs", "definitions"})
_SCHEMA_VALUES: Final = frozenset({"items", "additionalProperties", "not"})
_SCHEMA_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def to_json_schema(schema: Any) -> Any:
    """Return JSON Schema for Google's variant of OpenAPI: ``STRING``, ``nullable``, int64 as text."""
    if type(schema) is not dict:
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and type(value) in (str, int):
            result[key] = _TYPES.get(value, value) if type(value) is int else value.lower()
        elif key in _INTEGER_KEYWORDS and isinstance(value, str) and value.isascii() and value.isdigit():
            result[key] = int(value)
        elif key not in _NOT_JSON_SCHEMA and not (key == "format" and str(value) in _OPENAPI_FORMATS):
            name = "anyOf" if key == "any_of" else key
            result[name] = _map_subschemas(name, value, to_json_schema)
    if schema.get("nullable") is True and isinstance(result.get("type"), str):
        result["type"] = [result["type"], "null"]
    return result


def from_json_schema(schema: Any) -> Any:
    """Return the schema in Google's variant."""
    if type(schema) is not dict:
        return schema
    result = {key: _map_subschemas(key, value, from_json_schema) for key, value in schema.items()}
    match result.get("type"):
        case str(kind):
            result["type"] = kind.upper()
        case [str(kind), "null"] | ["null", str(kind)]:
            result["type"], result["nullable"] = kind.upper(), True
    return result


def _map_subschemas(key: str, value: Any, change: Any) -> Any:
    """Return the value of a keyword with its subschemas converted."""
    if key in _SCHEMA_MAPS and type(value) is dict:
        return {name: change(part) for name, part in value.items()}
    if key in _SCHEMA_LISTS and type(value) is list:
        return [change(part) for part in value]
    return change(value) if key in _SCHEMA_VALUES else value
