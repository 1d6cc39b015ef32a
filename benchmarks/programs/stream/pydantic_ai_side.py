"""Print an answer as it arrives."""

from pydantic_ai import Agent

agent = Agent("anthropic:claude-sonnet-4-5")
result = agent.run_stream_sync("Say hello.")
for text in result.stream_text(delta=True):
    print(text, end="")
