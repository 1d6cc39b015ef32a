"""Convert tools: functions are in groups on the wire and separate here.

A tool that is not a function, such as search, is opaque; only this dialect writes it. A schema is JSON Schema or
Google's OpenAPI variant; keywords without an equivalent are unchanged, and the residue keeps the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.dialects.gemini.key_case import NAME, restore_case, to_camel
from dragoman.exchange import Loss, OpaqueTool, SideEffects, ToolDefinition
from dragoman.jsontext import expect_object
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.tool_definitions import EMPTY_SCHEMA, write_opaque_tool

_TYPES: Final = {1: "string", 2: "number", 3: "integer", 4: "boolean", 5: "array", 6: "object", 7: "null"}
_OPENAPI_FORMATS: Final = frozenset({"enum", "int32", "int64", "float", "double"})
_NOT_JSON_SCHEMA: Final = frozenset({"nullable", "propertyOrdering", "property_ordering"})
_INTEGER_KEYWORDS: Final = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_SCHEMA_MAPS: Final = frozenset({"properties", "$defs", "defs", "definitions"})
_SCHEMA_VALUES: Final = frozenset({"items", "additionalProperties", "not"})
_SCHEMA_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def read_tools(items: list[Any]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    """Read each function of each group as a tool. The other fields of a group are noted at its first function."""
    tools: list[ToolDefinition | OpaqueTool] = []
    for index, item in enumerate(items):
        wire, snake = to_camel(expect_object(item, f"$.tools[{index}]"))
        functions = wire.get("functionDeclarations")
        if not isinstance(functions, list) or not functions or not all(_is_function(item) for item in functions):
            tools.append(_read_server_tool(item))
            continue
        other_fields = {key: value for key, value in wire.items() if key != "functionDeclarations"}
        group = {
            "begins": True if tools and isinstance(tools[-1], ToolDefinition) else None,
            "group_snake": snake or None,
            "beside": {key: value for key, value in other_fields.items() if not value and value != {}} or None,
        }
        provider_tools = {key: value for key, value in other_fields.items() if value or value == {}}
        if provider_tools:
            group["absorbs"] = True
        tools.append(_read_tool(functions[0], group))
        tools.extend(_read_tool(function, {}) for function in functions[1:])
        if provider_tools:
            tools.append(_read_server_tool(provider_tools))
    return tuple(tools)


def _is_function(wire: Any) -> bool:
    return type(wire) is dict and isinstance(wire.get("name"), str)


def _read_tool(item: dict[str, Any], group: dict[str, Any]) -> ToolDefinition:
    wire, snake = to_camel(item)
    description = wire.get("description")
    key: str | None = "absent"
    schema: dict[str, Any] = EMPTY_SCHEMA
    if isinstance(wire.get("parametersJsonSchema"), dict):
        key, schema = None, to_plain_schema(wire["parametersJsonSchema"])
    elif isinstance(wire.get("parameters"), dict):
        key, schema = "parameters", to_json_schema(wire["parameters"])
    text = description if isinstance(description, str) else ""
    tool = ToolDefinition(wire["name"], text, schema, SideEffects.EXECUTE)
    notes = {"schema": key, "snake": snake or None, **group}
    return tool.replace(provider_raw=make_notes(NAME, _default_tool(tool, notes), wire, **notes))


def _default_tool(tool: ToolDefinition, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    match notes.get("schema"):
        case "parameters":
            wire["parameters"] = from_json_schema(tool.input_schema)
        case "absent" if tool.input_schema == EMPTY_SCHEMA:
            pass
        case _:
            wire["parametersJsonSchema"] = tool.input_schema
    return wire


def write_tools(tools: tuple[ToolDefinition | OpaqueTool, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    """Write consecutive functions as one group, unless they were in separate groups."""
    wire: list[dict[str, Any]] = []
    group: dict[str, Any] | None = None
    group_notes: Mapping[str, Any] = {}
    for tool in tools:
        if isinstance(tool, OpaqueTool):
            if tool.dialect != NAME:
                server_tool = write_opaque_tool(tool, NAME, losses, _write_server_tool)
                wire.extend([server_tool] if server_tool is not None else ())
                group = None
            elif group is not None and group_notes.get("absorbs"):
                group.update(tool.wire)
                group = None
            else:
                wire.append(tool.wire)
                group = None
            continue
        notes = get_notes(tool.provider_raw, NAME)
        function = restore_case(apply_diff(_default_tool(tool, notes), notes.get("residue")), notes.get("snake"))
        if group is None or notes.get("begins"):
            key = "function_declarations" if notes.get("group_snake") else "functionDeclarations"
            functions: list[Any] = []
            group, group_notes = {key: functions, **notes.get("beside", {})}, notes
            wire.append(group)
        functions.append(function)
    return wire


# --- schemas ---------------------------------------------------------------------------------------------------------


def to_plain_schema(schema: Any) -> Any:
    """Return a JSON Schema without Google's names of types, which some clients write there as well (Gemini CLI)."""
    kind = schema.get("type") if type(schema) is dict else None
    return to_json_schema(schema) if isinstance(kind, str) and kind.isupper() else schema


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


# --- tools that the provider runs -----------------------------------------------------------------------------------

_SERVER_TOOL_KINDS: Final = {
    "googleSearch": "web_search",
    "google_search": "web_search",
    "googleSearchRetrieval": "web_search",
    "codeExecution": "code_execution",
    "code_execution": "code_execution",
    "urlContext": "web_fetch",
    "url_context": "web_fetch",
    "fileSearch": "file_search",
    "file_search": "file_search",
}
_SERVER_TOOL_KEYS: Final = {"web_search": "googleSearch", "code_execution": "codeExecution", "web_fetch": "urlContext"}


def _read_server_tool(wire: dict[str, Any]) -> OpaqueTool:
    """Return the tool with its kind; an object with several tools has none."""
    kinds = {_SERVER_TOOL_KINDS.get(key) for key in wire}
    return OpaqueTool(NAME, wire, kinds.pop() if len(kinds) == 1 else None)


def _write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    key = _SERVER_TOOL_KEYS.get(tool.kind or "")
    return None if key is None else {key: {}}
