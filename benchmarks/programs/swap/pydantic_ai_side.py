"""Continue a conversation with the model of another provider."""

from pydantic_ai import Agent

agent = Agent()
first = agent.run_sync("Propose a name.", model="anthropic:claude-sonnet-4-5")
second = agent.run_sync("Argue against it.", model="openai-chat:gpt-4o", message_history=first.all_messages())
print(second.output)
