"""MCP servers as sources of tools, over standard input and output or over HTTP, through the official SDK.

    async with McpTools([McpServer(name="files", command="npx", args=("some-server",))]) as mcp:
        registry = ToolRegistry([*builtin_tools(["read_file"]), *mcp.tools])

A server's tool is called ``<server>__<tool>``. Its schema is eased into the subset that every provider accepts; a tool
that cannot be brought in stands in ``refused``, and a server that cannot be reached in ``failures``, each with its
reason, while the others work. A server that dies is started again for the next call; the call that it died in has
failed, because nobody knows how far it came. What a server says about its own tools is not believed unless it is told
to be: its tools count as changing something. The one rule: a connection is opened, used up and closed by one task of
its own, which the SDK requires, and everybody else asks that task.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from dragoman.errors import SchemaSizeError, ToolFailedError, ToolSourceError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    TextBlock,
    VideoBlock,
)
from dragoman.tools.process_output import ProcessOutput
from dragoman.tools.schema_compat import to_portable_schema
from dragoman.tools.tool import Tool, ToolContext, ToolOutput, truncate_middle
from dragoman.toolschema import tool_problems

if TYPE_CHECKING:
    import httpx2
    import mcp
    from mcp.client._transport import Transport

_log: Final = logging.getLogger("dragoman.tools.mcp")
_MAX_NAME: Final = 64
_MAX_DESCRIPTION: Final = 8_000
_MAX_PAGES: Final = 50
_MAX_BACKOFF_S: Final = 60.0
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server: a command to start, or an address. ``${NAME}`` in env and headers stands for a variable."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    allowed: tuple[str, ...] | None = None  # only these of its tools, by the server's names; none: all
    side_effects: SideEffects | None = None  # of its tools; none: execute for a command, network for an address
    tool_side_effects: dict[str, SideEffects] = {}  # of single tools, by the server's names
    trust_hints: bool = False  # a tool that calls itself read-only is taken at its word
    connect_timeout_s: float = 30.0
    timeout_s: float | None = None  # of one call; none: as the side effects say

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError(f"MCP server {self.name!r}: give either a command or a url")

    def __repr__(self) -> str:  # env and headers hold keys
        return f"McpServer(name={self.name!r}, {'command' if self.command else 'url'}={self.command or self.url!r})"

    def effects_of(self, tool: mcp.Tool) -> SideEffects:
        """The most that one of its tools can do, as far as we are willing to believe."""
        if tool.name in self.tool_side_effects:
            return self.tool_side_effects[tool.name]
        if self.trust_hints and tool.annotations is not None and tool.annotations.read_only_hint:
            return SideEffects.READ
        return self.side_effects or (SideEffects.EXECUTE if self.command else SideEffects.NETWORK)


def servers_from(config: Mapping[str, Mapping[str, Any]]) -> tuple[McpServer, ...]:
    """Servers from a table of them by name, as most programs write it down."""
    servers = []
    for name, entry in config.items():
        fields = {key: value for key, value in entry.items() if key not in ("name", "type", "transport")}
        try:
            servers.append(msgspec.convert({"name": name, **fields}, McpServer))
        except msgspec.ValidationError as error:
            raise ToolSourceError(str(error), where=f"MCP server {name!r}") from None
    return tuple(servers)


class RejectedTool(msgspec.Struct, frozen=True):
    """A tool that could not be brought in."""

    server: str
    tool: str
    reasons: tuple[str, ...]


class McpTools:
    """The tools of some servers, while they are connected."""

    def __init__(self, servers: Iterable[McpServer]) -> None:
        self._connections = [_Connection(server) for server in servers]
        names = [connection.server.name for connection in self._connections]
        if len(set(names)) != len(names):
            raise ToolSourceError(f"two MCP servers have one name: {', '.join(sorted(names))}")
        self.tools: tuple[Tool, ...] = ()
        self.rejected: tuple[RejectedTool, ...] = ()
        self.failures: dict[str, ToolSourceError] = {}

    async def __aenter__(self) -> Self:
        try:
            outcomes = await asyncio.gather(
                *(connection.tools() for connection in self._connections), return_exceptions=True
            )
        except asyncio.CancelledError:
            await self.aclose()
            raise
        tools: dict[str, Tool] = {}
        rejected: list[RejectedTool] = []
        for connection, outcome in zip(self._connections, outcomes, strict=True):
            if isinstance(outcome, ToolSourceError):
                self.failures[connection.server.name] = outcome
                _log.warning("%s", outcome)
            elif isinstance(outcome, BaseException):
                await self.aclose()
                raise outcome
            else:
                for tool in outcome:
                    _add_tool(connection, tool, tools, rejected)
        self.tools, self.rejected = tuple(tools.values()), tuple(rejected)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection, and end the servers that were started."""
        await asyncio.gather(*(connection.aclose() for connection in self._connections))


