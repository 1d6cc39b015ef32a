"""An agent with the tools of an MCP server."""

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

agent = Agent("anthropic:claude-sonnet-4-5", toolsets=[MCPToolset("clock.py")])
print(agent.run_sync("What time is it?").output)
