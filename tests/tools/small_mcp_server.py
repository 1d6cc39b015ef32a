"""An MCP server over pipes that starts in a few milliseconds, because it does not import the SDK.

It serves the tests of processes: start, end, death, environment. ``mcp_server`` serves the tests of the protocol.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
READ_ONLY = {"readOnlyHint": True}
TOOLS = [
    {"name": "echo", "inputSchema": TEXT},
    {"name": "structured", "inputSchema": {"type": "object"}, "annotations": READ_ONLY},
    {"name": "pid", "inputSchema": {"type": "object"}, "annotations": READ_ONLY},
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("fail", "wait", "die", "die-once", "environment")),
]


def call(name: str, arguments: dict[str, Any]) -> str | None:
    """Return the text of a result; none if there is no result."""
    match name:
        case "echo":
            return str(arguments["text"])
        case "wait":
            return None
        case "die":
            os._exit(7)
        case "die-once" if not os.path.exists(arguments["path"]):
            open(arguments["path"], "w").close()
            os._exit(7)
        case "environment":
            return os.environ.get(arguments["variable"], "")
        case "pid":
            return str(os.getpid())
    return "done"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a response; none if there is no response."""
    match method:
        case "initialize":
            server_info = {"name": "small", "version": "1"}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server_info}}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {})
            return None if text is None else {"result": {"content": [{"type": "text", "text": text}]}}
    return {"error": {"code": -32601, "message": f"unknown method {method}"}}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and (fields := answer(message["method"], message.get("params") or {})):
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **fields}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
