"""Tools that the provider runs: their kind, and the wire of a kind."""

from __future__ import annotations

from typing import Any, Final

from dragoman.exchange import OpaqueTool

_KINDS: Final = {
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
_WIRES: Final = {"web_search": "googleSearch", "code_execution": "codeExecution", "web_fetch": "urlContext"}


def read_server_tool(wire: dict[str, Any], dialect: str) -> OpaqueTool:
    """Return the tool with its kind; an object with several tools has none."""
    kinds = {_KINDS.get(key) for key in wire}
    return OpaqueTool(dialect, wire, kinds.pop() if len(kinds) == 1 else None)


def write_server_tool(tool: OpaqueTool) -> dict[str, Any] | None:
    """Return this API's tool of the same kind, if it has one."""
    key = _WIRES.get(tool.kind or "")
    return None if key is None else {key: {}}
