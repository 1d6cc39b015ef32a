"""The published JSON Schema of letters: draft 2020-12, generated from the types.

    letter_schema() -> dict       the schema; a test compares it with schemas/letter-1.3.json
    read_schema_file() -> bytes   the file

The top-level ``type`` selects the payload. Undeclared fields are allowed, because later minor versions may add some.
Invariant: a letter that matches the schema is accepted by ``read_letter``, except for conditions that a schema cannot
express: a time exists on the calendar, input ids are unique, two durations agree, and a count is not written as 1.0.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

import msgspec

from dragoman.letters.types import KINDS, LAST_LINE, PROTOCOL_VERSION, KnownContext, Letter
from dragoman.value import UnknownFields

SCHEMA_ID: Final = f"urn:dragoman:letter:{PROTOCOL_VERSION}"
SCHEMA_FILE: Final = f"letter-{PROTOCOL_VERSION}.json"
_DEFAULTS: Final = {
    ("Letter", "retry_count"): 0,
    ("RequestedInput", "sensitive"): False,
    ("RequestedInput", "required"): True,
}
_CONSISTENT: Final = {  # success is true exactly if the status is success
    "if": {"properties": {"status": {"const": "success"}}, "required": ["status"]},
    "then": {"properties": {"success": {"const": True}}},
    "else": {"properties": {"success": {"const": False}}},
}


def letter_schema() -> dict[str, Any]:
    """Return the schema of a letter."""
    _, components = msgspec.json.schema_components([*KINDS.values(), KnownContext], schema_hook=_unknown_schema)
    parts = {name: _clean(name, part) for name, part in components.items()}
    payloads = {kind: parts[cls.__name__]["properties"]["payload"] for kind, cls in KINDS.items()}
    envelope = parts[next(iter(KINDS.values())).__name__]
    known_context = parts.pop("KnownContext")
    for cls in KINDS.values():
        del parts[cls.__name__]
    parts["TaskResult"]["allOf"] = [_CONSISTENT]
    properties = {
        **envelope["properties"],
        "type": {"enum": list(KINDS)},
        "payload": {"type": "object"},
        "context": {"type": "object", "properties": known_context["properties"]},
    }
    properties["protocol_version"] = {**properties["protocol_version"], "pattern": r"^1\.[0-9]{1,9}$"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Letter",
        "description": f"A letter between agents, protocol version {PROTOCOL_VERSION}.",
        "type": "object",
        "properties": properties,
        "required": ["type", *(name for name in envelope["required"] if name != "type")],
        "allOf": [
            {
                "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
                "then": {"properties": {"payload": payload}},
            }
            for kind, payload in payloads.items()
        ],
        "$defs": dict(sorted(parts.items())),
    }


def inline_schema() -> dict[str, Any]:
    """Return the schema without an id and without references, for use inside another document."""
    whole = letter_schema()
    parts = whole.pop("$defs")
    result: dict[str, Any] = _inline(
        {key: value for key, value in whole.items() if key not in ("$schema", "$id")}, parts
    )
    return result


def _inline(value: Any, parts: dict[str, Any]) -> Any:
    match value:
        case {"$ref": str(name)}:
            return _inline(parts[name.rpartition("/")[2]], parts)
        case dict():
            return {key: _inline(inner, parts) for key, inner in value.items()}
        case list():
            return [_inline(inner, parts) for inner in value]
        case _:
            return value


def read_schema_file() -> bytes:
    """Return the file of this package."""
    return files("dragoman.letters").joinpath("schemas", SCHEMA_FILE).read_bytes()


def _unknown_schema(cls: type) -> dict[str, Any]:
    if cls is UnknownFields:
        return {"type": "object"}
    raise NotImplementedError(cls)


def _clean(name: str, part: dict[str, Any]) -> dict[str, Any]:
    properties = {key: _simplify(inner) for key, inner in part["properties"].items() if key != "unknown_fields"}
    for key, inner in properties.items():
        owner = "Letter" if key in Letter.__struct_fields__ and name.endswith("Letter") else name
        if (owner, key) in _DEFAULTS:
            inner["default"] = _DEFAULTS[owner, key]
    description = {"description": part["description"].replace("``", "`")} if "description" in part else {}
    required = {"required": part["required"]} if part.get("required") else {}
    return {"type": "object", **description, "properties": properties, **required}


def _simplify(inner: dict[str, Any]) -> dict[str, Any]:
    """Simplify the schema of a field: a union of whole number and number is a number."""
    match inner:
        case {"anyOf": [{"type": "integer"}, {"type": "number"} as number]}:
            return dict(number)
        case {"anyOf": list(choices), **rest}:
            kinds = [choice for choice in choices if choice != {"type": "integer"}]
            return {**rest, "type": [choice["type"] for choice in kinds]}
        case {"items": dict(items), **rest}:
            return {**rest, "items": _simplify(items)}
        case {"pattern": str(pattern), **rest}:
            return {**rest, "pattern": pattern.removesuffix(LAST_LINE)}
        case _:
            return dict(inner)
