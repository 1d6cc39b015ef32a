"""Tools of MCP servers, over standard input and output or over HTTP, through the official SDK.

    async with McpTools([McpServer(name="files", command="npx", args=("some-server",))]) as mcp:
        registry = ToolRegistry([*builtin_tools(["read_file"]), *mcp.tools])

A tool is named ``<server>__<tool>``, and its schema is converted to the subset that every provider accepts. A tool that
cannot be used is listed in ``rejected``, and a server that cannot be reached in ``failures``, each with the reason. A
server that dies is started again for the next call; the call in progress fails, because its effect is unknown. Hints of
a server about its tools are ignored unless ``trust_hints`` is set. Invariant: one task opens, owns and closes a
connection, as the SDK requires.
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
from dragoman.message import AudioBlock, ContentBlock, DocumentBlock, ImageBlock, ImageSource, TextBlock, VideoBlock
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
_MAX_TOOLS: Final = 512  # of one server
_MAX_BACKOFF_S: Final = 60.0
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server: a command to start, or a URL. ``${NAME}`` in env and headers is replaced by an environment variable."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    allowed: tuple[str, ...] | None = None  # tools to use, by the server's names; none: all
    side_effects: SideEffects | None = None  # of its tools; none: execute for a command, network for a URL
    tool_side_effects: dict[str, SideEffects] = {}  # of single tools, by the server's names
    trust_hints: bool = False  # trust a tool that declares itself read-only
    connect_timeout_s: float = 30.0
    timeout_s: float | None = None  # of one call; none: by the side effects

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError(f"MCP server {self.name!r}: set either command or url")

    def __repr__(self) -> str:  # env and headers have keys
        return f"McpServer(name={self.name!r}, {'command' if self.command else 'url'}={self.command or self.url!r})"

    def effects_of(self, tool: mcp.Tool) -> SideEffects:
        """The side effects of one of its tools."""
        if tool.name in self.tool_side_effects:
            return self.tool_side_effects[tool.name]
        if self.trust_hints and tool.annotations is not None and tool.annotations.read_only_hint:
            return SideEffects.READ
        return self.side_effects or (SideEffects.EXECUTE if self.command else SideEffects.NETWORK)


def servers_from(config: Mapping[str, Mapping[str, Any]]) -> tuple[McpServer, ...]:
    """Servers from a table by name, in the format that most programs use."""
    servers = []
    for name, entry in config.items():
        fields = {key: value for key, value in entry.items() if key not in ("name", "type", "transport")}
        try:
            servers.append(msgspec.convert({"name": name, **fields}, McpServer))
        except msgspec.ValidationError as error:
            raise ToolSourceError(str(error), where=f"MCP server {name!r}") from None
    return tuple(servers)


class RejectedTool(msgspec.Struct, frozen=True):
    """A tool that cannot be used."""

    server: str
    tool: str
    reasons: tuple[str, ...]


class McpTools:
    """The tools of connected servers."""

    def __init__(self, servers: Iterable[McpServer]) -> None:
        self._connections = [_Connection(server) for server in servers]
        names = [connection.server.name for connection in self._connections]
        if len(set(names)) != len(names):
            raise ToolSourceError(f"two MCP servers have the same name: {', '.join(sorted(names))}")
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
        """Close all connections, and stop the servers that were started."""
        await asyncio.gather(*(connection.aclose() for connection in self._connections))


# --- definitions -----------------------------------------------------------------------------------------------------


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
        problems = (f"name: {added.name!r} is the name of another of its tools", *problems)
    if problems:
        _reject(server, tool, problems, rejected)
    else:
        tools[added.name] = added


def _reject(server: McpServer, tool: mcp.Tool, problems: tuple[str, ...], rejected: list[RejectedTool]) -> None:
    rejected.append(RejectedTool(server.name, tool.name, problems))
    _log.warning("skipped the tool %s of the MCP server %s: %s", tool.name, server.name, "; ".join(problems))


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
    """``<server>__<tool>`` in snake_case. A name that is too long ends in a hash."""
    name = f"{_to_snake_case(server)}__{_to_snake_case(tool)}"
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9].rstrip('_')}_{digest}"


def _to_snake_case(name: str) -> str:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+[a-z]*", name)
    snake = "_".join(words).lower()
    return snake if snake[:1].isalpha() else f"n_{snake}".rstrip("_")


# --- results ---------------------------------------------------------------------------------------------------------


def output_from(result: mcp.types.CallToolResult) -> ToolOutput:
    """The blocks of a result. Structured content is added as JSON, unless a text block already has it."""
    blocks = [block for part in result.content for block in _blocks_from(part.model_dump(mode="json", by_alias=True))]
    structured = result.structured_content
    if structured is not None and not any(_has_value(block, structured) for block in blocks):
        blocks.append(TextBlock(msgspec.json.encode(structured).decode()))
    return ToolOutput(content=tuple(blocks) or None, is_error=bool(result.is_error))


def _has_value(block: ContentBlock, value: Any) -> bool:
    if not isinstance(block, TextBlock):
        return False
    match value:
        case {**members} if len(members) == 1:  # most SDKs wrap a value that is no object, like {"result": …}
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
    """The connection to one server, opened when it is needed and again after it is lost."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._open_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._client: mcp.Client | None = None
        self._stop = asyncio.Event()  # set to close the connection
        self._failures = 0  # consecutive
        self._retry_at = 0.0
        self._is_closed = False
        self._is_connecting = False
        self._is_session_lost = False  # the server was restarted and does not know our session

    async def tools(self) -> list[mcp.Tool]:
        """All tools of the server."""
        client = await self._connect()
        tools: list[mcp.Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self.server.connect_timeout_s):
                for _ in range(_MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    tools.extend(page.tools)
                    cursor = page.next_cursor
                    if cursor is None or len(tools) > _MAX_TOOLS:
                        break
        except Exception as error:  # noqa: BLE001  errors of the server and the SDK
            raise self._failure(error, "listing its tools failed") from None
        if len(tools) > _MAX_TOOLS:
            _log.warning("MCP server %s has more than %d tools; the others are skipped", self.server.name, _MAX_TOOLS)
        return tools[:_MAX_TOOLS]

    async def call(self, tool: str, input: dict[str, Any], *, may_repeat: bool) -> mcp.types.CallToolResult:  # noqa: A002
        """Call a tool. If the connection is lost, only a call that reads is repeated."""
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
        """Repeat a call after an error, or raise ``ToolFailedError``."""
        is_session_lost = self._is_session_lost  # then the call was not started and can be repeated
        if not is_session_lost and not _is_lost(error):
            raise ToolFailedError(f"The MCP server rejected the call: {error.message}") from None
        self._mark_lost(client)
        if is_session_lost or may_repeat:
            return await self.call(tool, input, may_repeat=False)
        text = "The connection to the MCP server was lost during the call; its effect is unknown"
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
                raise self._close_error()
            wait_s = self._retry_at - time.monotonic()
            if wait_s > 0:
                text = f"the connection failed {self._failures} times in a row; next attempt in {wait_s:.0f} s"
                raise ToolSourceError(text, where=f"MCP server {self.server.name!r}")
            if self._task is not None:
                await asyncio.wait({self._task})
            self._stop = asyncio.Event()
            self._is_session_lost = False
            ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run_connection(ready, self._stop))
            self._client = await ready
            return self._client

    def _close_error(self) -> ToolSourceError:
        return ToolSourceError("the connection is closed", where=f"MCP server {self.server.name!r}")

    async def _run_connection(self, ready: asyncio.Future[mcp.Client], stop: asyncio.Event) -> None:
        """Open the connection, resolve ``ready``, and close it when ``stop`` is set."""
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
        except asyncio.CancelledError:  # the caller gave up
            if not ready.done():
                ready.set_exception(self._close_error())
            raise
        except Exception as error:  # noqa: BLE001  errors of the server and the SDK
            if not ready.done():
                ready.set_exception(self._failure(error, "connection failed", output.text()))
            else:
                _log.info("the MCP server %s ended with an error: %s", self.server.name, _cause(error))

    async def _open(self, stack: contextlib.AsyncExitStack, output: ProcessOutput) -> mcp.Client:
        try:
            import mcp  # noqa: PLC0415
        except ImportError:
            remedy = "Run pip install 'dragoman[mcp]'"
            raise ToolSourceError("MCP tools need the package mcp", remedy=remedy) from None
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
        """A server rejects an unknown session with 404, some with 400, before it runs the call."""
        if response.status_code in (400, 404) and "mcp-session-id" in response.request.headers:
            self._is_session_lost = True

    async def _stdio_transport(self, stack: contextlib.AsyncExitStack, output: ProcessOutput) -> Transport:
        from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415

        # Keep the server's stderr off the terminal.
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
        """Replace ``${NAME}`` by environment variables."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                text = f"the environment variable {match[1]} is not set"
                raise ToolSourceError(text, where=f"MCP server {self.server.name!r}")
            return os.environ[match[1]]

        return {name: _VARIABLE.sub(value, text) for name, text in texts.items()}

    def _failure(self, error: BaseException, text: str, output: str = "") -> ToolSourceError:
        cause = _cause(error)
        if isinstance(cause, ToolSourceError):
            return cause
        reason = (
            f"no response in {self.server.connect_timeout_s:g} s" if isinstance(cause, TimeoutError) else str(cause)
        )
        detail = f"; its output: {output.strip()}" if output.strip() else ""
        message = f"{text}: {reason or type(cause).__name__}{detail}"
        return ToolSourceError(message, where=f"MCP server {self.server.name!r}")


def _cause(error: BaseException) -> BaseException:
    """The first exception of a group."""
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
