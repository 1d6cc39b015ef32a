"""Which tools are offered to a model: built-in ones by name, and those of MCP servers that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from dragoman.errors import InputError
from dragoman.settings import Settings
from dragoman.tools.builtin import builtin_tools
from dragoman.tools.declaring import Tool


@contextlib.asynccontextmanager
async def offered(
    builtin: Sequence[str], servers: Sequence[str], settings: Settings, say: Callable[[str], object]
) -> AsyncIterator[tuple[Tool, ...]]:
    """The tools, while the servers that some of them come from are connected. ``say`` is told what was left out."""
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
            say(f"left out {refused.server}__{refused.tool}: {'; '.join(refused.reasons)}")
        for failure in found.failures.values():
            raise failure
        yield (*builtin_tools(builtin), *found.tools)
