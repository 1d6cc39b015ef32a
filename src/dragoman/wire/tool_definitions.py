"""Tools as functions: ``{"type": "function", "function": {...}}``, the shape that Chat Completions made common.

    read_tool(wire, dialect) -> tool                a definition, or the whole of it if it is another kind of tool
    write_tool(tool, dialect, losses) -> wire     None for a tool that only another dialect understands
    write_tools(tools, natural, dialect, losses)  the tools of a request, in whatever shape ``natural`` gives them
    read_arguments(text) -> value, problem          the input of a call that travels as a text
    mark_cut_calls(reply, has_no_input) -> reply     a call cut before its input is no call without input
    is_unusable(reply, dialect)                  whether it ended like any reply, and only we found that it failed

The one rule: an input that is no JSON object is never replaced by an empty one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError
from dragoman.exchange import Loss, OpaqueTool, Reply, SideEffects, StopReason, ToolDefinition
from dragoman.jsontext import OWN, read_json
from dragoman.message import ContentBlock, InvalidToolUseBlock, ToolUseBlock
from dragoman.wire.residue import apply_diff, get_notes, make_notes

Tool = ToolDefinition | OpaqueTool
ToolWriter = Callable[[ToolDefinition], dict[str, Any]]
UNUSABLE: Final = ("tool_input_invalid", "tool_input_truncated", "empty_response")  # what only we find wrong
MAX_BRACKETS: Final = 64  # in JSON that is shallow for certain
EMPTY_SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {}}  # the schema of a tool that came without one


def read_tool(wire: dict[str, Any], dialect: str) -> Tool:
    """A tool as we know it, with what is left over; else the whole of it, opaque."""
    function = wire.get("function")
    if wire.get("type", "function") != "function" or not isinstance(function, dict):
        return OpaqueTool(dialect, wire)
    name, description, schema = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(name, str):
        return OpaqueTool(dialect, wire)
    text = description if isinstance(description, str) else ""
    schema = schema if isinstance(schema, dict) else dict(EMPTY_SCHEMA)
    tool = ToolDefinition(name, text, schema, SideEffects.EXECUTE)
    return tool.replace(provider_raw=make_notes(dialect, default_tool(tool), wire))


def default_tool(tool: ToolDefinition) -> dict[str, Any]:
    """What we would write for a tool if nobody had noted anything about it."""
    description = {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": {"name": tool.name, **description, "parameters": tool.input_schema}}


def write_tools(tools: Iterable[Tool], default: ToolWriter, dialect: str, losses: list[Loss]) -> list[dict[str, Any]]:
    """The tools as they stand on the wire. ``natural`` is what we would write if nobody had noted anything."""
    wires = (write_tool(tool, dialect, losses, default) for tool in tools)
    return [wire for wire in wires if wire is not None]


def write_tool(
    tool: Tool, dialect: str, losses: list[Loss], default: ToolWriter = default_tool
) -> dict[str, Any] | None:
    """The tool as it stands on the wire."""
    if isinstance(tool, OpaqueTool):
        if tool.dialect == dialect:
            return tool.wire
        losses.append(Loss("", "", "tool", dialect, f"a tool that only {tool.dialect} understands"))
        return None
    wire: dict[str, Any] = apply_diff(default(tool), get_notes(tool.provider_raw, dialect).get("residue"))
    return wire


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """The input of a call, or why there is none. No text at all is how providers send the input of no arguments."""
    try:
        value = read_json(text, OWN) if text.strip() else {}
    except JsonError as error:
        return {}, str(error)
    if isinstance(value, dict):
        return value, None
    return {}, f"a tool's input is a JSON object, not {type(value).__name__}"


def mark_cut_calls(reply: Reply, has_no_input: Callable[[ToolUseBlock], bool]) -> Reply:
    """The reply; where it met its limit, a call whose input had not begun is one that cannot be used."""
    if reply.stop_reason is not StopReason.MAX_TOKENS:
        return reply
    return reply.replace(content=tuple(_mark_cut_call(block, has_no_input) for block in reply.content))


def _mark_cut_call(block: ContentBlock, has_no_input: Callable[[ToolUseBlock], bool]) -> ContentBlock:
    if not isinstance(block, ToolUseBlock) or block.input or not has_no_input(block):
        return block
    reason = "the output limit came before its input"
    return InvalidToolUseBlock(block.id, block.name, "", reason, block.provider_raw)


def is_unusable(reply: Reply, dialect: str) -> bool:
    """Whether a reply ended like any other and it was we who found that it cannot be used, as it came on this wire.

    Of another wire, a call that cannot be used would not look like that here: then the reply has to say that it failed.
    """
    if reply.fault is None or reply.fault.code not in UNUSABLE:
        return False
    invalid_calls = (block for block in reply.content if isinstance(block, InvalidToolUseBlock))
    return all(get_notes(block.provider_raw, dialect) for block in invalid_calls)


def is_shallow_json(value: dict[str, Any]) -> bool:
    """Whether a parsed object is certainly not nested too deeply to be stored; ``False`` means that it may be."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return _has_few_brackets(data)


@functools.lru_cache(maxsize=1024)  # a conversation sends the same schemas in every turn
def _has_few_brackets(data: bytes) -> bool:
    return data.count(b"{") + data.count(b"[") <= MAX_BRACKETS


_encode: Final = msgspec.json.Encoder().encode
