"""Schemas: JSON Schema here, and there either JSON Schema or OpenAPI's with Google's words.

    lowered(schema)    JSON Schema for a schema of Google's
    raised(schema)     the schema in Google's words

The one rule: what neither has a word for passes unchanged; the residue keeps what was left out.
"""

from __future__ import annotations

from typing import Any, Final

_TYPES: Final = {1: "string", 2: "number", 3: "integer", 4: "boolean", 5: "array", 6: "object", 7: "null"}
_OPENAPI_FORMATS: Final = frozenset({"enum", "int32", "int64", "float", "double"})
_NOT_JSON_SCHEMA: Final = frozenset({"nullable", "propertyOrdering", "property_ordering"})
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_NAMED_SCHEMAS: Final = frozenset({"properties", "$defs", "defs", "definitions"})
_ONE_SCHEMA: Final = frozenset({"items", "additionalProperties", "not"})
_MORE_SCHEMAS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def lowered(schema: Any) -> Any:
    """JSON Schema for a schema of Google's, which is OpenAPI's with other words: STRING, nullable, int64 as a text."""
    if type(schema) is not dict:
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and type(value) in (str, int):
            made[key] = _TYPES.get(value, value) if type(value) is int else value.lower()
        elif key in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
            made[key] = int(value)
        elif key not in _NOT_JSON_SCHEMA and not (key == "format" and str(value) in _OPENAPI_FORMATS):
            known = "anyOf" if key == "any_of" else key
            made[known] = _inside(known, value, lowered)
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def raised(schema: Any) -> Any:
    """The schema in Google's words, as far as they differ."""
    if type(schema) is not dict:
        return schema
    made = {key: _inside(key, value, raised) for key, value in schema.items()}
    match made.get("type"):
        case str(kind):
            made["type"] = kind.upper()
        case [str(kind), "null"] | ["null", str(kind)]:
            made["type"], made["nullable"] = kind.upper(), True
    return made


def _inside(key: str, value: Any, change: Any) -> Any:
    """The value of a schema's keyword, with the schemas in it changed."""
    if key in _NAMED_SCHEMAS and type(value) is dict:
        return {name: change(part) for name, part in value.items()}
    if key in _MORE_SCHEMAS and type(value) is list:
        return [change(part) for part in value]
    return change(value) if key in _ONE_SCHEMA else value
