"""Tools that the provider runs: their kind, the settings that other APIs share, and the wire of a kind."""

from __future__ import annotations

from typing import Any, Final

from dragoman.exchange import OpaqueTool

_KINDS: Final = (
    "web_search",
    "web_fetch",
    "code_execution",
    "tool_search",
    "computer",
    "text_editor",
    "bash",
    "memory",
)
_SETTINGS: Final = ("allowed_domains", "blocked_domains", "user_location", "max_uses")
_WIRES: Final[dict[str, dict[str, Any]]] = {  # the versions that need no beta header
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "web_fetch": {"type": "web_fetch_20250910", "name": "web_fetch"},
    "code_execution": {"type": "code_execution_20260521", "name": "code_execution"},
}


def read_server_tool(wire: dict[str, Any], dialect: str) -> OpaqueTool:
    """Return the tool with its kind and its shared settings."""
    word = str(wire.get("type"))
    kind = "mcp" if word == "mcp_toolset" else next((kind for kind in _KINDS if word.startswith(kind)), None)
    settings = {key: wire[key] for key in _SETTINGS if wire.get(key) is not None}
    return OpaqueTool(dialect, wire, kind, settings or None)


def write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    wire = _WIRES.get(tool.kind or "")
    if wire is None:
        return None
    keys = _SETTINGS if tool.kind in ("web_search", "web_fetch") else ()
    return {**wire, **{key: value for key, value in (tool.settings or {}).items() if key in keys}}
