"""Tools and calls of version 1, and the same in the shape of version 2.

schema_from(definitions) -> schema, definitions_from(schema) -> definitions      parameters of a tool
CallIds                                                                          ids for calls, which have none
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dragoman.jsontext import DECODE_ERRORS

_TYPES: Final = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_PYTHON_TYPES: Final = {schema_type: name for name, schema_type in _TYPES.items()}
_LIST: Final = re.compile(r"[Ll]ist\[(\w+)\]")


def schema_from(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of the parameters of a tool."""
    properties = {name: _property_from(value) for name, value in definitions.items() if isinstance(value, dict)}
    required = [name for name, value in definitions.items() if isinstance(value, dict) and value.get("required")]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _property_from(definition: dict[str, Any]) -> dict[str, Any]:
    word = str(definition.get("type", ""))
    items = _LIST.fullmatch(word)
    schema: dict[str, Any] = {}
    if items is not None:
        schema = {"type": "array", "items": {"type": _TYPES.get(items[1].lower(), "string")}}
    elif word:
        schema = {"type": _TYPES.get(word.lower(), word.lower())}
    description = definition.get("description")
    return {**schema, "description": description} if isinstance(description, str) else schema


def definitions_from(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a tool, as far as this API can describe them."""
    properties, required = schema.get("properties"), schema.get("required")
    required = required if isinstance(required, list) else []
    return {
        name: _definition_from(value, is_required=name in required)
        for name, value in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(value, dict)
    }


def _definition_from(schema: dict[str, Any], *, is_required: bool) -> dict[str, Any]:
    kind, items = schema.get("type"), schema.get("items")
    word = _PYTHON_TYPES.get(str(kind), "str")
    if kind == "array" and isinstance(items, dict) and items.get("type") in tuple(_PYTHON_TYPES):
        word = f"List[{_PYTHON_TYPES[items['type']]}]"
    description = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    return {**description, "type": word, **({"required": True} if is_required else {})}


class CallIds:
    """Ids for the calls of one conversation; a result takes that of the oldest equal call without a result."""

    def __init__(self) -> None:
        self._count = 0
        self._unanswered: dict[str, tuple[Any, bytes]] = {}

    def add(self, call: dict[str, Any]) -> str:
        """Return the id of a new call."""
        self._count += 1
        call_id = f"call_{self._count}"
        self._unanswered[call_id] = _identity(call)
        return call_id

    def find(self, call: dict[str, Any]) -> str | None:
        """Return the id of the call that a result repeats."""
        identity = _identity(call)
        equal = (call_id for call_id, known in self._unanswered.items() if known == identity)
        same_name = (call_id for call_id, known in self._unanswered.items() if known[0] == identity[0])
        call_id = next(equal, None) or next(same_name, None)
        if call_id is not None:
            del self._unanswered[call_id]
        return call_id


def _identity(call: dict[str, Any]) -> tuple[Any, bytes]:
    return call.get("name"), msgspec.json.encode(call.get("parameters") or {}, order="sorted")


def call_to_base(call: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return a call in the shape of version 2."""
    parameters = call.get("parameters")
    arguments = msgspec.json.encode({} if parameters is None else parameters).decode()
    return {"id": call_id, "type": "function", "function": {"name": call.get("name"), "arguments": arguments}}


def call_from_base(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of version 2 in the shape of version 1."""
    function = call["function"]
    try:
        parameters = msgspec.json.decode(function.get("arguments") or "{}")
    except DECODE_ERRORS:
        parameters = {"invalid_input": function["arguments"]}
    return {"name": function["name"], "parameters": parameters}
