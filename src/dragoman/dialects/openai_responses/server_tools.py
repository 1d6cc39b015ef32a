"""Tools that the provider runs: their kind, the settings that other APIs share, and the wire of a kind."""

from __future__ import annotations

from typing import Any, Final

from dragoman.exchange import OpaqueTool

_KINDS: Final = {
    "web_search": "web_search",
    "web_search_preview": "web_search",
    "code_interpreter": "code_execution",
    "file_search": "file_search",
    "image_generation": "image_generation",
    "mcp": "mcp",
    "tool_search": "tool_search",
    "computer_use_preview": "computer",
}


def read_server_tool(wire: dict[str, Any], dialect: str) -> OpaqueTool:
    """Return the tool with its kind and its shared settings."""
    filters, settings = wire.get("filters"), {}
    if isinstance(filters, dict) and filters.get("allowed_domains"):
        settings["allowed_domains"] = filters["allowed_domains"]
    if wire.get("user_location") is not None:
        settings["user_location"] = wire["user_location"]
    return OpaqueTool(dialect, wire, _KINDS.get(str(wire.get("type"))), settings or None)


def write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    settings = tool.settings or {}
    match tool.kind:
        case "web_search":
            wire: dict[str, Any] = {"type": "web_search"}
            if settings.get("allowed_domains"):
                wire["filters"] = {"allowed_domains": settings["allowed_domains"]}
            location = settings.get("user_location")
            return {**wire, "user_location": location} if location is not None else wire
        case "code_execution":
            return {"type": "code_interpreter", "container": {"type": "auto"}}
        case _:
            return None
