"""An agent with the tools of an MCP server."""

import dragoman
from dragoman import McpServer, SideEffects

server = McpServer(name="clock", command="python", args=("clock.py",), side_effects=SideEffects.READ)
print(dragoman.ask("What time is it?", model="claude-sonnet-4-5", tools=[server]).text)
