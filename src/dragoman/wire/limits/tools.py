"""Fit the tools of a request to the limits of a target.

    fit_tools(tools, limits, report) -> tools

Some APIs enforce a schema only if every object lists all of its properties as required and allows no others. Some
reject a schema without a type; the input of a tool is an object. Invariant: names and descriptions stay, and a schema
accepts the inputs that it accepted before.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.exchange import OpaqueTool, ToolDefinition
from dragoman.wire.limits.table import Limits, Report

Tools = tuple[ToolDefinition | OpaqueTool, ...]


def fit_tools(tools: Tools, limits: Limits, report: Report) -> Tools:
    """Return the tools that the target accepts."""
    needs_type, strict_count = limits.needs_schema_type, 0
    fitted: dict[int, ToolDefinition] = {}  # the tools that change, by their place
    for index, tool in enumerate(tools):
        if not isinstance(tool, ToolDefinition):
            continue
        if needs_type and "type" not in tool.input_schema:
            fitted[index] = tool = _add_type(tool, report)  # noqa: PLW2901
        if tool.strict:
            reason = _rejection_of(tool, strict_count, limits)
            if reason is None:
                strict_count += 1
                continue
            report.adjust("tool.strict", f"{tool.name} is not strict: {reason}")
            fitted[index] = msgspec.structs.replace(tool, strict=False)
    return tuple(fitted.get(index, tool) for index, tool in enumerate(tools)) if fitted else tools


def _add_type(tool: ToolDefinition, report: Report) -> ToolDefinition:
    report.adjust("tool.input_schema", f"{tool.name} takes an object: the API requires a type")
    return msgspec.structs.replace(tool, input_schema={"type": "object", **tool.input_schema})


def _rejection_of(tool: ToolDefinition, strict_count: int, limits: Limits) -> str | None:
    if limits.max_strict_tools is not None and strict_count >= limits.max_strict_tools:
        return f"the API accepts {limits.max_strict_tools} strict tools"
    if limits.needs_closed_schemas and not is_closed(tool.input_schema):
        return "the API enforces only schemas whose objects require every property and allow no others"
    return None


def is_closed(schema: Any) -> bool:
    """Whether every object of a schema requires all of its properties and allows no others."""
    if isinstance(schema, list):
        return all(is_closed(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        names = set(properties) if isinstance(properties, dict) else set()
        if schema.get("additionalProperties") is not False or _required_names(schema) != names:
            return False
    inner = [*properties.values()] if isinstance(properties, dict) else []
    inner += [schema[key] for key in ("items", "anyOf") if key in schema]
    for key in ("$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            inner += schema[key].values()
    return all(is_closed(part) for part in inner)


def _required_names(schema: dict[str, Any]) -> set[Any]:
    """Return the required properties; none if the list is invalid."""
    required = schema.get("required")
    return set(required) if isinstance(required, list) and all(isinstance(name, str) for name in required) else set()
