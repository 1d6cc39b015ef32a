"""Tools in the shape of Chat Completions, and tool calls whose input is a text.

    read_tool(wire, dialect) -> tool                a definition, or an opaque tool of another kind
    write_tool(tool, dialect, losses, default)      ``None`` for a tool that only another dialect has
    write_tools(tools, default, dialect, losses)    the tools of a request; ``default`` writes one definition
    read_arguments(text) -> value, problem          the input of a call
    mark_cut_calls(reply, has_no_input) -> reply    calls that the output limit cut before their input
    is_unusable(reply, dialect)                     whether only our checks, not the provider, found a fault
    is_shallow_json(value)                          a fast check of the nesting
    is_valid_schema(schema)                         whether a schema can be stored, remembered

Invariant: an input that is not a JSON object is never replaced by an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dragoman.errors import JsonError
from dragoman.exchange import Loss, OpaqueTool, Reply, Request, SideEffects, StopReason, ToolDefinition
from dragoman.jsontext import OWN, flag_or_none, read_json, validate_json
from dragoman.message import ContentBlock, InvalidToolUseBlock, ToolUseBlock
from dragoman.wire.residue import apply_diff, get_notes, make_notes

Tool = ToolDefinition | OpaqueTool
ToolWriter = Callable[[ToolDefinition], dict[str, Any]]
ServerToolWriter = Callable[[OpaqueTool], dict[str, Any] | None]
UNUSABLE: Final = ("tool_input_invalid", "tool_input_truncated", "empty_response")  # faults that only Dragoman detects
MAX_BRACKETS: Final = 64  # in JSON that is shallow for certain
EMPTY_SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {}}  # for a tool without a schema


def read_tool(wire: dict[str, Any], dialect: str, default: ToolWriter | None = None) -> Tool:
    """Return the tool definition with its residue; an opaque tool if it is not a function.

    ``default`` returns the wire of a tool without notes, for an API with strict tools.
    """
    function = wire.get("function")
    if wire.get("type", "function") != "function" or not isinstance(function, dict):
        return OpaqueTool(dialect, wire)
    name, description, schema = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(name, str):
        return OpaqueTool(dialect, wire)
    text = description if isinstance(description, str) else ""
    schema = schema if isinstance(schema, dict) else dict(EMPTY_SCHEMA)
    strict = flag_or_none(function.get("strict")) if default is not None else None
    tool = ToolDefinition(name, text, schema, SideEffects.EXECUTE, strict=strict)
    return tool.replace(provider_raw=make_notes(dialect, (default or default_tool)(tool), wire))


def default_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Return the wire of a tool without notes."""
    description = {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": {"name": tool.name, **description, "parameters": tool.input_schema}}


def allowed_tools(request: Request, dialect: str, losses: list[Loss]) -> tuple[Tool, ...]:
    """Return the tools that the model may call, for an API that has no list of allowed tools.

    Leaving out the others has the same effect; it is noted as an adjustment. Tools that the provider runs stay.
    """
    choice = request.options.tool_choice
    if choice is None or not choice.allowed:
        return request.tools
    tools = tuple(tool for tool in request.tools if isinstance(tool, OpaqueTool) or tool.name in choice.allowed)
    others = [tool.name for tool in request.tools if isinstance(tool, ToolDefinition) and tool not in tools]
    reason = f"tools that are not allowed are left out: {', '.join(others) or 'none'}"
    losses.append(Loss("", "", "tool_choice.allowed", dialect, reason, "adjusted"))
    return tools


def write_tools(
    tools: Iterable[Tool],
    default: ToolWriter,
    dialect: str,
    losses: list[Loss],
    server_tool: ServerToolWriter | None = None,
) -> list[dict[str, Any]]:
    """Return the tools on the wire.

    ``default`` returns the wire of a tool without notes, ``server_tool`` that of a tool of the same kind as another
    provider's.
    """
    wires: list[dict[str, Any]] = []
    for tool in tools:
        if isinstance(tool, ToolDefinition):
            wires.append(_write_definition(tool, dialect, default))
            continue
        wire = write_opaque_tool(tool, dialect, losses, server_tool)
        if tool.dialect != dialect and _is_in(wire, wires):
            losses.append(Loss("", "", "tool", dialect, f"the request has a {tool.kind} tool already"))
        elif wire is not None:
            wires.append(wire)
    return wires


def _is_in(wire: dict[str, Any] | None, wires: list[dict[str, Any]]) -> bool:
    """Whether a list has a tool that the provider runs already, perhaps with other settings."""
    if wire is None or "type" not in wire:
        return wire in wires
    return any(other.get("type") == wire["type"] and other.get("name") == wire.get("name") for other in wires)


def write_tool(tool: Tool, dialect: str, losses: list[Loss], default: ToolWriter) -> dict[str, Any] | None:
    """Return the tool on the wire; ``default`` returns that of a tool without notes."""
    if isinstance(tool, OpaqueTool):
        return write_opaque_tool(tool, dialect, losses)
    return _write_definition(tool, dialect, default)


def _write_definition(tool: ToolDefinition, dialect: str, default: ToolWriter) -> dict[str, Any]:
    wire, raw = default(tool), tool.provider_raw
    if raw is None:
        return wire
    notes = get_notes(raw, dialect)
    return apply_diff(wire, notes["residue"]) if "residue" in notes else wire


def write_opaque_tool(
    tool: OpaqueTool, dialect: str, losses: list[Loss], server_tool: ServerToolWriter | None = None
) -> dict[str, Any] | None:
    """Return a tool that the provider runs: as it was, or this API's tool of the same kind, which is noted."""
    if tool.dialect == dialect:
        return tool.wire
    if tool.kind == "cache_point":
        losses.append(Loss("", "", "tool.cache_hint", dialect, "this API has no such hint", "hint"))
        return None
    wire = server_tool(tool) if server_tool is not None else None
    if wire is None:
        name = f"a {tool.kind} tool" if tool.kind is not None else "a tool"
        losses.append(Loss("", "", "tool", dialect, f"{name} of {tool.dialect}"))
        return None
    text = str(wire)
    lost = [key for key, value in (tool.settings or {}).items() if str(value) not in text]
    reason = f"the {tool.kind} tool of this API" + (f", without {', '.join(lost)}" if lost else "")
    losses.append(Loss("", "", "server_tool", dialect, reason, "adjusted"))
    return wire


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Return the input of a call, or the reason why there is none. Providers send no text for no arguments."""
    try:
        value = read_json(text, OWN) if text.strip() else {}
    except JsonError as error:
        return {}, str(error)
    if isinstance(value, dict):
        return value, None
    return {}, f"a tool's input is a JSON object, not {type(value).__name__}"


def mark_cut_calls(reply: Reply, has_no_input: Callable[[ToolUseBlock], bool]) -> Reply:
    """Mark calls without input as invalid in a reply that reached its output limit."""
    if reply.stop_reason is not StopReason.MAX_TOKENS:
        return reply
    return reply.replace(content=tuple(_mark_cut_call(block, has_no_input) for block in reply.content))


def _mark_cut_call(block: ContentBlock, has_no_input: Callable[[ToolUseBlock], bool]) -> ContentBlock:
    if not isinstance(block, ToolUseBlock) or block.input or not has_no_input(block):
        return block
    reason = "the output limit was reached before its input"
    return InvalidToolUseBlock(block.id, block.name, "", reason, block.provider_raw)


def is_unusable(reply: Reply, dialect: str) -> bool:
    """Whether a reply ended normally and our checks found that it cannot be used, as read from this wire.

    An invalid call of another wire looks different here, so such a reply is written as failed.
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
    return len(data) <= MAX_BRACKETS or data.count(b"{") + data.count(b"[") <= MAX_BRACKETS


def is_valid_schema(schema: dict[str, Any]) -> bool:
    """Whether an object of a Python caller is a JSON object that can be stored; ``False`` means that it may be one.

    A conversation sends the same schemas in every turn, so each is validated once. MessagePack, unlike JSON, has a
    representation of NaN and of keys that are numbers, so such a schema is not taken for a valid one.
    """
    try:
        data = _pack(schema)
        if data not in _valid_schemas:
            validate_json(schema, "$")
            if len(_valid_schemas) >= _MAX_SCHEMAS:
                _valid_schemas.clear()
            _valid_schemas.add(data)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


_encode: Final = msgspec.json.Encoder().encode
_pack: Final = msgspec.msgpack.Encoder().encode
_valid_schemas: Final[set[bytes]] = set()
_MAX_SCHEMAS: Final = 1024
