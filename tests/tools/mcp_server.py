"""An MCP server for the tests, made with the official SDK: ``python -m tests.tools.mcp_server stdio`` or ``http PORT``.

Over HTTP it prints its address when it listens. If the variable ``WORD`` is set, it requires it as a bearer token.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
from typing import Any

from mcp import types
from mcp.server import Server

AUDIO = base64.b64encode(b"RIFF....WAVE").decode()
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}

NESTED_DEFINITIONS = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(18)}
BOMB = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/d0"}},
    "$defs": {**NESTED_DEFINITIONS, "d18": {"type": "string"}},
}


def define_tool(name: str, schema: dict[str, Any] | None = None, **more: Any) -> types.Tool:
    return types.Tool(name=name, description=f"The tool {name}.", input_schema=schema or {"type": "object"}, **more)


PAGES = [
    [
        define_tool("echo", {"type": "object", "properties": {"text": {"type": "string"}, "to": NULLABLE}, "required": ["text"]}),
        define_tool("everyKindOfContent"),
        define_tool("structured", annotations=types.ToolAnnotations(read_only_hint=True)),
        define_tool("fail"),
        define_tool("refuse"),
        define_tool("wait"),
        define_tool("die"),
        define_tool("environment"),
        define_tool("pid", annotations=types.ToolAnnotations(read_only_hint=True)),
        define_tool("x" * 100),
        define_tool("die-once"),
    ],
    [define_tool("every_kind_of_content"), define_tool("bomb", BOMB), define_tool("Second-Page.tool")],
]  # fmt: skip


async def list_tools(_: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    page = int(params.cursor) if params is not None and params.cursor else 0
    more = str(page + 1) if page + 1 < len(PAGES) else None
    return types.ListToolsResult(tools=PAGES[page], next_cursor=more)


async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments = params.arguments or {}
    match params.name:
        case "echo":
            return text(arguments["text"])
        case "everyKindOfContent":
            return types.CallToolResult(content=every_kind())
        case "structured":
            return types.CallToolResult(content=[], structured_content={"degrees": 21})
        case "fail":
            return types.CallToolResult(content=text("it rains").content, is_error=True)
        case "refuse":
            raise ValueError("an error of the protocol")
        case "wait":
            await asyncio.sleep(600)
        case "die":
            os._exit(7)
        case "die-once" if not os.path.exists(arguments["path"]):
            open(arguments["path"], "w").close()
            os._exit(7)
        case "environment":
            return text(os.environ.get(arguments["variable"], ""))
        case "pid":
            return text(str(os.getpid()))
    return text("done")


def text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)])


def every_kind() -> list[Any]:
    return [
        types.TextContent(text="words"),
        types.ImageContent(data="aGk=", mime_type="image/png"),
        types.AudioContent(data=AUDIO, mime_type="audio/wav"),
        types.ResourceLink(name="notes", uri="file:///notes.txt", description="Some notes."),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a.txt", text="embedded")),
        types.EmbeddedResource(
            resource=types.BlobResourceContents(uri="file:///a.pdf", blob="aGk=", mime_type="application/pdf")
        ),
    ]


SERVER: Server[Any] = Server("probe", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_pipes() -> None:
    from mcp.server.stdio import stdio_server

    sys.stderr.write("something on standard error\n")
    async with stdio_server() as (read, write):
        await SERVER.run(read, write, SERVER.create_initialization_options())


def require_word(app: Any, word: str | None) -> Any:
    async def check_word(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", []))
        if scope["type"] == "http" and word and headers.get(b"authorization") != f"Bearer {word}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
        else:
            await app(scope, receive, send)

    return check_word


async def serve_http(port: int) -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", port))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    app = require_word(SERVER.streamable_http_app(), os.environ.get("WORD"))
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    asyncio.run(serve_pipes() if sys.argv[1] == "stdio" else serve_http(int(sys.argv[2])))


if __name__ == "__main__":
    main()