# --- bringing a tool in ----------------------------------------------------------------------------------------------


def _add_tool(connection: _Connection, tool: mcp.Tool, tools: dict[str, Tool], rejected: list[RejectedTool]) -> None:
    server = connection.server
    if server.allowed is not None and tool.name not in server.allowed:
        return
    try:
        added = _tool_from(connection, tool)
    except SchemaSizeError as error:
        _reject(server, tool, (str(error),), rejected)
        return
    problems = tool_problems(added.definition)
    if added.name in tools:
        problems = (f"name: {added.name!r} is taken by another of its tools", *problems)
    if problems:
        _reject(server, tool, problems, rejected)
    else:
        tools[added.name] = added


def _reject(server: McpServer, tool: mcp.Tool, problems: tuple[str, ...], rejected: list[RejectedTool]) -> None:
    rejected.append(RejectedTool(server.name, tool.name, problems))
    _log.warning("the tool %s of the MCP server %s is left out: %s", tool.name, server.name, "; ".join(problems))


def _tool_from(connection: _Connection, tool: mcp.Tool) -> Tool:
    server = connection.server
    effects = server.effects_of(tool)
    definition = ToolDefinition(
        name=tool_name(server.name, tool.name),
        description=truncate_middle(tool.description or tool.title or tool.name, _MAX_DESCRIPTION),
        input_schema=to_portable_schema(tool.input_schema).schema,
        side_effects=effects,
        requires_workspace=False,
    )

    async def run(input: dict[str, Any], _context: ToolContext) -> ToolOutput:  # noqa: A002
        may_repeat = effects in (SideEffects.NONE, SideEffects.READ)
        return output_from(await connection.call(tool.name, input, may_repeat=may_repeat))

    return Tool(definition=definition, run=run, timeout_s=server.timeout_s)


def tool_name(server: str, tool: str) -> str:
    """``<server>__<tool>`` in snake_case. A name that is too long ends in a part of its hash."""
    name = f"{_to_snake_case(server)}__{_to_snake_case(tool)}"
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9].rstrip('_')}_{digest}"


def _to_snake_case(name: str) -> str:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+[a-z]*", name)
    snake = "_".join(words).lower()
    return snake if snake[:1].isalpha() else f"n_{snake}".rstrip("_")


# --- what a server answers -------------------------------------------------------------------------------------------


def output_from(result: mcp.types.CallToolResult) -> ToolOutput:
    """What a tool answered, as blocks. A structured answer is added as JSON, unless a text says the same already."""
    blocks = [block for part in result.content for block in _blocks_from(part.model_dump(mode="json", by_alias=True))]
    structured = result.structured_content
    if structured is not None and not any(_has_value(block, structured) for block in blocks):
        blocks.append(TextBlock(msgspec.json.encode(structured).decode()))
    return ToolOutput(content=tuple(blocks) or None, is_error=bool(result.is_error))


def _has_value(block: ContentBlock, value: Any) -> bool:
    if not isinstance(block, TextBlock):
        return False
    match value:
        case {**members} if len(members) == 1:  # most SDKs wrap what is no object, like {"result": …}
            (inner,) = members.values()
        case _:
            inner = value
    try:
        return block.text == inner or msgspec.json.decode(block.text) in (value, inner)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False


def _blocks_from(part: dict[str, Any]) -> Iterable[ContentBlock]:
    match part:
        case {"type": "text", "text": str(text)}:
            yield TextBlock(text)
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            yield _media_block(data, media_type, None)
        case {"type": "resource_link", "uri": uri}:
            title = part.get("title") or part.get("name") or uri
            about = f": {part['description']}" if part.get("description") else ""
            yield TextBlock(f"[{title}]({uri}){about}")
        case {"type": "resource", "resource": {"uri": uri, "text": str(text)}}:
            yield TextBlock(f"{uri}\n{text}")
        case {"type": "resource", "resource": {"uri": uri, "blob": str(data), **more}}:
            yield _media_block(data, str(more.get("mimeType") or "application/octet-stream"), str(uri))
        case _:
            yield TextBlock(msgspec.json.encode(part).decode())


