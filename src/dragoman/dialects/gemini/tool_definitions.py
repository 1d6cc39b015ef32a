"""Convert tools: functions are in groups on the wire and separate here.

A tool that is not a function, such as search, is opaque; only this dialect writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.dialects.gemini.key_case import NAME, restore_case, to_camel
from dragoman.dialects.gemini.schema import from_json_schema, to_json_schema
from dragoman.exchange import Loss, OpaqueTool, SideEffects, ToolDefinition
from dragoman.jsontext import expect_object
from dragoman.wire.residue import apply_diff, get_notes, make_notes
from dragoman.wire.tool_definitions import EMPTY_SCHEMA


def read_tools(items: list[Any]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    """Read each function of each group as a tool. The other fields of a group are noted at its first function."""
    tools: list[ToolDefinition | OpaqueTool] = []
    for index, item in enumerate(items):
        wire, snake = to_camel(expect_object(item, f"$.tools[{index}]"))
        functions = wire.get("functionDeclarations")
        if not isinstance(functions, list) or not functions or not all(_is_function(item) for item in functions):
            tools.append(OpaqueTool(NAME, item))
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
            tools.append(OpaqueTool(NAME, provider_tools))
    return tuple(tools)


def _is_function(wire: Any) -> bool:
    return type(wire) is dict and isinstance(wire.get("name"), str)


def _read_tool(item: dict[str, Any], group: dict[str, Any]) -> ToolDefinition:
    wire, snake = to_camel(item)
    description = wire.get("description")
    key: str | None = "absent"
    schema: dict[str, Any] = EMPTY_SCHEMA
    if isinstance(wire.get("parametersJsonSchema"), dict):
        key, schema = None, wire["parametersJsonSchema"]
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
                losses.append(Loss("", "", "tool", NAME, f"a tool of {tool.dialect}"))
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
