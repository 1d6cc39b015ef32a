"""A conversation of two questions, without asyncio."""

from pydantic_ai import Agent

agent = Agent("anthropic:claude-sonnet-4-5")
first = agent.run_sync("My name is Ada.")
print(agent.run_sync("What is my name?", message_history=first.all_messages()).output)
