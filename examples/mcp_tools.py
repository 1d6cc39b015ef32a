"""Give a model the tools of an MCP server. Here the server is this same program, started with the argument "serve"."""

import sys

from mcp.server import MCPServer

from dragoman import Agent, McpServer, SideEffects


def time_in(city: str) -> str:
    """The time in a city."""
    return f"12:00 in {city}"


if sys.argv[1:] == ["serve"]:
    server = MCPServer("clock")
    server.add_tool(time_in)
    server.run()
else:
    clock = McpServer(name="clock", command=sys.executable, args=(__file__, "serve"), side_effects=SideEffects.READ)
    with Agent(model="claude-sonnet-5-5", tools=[clock]) as agent:
        print(agent.ask("What time is it in Bern?").text)
