"""Custom tools: tools whose input is one text, optionally of a grammar, and their calls."""

from __future__ import annotations

from typing import Any

from dragoman.exchange import FREE_FORM_SCHEMA, Grammar, SideEffects, ToolDefinition
from dragoman.jsontext import text_or_none
from dragoman.message import ToolUseBlock


def read_custom_tool(wire: dict[str, Any]) -> ToolDefinition | None:
    """Return a custom tool; ``None`` for other tools."""
    match wire:
        case {"type": "custom", "custom": {"name": str(name)} as custom}:
            grammar = None
            match custom.get("format"):
                case {"type": "grammar", "grammar": {"syntax": str(syntax), "definition": str(definition)}}:
                    grammar = Grammar(syntax, definition)
            return ToolDefinition(
                name,
                text_or_none(custom.get("description")) or "",
                dict(FREE_FORM_SCHEMA),
                SideEffects.EXECUTE,
                free_form=True,
                grammar=grammar,
            )
        case _:
            return None


def default_custom_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Return the wire of a custom tool without notes."""
    custom: dict[str, Any] = {"name": tool.name}
    if tool.description:
        custom["description"] = tool.description
    if tool.grammar is not None:
        grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom}


def read_custom_call(wire: dict[str, Any], call_id: str) -> ToolUseBlock | None:
    """Return the call of a custom tool; ``None`` for other calls."""
    match wire:
        case {"type": "custom", "custom": {"name": str(name), "input": str(text)}}:
            return ToolUseBlock(call_id, name, {"input": text}, free_form=True)
        case _:
            return None


def default_custom_call(call: ToolUseBlock, provider_id: str) -> dict[str, Any]:
    """Return the wire of a custom call without notes."""
    custom = {"name": call.name, "input": call.free_text or ""}
    return {"id": provider_id, "type": "custom", "custom": custom}