def _media_block(data: str, media_type: str, name: str | None) -> ContentBlock:
    source = ImageSource("base64", data)
    match media_type.partition("/")[0]:
        case "image":
            return ImageBlock(source, media_type)
        case "audio":
            return AudioBlock(source, media_type)
        case "video":
            return VideoBlock(source, media_type)
        case _:
            return DocumentBlock(source, media_type, name)


# --- the connection --------------------------------------------------------------------------------------------------


class _Connection:
    """One server: connected when it is needed, by a task of its own, and again if it was lost."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._open_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._client: mcp.Client | None = None
        self._stop = asyncio.Event()  # the connection is of no use any more
        self._failures = 0  # in a row
        self._retry_at = 0.0
        self._is_closed = False
        self._is_connecting = False
        self._is_session_lost = False  # the server does not know the session of this connection: it was started again

    async def tools(self) -> list[mcp.Tool]:
        """Everything that the server offers."""
        client = await self._connect()
        tools: list[mcp.Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self.server.connect_timeout_s):
                for _ in range(_MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    tools.extend(page.tools)
                    cursor = page.next_cursor
                    if cursor is None:
                        break
        except Exception as error:  # noqa: BLE001  somebody else's server
            raise self._failure(error, "it does not list its tools") from None
        return tools

    async def call(self, tool: str, input: dict[str, Any], *, may_repeat: bool) -> mcp.types.CallToolResult:  # noqa: A002
        """The server's answer. If the connection is lost, only a call that changes nothing is made again."""
        from mcp import MCPError  # noqa: PLC0415

        try:
            client = await self._connect()
        except ToolSourceError as error:
            raise ToolFailedError(str(error)) from None
        try:
            answer = await client.call_tool(tool, input)
        except MCPError as error:
            return await self._retry_or_fail(error, client, tool, input, may_repeat=may_repeat)
        self._failures = 0
        return answer

    async def _retry_or_fail(
        self,
        error: mcp.MCPError,
        client: mcp.Client,
        tool: str,
        input: dict[str, Any],  # noqa: A002
        *,
        may_repeat: bool,
    ) -> mcp.types.CallToolResult:
        """What becomes of a call that had no answer."""
        is_session_lost = self._is_session_lost  # then the call was not begun, and may be made again in any case
        if not is_session_lost and not _is_lost(error):
            raise ToolFailedError(f"The MCP server refused the call: {error.message}") from None
        self._mark_lost(client)
        if is_session_lost or may_repeat:
            return await self.call(tool, input, may_repeat=False)
        text = "The connection to the MCP server was lost, and how far the call came is not known"
        raise ToolFailedError(text, where=self.server.name) from None

    async def aclose(self) -> None:
        self._is_closed = True
        self._client = None
        self._stop.set()
        if self._task is not None:
            if self._is_connecting:
                self._task.cancel()
            await asyncio.wait({self._task})

    def _mark_lost(self, client: mcp.Client) -> None:
        if self._client is client:
            self._client = None
            self._stop.set()
            self._failures += 1
            pause_s = 0 if self._failures == 1 else min(_MAX_BACKOFF_S, 2.0 ** (self._failures - 1))
            self._retry_at = time.monotonic() + pause_s

    async def _connect(self) -> mcp.Client:
        async with self._open_lock:
            if self._client is not None and self._task is not None and not self._task.done():
                return self._client
            if self._is_closed:
                raise self._closed_error()
            wait_s = self._retry_at - time.monotonic()
            if wait_s > 0:
                text = f"it was lost {self._failures} times in a row; it is tried again in {wait_s:.0f} s"
                raise ToolSourceError(text, where=f"MCP server {self.server.name!r}")
            if self._task is not None:
                await asyncio.wait({self._task})
            self._stop = asyncio.Event()
            self._is_session_lost = False
            ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run_connection(ready, self._stop))
            self._client = await ready
            return self._client

    def _closed_error(self) -> ToolSourceError:
        return ToolSourceError("it is closed", where=f"MCP server {self.server.name!r}")

    async def _run_connection(self, ready: asyncio.Future[mcp.Client], stop: asyncio.Event) -> None:
        """Open the connection, tell who waits for it, and close it when it is over."""
        output = ProcessOutput(0, 2_000)
        try:
            async with contextlib.AsyncExitStack() as stack:
                self._is_connecting = True
                try:
                    async with asyncio.timeout(self.server.connect_timeout_s):
                        client = await self._open(stack, output)
                finally:
                    self._is_connecting = False
                if not ready.done():
                    ready.set_result(client)
                await stop.wait()
        except asyncio.CancelledError:  # nobody wants it any more
            if not ready.done():
                ready.set_exception(self._closed_error())
            raise
        except Exception as error:  # noqa: BLE001  somebody else's server
            if not ready.done():
                ready.set_exception(self._failure(error, "it cannot be reached", output.text()))
            else:
                _log.info("the MCP server %s did not end well: %s", self.server.name, _cause(error))

    async def _open(self, stack: contextlib.AsyncExitStack, output: ProcessOutput) -> mcp.Client:
        try:
            import mcp  # noqa: PLC0415
        except ImportError:
            remedy = "pip install 'dragoman[mcp]'"
            raise ToolSourceError("tools of MCP servers need the package mcp", remedy=remedy) from None
        if self.server.url is not None:
            transport = await self._http_transport(stack, self.server.url)
        else:
            transport = await self._stdio_transport(stack, output)
        return await stack.enter_async_context(mcp.Client(transport, client_info=_client_info()))

    async def _http_transport(self, stack: contextlib.AsyncExitStack, url: str) -> Transport:
        import httpx2  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        timeout = httpx2.Timeout(self.server.connect_timeout_s, read=None)  # a call has a timeout of its own
        http = httpx2.AsyncClient(
            headers=self._expand_variables(self.server.headers),
            timeout=timeout,
            event_hooks={"response": [self._detect_lost_session]},
        )
        await stack.enter_async_context(http)
        return streamable_http_client(url, http_client=http)

    async def _detect_lost_session(self, response: httpx2.Response) -> None:
        """A session that a server does not know is refused with 404, and by some with 400, before anything is done."""
        if response.status_code in (400, 404) and "mcp-session-id" in response.request.headers:
            self._is_session_lost = True

    async def _stdio_transport(self, stack: contextlib.AsyncExitStack, output: ProcessOutput) -> Transport:
        from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415

        # What a server prints beside its answers belongs to nobody's terminal.
        read_end, write_end = os.pipe()
        await stack.enter_async_context(output.read_pipe(read_end))
        errors = stack.enter_context(os.fdopen(write_end, "w"))
        parameters = StdioServerParameters(
            command=self.server.command or "",
            args=list(self.server.args),
            env=self._expand_variables(self.server.env),
            cwd=self.server.cwd,
        )
        return stdio_client(parameters, errlog=errors)

    def _expand_variables(self, texts: Mapping[str, str]) -> dict[str, str]:
        """With the values of the variables that are named in it."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                text = f"the variable {match[1]} is not set"
                raise ToolSourceError(text, where=f"MCP server {self.server.name!r}")
            return os.environ[match[1]]

        return {name: _VARIABLE.sub(value, text) for name, text in texts.items()}

    def _failure(self, error: BaseException, text: str, output: str = "") -> ToolSourceError:
        cause = _cause(error)
        if isinstance(cause, ToolSourceError):
            return cause
        reason = f"no answer in {self.server.connect_timeout_s:g} s" if isinstance(cause, TimeoutError) else str(cause)
        detail = f"; it printed: {output.strip()}" if output.strip() else ""
        message = f"{text}: {reason or type(cause).__name__}{detail}"
        return ToolSourceError(message, where=f"MCP server {self.server.name!r}")


def _cause(error: BaseException) -> BaseException:
    """The first of what happened together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_lost(error: mcp.MCPError) -> bool:
    from mcp.types import CONNECTION_CLOSED  # noqa: PLC0415

    return error.code == CONNECTION_CLOSED


def _client_info() -> mcp.Implementation:
    from importlib.metadata import version  # noqa: PLC0415

    import mcp  # noqa: PLC0415

    return mcp.Implementation(name="dragoman", version=version("dragoman"))
