"""A conversation of two questions, without asyncio."""

from dragoman import Agent

with Agent(model="claude-sonnet-4-5") as agent:
    first = agent.ask("My name is Ada.")
    print(agent.ask("What is my name?", session=first.session_id).text)
