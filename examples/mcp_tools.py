"""Give a model the tools of an MCP server. Here the server is this same program, started with the argument "serve"."""

import asyncio
import sys

from mcp.server import MCPServer

from dragoman import Agent, SideEffects
from dragoman.tools.mcp import McpServer, McpTools

CLOCK = McpServer(name="clock", command=sys.executable, args=(__file__, "serve"), side_effects=SideEffects.READ)


def serve() -> None:
    """Run the MCP server on standard input and output."""
    server = MCPServer("clock")

    @server.tool()
    def time_in(city: str) -> str:  # pyright: ignore[reportUnusedFunction]
        """The time in a city."""
        return f"12:00 in {city}"

    server.run()


async def main() -> None:
    async with McpTools([CLOCK]) as mcp, Agent(model="claude-sonnet-5-5", tools=mcp.tools) as agent:
        answer = await agent.ask("What time is it in Bern?")
        print(answer.text)


if sys.argv[1:] == ["serve"]:
    serve()
else:
    asyncio.run(main())
