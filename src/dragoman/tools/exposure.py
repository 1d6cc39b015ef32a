"""Which tools are offered to a model: built-in ones by name, and those of MCP servers that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from dragoman.errors import InputError
from dragoman.settings import Settings
from dragoman.tools.builtin import builtin_tools
from dragoman.tools.tool import Tool


@contextlib.asynccontextmanager
async def load_tools(
    builtin: Sequence[str], servers: Sequence[str], settings: Settings, warn: Callable[[str], object]
) -> AsyncIterator[tuple[Tool, ...]]:
    """The tools, while the servers that some of them come from are connected. ``say`` is told what was left out."""
    configured = settings.mcp_servers
    for name in servers:
        if name not in configured:
            raise InputError(
                f"no MCP server {name!r}",
                where=settings.file or "configuration file",
                remedy=f"Describe it under [mcp_servers.{name}]; there are {', '.join(sorted(configured)) or 'none'}",
            )
    if not servers:
        yield builtin_tools(builtin)
        return
    from dragoman.tools.mcp import McpTools, servers_from  # noqa: PLC0415  an extra

    async with McpTools(servers_from({name: configured[name] for name in servers})) as mcp_tools:
        for rejected in mcp_tools.rejected:
            warn(f"left out {rejected.server}__{rejected.tool}: {'; '.join(rejected.reasons)}")
        for failure in mcp_tools.failures.values():
            raise failure
        yield (*builtin_tools(builtin), *mcp_tools.tools)
