"""Shapes of requests, as golden files store them, without the texts of the agents' vendors.

Long and volatile strings become ``<text>``, ids ``<id>``, large numbers ``<number>``. A tool keeps its type and its name.
"""

from __future__ import annotations

import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_.,:@/*+-]{0,48}")
_VOLATILE = re.compile(r"[0-9a-f]{8}|[0-9]{6}|^/|^(ses|msg|call|toolu|req|fc|rs|resp)_")
_TRANSPORT = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding", "accept-language")
_VALUES = ("anthropic-beta", "anthropic-version", "openai-beta", "content-type", "originator")


def shape_request(method: str, path: str, headers: dict[str, str], body: Any) -> dict[str, Any]:
    """Return the shape of a request of an agent."""
    names = sorted(name for name in headers if name not in _TRANSPORT)
    shaped_headers = {name: headers[name] if name in _VALUES else "<value>" for name in names}
    return {"method": method, "path": path, "headers": shaped_headers, "body": shape(body)}


def shape(value: Any, key: str = "") -> Any:
    """Return the shape of a JSON value."""
    match value:
        case dict():
            return {name: shape(part, name) for name, part in value.items()}
        case list() if key == "tools":
            return [_shape_tool(tool) for tool in value]
        case list():
            return [shape(part) for part in value]
        case str():
            return _shape_text(value)
        case int() if abs(value) > 10**9 and not isinstance(value, bool):
            return "<number>"
        case _:
            return value


def _shape_tool(tool: Any) -> Any:
    match tool:
        case {"functionDeclarations": list(functions)}:
            return {"functionDeclarations": [function.get("name") for function in functions]}
        case {"function": {"name": name}}:
            return f"{tool['type']} {name}"
        case dict():
            return " ".join(str(tool[key]) for key in ("type", "name") if key in tool)
        case _:
            return "<tool>"


def _shape_text(text: str) -> str:
    if _PLAIN.fullmatch(text) is None:
        return "<text>"
    return "<id>" if _VOLATILE.search(text) else text
