"""The tools that a model is offered: built-in tools by name, and tools of configured MCP servers.

    builtin_tools(["read_file", "list_files", "search_files"])

Built-in tools are off unless they are named. All but ``ask_user`` work in the workspace of the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from dragoman.errors import InputError, UnknownToolError
from dragoman.settings import Settings
from dragoman.tools.ask_user import ask_user
from dragoman.tools.files import list_files, read_file, search_files, write_file
from dragoman.tools.shell import run_command
from dragoman.tools.tool import Tool

BUILTIN: Final = {tool.name: tool for tool in (list_files, read_file, run_command, search_files, write_file, ask_user)}


def builtin_tools(names: Iterable[str]) -> tuple[Tool, ...]:
    """The built-in tools with these names."""
    requested = list(names)
    for name in requested:
        if name not in BUILTIN:
            raise UnknownToolError(f"no built-in tool is named {name!r}", remedy=f"Use one of: {', '.join(BUILTIN)}")
    return tuple(BUILTIN[name] for name in requested)


@contextlib.asynccontextmanager
async def load_tools(
    builtin: Sequence[str], servers: Sequence[str], settings: Settings, warn: Callable[[str], object]
) -> AsyncIterator[tuple[Tool, ...]]:
    """Connect to the servers and return all tools. ``warn`` receives a line for each tool that is skipped."""
    configured = settings.mcp_servers
    for name in servers:
        if name not in configured:
            raise InputError(
                f"no MCP server {name!r}",
                where=settings.file or "configuration file",
                remedy=f"Add [mcp_servers.{name}], or use one of: {', '.join(sorted(configured)) or 'none'}",
            )
    if not servers:
        yield builtin_tools(builtin)
        return
    from dragoman.tools.mcp import McpTools, servers_from  # noqa: PLC0415  an extra

    async with McpTools(servers_from({name: configured[name] for name in servers})) as mcp_tools:
        for rejected in mcp_tools.rejected:
            warn(f"skipped {rejected.server}__{rejected.tool}: {'; '.join(rejected.reasons)}")
        for failure in mcp_tools.failures.values():
            raise failure
        yield (*builtin_tools(builtin), *mcp_tools.tools)
