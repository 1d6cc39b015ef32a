"""Tools, both ways: functions stand in groups there and one by one here.

The one rule: a tool that is not a function (a search, a sandbox) is opaque and only this dialect writes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.dialects.gemini.schema import lowered, raised
from dragoman.dialects.gemini.spelling import NAME, in_camel, respelled
from dragoman.dialects.parts.body import an_object
from dragoman.dialects.parts.functions import NO_INPUT
from dragoman.dialects.parts.residue import noted, notes_of, restored
from dragoman.exchange import Loss, OpaqueTool, SideEffects, ToolDefinition


def read_tools(items: list[Any]) -> tuple[ToolDefinition | OpaqueTool, ...]:
    """Each function of each group is a tool. What else stands in a group is noted at its first function."""
    tools: list[ToolDefinition | OpaqueTool] = []
    for index, item in enumerate(items):
        wire, snake = in_camel(an_object(item, f"$.tools[{index}]"))
        functions = wire.get("functionDeclarations")
        if not isinstance(functions, list) or not functions or not all(_is_function(item) for item in functions):
            tools.append(OpaqueTool(NAME, item))
            continue
        beside = {key: value for key, value in wire.items() if key != "functionDeclarations"}
        group = {
            "begins": True if tools and isinstance(tools[-1], ToolDefinition) else None,
            "group_snake": snake or None,
            "beside": {key: value for key, value in beside.items() if not value and value != {}} or None,
        }
        others = {key: value for key, value in beside.items() if value or value == {}}
        if others:
            group["absorbs"] = True
        tools.append(_read_tool(functions[0], group))
        tools.extend(_read_tool(function, {}) for function in functions[1:])
        if others:
            tools.append(OpaqueTool(NAME, others))
    return tuple(tools)


def _is_function(wire: Any) -> bool:
    return type(wire) is dict and isinstance(wire.get("name"), str)


def _read_tool(item: dict[str, Any], group: dict[str, Any]) -> ToolDefinition:
    wire, snake = in_camel(item)
    description = wire.get("description")
    key: str | None = "absent"
    schema: dict[str, Any] = NO_INPUT
    if isinstance(wire.get("parametersJsonSchema"), dict):
        key, schema = None, wire["parametersJsonSchema"]
    elif isinstance(wire.get("parameters"), dict):
        key, schema = "parameters", lowered(wire["parameters"])
    said = description if isinstance(description, str) else ""
    tool = ToolDefinition(wire["name"], said, schema, SideEffects.EXECUTE)
    notes = {"schema": key, "snake": snake or None, **group}
    return tool.replace(provider_raw=noted(NAME, _natural_tool(tool, notes), wire, **notes))


def _natural_tool(tool: ToolDefinition, notes: Mapping[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    match notes.get("schema"):
        case "parameters":
            wire["parameters"] = raised(tool.input_schema)
        case "absent" if tool.input_schema == NO_INPUT:
            pass
        case _:
            wire["parametersJsonSchema"] = tool.input_schema
    return wire


def written_tools(tools: tuple[ToolDefinition | OpaqueTool, ...], losses: list[Loss]) -> list[dict[str, Any]]:
    """Functions next to each other are one group, unless they came apart."""
    wire: list[dict[str, Any]] = []
    group: dict[str, Any] | None = None
    group_notes: Mapping[str, Any] = {}
    for tool in tools:
        if isinstance(tool, OpaqueTool):
            if tool.dialect != NAME:
                losses.append(Loss("", "", "tool", NAME, f"a tool that only {tool.dialect} understands"))
            elif group is not None and group_notes.get("absorbs"):
                group.update(tool.wire)
                group = None
            else:
                wire.append(tool.wire)
                group = None
            continue
        notes = notes_of(tool.provider_raw, NAME)
        made = respelled(restored(_natural_tool(tool, notes), notes.get("residue")), notes.get("snake"))
        if group is None or notes.get("begins"):
            key = "function_declarations" if notes.get("group_snake") else "functionDeclarations"
            functions: list[Any] = []
            group, group_notes = {key: functions, **notes.get("beside", {})}, notes
            wire.append(group)
        functions.append(made)
    return wire
