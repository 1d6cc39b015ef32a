"""Which tools a command offers to a model: built-in ones by name, and those of MCP servers that the settings name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

from dragoman.cli.terminal import safe_line
from dragoman.errors import InputError
from dragoman.settings import Settings
from dragoman.tools import Tool, builtin_tools


@contextlib.asynccontextmanager
async def offered(
    builtin: Sequence[str], servers: Sequence[str], settings: Settings
) -> AsyncIterator[tuple[Tool, ...]]:
    """The tools, while the servers that some of them come from are connected."""
    known = settings.mcp_servers
    for name in servers:
        if name not in known:
            raise InputError(
                f"no MCP server {name!r}",
                where=settings.file or "configuration file",
                remedy=f"Describe it under [mcp_servers.{name}]; there are {', '.join(sorted(known)) or 'none'}",
            )
    if not servers:
        yield builtin_tools(builtin)
        return
    from dragoman.tools.mcp import McpTools, servers_from  # noqa: PLC0415  an extra

    async with McpTools(servers_from({name: known[name] for name in servers})) as found:
        for refused in found.refused:
            sys.stderr.write(f"left out {refused.server}__{refused.tool}: {safe_line('; '.join(refused.reasons))}\n")
        for failure in found.failures.values():
            raise failure
        yield (*builtin_tools(builtin), *found.tools)
