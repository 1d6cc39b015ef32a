"""Print what an answer costs."""

from pydantic_ai import Agent

agent = Agent("anthropic:claude-sonnet-4-5")
print(agent.run_sync("Say hello.").response.cost().total_price)
