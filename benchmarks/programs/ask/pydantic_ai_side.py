"""Ask a model, and print its answer."""

from pydantic_ai import Agent

agent = Agent("anthropic:claude-sonnet-4-5")
print(agent.run_sync("Say hello.").output)
